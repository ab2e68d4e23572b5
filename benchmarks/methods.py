"""Nine methods on three environments whose reward comes late: final held-out success, and episodes until a threshold.

    python benchmarks/methods.py --out runs/methods --workers 2

Each method is its shipped recipe (sources, signals, shaping, credit, objective and their options) and what `own`
adds. On an environment the tiny model, its warm-up checkpoint of a seed, the episodes a step, the optimizer batches and
the budget of episodes are the same for all, and a reply that is no action costs all of them the same. The policy's
learning rate is tuned for each method and environment: the one of LEARNING_RATES with the best mean of success over
half the budget on a seed that the race does not use. GRPO is raced at all of them, so that nobody wins against a rate
it was unlucky with.

oracle          three decisions whose values are known, in words; the third tells
keydoor-meadow  one of three keys is taken on turn one; ten choices do not matter; then the door tells
sokoban-4x4     a box, a goal, up to six moves are enough; wrong pushes cannot be undone

Held-out: tasks of the test split, of the oracle (one task) other draws of its chance. Episodes of evaluations are not
counted; episodes in which a critic alone learns are. Between two evaluations success is taken to be linear; a run that
does not reach a threshold counts as its whole budget. Finished jobs are kept in OUT/jobs.jsonl, so that a benchmark
that is stopped goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import shutil
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Env:
    overrides: tuple[str, ...]
    budget: int
    """Episodes."""
    target: float
    split: str = "test"
    steps: int = 8
    """Between evaluations."""
    held_out: int = 64
    """Episodes of an evaluation."""
    warm_up: int = 4
    """What the recipes' numbers of steps are multiplied by where a step is that much smaller."""


NOISY = ("rollout.max_length=512", "sft.noise=0.9", "sft.check_every=5")
SOKOBAN = (
    "rollout.max_length=1024",
    "sft.demonstrations=2000",
    "sft.noise=0.35",
    "sft.max_steps=400",
    "sft.check_every=50",
    "sft.stop_at_success=0.3",
)
LARGE_STEPS = ("rollout.groups=8", "optim.minibatches=2", "prompt_format.invalid_penalty=0")
SMALL_STEPS = ("rollout.groups=2", "optim.minibatches=1", "prompt_format.invalid_penalty=0.1")
"""16 episodes an update: with 64 the noise of the gradient, which credit is to lessen, limits nobody (docs/LOG.md). So
noisy a gradient drifts to replies that are no actions, until nothing succeeds: .1 a reply, as GiGPO's authors have it,
holds it, and so does a learning rate that rises over the first steps (Adam's first step is as long as any)."""
RISING = 5
"""Steps of small ones over which the learning rate rises from a fifth."""
ENVS = {
    "oracle": Env((*NOISY, *LARGE_STEPS, "sft.stop_at_success=0.15"), 1536, 0.7, "train", 2, 100, 1),
    "keydoor-meadow": Env((*NOISY, *SMALL_STEPS, "rollout.max_length=768", "sft.stop_at_success=0.2"), 768, 0.7),
    "sokoban-4x4": Env((*SOKOBAN, *SMALL_STEPS), 512, 0.5, warm_up=3),
}
METHODS = {
    "GRPO": "grpo",
    "RLOO": "rloo",
    "GiGPO": "gigpo",
    "HGPO": "hgpo",
    "turn PPO": "ppo-turn",
    "SPA-RL": "spa-rl",
    "PRIME": "prime",
    "iStar": "istar",
    "ArCHer": "archer",  # last: it takes six times as long
}


def own(method: str, factor: int) -> tuple[str, ...]:
    """Where a recipe has numbers for another size of things: steps that are `factor` times smaller than the oracle's,
    and a warm-up that hardly teaches ArCHer's encoder to read (chosen on a seed that the race does not use)."""
    return {
        "turn PPO": (f"value.warmup={2 * factor}",),
        "SPA-RL": (f"value.warmup={6 * factor}", f"signals.progress.fit_steps={6 * factor}"),
        "ArCHer": (
            "signals.twin.encoder=trained",
            "signals.twin.pool=256",
            f"signals.twin.warmup={3 * factor}",
            f"signals.twin.updates={25 // factor}",
            "signals.twin.batch=64",
            f"signals.twin.actor_states={256 // factor}",
            "credit.normalize=none",
            "loss.kl=0.1",
            "optim.minibatches=1",
        ),
    }.get(method, ())


LEARNING_RATES = (5e-4, 1e-3)
TUNING_SEEDS = (100,)
RACE_SEEDS = (0, 1, 2, 3, 4)
COMMON = (
    "name=methods",
    "env.serve=false",
    "rollout.group_size=8",
    "rollout.concurrency=128",
    "rollout.max_new_tokens=8",
    "optim.epochs=1",
    "optim.tokens_per_micro_batch=8192",
    "sft.max_steps=300",
    "sft.demonstrations=1000",
    "eval.split=train",
    "eval.tasks=0",
    "run.steps=0",
    "run.threads=1",
    "run.trajectories_every=1000",
    "run.checkpoint_every=1000",
)
Job = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=list(ENVS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--plot", type=Path, default=Path("docs/methods.png"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for env in options.envs:
        seeds = (*TUNING_SEEDS, *RACE_SEEDS)
        run_all(options, [{"env": env, "method": "warm-up", "lr": 0.0, "seed": seed} for seed in seeds])
        tuned = run_all(options, grid(env, options.methods, LEARNING_RATES, TUNING_SEEDS))
        best = {m: best_rate(tuned, env, m) for m in options.methods}
        run_all(options, [job for m in options.methods for job in grid(env, [m], raced_at(m, best), RACE_SEEDS)])
    report(read_jobs(options.out), options)


def grid(env: str, methods: list[str], rates: Any, seeds: tuple[int, ...]) -> list[Job]:
    return [{"env": env, "method": m, "lr": lr, "seed": s} for s in seeds for m in methods for lr in rates]


def raced_at(method: str, best: dict[str, float]) -> tuple[float, ...]:
    """The tuned learning rate; of GRPO the others too."""
    others = (lr for lr in LEARNING_RATES if lr != best[method])
    return best[method], *(others if method == "GRPO" else ())


def best_rate(results: dict[Any, Job], env: str, method: str) -> float:
    return max(
        LEARNING_RATES,
        key=lambda lr: float(np.mean([area(results[env, method, lr, s]["curve"], env) for s in TUNING_SEEDS])),
    )


def area(curve: list[list[float]], env: str) -> float:
    """Mean held-out success over the first half of the budget."""
    return float(np.mean([success for episodes, success in curve if episodes <= ENVS[env].budget / 2]))


# --- jobs ---------------------------------------------------------------------------------------------------------


def read_jobs(out: Path) -> dict[Any, Job]:
    path = out / "jobs.jsonl"
    return {key(r): r for r in map(json.loads, path.read_text().splitlines())} if path.is_file() else {}


def key(job: Job) -> tuple[str, str, float, int]:
    return job["env"], job["method"], job["lr"], job["seed"]


def run_all(options: argparse.Namespace, jobs: list[Job]) -> dict[Any, Job]:
    """Results of all jobs, in processes of their own; finished ones are read from the file."""
    done = read_jobs(options.out)
    waiting = [job for job in jobs if key(job) not in done]
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with ProcessPoolExecutor(options.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(carry_out, options.out, job): job for job in waiting}
        for future in as_completed(futures):
            result = futures[future] | future.result()
            with (options.out / "jobs.jsonl").open("a") as file:
                file.write(json.dumps(result) + "\n")
            done[key(result)] = result
            shown = " ".join(f"{100 * success:.0f}" for _, success in result["curve"])
            print(
                f"{result['env']:14} {result['method']:8} lr {result['lr']:g} seed {result['seed']}: {shown}",
                flush=True,
            )
    return done


def carry_out(out: Path, job: Job) -> Job:
    return asyncio.run(play(out, **job))


async def play(out: Path, env: str, method: str, lr: float, seed: int) -> Job:
    """One job: {"curve": [[episodes, held-out success], ...], "seconds"}."""
    from time import process_time

    import torch

    from agentgym.rollouts.policy import EpisodeSpec
    from agentgym_trainers import run
    from agentgym_trainers.monitoring.metrics import MetricsLog, success_rate
    from agentgym_trainers.recipe import resolve
    from agentgym_trainers.rollout.environment import open_env

    torch.set_num_threads(1)
    started, place, warm = process_time(), ENVS[env], method == "warm-up"
    rate = () if warm else (f"optim.lr={lr}",)
    if rate and place.warm_up > 1:
        rate += (f'schedules={{"optim.lr" = {{kind = "linear", start = {lr / 5}, end = {lr}, steps = {RISING}}}}}',)
    settings = [*COMMON, f"env.name={env}", *place.overrides, *rate, f"run.seed={seed}"]
    config = resolve("grpo" if warm else METHODS[method], [*settings, *own(method, place.warm_up)])
    with run.bars() as progress:
        progress.disable = True
        async with open_env(config, progress) as (connection, _):
            first = out / f"{env}-warm-{seed}"
            first.mkdir(parents=True, exist_ok=True)
            start = await run.warm_start(config, first, connection, progress)
            folder = out / f"{env}-{METHODS.get(method, method)}-{lr}-{seed}"
            shutil.rmtree(folder, ignore_errors=True)  # of a job that was stopped
            folder.mkdir()
            trainer, _ = await run.start_training(config, folder, connection, start)
            log = MetricsLog(folder)
            tasks = connection.spec.splits[place.split]
            held_out = [
                EpisodeSpec(connection.spec.id, place.split, i % tasks, 10**6 + i) for i in range(place.held_out)
            ]
            curve: list[tuple[int, float]] = []
            played, collect = 0, trainer.rollout_groups

            async def counted(tasks: Any) -> Any:
                nonlocal played
                played += len(tasks) * config.rollout.group_size
                return await collect(tasks)

            trainer.rollout_groups, trainer.save = counted, lambda log: folder  # checkpoints are only for resuming
            while True:
                success = success_rate(await trainer.runner.run(trainer.policy(seed, 10**9), held_out))
                curve.append((played, success))
                if warm or played >= place.budget / (1 + (seed in TUNING_SEEDS)):
                    await trainer.engine.aclose()
                    log.close()
                    return {"curve": curve, "seconds": process_time() - started}
                steps = trainer.config.run.model_copy(update={"steps": trainer.step + place.steps})
                trainer.config = trainer.config.model_copy(update={"run": steps})
                await trainer.run(log)


# --- what came of it ----------------------------------------------------------------------------------------------


def episodes_until(target: float, curve: list[list[float]], budget: int) -> float:
    """Where the curve, linear between evaluations, first meets the target; the budget where it never does."""
    if curve[0][1] >= target:
        return 0.0
    for (before, low), (after, high) in pairwise(curve):
        if high >= target:
            return min(before + (after - before) * (target - low) / (high - low), budget)
    return float(budget)


def report(results: dict[Any, Job], options: argparse.Namespace) -> None:
    """For each environment a table (IQM over seeds, bootstrap intervals, probability of improvement over GRPO) and
    curves."""
    raced: dict[str, dict[str, list]] = {}
    for env in options.envs:
        best = {m: best_rate(results, env, m) for m in options.methods}
        rates = {(m if lr == best[m] else f"{m} {lr:g}"): lr for m in options.methods for lr in raced_at(m, best)}
        raced[env] = {
            name: [results[env, name.removesuffix(f" {lr:g}"), lr, s]["curve"] for s in RACE_SEEDS]
            for name, lr in rates.items()
        }
        starts = ", ".join(f"{100 * results[env, 'warm-up', 0.0, s]['curve'][0][1]:.0f}" for s in RACE_SEEDS)
        print(f"\n{env}: after the warm-up {starts} %; budget {ENVS[env].budget} episodes")
        table(raced[env], rates, ENVS[env])
        tuning = {
            m: [np.mean([area(results[env, m, lr, s]["curve"], env) for s in TUNING_SEEDS]) for lr in LEARNING_RATES]
            for m in best
        }
        print("tuning, mean success over half the budget at " + ", ".join(f"{lr:g}" for lr in LEARNING_RATES))
        for method, areas in tuning.items():
            print(f"  {method:11}" + "".join(f"{100 * a:7.1f}" for a in areas))
    draw(raced, options.plot)


def table(curves: dict[str, list], rates: dict[str, float], env: Env) -> None:
    from agentgym.evaluation.stats import iqm, probability_of_improvement, stratified_bootstrap

    final = {m: np.array([[100 * curve[-1][1]] for curve in c]) for m, c in curves.items()}
    until = {
        m: np.array([[episodes_until(env.target, curve, env.budget)] for curve in c], float) for m, c in curves.items()
    }
    head = f"{'':11} {'lr':>8} {'final, %':>20} {'P(>GRPO)':>9} {f'episodes to {100 * env.target:.0f} %':>24}"
    print(f"{head} {'GRPO / this':>12} {'P(fewer)':>9}  each seed")
    for m in curves:
        done, fewer = stratified_bootstrap(final[m], seed=0), stratified_bootstrap(until[m], seed=0)
        better = probability_of_improvement(final[m], final["GRPO"], seed=0).estimate if "GRPO" in final else np.nan
        sooner = probability_of_improvement(-until[m], -until["GRPO"], seed=0).estimate if "GRPO" in until else np.nan
        ratio = iqm(until["GRPO"]) / max(iqm(until[m]), 1) if "GRPO" in until else np.nan
        shown = f"{iqm(final[m]):.0f} [{done.low:.0f}, {done.high:.0f}]"
        count = f"{iqm(until[m]):.0f} [{fewer.low:.0f}, {fewer.high:.0f}]"
        each = ", ".join(f"{x:.0f}" for x in until[m][:, 0])
        print(f"{m:11} {rates[m]:8g} {shown:>20} {better:9.2f} {count:>24} {ratio:12.2f} {sooner:9.2f}  {each}")


COLOURS = ("#777777", "#bbbbbb", "#b58900", "#cc5533", "#2266bb", "#117755", "#8844aa", "#c03070", "#445500", "#00a0a0")


def draw(raced: dict[str, dict[str, list]], plot: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(raced), figsize=(5 * len(raced), 4.2), layout="constrained", squeeze=False)
    for axis, (env, curves) in zip(axes[0], raced.items()):
        grid = np.arange(0, ENVS[env].budget + 1, 64)
        for colour, (method, seeds) in zip(COLOURS, curves.items()):
            every = np.array([np.interp(grid, *np.array(curve).T) for curve in seeds])  # seeds × grid
            axis.plot(grid, 100 * every.mean(axis=0), color=colour, linewidth=2, label=method)
            low, high = (100 * np.sort(every, axis=0)[i] for i in (1, -2))
            axis.fill_between(grid, low, high, color=colour, alpha=0.12, linewidth=0)
        axis.axhline(100 * ENVS[env].target, color="black", linewidth=0.8, linestyle=":")
        axis.set(title=env, xlabel="episodes", ylabel="held-out success, %", ylim=(0, 102))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.suptitle("mean over 5 seeds; band: without the best and the worst", fontsize=10)
    plot.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(plot, dpi=130)
    print(f"\nplot: {plot}")


if __name__ == "__main__":
    main()
