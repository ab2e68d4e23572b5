"""A run's checkpoint as a model for the Hugging Face hub: its files, the run's configuration, and a card."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from agentgym.errors import CheckpointError, UsageError
from agentgym_trainers.config.sections import Config
from agentgym_trainers.load import OWN_CONFIG, load_run
from agentgym_trainers.nn import checkpoint

OURS = ("trainer.pt", "manifest.json")
"""Files of a checkpoint that only resuming needs."""
KEY = re.compile(r'(\bapi_key *= *"?)[^,"\s]+')
"""An argument of an environment that nobody else should read."""


def write_model(run: Path, folder: Path, step: int | None = None) -> Path:
    """Write the model of a run's newest checkpoint, or of the one of `step`, with its card to a new `folder`.

    Raises ConfigError for what is no run, CheckpointError for a checkpoint that is damaged or not there, UsageError
    for a folder that holds something.
    """
    config, source = load_run(run), _checkpoint(run, step)
    checkpoint.verify(source)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} holds something; name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if path.name not in OURS and not path.name.startswith("."):
            shutil.copy2(path, folder)
    for name, text in (
        (OWN_CONFIG, (run / "config.toml").read_text(encoding="utf-8")),
        ("README.md", card(config, source, run / "eval")),
    ):
        (folder / name).write_text(KEY.sub(r"\1removed", text), encoding="utf-8")
    return folder


def card(config: Config, source: Path, evaluation: Path) -> str:
    """The card: what the model learned from, and what the run measured of it, if that was this checkpoint."""
    base = config.model.path
    about = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["agentgym", "reinforcement-learning", config.name],
        base_model=base if base is not None and not Path(base).exists() else None,
    )
    step, rollout = checkpoint.step_of(source), config.rollout
    origin = "a tiny model made from the run's seed" if base is None else f"`{base}`"
    warmed = " after a supervised warm-up" if config.sft is not None else ""
    lines = [
        f"# {config.env.name}: {config.name}",
        f"{origin[0].upper()}{origin[1:]}, trained by reinforcement learning{warmed}: recipe `{config.name}`, "
        f"environment `{config.env.name}` (split {config.env.split}), {step} steps of {rollout.groups} × "
        f"{rollout.group_size} episodes, seed {config.run.seed}. `{OWN_CONFIG}` has every option.",
        "## Evaluation",
        *_measured(source.name, evaluation),
        "## Use",
        f"```\nhf download NAME_OF_THIS_REPOSITORY --local-dir model\nagentgym eval model --env {config.env.name}\n"
        "agentgym infer serve model   # OpenAI's API\n```",
        f"Prompt format, temperature and lengths are then those of the training, from `{OWN_CONFIG}`.",
    ]
    return f"---\n{about}\n---\n" + "\n\n".join(lines) + "\n"


def _measured(name: str, evaluation: Path) -> list[str]:
    """The evaluations before and after the run, where the latter was of this checkpoint."""
    try:
        summary = json.loads((evaluation / "summary.json").read_text(encoding="utf-8"))
        played = json.loads((evaluation / "after" / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ["The run made no evaluation."]
    except ValueError as error:
        raise CheckpointError(f"{evaluation} cannot be read ({error}); delete it to publish without it") from error
    if not str(played["policy"]).startswith(f"{name} ") or "after" not in summary:
        return ["The run made no evaluation of this checkpoint."]
    rows = [f"| {when} | {_interval(summary[when])} |" for when in ("before", "after") if when in summary]
    if "difference" in summary:
        rows.append(f"| paired difference | {_interval(summary['difference'])} |")
    after, seeds = summary["after"], ", ".join(map(str, played["suite"]["seeds"]))
    few = "" if after["tasks"] > 2 else " These are too few tasks for an interval."
    tasks = "; ".join(f"{place} ({panel})" for place, panel in played["panel"].items())
    return [
        "\n".join(["| | success, % [95 % interval over tasks] |", "|---|---|", *rows]),
        f"Tasks: {after['tasks']} of {tasks}; attempts at each: {after['attempts']}; seeds: {seeds}. Episodes "
        f"that failed for reasons that were not the model's, which are not counted: {after['failed']}.{few}",
    ]


def _interval(found: dict[str, Any]) -> str:
    middle = found["success"] if "success" in found else found["estimate"]
    return f"{100 * middle:.1f} [{100 * found['low']:.1f}, {100 * found['high']:.1f}]"


def _checkpoint(run: Path, step: int | None) -> Path:
    there = {checkpoint.step_of(folder): folder for folder in checkpoint.folders(run)}
    if not there:
        raise CheckpointError(f"{run} has no checkpoint")
    if step is not None and step not in there:
        raise CheckpointError(f"{run} has no checkpoint of step {step}; it has {', '.join(map(str, there))}")
    return there[max(there) if step is None else step]
