"""Episodes until 60 % and 90 % held-out success: turn-level credit against GRPO and RLOO, where an early turn decides.

    python benchmarks/credit_vs_grpo.py --out runs/credit_vs_grpo --workers 2

World: keydoor-untold. The agent takes one of three keys on its first turn, walks a corridor of ten turns past
distractors, and learns only at the door, on turn twelve, whether the key was the right one. One colour fits every door;
reward alone says which. The warm-up's expert takes a random key nine times in ten.

Same for every method: the warm-up checkpoint of a seed, groups of 8 attempts at 8 tasks a step, one pass in two
optimiser batches, PPO clip .2/.28, no KL, AdamW. Its own for each: the learning rate, the one of LEARNING_RATES with
the fewest episodes until 90 % on a tuning seed that the race does not use. The critic of turn GAE has a trunk of its
own and learns alone for two steps, which count; its advantages are standardised over the batch's turns, and its γ is
.95, for with γ = 1 an episode that is cut, and bootstrapped, costs nothing, and dawdling is learned. A run that does
not get there counts as its whole budget. Finished jobs are kept in OUT/jobs.jsonl, so that a benchmark that is stopped
goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

METHODS = {
    "GRPO": ["credit.assigner=grpo"],
    "RLOO": ["credit.assigner=rloo"],
    "turn GAE": [
        "credit.assigner=turn_gae",
        "credit.lam=0.95",
        "credit.gamma=0.95",
        "credit.normalise=turn",
        "value.trunk=own",
        "value.lr=1e-3",
        "value.warmup=2",
    ],
    "GiGPO": ["credit.assigner=gigpo", "credit.gamma=1.0"],
}
LEARNING_RATES = (2.5e-4, 5e-4, 1e-3)
TUNING_SEEDS = (100, 101)
RACE_SEEDS = (0, 1, 2, 3, 4)
BUDGET = 16
"""Steps of 64 episodes."""
EVERY = 2
"""Steps between held-out evaluations; their episodes are not counted."""
TARGETS = (0.6, 0.9)
"""A run ends at the last."""
COMMON = [
    "name=credit_vs_grpo",
    "world.name=keydoor-untold",
    "world.serve=false",
    "rollout.groups=8",
    "rollout.group_size=8",
    "rollout.max_length=512",
    "sft.noise=0.9",
    "sft.check_every=5",
    "sft.stop_at_success=0.25",
    "eval.tasks=0",
    "run.trajectories_every=1000",
    "run.checkpoint_every=1000",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/credit_vs_grpo"))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--plot", type=Path, default=Path("docs/credit_vs_grpo.png"))
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(asyncio.run(play(options.out, **json.loads(options.job)))))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    seeds = (*TUNING_SEEDS, *RACE_SEEDS)
    run_all(options, [{"method": "warm-up", "lr": 0.0, "seed": seed} for seed in seeds])
    tuning = [{"method": m, "lr": lr, "seed": s} for s in TUNING_SEEDS for m in METHODS for lr in LEARNING_RATES]
    tuned = run_all(options, tuning)
    best = {m: min(LEARNING_RATES, key=lambda lr: tuning_score(tuned, m, lr)) for m in METHODS}
    raced = run_all(options, [{"method": m, "lr": best[m], "seed": s} for s in RACE_SEEDS for m in METHODS])
    report(raced, best, options.plot)


def tuning_score(results: dict[Any, Any], method: str, lr: float) -> tuple[float, float]:
    """Episodes until 90 %, then, among those that never got there, how far they were from it."""
    until = np.mean([episodes_until(TARGETS[-1], results, method, lr, seed) for seed in TUNING_SEEDS])
    last = np.mean([results[method, lr, seed]["curve"][-1][1] for seed in TUNING_SEEDS])
    return float(until), -float(last)


def run_all(options: argparse.Namespace, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Curves of all jobs, each in a process of its own; finished ones are read from the file."""
    path = options.out / "jobs.jsonl"
    done = {key(r): r for r in map(json.loads, path.read_text().splitlines())} if path.is_file() else {}

    def carry_out(job: dict[str, Any]) -> None:
        command = [sys.executable, __file__, "--out", str(options.out), "--job", json.dumps(job)]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        ended = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
        result = {**job, **json.loads(ended.stdout.splitlines()[-1])}
        with path.open("a") as file:
            file.write(json.dumps(result) + "\n")
        done[key(result)] = result
        print(f"{result['method']:9} lr {result['lr']:g} seed {result['seed']}: {result['curve'][-3:]}", flush=True)

    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(carry_out, [job for job in jobs if key(job) not in done]))
    return done


def key(job: dict[str, Any]) -> tuple[str, float, int]:
    return job["method"], job["lr"], job["seed"]


async def play(out: Path, method: str, lr: float, seed: int) -> dict[str, Any]:
    """One job: {"curve": [[episodes, held-out success], ...]}."""
    import torch

    from agentgym.policy import Episode
    from agentgym_trainers import run
    from agentgym_trainers.metrics import MetricsLog
    from agentgym_trainers.recipe import resolve
    from agentgym_trainers.train import success_rate

    torch.set_num_threads(1)
    own = [] if method == "warm-up" else [*METHODS[method], f"optim.lr={lr}"]
    config = resolve("quickstart", [*COMMON, *own, f"run.seed={seed}", "run.steps=0"])
    with run.bars() as progress:
        progress.disable = True
        async with run.open_world(config, progress) as (world, _):
            (out / f"warm-{seed}").mkdir(parents=True, exist_ok=True)
            start = await run.warm_start(config, out / f"warm-{seed}", world, progress)
            folder = out / f"{method}-{lr}-{seed}".replace(" ", "-")
            folder.mkdir(exist_ok=True)
            trainer, _ = run.start_training(config, folder, world, start)
            log = MetricsLog(folder)
            held_out = [Episode(world.spec.id, "test", task, 0) for task in range(100)]
            curve: list[tuple[int, float]] = []
            while True:
                success = success_rate(await trainer.runner.run(trainer.policy(seed, 10**9), held_out))
                curve.append((trainer.step * 64, success))
                if success >= TARGETS[-1] or trainer.step >= BUDGET or method == "warm-up":
                    return {"curve": curve}
                steps = config.run.model_copy(update={"steps": trainer.step + EVERY})
                trainer.config = config.model_copy(update={"run": steps})
                await trainer.run(log)


def episodes_until(target: float, results: dict[Any, Any], method: str, lr: float, seed: int) -> float:
    curve = results[method, lr, seed]["curve"]
    return min(next((episodes for episodes, success in curve if success >= target), BUDGET * 64), BUDGET * 64)


def report(results: dict[Any, Any], best: dict[str, float], plot: Path) -> None:
    """A table for each target (IQM over seeds with a bootstrap interval, ratio to GRPO) and a plot of the curves."""
    from agentgym.stats import iqm, probability_of_improvement, stratified_bootstrap

    starts = [results["warm-up", 0.0, seed]["curve"][0][1] for seed in RACE_SEEDS]
    print(f"\nheld-out success after warm-up, seeds {RACE_SEEDS}: " + ", ".join(f"{100 * s:.0f} %" for s in starts))
    for target in TARGETS:
        scores = {
            m: np.array([[episodes_until(target, results, m, best[m], s)] for s in RACE_SEEDS], float) for m in METHODS
        }
        print(f"\nepisodes until {100 * target:.0f} %; at most {BUDGET * 64}")
        print(f"{'':9} {'lr':>8} {'IQM':>6} {'95 % interval':>15} {'GRPO / this':>12} {'P(fewer)':>9}  each seed")
        for method, score in scores.items():
            spread = stratified_bootstrap(score, seed=0)
            fewer = probability_of_improvement(-score, -scores["GRPO"], seed=0).estimate
            interval = f"[{spread.low:.0f}, {spread.high:.0f}]"
            ratio = iqm(scores["GRPO"]) / max(iqm(score), 1)
            each = ", ".join(f"{x:.0f}" for x in score[:, 0])
            print(f"{method:9} {best[method]:8g} {iqm(score):6.0f} {interval:>15} {ratio:12.2f} {fewer:9.2f}  {each}")
    print("\ntuning, episodes until 90 % at each learning rate:")
    for method in METHODS:
        tried = [
            (lr, episodes_until(TARGETS[-1], results, method, lr, s)) for lr in LEARNING_RATES for s in TUNING_SEEDS
        ]
        print(f"{method:9} " + ", ".join(f"{lr:g}: {episodes:.0f}" for lr, episodes in tried))
    draw(results, best, plot)


def draw(results: dict[Any, Any], best: dict[str, float], plot: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    grid = np.arange(0, BUDGET * 64 + 1, EVERY * 64)
    for method, colour in zip(METHODS, ("#777777", "#b58900", "#2266bb", "#cc5533")):
        curves = [np.array(results[method, best[method], seed]["curve"]) for seed in RACE_SEEDS]
        for curve in curves:
            axes.plot(curve[:, 0], 100 * curve[:, 1], color=colour, alpha=0.25, linewidth=1)
        mean = np.mean([np.interp(grid, curve[:, 0], curve[:, 1]) for curve in curves], axis=0)
        last = max(curve[-1, 0] for curve in curves)
        axes.plot(
            grid[grid <= last],
            100 * mean[grid <= last],
            color=colour,
            linewidth=2.5,
            label=f"{method} (lr {best[method]:g})",
        )
    for target in TARGETS:
        axes.axhline(100 * target, color="black", linewidth=0.8, linestyle=":")
    axes.set(
        xlabel="episodes",
        ylabel="held-out success, %",
        title="keydoor-untold; a run ends at 90 %; thick: mean over seeds",
    )
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    plot.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(plot, dpi=130)
    print(f"plot: {plot}")


if __name__ == "__main__":
    main()
