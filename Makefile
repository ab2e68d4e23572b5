# Everything runs in .venv; `make quickstart` and `make test` set it up themselves.
PYTHON ?= python3.11
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: quickstart test check proofs clean

quickstart: .venv/ready
	$(BIN)/agentgym quickstart

test: .venv/ready
	$(BIN)/python -m pytest

# Style and types.
check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# Slower proofs: each prints its figures beside its peer in the same run.
proofs: .venv/ready
	$(BIN)/python benchmarks/engine.py --episodes 64

.venv/ready: pyproject.toml constraints.txt
	command -v $(PYTHON) >/dev/null || { echo "AgentGym needs Python 3.11: set PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[all]'
	touch $@

clean:
	rm -rf .venv dist build .pytest_cache .ruff_cache .hypothesis
