"""What benchmarks/families.py plays: thirteen families, each with its environment, warm-up and length of RL.

Settings were chosen on seed 100, so that the warm-up wins sometimes and each family takes some minutes of one core.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

BASELINE = "grpo"


@dataclass(frozen=True)
class Family:
    """One environment of a family, its warm-up, and how long RL lasts."""

    env: str
    overrides: tuple[str, ...] = ()
    recipe: str = "gigpo"
    """The turn-level recipe beside GRPO."""
    steps: int = 10
    """RL steps of `groups` tasks with 8 episodes each."""
    groups: int = 12
    lr: float = 5e-4
    """Falls to a tenth over the steps."""
    epochs: int = 2
    split: str = "test"
    """Of evaluations. "train" where the answers are a closed list, each of which has to be known: then only the seeds
    of chance are held out."""
    held_out: int = 100
    """Tasks of an evaluation, or all of the split if it has fewer."""
    attempts: int = 1
    """Episodes of each held-out task in an evaluation."""
    all_splits: bool = False
    """Demonstrations are of tasks of all splits, where a task is a fact that no other task teaches; RL still plays the
    train split alone."""
    noise: float = 0.0
    """Noise of the demonstrations with `all_splits`; else `sft.noise`."""
    demonstrations: int = 600
    note: str = ""
    """Why it does not learn, or what was made easier."""


COMMON = (
    "name=families",
    "env.serve=true",
    "run.threads=1",
    "run.trajectories_every=100000",
    "run.checkpoint_every=100000",
    "rollout.concurrency=64",
    "rollout.group_size=8",
    "rollout.max_new_tokens=8",
    "optim.minibatches=2",
    "optim.tokens_per_micro_batch=8192",
    "prompt_format.invalid_penalty=0.1",
    "sft.noise=0",
    "sft.stop_at_success=",
    "sft.check_every=1000",
    "sft.batch=16",
    "sft.lr=1e-3",
    "eval.split=train",
    "eval.tasks=0",
    "model.dtype=bfloat16",
    "model.tiny.hidden_size=256",
    "model.tiny.heads=4",
    "model.tiny.layers=2",
    "model.tiny.intermediate_size=384",
    'prompt_format.system=""',
    "loss.entropy=0.003",
    "select.kind=mixed_outcomes",
)
"""Two wide layers learn twice as many tokens a second as four narrow ones of as many parameters. The instructions say
nothing to a model made from a seed, and would be a third of its tokens."""


def length(tokens: int) -> tuple[str, str]:
    return (f"model.tiny.max_length={tokens}", f"rollout.max_length={tokens}")


FAMILIES: dict[str, Family] = {
    "maze": Family(
        "maze:size=4",
        (*length(1024), "env.max_turns=16", "sft.noise=0.4", "sft.lr=2e-3", "sft.max_steps=100", "loss.entropy=0.01"),
        "hgpo",
        steps=18,
        groups=16,
        lr=8e-4,
        note="4 by 4 cells, 16 turns",
    ),
    "babyai": Family(
        "babyai:level=GoToObj",
        (*length(1024), "env.max_turns=12", "sft.noise=0.4", "sft.lr=2e-3", "sft.max_steps=60"),
        "hgpo",
        note="a room with one object, 12 turns",
    ),
    "sokoban": Family(
        "sokoban-4x4",
        (*length(640), "sft.noise=0.3", "sft.lr=2e-3", "sft.max_steps=60", "loss.entropy=0.01"),
        "hgpo",
        steps=20,
    ),
    "wordle": Family(
        "wordle-mini",
        (*length(256), "model.tiny.vocab_size=320", "sft.max_steps=110", "sft.batch=32"),
        split="train",
        groups=16,
        lr=3e-4,
        steps=40,
        note="a closed list of words, all of them played in training",
    ),
    "twenty-questions": Family(
        "twenty-questions-tiny",
        (*length(512), "model.tiny.vocab_size=512", "sft.max_steps=180", "sft.noise=0.4", "rollout.max_new_tokens=16"),
        split="train",
        attempts=16,
        groups=16,
        steps=32,
        lr=4e-4,
        note="a closed list of ten things, all of them played in training",
    ),
    "guess-city": Family(
        "guess-city-mini",
        (*length(384), "model.tiny.vocab_size=1024", "sft.max_steps=150", "rollout.max_new_tokens=16"),
        all_splits=True,
        noise=0.4,
        attempts=8,
        lr=2e-4,
        note="the warm-up knows the cities of all splits; six held-out tasks",
    ),
    "car-dealer": Family(
        "car-dealer:cars=2,personas=frank,enough=0.5",
        (
            *length(768),
            "model.tiny.vocab_size=1024",
            "env.max_turns=8",
            "sft.noise=0.2",
            "sft.max_steps=160",
            "rollout.max_new_tokens=8",
            "select=",
        ),
        groups=8,
        demonstrations=2000,
        lr=3e-4,
        note="two cars, half of the profit counts; the warm-up names cars that are not there, so that nearly all fail",
    ),
    "textworld": Family(
        "textworld",
        (
            *length(1024),
            "model.tiny.vocab_size=1024",
            "env.max_turns=8",
            "sft.noise=0.5",
            "sft.max_steps=240",
            "rollout.max_new_tokens=12",
        ),
        "hgpo",
        held_out=40,
        attempts=6,
        demonstrations=1200,
        lr=4e-4,
        groups=16,
        steps=26,
        note="half of the actions of the demonstrations are drawn at random",
    ),
    "tools": Family(
        "tools-one:kind=move_money",
        (
            *length(640),
            "model.tiny.vocab_size=640",
            "sft.noise=0.05",
            "sft.max_steps=180",
            "rollout.max_new_tokens=56",
        ),
        steps=8,
        lr=2e-4,
        groups=8,
        demonstrations=1500,
        note="the warm-up makes the right calls with wrong ids: it has not learned to copy",
    ),
    "shop": Family(
        "shop-easy",
        (
            *length(1536),
            "model.tiny.vocab_size=2048",
            "env.max_turns=7",
            "sft.noise=0.1",
            "sft.batch=8",
            "sft.max_steps=60",
            "rollout.max_new_tokens=12",
        ),
        groups=8,
        steps=3,
        held_out=40,
        demonstrations=300,
        note="60 steps of warm-up buy nothing that is wanted",
    ),
    "search": Family(
        "search-1hop",
        (
            *length(1024),
            "model.tiny.vocab_size=2048",
            "env.max_turns=5",
            "sft.max_steps=60",
            "rollout.max_new_tokens=20",
        ),
        groups=8,
        steps=3,
        held_out=40,
        note="60 steps of warm-up answer no question",
        demonstrations=300,
    ),
    "miniwob": Family(
        "miniwob-easy",
        (
            *length(1024),
            "model.dtype=float32",
            "model.tiny.vocab_size=1024",
            "env.max_turns=3",
            "sft.noise=0.2",
            "sft.max_steps=100",
            "rollout.max_new_tokens=12",
        ),
        steps=6,
        groups=6,
        held_out=60,
        demonstrations=300,
        note="100 steps of warm-up win 3 %: too few to learn from",
    ),
    "chess-endgames": Family(
        "chess-endgames",
        (*length(2048), "env.max_turns=10", "sft.noise=0.1", "sft.max_steps=20", "sft.batch=8"),
        steps=3,
        groups=4,
        demonstrations=100,
        held_out=20,
        note="170 tokens a turn, 20 steps of warm-up: no mate",
    ),
}


def overrides_of(family: Family, recipe: str, seed: int, demonstrations: Path | None = None) -> list[str]:
    """Overrides of `recipe` in this family."""
    start, end = family.lr, family.lr / 10
    shown = [f"sft.path={demonstrations}", "sft.noise=0"] if demonstrations else []
    return [
        *COMMON,
        f"env.name={family.env}",
        f"sft.demonstrations={family.demonstrations}",
        f"rollout.groups={family.groups}",
        f"optim.lr={family.lr}",
        f"optim.epochs={family.epochs}",
        *family.overrides,
        *shown,
        f"run.steps={family.steps}",
        f"run.seed={seed}",
        f'schedules={{"optim.lr"={{kind="linear",start={start!r},end={end!r},steps={family.steps}}}}}',
    ]
