"""Checkpoints: whole or absent, checked when read, and loaded by plain transformers."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from agentgym.errors import CheckpointError
from agentgym_trainers.nn import checkpoint
from agentgym_trainers.nn.attention import use_packed_attention

CHAT = [{"role": "user", "content": "where is the key"}, {"role": "assistant", "content": "here"}]


def save(folder: Path, model: Any, tokenizer: Any, step: int = 0) -> Path:
    return checkpoint.save(folder / "checkpoints" / f"step-{step:06d}", model, tokenizer, {"step": step})


def test_plain_transformers_loads_it(kit, tokenizer, tmp_path) -> None:
    model = kit.build("qwen3", len(tokenizer))
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, len(tokenizer), (1, 12)))
    expected = model(input_ids=ids).logits
    use_packed_attention(model)  # as the trainer's models are
    folder = save(tmp_path, model, tokenizer)
    plain = AutoModelForCausalLM.from_pretrained(folder)
    assert plain.config._attn_implementation == "sdpa"
    torch.testing.assert_close(plain(input_ids=ids).logits, expected, atol=1e-5, rtol=1e-5)
    loaded = AutoTokenizer.from_pretrained(folder)
    text = loaded.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert text == tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert text.endswith("here<|im_end|>\n<|im_start|>assistant\n")
    assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert loaded.eos_token_id == tokenizer.eos_token_id

    again, _ = checkpoint.load_model(folder)
    assert not again.training
    assert again.dtype == torch.float32
    for name, weight in again.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name])
    assert checkpoint.load_state(folder) == {"step": 0}


@pytest.mark.parametrize("how", ["flip", "cut", "delete"])
def test_a_damaged_file_is_named(kit, tokenizer, tmp_path, how) -> None:
    folder = save(tmp_path, kit.build("qwen3", len(tokenizer)), tokenizer)
    names = sorted(json.loads((folder / "manifest.json").read_text()))
    assert {"model.safetensors", "config.json", "tokenizer.json", "trainer.pt"} <= set(names)
    assert {path.name for path in folder.iterdir()} == {*names, "manifest.json"}
    for name in names:
        path = folder / name
        data = path.read_bytes()
        middle = len(data) // 2
        if how == "delete":
            path.unlink()
        else:
            path.write_bytes(data[:middle] + (bytes([data[middle] ^ 1]) + data[middle + 1 :]) * (how == "flip"))
        for load in (checkpoint.load_model, checkpoint.load_state, checkpoint.verify):
            with pytest.raises(CheckpointError, match=rf"{name} is missing or not what was .*; delete .*step-000000"):
                load(folder)
        path.write_bytes(data)
    checkpoint.verify(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match="no readable manifest"):
        checkpoint.load_state(folder)


def test_what_is_not_a_model_is_refused(kit, tokenizer, tmp_path) -> None:
    with pytest.raises(CheckpointError, match="is not a model that transformers can load"):
        checkpoint.load_model(tmp_path)
    folder = save(tmp_path, kit.build("qwen3", len(tokenizer)), tokenizer)
    (folder / "manifest.json").unlink()  # as of a model from elsewhere
    checkpoint.load_model(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="is not a model that transformers can load"):
        checkpoint.load_model(folder)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The kernel refuses to write files beyond `size` bytes, to whatever library."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_what_was_there(kit, tokenizer, tmp_path) -> None:
    model = kit.build("qwen3", len(tokenizer))
    save(tmp_path, model, tokenizer, 1)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    sizes = sorted({path.stat().st_size for path in kept})
    for size in [0, *(s - 1 for s in sizes)]:  # each file in turn is the one that no longer fits
        for step in (1, 2):
            with largest_file(size), pytest.raises(CheckpointError, match=r"could not write .* earlier checkpoints"):
                save(tmp_path, model, tokenizer, step)
            assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == kept
    assert checkpoint.latest(tmp_path) == tmp_path / "checkpoints" / "step-000001"
    save(tmp_path, model, tokenizer, 2)
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == ["step-000001", "step-000002"]


def test_a_bug_in_saving_is_not_called_a_full_disk(kit, tokenizer, tmp_path) -> None:
    model = kit.build("qwen3", len(tokenizer))
    with pytest.raises(AttributeError, match="lambda"):  # what cannot be pickled
        checkpoint.save(tmp_path / "step-000001", model, tokenizer, {"step": lambda: 1})
    with pytest.raises(AttributeError, match="save_pretrained"):
        checkpoint.save_model(tmp_path / "engine", model, object(), model.state_dict())
    assert list(tmp_path.iterdir()) == []


WRITER = """
import sys
from pathlib import Path
from agentgym_trainers.nn import checkpoint
model, tokenizer = checkpoint.load_model(Path(sys.argv[1]) / "source")
print("ready", flush=True)
for step in range(10**6):
    checkpoint.save(Path(sys.argv[1]) / "checkpoints" / f"step-{step % 3:06d}", model, tokenizer, {"step": step})
    checkpoint.prune(Path(sys.argv[1]), 2)
    print(step, flush=True)
"""


def test_a_killed_writer_leaves_complete_checkpoints(kit, tokenizer, tmp_path) -> None:
    """Old ones of the same name are replaced, over and over."""
    checkpoint.save(tmp_path / "source", kit.build("qwen3", len(tokenizer)), tokenizer, {})
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            for _ in range(5):
                writer.stdout.readline()
            time.sleep(np.random.default_rng(0).uniform(0, 0.05))
        finally:
            writer.kill()
    found = sorted((tmp_path / "checkpoints").glob("step-*"))
    assert len(found) >= 2
    for folder in found:
        checkpoint.load_state(folder)


def test_every_moment_of_a_save_leaves_none_or_a_complete_one(kit, tokenizer, tmp_path, monkeypatch) -> None:
    """A copy of the folder is taken at every step between the first file and the last rename."""
    model = kit.build("qwen3", len(tokenizer))
    run = tmp_path / "run"
    save(run, model, tokenizer)
    moments: list[Path] = []

    def before(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            moments.append(tmp_path / f"moment-{len(moments)}")
            shutil.copytree(run, moments[-1])
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", before(torch.save))
        patch.setattr(os, "replace", before(os.replace))
        patch.setattr(os, "fsync", before(os.fsync))
        patch.setattr(shutil, "rmtree", before(shutil.rmtree))
        save(run, model, tokenizer)
    assert len(moments) > 5
    complete = 0
    for moment in moments:
        newest = checkpoint.latest(moment)
        if newest is not None:
            checkpoint.verify(newest)
            complete += 1
    assert complete >= len(moments) - 1  # between the two renames there is none of this step
    for moment in moments[-1:]:
        save(moment, model, tokenizer)
        assert [path.name for path in (moment / "checkpoints").iterdir()] == ["step-000000"]


@pytest.mark.parametrize(("keep", "left"), [(1, [0, 8]), (2, [0, 6, 8]), (4, [0, 2, 4, 6, 8]), (9, [0, 2, 4, 6, 8])])
def test_prune_keeps_the_first_and_the_newest(tmp_path, keep, left) -> None:
    for step in (0, 2, 4, 6, 8):
        (tmp_path / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
    checkpoint.prune(tmp_path, keep)
    assert sorted(checkpoint.step_of(folder) for folder in (tmp_path / "checkpoints").iterdir()) == left
    assert checkpoint.step_of(checkpoint.latest(tmp_path)) == 8


def test_no_checkpoint_yet(tmp_path) -> None:
    assert checkpoint.latest(tmp_path) is None
    checkpoint.prune(tmp_path, 2)
    with pytest.raises(CheckpointError, match="no readable manifest"):
        checkpoint.load_state(tmp_path / "checkpoints" / "step-000000")


def test_nothing_is_printed(kit, tokenizer, tmp_path, capfd) -> None:
    assert transformers_logging.is_progress_bar_enabled()
    folder = save(tmp_path, kit.build("qwen3", len(tokenizer)), tokenizer)
    checkpoint.load_model(folder)
    assert capfd.readouterr() == ("", "")
    assert transformers_logging.is_progress_bar_enabled()
