"""Checkpoints: a folder that `transformers` loads by itself, with the trainer's state and a manifest beside it.

    checkpoints/step-000050/   config.json  model.safetensors  tokenizer.json ...  trainer.pt  slices/  manifest.json

A checkpoint appears whole or not at all: it is written under another name, synced, then renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import logging as transformers_logging

from agentgym.errors import CheckpointError
from agentgym_trainers.nn import vision
from agentgym_trainers.nn.lora import Adapter
from agentgym_trainers.nn.slices import read_slices

REQUIRED = ("config.json", "model.safetensors", "trainer.pt")
"""Files of every checkpoint."""
_NAME = re.compile(r"step-(\d{6,})", re.ASCII)


def save(
    folder: Path,
    model: Any,
    tokenizer: Any,
    state: dict[str, Any] | Callable[[Path], dict[str, Any]],
    weights: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write a checkpoint to `folder`, with `weights` for the model's own where they are given. `state` may be a
    function of the folder that becomes the checkpoint, and write files of its own there (`slices`).

    Raises CheckpointError, leaving no part of it, when the disk refuses.
    """
    partial, old = (folder.with_name(f".{folder.name}.{what}") for what in ("partial", "old"))
    for left in (partial, old):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    refused = f"could not write {folder} ({{}}); earlier checkpoints are untouched: free some space and resume"
    with _disk_errors(refused, partial):
        partial.mkdir(parents=True)
        _write_model(partial, model, tokenizer, weights)
        kept = state(partial) if callable(state) else state
        with (partial / "trainer.pt").open("wb") as file:  # a file of Python's keeps the system's error
            torch.save(kept, file)
        files = [path for path in sorted(partial.rglob("*")) if path.is_file()]
        manifest = {path.relative_to(partial).as_posix(): _digest(path) for path in files}
        (partial / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        for path in [*partial.rglob("*"), partial]:
            _sync(path)
        if folder.exists():
            os.replace(folder, old)
        os.replace(partial, folder)
        _sync(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    return folder


def save_model(folder: Path, model: Any, tokenizer: Any, weights: Mapping[str, Tensor]) -> None:
    """Write a model with `weights` in place of its own, as transformers and vLLM load it; what was there is replaced.
    Raises CheckpointError when the disk refuses."""
    with _replacing(folder) as partial:
        _write_model(partial, model, tokenizer, weights)


def save_adapter(folder: Path, adapter: Adapter) -> None:
    """Write an adapter as peft and vLLM load it; what was there is replaced. Raises CheckpointError when the disk
    refuses."""
    with _replacing(folder) as partial:
        adapter.save(partial)


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """A folder to write to, which then takes the place of `folder`."""
    partial = folder.with_name(f".{folder.name}.partial")
    with _disk_errors(f"could not write {folder} ({{}}): free some space, or take another folder", partial):
        for left in (partial, folder):
            shutil.rmtree(left, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        os.replace(partial, folder)


def _write_model(folder: Path, model: Any, tokenizer: Any, weights: Mapping[str, Tensor] | None) -> None:
    """The files that transformers loads: weights, tokenizer, and the image processor of a vision-language model."""
    with _quiet():
        model.save_pretrained(folder, state_dict=None if weights is None else dict(weights))
        tokenizer.save_pretrained(folder)
        if (reader := vision.reader_of(tokenizer)) is not None:
            reader.processor.save_pretrained(folder)


@contextmanager
def _disk_errors(message: str, partial: Path) -> Iterator[None]:
    """Delete `partial` on any error; raise CheckpointError with `message` when the disk refused. Bugs stay bugs."""
    try:
        yield
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if not _is_disk_error(error):
            raise
        raise CheckpointError(message.format(error)) from error


def _is_disk_error(error: BaseException) -> bool:
    """True where the system refused a write. torch and tokenizers wrap its error in one of their own."""
    wrapped = isinstance(error.__context__, OSError) or (type(error) is Exception and "(os error " in str(error))
    return isinstance(error, OSError | SafetensorError) or wrapped


def load_config(path: str | Path) -> Any:
    """A model's transformers configuration, without its weights. Raises CheckpointError."""
    try:
        return AutoConfig.from_pretrained(path)
    except Exception as error:  # transformers has several
        if not Path(path).exists():
            raise CheckpointError(
                f"model.path: there is no folder {path}, and no model of that name could be found on the hub"
            ) from error
        reason = str(error).strip().partition("\n")[0]
        raise CheckpointError(f"{path} is not a model that transformers can load: {reason}") from error


def load_model(path: str | Path) -> tuple[Any, Any]:
    """(model, tokenizer) of a folder or hub id, in float32. Raises CheckpointError."""
    if (Path(path) / "manifest.json").is_file():
        verify(Path(path))
    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(path)
            config = AutoConfig.from_pretrained(path)
            model = vision.model_class(config).from_pretrained(path, dtype=torch.float32)
            if vision.is_vision(config):
                vision.attach(vision.load_processor(path), model, tokenizer)
    except Exception as error:  # transformers, safetensors and tokenizers each have their own
        reason = str(error).strip().partition("\n")[0]
        raise CheckpointError(f"{path} is not a model that transformers can load: {reason}") from error
    return model.eval(), tokenizer


def load_state(folder: Path) -> dict[str, Any]:
    """The trainer's state in a checkpoint. Nothing in it is executed. Raises CheckpointError."""
    verify(folder)
    try:
        state = torch.load(folder / "trainer.pt", map_location="cpu", weights_only=True)
        state = read_slices(state, folder)
    except Exception as error:  # torch has several, of pickle, zip files and its own
        reason = str(error).strip().partition("\n")[0]
        raise CheckpointError(
            f"{folder / 'trainer.pt'} is no state of a trainer ({reason}); {_delete(folder)}"
        ) from error
    if not isinstance(state, dict) or type(state.get("step")) is not int:
        raise CheckpointError(f"{folder / 'trainer.pt'} holds no state of a trainer; {_delete(folder)}")
    return state


def load_newest(run: Path, start: Path) -> tuple[Path, dict[str, Any]]:
    """(folder, state) of a run's newest checkpoint, or of `start`. Raises CheckpointError, naming what to delete."""
    folder = latest(run) or start
    state = load_state(folder)
    if state["step"] != step_of(folder):
        raise CheckpointError(
            f"{folder} holds the checkpoint of step {state['step']}, under another's name; {_delete(folder)}"
        )
    return folder, state


def verify(folder: Path) -> None:
    """Raises CheckpointError, naming the file, unless every file is as it was written, and there is no other."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{folder} has no readable manifest.json, so it is not a whole checkpoint; {_delete(folder)}"
        ) from error
    if not isinstance(manifest, dict) or not set(REQUIRED) <= manifest.keys():
        raise CheckpointError(
            f"{folder / 'manifest.json'} is not what was written: it does not list {', '.join(REQUIRED)}; "
            f"{_delete(folder)}"
        )
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    if extra := sorted(name for name in found - manifest.keys() - {"manifest.json"} if not name.startswith(".")):
        raise CheckpointError(f"{folder / extra[0]} was not written with the checkpoint; delete that file")
    for name, digest in manifest.items():
        if name not in found or _digest(folder / name) != digest:
            raise CheckpointError(f"{folder / name} is missing or not what was written; {_delete(folder)}")


def _delete(folder: Path) -> str:
    return f"delete {folder} to go on from the one before"


def folders(run: Path) -> list[Path]:
    """The folders of a run's checkpoints, the oldest first; others beside them are none."""
    found = [path for path in (run / "checkpoints").glob("step-*") if path.is_dir() and _NAME.fullmatch(path.name)]
    return sorted(found, key=step_of)


def latest(run: Path) -> Path | None:
    """The newest checkpoint of a run."""
    found = folders(run)
    return found[-1] if found else None


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def prune(run: Path, keep: int) -> list[Path]:
    """Delete all but the first (where RL began) and the newest `keep` checkpoints, which are returned."""
    later = folders(run)[1:]
    for folder in later[:-keep]:
        shutil.rmtree(folder)
    return later[-keep:]


def weights_digest(path: Path) -> str:
    """SHA-256 over the weight files of a folder."""
    names = sorted([*path.glob("*.safetensors"), *path.glob("pytorch_model*.bin")])
    return hashlib.sha256("".join(_digest(name) for name in names).encode()).hexdigest()


@contextmanager
def _quiet() -> Iterator[None]:
    """Switch off transformers' own progress bars."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
