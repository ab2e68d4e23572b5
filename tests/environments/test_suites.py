"""Benchmarks by name: each shipped suite says what it needs, gets it from a hub, and plays files in its format."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import pytest

from agentgym.errors import ConfigError
from agentgym.evaluation.evaluate import evaluate
from agentgym.evaluation.suite import Suite, load_suite, shipped_suites
from agentgym.rollouts.policy import SolverPolicy
from agentgym_environments.backends.sandbox import backends
from agentgym_environments.tasks.records import HUB, HubFiles, fetch, read_records

from .hub_server import hub

FOREIGN = [name for name in shipped_suites() if load_suite(name).files]
QUESTIONS = [name for name in FOREIGN if load_suite(name).envs[0].name in ("qa", "code")]
"""SWE-bench's are played by tests/containers/test_swebench.py."""
CHOICES = ["a stone", "a feather", "a nail", "a cork"]
# Three tasks each, with the fields that the data set publishes and words of our own.
WORDS = [{"question": f"Which town is number {n}?", "golden_answers": [f"Town {n}"], "id": f"t{n}"} for n in range(3)]
CHECK = (
    "METADATA = {{}}\n\n\ndef check(candidate):\n    assert candidate(5) == {0} + 5\n    assert candidate(-{0}) == 0\n"
)
STAND_INS = {
    "openai/gsm8k": [{"question": f"What is {n} + {n}?", "answer": f"{n}+{n}\n#### {2 * n}"} for n in range(3)],
    "HuggingFaceH4/MATH-500": [
        {"problem": f"What is $2x$ for $x={n}$?", "solution": f"\\boxed{{{2 * n}}}", "answer": str(2 * n),
         "subject": "Algebra", "level": 1, "unique_id": f"test/algebra/{n}.json"} for n in range(3)
    ],
    "HuggingFaceH4/aime_2024": [
        {"id": n, "problem": f"Add $100$ and ${n}$.", "solution": "Add.", "answer": str(100 + n), "year": "2024"}
        for n in range(3)
    ],
    "math-ai/aime25": [{"problem": f"Add $200$ and ${n}$.", "answer": str(200 + n), "id": str(n)} for n in range(3)],
    "cais/mmlu": [
        {"question": f"Which floats? ({n})", "subject": "physics", "choices": CHOICES, "answer": 3} for n in range(3)
    ],
    "allenai/ai2_arc": [
        {"id": f"q{n}", "question": "Which sinks?", "choices": {"text": CHOICES, "label": ["1", "2", "3", "4"]},
         "answerKey": "1"} for n in range(3)
    ],
    "RUC-NLPIR/FlashRAG_datasets": WORDS,
    "openai/openai_humaneval": [
        {"task_id": f"HumanEval/{n}", "prompt": f'def add_{n}(x: int) -> int:\n    """Add {n}."""\n',
         "test": CHECK.format(n), "canonical_solution": f"    return x + {n}\n", "entry_point": f"add_{n}"}
        for n in range(3)
    ],
    "google-research-datasets/mbpp": [
        {"task_id": 11 + n, "text": f"Write a function to add {n}.", "prompt": f"Write a function to add {n}.",
         "code": f"def add(x):\r\n  return x + {n}", "test_setup_code": "", "test_imports": [],
         "challenge_test_list": [], "test_list": [f"assert add({m}) == {m + n}" for m in (1, 5, 8)]} for n in range(3)
    ],
}  # fmt: skip


def content(pattern: str, records: list[dict], folder) -> bytes:
    """A file of the kind that a pattern names."""
    if not pattern.endswith(".parquet"):
        return "".join(f"{json.dumps(record)}\n" for record in records).encode()
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'turngym[data]'")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(records), folder / "x.parquet")
    return (folder / "x.parquet").read_bytes()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A folder in which every foreign suite's stand-in was fetched by the command, from a hub of our own."""
    folder = tmp_path_factory.mktemp("hub")
    repositories: dict[str, dict[str, bytes]] = {name: {} for name in STAND_INS}
    for name in QUESTIONS:
        for source in load_suite(name).files:
            files = HubFiles.parse(source)
            path = files.pattern.replace("*", "00000-of-00001")
            repositories[files.repository][path] = content(files.pattern, STAND_INS[files.repository], folder)
    with hub(repositories) as url:
        here = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(folder), "HF_HUB_DISABLE_XET": "1"}
        command = [sys.executable, "-m", "agentgym", "data", "fetch", *QUESTIONS]
        done = subprocess.run(command, env=here, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("3 records in") == len(QUESTIONS)
    return folder


def of_three(suite: Suite) -> Suite:
    envs = [env.model_copy(update={"tasks": 3}) for env in suite.envs]
    return suite.model_copy(update={"envs": tuple(envs)})


@pytest.fixture
def offline(cache, monkeypatch):
    """The fetched files, and no hub."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="pip install 'turngym[data]'")
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.setattr(constants, name, str(cache / "hub"), raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_suite_plays_files_in_its_format(name, offline, tmp_path):
    suite = of_three(load_suite(name))
    if suite.envs[0].kwargs and name.startswith(("math", "aime")):
        pytest.importorskip("math_verify", reason="math-verify is not installed: pip install 'turngym[math]'")
    if suite.envs[0].name.startswith("code"):
        backends.choose("auto")  # skips where no sandbox works
    report = asyncio.run(evaluate(suite, SolverPolicy(), tmp_path, identity="solver"))
    assert report.summary.overall.success is not None
    assert report.summary.overall.success.estimate == 1


@pytest.mark.parametrize("name", FOREIGN)
def test_a_suite_says_whose_it_is(name):
    suite = load_suite(name)
    assert suite.source.startswith("https://")
    assert suite.licence
    assert suite.metric
    assert suite.status
    assert suite.published or suite.envs[0].name != "qa"


def test_a_suite_whose_folder_is_missing_names_the_command(tmp_path):
    command = [sys.executable, "-m", "agentgym", "eval", "solver", "--suite", "terminal-bench-2"]
    done = subprocess.run(
        command, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert f"terminal-bench-2: {load_suite('terminal-bench-2').download}" in done.stderr


def test_a_suite_whose_data_is_missing_names_the_command(tmp_path):
    here = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "agentgym", "eval", "solver", "--suite", "gsm8k"]
    done = subprocess.run(command, env=here, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 2
    assert "error: gsm8k needs hf:openai/gsm8k/main/test-*.parquet: agentgym data fetch gsm8k" in done.stderr


@pytest.mark.parametrize("source", ["hf:openai", "hf:openai/gsm8k", "hf:openai/gsm8k/", "hf:/a/b"])
def test_names_of_files_of_the_hub(source):
    with pytest.raises(ConfigError, match="names no files: write hf:OWNER/NAME/FILE"):
        read_records(source)


def test_a_revision_can_be_named():
    assert HubFiles.parse("hf:a/b@v2/x/*.jsonl") == ("a/b", "v2", "x/*.jsonl")
    assert HubFiles.parse(f"{HUB}a/b/x.jsonl") == ("a/b", "main", "x.jsonl")


def test_a_hub_that_cannot_be_reached(monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants", reason="pip install 'turngym[data]'")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"hf:a/b/c.jsonl cannot be fetched"):
        fetch("hf:a/b/c.jsonl")


@pytest.mark.parametrize("name", ["alfworld-seen", "webshop", "terminal-bench-2", "webarena"])
def test_data_beside_the_hub_has_a_command_of_its_own(name):
    command = [sys.executable, "-m", "agentgym", "data", "fetch", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert f"error: {name} is not on the Hugging Face hub: {load_suite(name).download}" in done.stderr
