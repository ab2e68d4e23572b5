"""A model behind `agentgym infer serve` plays several suites by one command, is killed, goes on, and is looked at."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentgym import registry
from agentgym.cli.main import main
from agentgym_trainers.nn import tiny

Say = Callable[..., str]
CLI = [sys.executable, "-m", "agentgym"]
LENGTH = 4096


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "small"
    texts = [registry.get_spec(name).instructions for name in ("tools", "wordle", "maze")]
    tokenizer = tiny.make_tokenizer(texts, 400, LENGTH)
    shape = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=16, intermediate_size=48, max_position_embeddings=LENGTH, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    Qwen3ForCausalLM(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def url(model) -> Iterator[str]:
    command = [*CLI, "infer", "serve", str(model), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"{process.stdout.readline().split()[-1]}/v1"
        finally:
            process.send_signal(signal.SIGINT)


@pytest.fixture
def say(capsys) -> Say:
    """Carry out a command of `agentgym`; what it printed."""

    def command(*arguments: object) -> str:
        capsys.readouterr()
        main([*map(str, arguments)])
        return capsys.readouterr().out

    return command


def attempts(folder: Path) -> list[str]:
    path = folder / "attempts.jsonl"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("dialogue", "tools"), id="two"),
        pytest.param(("all",), id="all", marks=[pytest.mark.every, pytest.mark.timeout(3600)]),
    ],
)
def test_a_served_model_plays_suites_is_killed_and_goes_on(url, say, tmp_path, names):
    suites = [word for name in names for word in ("--suite", name)]
    command = [
        "eval",
        url,
        "--model",
        "small",
        *suites,
        "--limit",
        "2",
        "--max-new-tokens",
        "8",
        "--out",
        tmp_path / "a",
    ]
    killed = subprocess.Popen([*CLI, *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 1800
    while len(attempts(tmp_path / "a" / "tools")) < 3:
        assert killed.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    before = {folder.name: attempts(folder) for folder in (tmp_path / "a").iterdir()}
    table = say(*command)
    played = [folder for folder in sorted((tmp_path / "a").iterdir()) if (folder / "summary.json").exists()]
    assert {"dialogue", "tools"} <= {folder.name for folder in played}
    for folder in played:
        assert folder.name in table
        overall = json.loads((folder / "summary.json").read_text())["overall"]
        lines = attempts(folder)
        assert len(lines) == overall["attempts"] + sum(overall["failed"].values())
        complete = [line for line in before.get(folder.name, []) if line.endswith("}")]
        assert lines[: len(complete)] == complete, "what was played before the kill was played again"
        keys = {tuple(json.loads(line)[name] for name in ("env", "split", "task", "attempt", "seed")) for line in lines}
        assert len(keys) == len(lines)
        assert overall["completion_tokens"] > 0
    say("eval", "random", *suites, "--limit", "1", "--out", tmp_path / "b")
    compared = say("eval", "compare", tmp_path / "a" / "tools", tmp_path / "b" / "tools")
    assert "paired" in compared
    for form in ("csv", "json", "openai", "atif"):
        say("eval", "export", tmp_path / "a" / "tools", "--format", form, "--out", tmp_path / f"to-{form}")
    view(say, tmp_path)


def view(say: Say, folder: Path) -> None:
    """The page of an evaluation in a real browser: an attempt's turns are there, and nothing is complained of."""
    sync = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
    executable = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium"))), None)
    if executable is None:
        pytest.skip("the page is not looked at, which needs a Chromium: apt-get install chromium-headless-shell")
    page_path = folder / "page.html"
    say("eval", "view", folder / "a" / "tools", "--out", page_path)
    errors: list[str] = []
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(page_path.as_uri())
        total = len(attempts(folder / "a" / "tools"))
        assert page.inner_text("#count") == f"{total} of {total} attempts"
        assert page.locator("#attempt .turn").count() > 0
        browser.close()
    assert errors == []
