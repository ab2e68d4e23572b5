"""`agentgym push`: a run's model as a folder, and on a server that takes what the hub's client sends."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from transformers import AutoModelForCausalLM

from agentgym.cli.main import main
from agentgym_trainers.load import checkpoint_policy
from agentgym_trainers.nn import checkpoint
from agentgym_trainers.publishing.model_card import write_model
from agentgym_trainers.recipe import resolve, to_toml

EVALUATED = {"success": 0.5, "low": 0.4, "high": 0.6, "tasks": 32, "attempts": 2, "failed": 1}
PLAYED = {"policy": "step-000003 of grpo", "suite": {"seeds": [7]}, "panel": {"keydoor test": "sha256:ab12"}}


@pytest.fixture
def run_folder(kit, tokenizer, tmp_path) -> Path:
    run = tmp_path / "run"
    for step in (0, 3):
        model = kit.build("qwen3", len(tokenizer))
        checkpoint.save(run / "checkpoints" / f"step-{step:06d}", model, tokenizer, {"step": step})
    named = ["env.name=tools-dialogue:user=http://h/v1,model=m,api_key=hidden", "rollout.max_new_tokens=11"]
    config = resolve("grpo", [*named, "prompt_format.window=3", "sft=", "run.seed=5"])
    (run / "config.toml").write_text(to_toml(config), encoding="utf-8")
    (run / "eval" / "after").mkdir(parents=True)
    summary = {"before": EVALUATED, "after": EVALUATED, "difference": {"estimate": 0.25, "low": 0.1, "high": 0.4}}
    (run / "eval" / "summary.json").write_text(json.dumps(summary))
    (run / "eval" / "after" / "run.json").write_text(json.dumps(PLAYED))
    return run


def test_a_published_model_acts_as_in_its_run(run_folder, tmp_path) -> None:
    folder = write_model(run_folder, tmp_path / "model")
    assert not (folder / "trainer.pt").exists()
    assert AutoModelForCausalLM.from_pretrained(folder).num_parameters() > 0
    there, here = (
        checkpoint_policy(path, temperature=None, max_new_tokens=None, max_sequences=2)
        for path in (run_folder / "checkpoints" / "step-000003", folder)
    )
    assert here.prompt_format == there.prompt_format
    assert here.prompt_format.window == 3
    assert here.policy.sampling == there.policy.sampling
    assert here.policy.sampling.max_new_tokens == 11


def test_a_card_says_what_was_measured(run_folder, tmp_path) -> None:
    text = (write_model(run_folder, tmp_path / "model") / "README.md").read_text(encoding="utf-8")
    assert "| paired difference | 25.0 [10.0, 40.0] |" in text
    assert "32 of keydoor test (sha256:ab12)" in text
    assert "seed 5" in text
    assert "too few tasks" not in text
    summary = run_folder / "eval" / "summary.json"
    summary.write_text(summary.read_text().replace('"tasks": 32', '"tasks": 2'))
    few = (write_model(run_folder, tmp_path / "few") / "README.md").read_text(encoding="utf-8")
    assert "These are too few tasks for an interval." in few
    first = (write_model(run_folder, tmp_path / "first", step=0) / "README.md").read_text(encoding="utf-8")
    assert "The run made no evaluation of this checkpoint." in first
    assert "paired" not in first


def test_a_key_stays_at_home(run_folder, tmp_path) -> None:
    folder = write_model(run_folder, tmp_path / "model")
    texts = [path.read_text(encoding="utf-8") for path in (folder / "README.md", folder / "agentgym.toml")]
    assert all("api_key=removed" in text and "hidden" not in text for text in texts)


@pytest.fixture
def hub(monkeypatch) -> Iterator[dict[str, bytes]]:
    """Files of the one repository of a hub, which takes a commit and refuses whoever is not logged in."""
    files: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            url = f"http://127.0.0.1:{self.server.server_address[1]}/me/door"
            answer: dict[str, Any] = {"url": url, "commitUrl": f"{url}/commit/{'0' * 40}", "commitOid": "0" * 40}
            status = 200 if self.headers.get("Authorization") == "Bearer mine" else 401
            if self.path.endswith("/preupload/main"):
                names = [file["path"] for file in json.loads(body)["files"]]
                answer = {"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]}
            elif self.path.endswith("/commit/main"):
                lines = [json.loads(line) for line in body.splitlines()]
                sent = [line["value"] for line in lines if line["key"] == "file"]
                files.update({file["path"]: base64.b64decode(file["content"]) for file in sent})
            self._answer(status, answer)

        def do_GET(self) -> None:
            self._answer(404, {})

        def _answer(self, status: int, answer: dict[str, Any]) -> None:
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
    yield files
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_hub_gets_the_model_and_its_card(run_folder, hub, monkeypatch, capsys) -> None:
    monkeypatch.setenv("HF_TOKEN", "mine")
    main(["push", str(run_folder), "me/door"])
    assert "published: http://127.0.0.1" in capsys.readouterr().out
    assert {"README.md", "agentgym.toml", "config.json", "model.safetensors", "tokenizer.json"} <= set(hub)
    assert "trainer.pt" not in hub
    weights = run_folder / "checkpoints" / "step-000003" / "model.safetensors"
    assert hub["model.safetensors"] == weights.read_bytes()


def test_what_cannot_be_published_is_refused(run_folder, hub, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("HF_TOKEN", "another's")
    for arguments, sentence in (
        (["me/door"], "log in by `hf auth login`, or set HF_TOKEN"),
        (["a b/c"], "'a b/c' is no name of a repository: write OWNER/NAME"),
        ([], "name a repository"),
        (["--to", str(run_folder)], "holds something; name a new folder"),
        (["--to", str(tmp_path / "new"), "--step", "9"], "has no checkpoint of step 9; it has 0, 3"),
    ):
        with pytest.raises(SystemExit):
            main(["push", str(run_folder), *arguments])
        assert sentence in capsys.readouterr().err
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(SystemExit):
        main(["push", str(run_folder), "me/door"])
    assert "cannot be reached" in capsys.readouterr().err
    assert not hub
