"""What implicit process rewards know on `choices-together`, beside one that knows all.

    python benchmarks/process.py --seeds 0 1 2 --save

Every color of a reply there is right or wrong by itself, so that the worth of a token is known: 1 of a right color's,
-1 of a wrong one's, 0 in replies that are no action. For PRIME and iStar, at their settings of the ledger's race, this
prints by quarters of the budget: success, the gate (what the reward model knows of whole attempts, from 0 to 1), and
the share of pairs of a right and a wrong color in a batch that the model's rewards order rightly: .5 is a coin.

`truth` is that worth in the reward model's place; rows "PRIME, truth" and "iStar, truth" of benchmarks/regimes.py race
it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel
from regimes import METHODS, REGIMES, overrides_of, settings_of

from agentgym_trainers.recipe import resolve
from agentgym_trainers.run import run
from agentgym_trainers.signals import SIGNALS
from agentgym_trainers.signals.base import Signal, SignalContext, SignalDependencies, SignalKind
from agentgym_trainers.signals.implicit_prm import ImplicitPRM

RESULTS = Path(__file__).resolve().parent / "results"
REGIME = "choices-together"
ROWS = ("PRIME", "iStar")
QUARTERS = 4
WATCHED = "process:watched"
FIGURES = {"success": "rollout/success", "gate": "credit/process_skill", "ordered": f"{WATCHED}/ordered"}
CERTAIN = 10.0
"""Log-odds of success of a signal that knows the outcome."""


def worth_A(context: SignalContext, template: Any) -> np.ndarray:
    """float64[A]: 1 for a token of a right color, -1 for one of a wrong color, 0 for others. A token belongs to the
    color in which its text ends."""
    from agentgym_environments.diagnostics.choices.env import COLORS, RIGHT

    worth, at = np.zeros(len(context.batch.turn_A)), 0
    turns = [(t, turn) for t in context.trajectories for turn in t.turns]
    for trajectory, turn in turns:
        span = turn.span
        assert span is not None
        ids = trajectory.branches[span.branch].ids[span.start : span.stop].tolist()
        ends = np.array([len(template.decode(ids[: i + 1])) for i in range(len(ids))])
        goods = [word for word in re.findall(r"\w+", turn.observation) if word in RIGHT]
        words = list(re.finditer(r"\w+", turn.reply))
        if len(words) == len(goods) and all(word[0] in COLORS for word in words):
            for word, good in zip(words, goods, strict=True):
                inside = (ends > word.start()) & (ends <= word.end())
                worth[at : at + len(ids)][inside] = 1.0 if RIGHT[good] == word[0] else -1.0
        at += len(ids)
    return worth


def ordered(reward_A: np.ndarray, worth: np.ndarray) -> float:
    """Share of pairs of a right and a wrong token in which the right one's reward is larger; ties count half."""
    right, wrong = reward_A[worth > 0], reward_A[worth < 0]
    if not len(right) or not len(wrong):
        return float("nan")
    gap = right[:, None] - wrong[None, :]
    return float(((gap > 0) + 0.5 * (gap == 0)).mean())


class TruthOptions(BaseModel):
    """The worth of every token, and each attempt's outcome."""

    scale: float = 1.0


class Truth(Signal):
    def __init__(self, options: TruthOptions, parts: SignalDependencies) -> None:
        self.options, self.template = options, parts.template

    async def annotate(self, context: SignalContext) -> dict[str, np.ndarray]:
        won = np.array([bool(t.success) for t in context.trajectories])
        return {
            "prm_A": self.options.scale * worth_A(context, self.template),
            "prm_logit_M": np.where(won, CERTAIN, -CERTAIN),
        }


class Watched(ImplicitPRM):
    """An implicit reward model that also reports how it orders tokens whose worth is known."""

    def __init__(self, options: Any, parts: SignalDependencies) -> None:
        super().__init__(options, parts)
        self.template = parts.template

    async def fit(self, context: SignalContext) -> dict[str, float]:
        share = ordered(context.batch.x["prm_A"], worth_A(context, self.template))
        return {**await super().fit(context), "ordered": share}


PRM = SIGNALS["prm"]
truth = SignalKind(TruthOptions, Truth, provides=PRM.provides, reads_policy=False)
watched = replace(PRM, build=Watched, learned=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/process"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results/process.json")
    options = parser.parse_args()
    found = {name: [watch(name, seed, options.out) for seed in options.seeds] for name in ROWS}
    for name, runs in found.items():
        for figure in FIGURES:
            means = np.nanmean([run[figure] for run in runs], axis=0)
            print(f"{name:6} {figure:8}" + " ".join(f"{mean:5.2f}" for mean in means), flush=True)
    if options.save:
        (RESULTS / "process.json").write_text(json.dumps({"seeds": options.seeds, "rows": found}, indent=1) + "\n")


def watch(name: str, seed: int, out: Path) -> dict[str, list[float]]:
    """Figures of one run by quarters of its steps."""
    regime, method = REGIMES[REGIME], METHODS[name]
    kept = json.loads((RESULTS / "ledger" / f"{REGIME}.json").read_text())["settings"][name]
    setting = next(s for s in settings_of(name, regime) if s.name == kept)
    overrides = overrides_of(method, regime, setting)
    signal = resolve(method.recipe, overrides).signals["prm"].model_dump(exclude_unset=True)
    watching = ["signals.prm=", *(f"signals.{WATCHED}.{key}={value}" for key, value in signal.items())]
    steps = f"run.steps={regime.budget // setting.episodes}"
    folder = out / f"{name}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    asyncio.run(run(resolve(method.recipe, [*overrides, *watching, steps, f"run.seed={seed}"]), folder))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    values = {key: np.array([line[key] for line in lines if line["phase"] == "rl"], float) for key in FIGURES.values()}
    return {
        figure: [float(np.nanmean(part)) for part in np.array_split(values[key], QUARTERS)]
        for figure, key in FIGURES.items()
    }


if __name__ == "__main__":
    main()
