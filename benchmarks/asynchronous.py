"""Asynchronous against synchronous training, where the environment's answers come with a heavy-tailed delay.

The same recipe (quickstart: 16 groups of 8 attempts at `keydoor`), the same warm start, the same number of updates and
episodes; only `rollout.staleness` differs. Each answer of the environment is held back for a time drawn from a Pareto
distribution (a few are a hundred times the usual one), by its episode's own generator, so both see the same delays of
the same episodes. A synchronous step waits for the slowest of its 128 episodes.

    OMP_NUM_THREADS=1 python benchmarks/asynchronous.py --steps 20 --rounds 2

Prints seconds of the clock for all updates, and success on the same held-out tasks, without delays, after the last one.
The rounds have seeds of their own; both sides of a round run one after the other, alternating who is first.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from agentgym import registry
from agentgym.evaluation.stats import wilson
from agentgym.rollouts.policy import EpisodeSpec
from agentgym.session import LocalSession, Step
from agentgym_trainers import run
from agentgym_trainers.recipe import resolve
from agentgym_trainers.rollout.environment import open_env

CLAIM, SAME = 1.7, 5.0
"""Times faster; points of success that the two may differ by."""
LEAST_S, SHAPE, MOST_S = 0.03, 1.3, 20.0
"""Of the Pareto distribution: its least value, its exponent, and where it is cut."""
HELD_OUT = 280


class Delayed(LocalSession):
    """An environment whose answers are held back."""

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Step:
        self.rng = np.random.default_rng([seed or 0, (options or {}).get("task", 0)])
        return await super().reset(seed=seed, options=options)

    async def step(self, action: Any) -> Step:
        await asyncio.sleep(min(LEAST_S * (1 + self.rng.pareto(SHAPE)), MOST_S))
        return await super().step(action)


async def open_delayed() -> Delayed:
    return Delayed(registry.make("keydoor"))


async def play(folder: Path, seed: int, staleness: int, steps: int) -> tuple[float, float, dict[str, float]]:
    """(seconds of all updates, success, metrics of the last update)"""
    overrides = [
        f"run.seed={seed}",
        f"run.steps={steps}",
        "run.checkpoint_every=1000",
        "env.serve=false",
        "eval.tasks=0",
    ]
    config = resolve("quickstart", [*overrides, f"rollout.staleness={staleness}", "rollout.lockstep=false"])
    with run.bars() as progress:
        progress.disable = True
        async with open_env(config, progress) as (connection, _):
            start = await run.warm_start(config, folder / "warm", connection, progress)
            own = folder / f"staleness-{staleness}"
            own.mkdir()
            trainer, log = await run.start_training(config, own, connection, start)
            usual = trainer.runner
            trainer.runner = run.Runner(open_delayed, config.prompt_format, usual.limits, usual.concurrency)
            last_metrics: dict[str, float] = {}
            began = perf_counter()
            await trainer.run(log, lambda step, metrics: last_metrics.update(metrics))
            seconds = perf_counter() - began
            tasks = connection.spec.splits["test"]
            episodes = [EpisodeSpec(connection.spec.id, "test", i % tasks, 10**6 + i) for i in range(HELD_OUT)]
            played = await usual.run(trainer.policy(seed, 10**9), episodes)
            await trainer.engine.aclose()
            log.close()
            return seconds, run.success_rate(played), last_metrics


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="updates")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--staleness", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    draws = np.minimum(LEAST_S * (1 + np.random.default_rng(0).pareto(SHAPE, 10**6)), MOST_S)
    print(
        f"delays of an answer: median {np.median(draws):.3f} s, mean {draws.mean():.3f} s, 99.9 % under "
        f"{np.quantile(draws, 0.999):.2f} s"
    )
    ratios, found = [], {0: [], args.staleness: []}
    for n in range(args.rounds):
        folder = Path(tempfile.mkdtemp(prefix="asynchronous-"))
        (folder / "warm").mkdir()
        seconds = {}
        for staleness in list(found)[:: 1 if n % 2 else -1]:
            seconds[staleness], success, last_metrics = asyncio.run(play(folder, n, staleness, args.steps))
            found[staleness].append(success)
            aged = f", tokens at most {last_metrics['async/staleness_max']:.0f} updates old" if staleness else ""
            print(
                f"seed {n}, staleness {staleness}: {args.steps} updates in {seconds[staleness]:.0f} s, "
                f"success {100 * success:.1f} %{aged}",
                flush=True,
            )
        ratios.append(seconds[0] / seconds[args.staleness])
        shutil.rmtree(folder)
    shown = []
    for successes in found.values():
        interval = wilson(round(sum(successes) * HELD_OUT), HELD_OUT * len(successes))
        shown.append(f"{100 * statistics.mean(successes):.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}] %")
    gap = 100 * (statistics.mean(found[args.staleness]) - statistics.mean(found[0]))
    holds = statistics.median(ratios) >= CLAIM and gap >= -SAME
    print(
        f"asynchronous is {statistics.median(ratios):.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f}); "
        f"success {shown[1]} against {shown[0]}\n"
        f"claim: at least {CLAIM} times, and at most {SAME:.0f} points less success: "
        f"{'holds' if holds else 'DOES NOT HOLD'}"
    )
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
