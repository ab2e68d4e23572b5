"""Examples of agents with the real packages: OpenAI's SDK plays an evaluation; inspect_ai and verifiers are trained."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentgym.cli.main import verbs
from agentgym_servers.inference.app import create_inference_app
from agentgym_servers.web.run import serve_in_thread
from agentgym_trainers.nn import tiny
from agentgym_trainers.rollout.served_model import ServedModel
from agentgym_trainers.rollout.tokens import ChatTemplate
from agentgym_trainers.testing import ScriptedEngine

ROOT = Path(__file__).resolve().parent.parent.parent


def test_an_agent_of_the_openai_sdk_is_evaluated(upstream, tmp_path):
    if subprocess.run([upstream, "-c", "import openai, gymnasium, httpx"], capture_output=True).returncode:
        pytest.skip("the interop environment has no openai: delete .venv-interop and run `make interop`")
    tokenizer = tiny.make_tokenizer(["user\n", "assistant\n", "left", "go north"] * 3, 320, 640)
    template = ChatTemplate(tokenizer)
    engine: Any = ScriptedEngine(lambda call, prompt: [*template.encode("left"), tokenizer.eos_token_id])
    served = ServedModel(engine, template, name="m", max_sequences=2, max_tokens=20)
    agent = shlex.join([upstream, str(ROOT / "examples" / "agents" / "openai_agent.py")])
    with serve_in_thread(create_inference_app(served)) as url:
        arguments = ["eval", f"{url}/v1", "--model", "m", "--agent", agent, "--env", "oracle", "--split", "train"]
        path = ":".join(entry for entry in sys.path if entry.startswith(str(ROOT)) and "site-packages" not in entry)
        done = CliRunner().invoke(
            verbs, [*arguments, "--tasks", "1", "--json", "--out", str(tmp_path)], env={"PYTHONPATH": path}
        )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["overall"]["turns"] == 3
    (log,) = (tmp_path / "agents").glob("*.log")
    assert log.read_text() == "reward 0, success False\n"


@pytest.mark.parametrize("example", ["inspect", "verifiers"])
def test_examples_are_trained_while_they_play(upstream, verifiers, tmp_path, monkeypatch, example):
    """Two steps, asynchronously, by the policy's own tokens, with scorers of the other side."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # verifiers starts `uv`, which leaves a lock there
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    interpreter = verifiers if example == "verifiers" else upstream
    agent = shlex.join([interpreter, str(ROOT / "examples" / "agents" / f"{example}_agent.py")])
    options = [
        *("env.name=oracle", "env.serve=false", "source.kind=external_agent", f"source.command={agent}"),
        *("run.steps=2", "rollout.groups=1", "rollout.group_size=2", "rollout.concurrency=2", "rollout.staleness=1"),
        *("rollout.lockstep=false", "rollout.max_length=640", "loss.entropy=0.1", "eval.tasks=0", "eval.split=train"),
        *("model.tiny.hidden_size=32", "model.tiny.layers=1"),
        *("sft.demonstrations=64", "sft.max_steps=5", "sft.stop_at_success="),
    ]
    out = tmp_path / "run"
    done = CliRunner().invoke(verbs, ["train", "quickstart", *options, "--out", str(out)])
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["phase"] == "rl"]
    assert [line["rollout/turns"] for line in steps] == [1, 1]
    assert [line["rollout/failed"] + line["rollout/forks"] for line in steps] == [0, 0]
    assert max(line["policy/engine_gap"] for line in steps) < 1e-4
    assert min(line["optim/grad_norm"] for line in steps) > 0
