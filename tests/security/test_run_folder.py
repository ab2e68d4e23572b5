"""A run's folder that was damaged is mended or refused with a sentence when the run is resumed; nothing is executed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.progress import Progress

from agentgym.errors import ConfigError, UsageError
from agentgym.rollouts.trajectory import read_jsonl
from agentgym_trainers.config.sections import Config
from agentgym_trainers.nn import checkpoint
from agentgym_trainers.run import load_run, run

CONFIG = Config.model_validate(
    {
        "name": "damaged",
        "run": {"steps": 4, "checkpoint_every": 2, "keep_checkpoints": 3, "trajectories_every": 4},
        "model": {"tiny": {"hidden_size": 16, "layers": 1, "intermediate_size": 16, "vocab_size": 320}},
        "env": {"name": "oracle", "serve": False},
        "rollout": {"groups": 2, "group_size": 2, "max_new_tokens": 4, "max_length": 640, "concurrency": 4},
        "credit": {"assigner": "rloo"},
        "eval": {"split": "train", "tasks": 0},
    }
)


def carry_on(folder: Path, *, resume: bool = True) -> None:
    progress = Progress(console=Console(file=StringIO()))
    asyncio.run(run(CONFIG, folder, resume=resume, progress=progress))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    carry_on(folder, resume=False)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Iterator[Path]:
    shutil.copytree(finished, tmp_path / "run")
    yield tmp_path / "run"
    assert not (tmp_path / "run" / "executed").exists()


def newest(folder: Path) -> Path:
    return folder / "checkpoints" / "step-000004"


def metrics(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        path = folder / "metrics.jsonl"
        path.write_bytes(change(path.read_bytes()))

    return damage


def manifest(change: Callable[[dict[str, str]], Any]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        path = newest(folder) / "manifest.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return damage


def without(name: str) -> Callable[[Path], object]:
    return manifest(lambda files: {key: value for key, value in files.items() if key != name})


def state(content: Callable[[Path], Any], name: str = "trainer.pt") -> Callable[[Path], object]:
    """Another trainer.pt, with a manifest that agrees."""

    def damage(folder: Path) -> None:
        path = newest(folder) / name
        found = content(path)
        path.write_bytes(found) if isinstance(found, bytes) else torch.save(found, path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        manifest(lambda files: {**files, name: digest})(folder)

    return damage


def empty(folder: Path) -> None:
    for path in newest(folder).iterdir():
        path.unlink()


class Deed:
    """What a pickle would do."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def loaded(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)


WROTE = r"metrics\.jsonl is not what the run wrote until its checkpoint of step 4"
DELETE = r"delete \S*step-000004 to go on from the one before"
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "metrics cut": (metrics(lambda text: text[: len(text) // 2]), rf"{WROTE} .*until step [12] can be read"),
    "metrics cut at a line": (metrics(lambda text: b"".join(text.splitlines(True)[:2])), rf"{WROTE} .*until step 2 "),
    "metrics empty": (metrics(lambda text: b""), WROTE),
    "metrics garbage": (metrics(lambda text: b"\xff\x00" * (len(text) // 2)), WROTE),
    "metrics garbage of the same length": (metrics(lambda text: b"x" * len(text)), rf"{WROTE} .*until step 0 "),
    "metrics with a number changed": (metrics(lambda text: text.replace(b'"step": 2', b'"step": 3')), WROTE),
    "metrics with a half line": (metrics(lambda text: text.replace(b"}\n", b"\n", 1)), WROTE),
    "metrics with a line more before": (metrics(lambda text: b"{}\n" + text), WROTE),
    "metrics without the last newline": (metrics(lambda text: text[:-1]), WROTE),
    "metrics nested": (metrics(lambda text: b"[" * 50_000 + b"\n"), WROTE),
    "metrics deleted": (lambda folder: (folder / "metrics.jsonl").unlink(), r"metrics\.jsonl is gone until"),
    "manifest a list": (manifest(lambda files: []), DELETE),
    "manifest empty": (manifest(lambda files: {}), DELETE),
    "manifest null": (manifest(lambda files: None), DELETE),
    "manifest a string": (manifest(lambda files: "trainer.pt model.safetensors config.json"), DELETE),
    "manifest of numbers": (manifest(lambda files: dict.fromkeys(files, 1)), DELETE),
    "manifest without the model": (without("model.safetensors"), DELETE),
    "manifest without the state": (without("trainer.pt"), DELETE),
    "manifest without the configuration": (without("config.json"), DELETE),
    "manifest without the tokenizer": (without("tokenizer.json"), r"tokenizer\.json was not written"),
    "manifest with a path outside": (manifest(lambda files: {**files, "../x": "0"}), DELETE),
    "manifest not UTF-8": (lambda folder: (newest(folder) / "manifest.json").write_bytes(b"\xff{}"), DELETE),
    "manifest deleted": (lambda folder: (newest(folder) / "manifest.json").unlink(), DELETE),
    "manifest nested": (lambda folder: (newest(folder) / "manifest.json").write_text("[" * 50_000), DELETE),
    "a file more": (lambda folder: (newest(folder) / "chat_template.json").write_text("{}"), "delete that file"),
    "state text": (state(lambda path: b"no pickle"), DELETE),
    "state empty": (state(lambda path: b""), DELETE),
    "state cut": (state(lambda path: path.read_bytes()[:500]), DELETE),
    "state a pickle": (state(lambda path: pickle.dumps(Deed(path.parents[2] / "executed"))), DELETE),
    "state with a deed": (state(lambda path: {"step": Deed(path.parents[2] / "executed")}), DELETE),
    "state a list": (state(lambda path: [1]), DELETE),
    "state of another step": (state(lambda path: {**loaded(path), "step": 2}), "under another's name"),
    "state without a part": (state(lambda path: {"step": 4, "metrics_bytes": 0}), "does not fit this run"),
    "state of nothing": (state(lambda path: {}), DELETE),
    "state with a part of another type": (state(lambda path: {**loaded(path), "curriculum": 5}), "does not fit"),
    "state with bytes of another type": (state(lambda path: {**loaded(path), "metrics_bytes": "x"}), "does not fit"),
    "weights garbage": (state(lambda path: b"x" * 100, "model.safetensors"), "not a model that transformers can load"),
    "tokenizer garbage": (state(lambda path: b"{", "tokenizer.json"), "not a model that transformers can load"),
    "checkpoint emptied": (empty, DELETE),
    "checkpoint with a stray folder": (lambda folder: (folder / "checkpoints/step-999999").mkdir(), "step-999999"),
    "checkpoint copied to another name": (
        lambda folder: shutil.copytree(newest(folder), folder / "checkpoints" / "step-000010"),
        "step-000010",
    ),
    "configuration not UTF-8": (lambda folder: (folder / "config.toml").write_bytes(b'x = "\xff"'), "not text in UTF"),
    "configuration garbage": (lambda folder: (folder / "config.toml").write_bytes(b"\x00["), "is not TOML"),
    "configuration nested": (lambda folder: (folder / "config.toml").write_text("x = " + "[" * 50_000), "is not TOML"),
    "configuration empty": (lambda folder: (folder / "config.toml").write_text(""), "config.toml"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_damaged_run_is_refused_with_one_sentence(folder: Path, name: str) -> None:
    damage, sentence = REFUSED[name]
    damage(folder)
    before = (folder / "metrics.jsonl").read_bytes() if (folder / "metrics.jsonl").exists() else b""
    with pytest.raises(UsageError, match=sentence) as refusal:
        carry_on(folder)
    assert "\n" not in str(refusal.value)
    if (folder / "metrics.jsonl").exists():
        assert (folder / "metrics.jsonl").read_bytes() == before, "a refused run changes nothing"


MENDED: dict[str, Callable[[Path], object]] = {
    "nothing": lambda folder: None,
    "lines after the checkpoint": metrics(lambda text: text + b'{"phase": "rl", "step": 5}\n'),
    "a half line after the checkpoint": metrics(lambda text: text + b'{"phase": "rl", "st'),
    "garbage after the checkpoint": metrics(lambda text: text + b"\xff" * 1000),
    "a stray folder": lambda folder: (folder / "checkpoints" / "step-xyz").mkdir(),
    "a stray file": lambda folder: (folder / "checkpoints" / "step-000099").write_text("x"),
    "a checkpoint half written": lambda folder: (folder / "checkpoints" / ".step-000006.partial").mkdir(),
    "a short name": lambda folder: (folder / "checkpoints" / "step-9").mkdir(),
    "the newest checkpoint deleted": lambda folder: shutil.rmtree(newest(folder)),
    "a hidden file": lambda folder: (newest(folder) / ".DS_Store").write_text("x"),
}


@pytest.mark.parametrize("name", MENDED)
def test_what_came_after_the_checkpoint_is_cut_off(finished: Path, folder: Path, name: str) -> None:
    MENDED[name](folder)
    carry_on(folder)
    assert checkpoint.latest(folder) == newest(folder)

    def steps(path: Path) -> list[Any]:
        lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]

    assert [line["step"] for line in steps(folder)] == [line["step"] for line in steps(finished)] == [1, 2, 3, 4]


def test_a_stray_folder_survives_pruning(tmp_path: Path) -> None:
    for name in ("step-000000", "step-000002", "step-000004", "step-xyz"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert [path.name for path in checkpoint.prune(tmp_path, 1)] == ["step-000004"]


@pytest.mark.parametrize("content", [b'name = "\xff"', b"x = " + b"[" * 50_000, b""])
def test_a_recipe_of_another_encoding_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.toml").write_bytes(content)
    with pytest.raises(ConfigError) as refusal:
        load_run(tmp_path)
    assert len(str(refusal.value)) < 2000


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"reward": 1e308}, "the reward should be"),
        ({"reward": "1"}, "the reward should be"),
        ({"reward": None}, "the reward should be"),
        ({"info": {"success": "no"}}, r"info\['success'\] is 'no', not a bool \(it is a str\)"),
        ({"info": []}, "info should be a dict"),
    ],
)
def test_a_recorded_trajectory_is_checked(finished: Path, tmp_path: Path, changed: dict, sentence: str) -> None:
    (source,) = (finished / "trajectories").glob("*.jsonl")
    record = json.loads(source.read_text().splitlines()[0])
    record["turns"][0] |= changed
    path = tmp_path / "recorded.jsonl"
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(UsageError, match=rf"line 1 is not a trajectory: .*{sentence}"):
        list(read_jsonl(path))
