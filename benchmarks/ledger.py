"""The evidence ledger: what each method of credit gains over its baseline, and where.

    python benchmarks/ledger.py --regimes oracle keydoor-meadow --workers 2

In each regime (benchmarks/regimes.py) every method, the baseline included, is tuned by the same budget: its six
settings by successive halving on seeds outside the race (all six for a quarter of the budget on one seed, the best two
for half of it on two others), then raced on the regime's seeds. Held-out success or score over episodes: all that are
played count, those of a critic's warm-up, dropped groups and continuations too, those of evaluations do not; of a
recorded set those that are drawn. benchmarks/ledger_report.py says what is printed:
interquartile means at the end and over the budget, episodes and seconds of processor time until the target (a run that
does not reach it counts as its whole budget, in the last column too), the ratio of the baseline's episodes over the
method's, and the difference from a control, both seed by seed, with 95 % bootstrap intervals over seeds.

Finished jobs are kept in OUT/jobs.jsonl: a ledger that is stopped goes on; jobs of regimes that were not finished on
another machine are in benchmarks/results/ledger/unfinished.jsonl. `--save` writes what the report is made of,
with machine, versions, commit and date, to benchmarks/results/ledger/, beside the rows that are there; `--again` plays
a slice of what is kept again.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import multiprocessing
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from ledger_report import RESULTS, area, report
from regimes import (
    METHODS,
    RECIPES,
    REGIMES,
    VARIANTS,
    WARMED,
    Regime,
    Setting,
    method_of,
    methods_of,
    overrides_of,
    settings_of,
)

TUNING_SEEDS = (100, 101, 102)
UNFINISHED = RESULTS / "unfinished.jsonl"
AGAIN = 15.0
"""Points that runs which are played again, elsewhere or with other versions, may end lower on average."""
ATTEMPTS = 3
"""At a held-out episode that fails, which is no loss: a machine that is paused fails all that are being played."""
Job = dict[str, Any]
"""regime, method, setting, seed, budget; and of a finished one curve and seconds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/ledger"))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--regimes", nargs="+", choices=REGIMES, default=list(REGIMES))
    parser.add_argument(
        "--methods", nargs="+", choices=[*METHODS, *VARIANTS, *WARMED, *RECIPES], help="(default: the regime's)"
    )
    parser.add_argument("--seeds", type=int, help="race on so many of the regime's seeds (default: all)")
    parser.add_argument("--hours", type=float, default=24.0, help="begin no job after this many hours")
    parser.add_argument("--save", action="store_true", help="keep the results in benchmarks/results/ledger/")
    parser.add_argument("--again", action="store_true", help="play one kept run of each row again, and compare")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(options.out, options.workers, time.monotonic() + 3600 * options.hours)
    try:
        measure(ledger, options)
    finally:
        if options.save:
            keep_unfinished(ledger)


def measure(ledger: Ledger, options: argparse.Namespace) -> None:
    """Tune and race in every regime that was asked for. Raises SystemExit where the hours are over before that."""
    for name in options.regimes:
        if options.again:
            again(ledger, name, options.methods)
            continue
        best = tune(ledger, name, options.methods or methods_of(REGIMES[name]))
        seeds = REGIMES[name].seeds[: options.seeds]
        ledger.run([job(name, m, best[m], s, 1.0) for s in seeds for m in best])
        raced = {m: [ledger.result(job(name, m, best[m], s, 1.0)) for s in seeds] for m in best}
        report(name, raced, {m: setting.name for m, setting in best.items()})
        if options.save:
            save(name, seeds, raced, best, ledger)


def job(regime: str, method: str, setting: Setting, seed: int, share: float) -> Job:
    """A job that plays `share` of the regime's budget."""
    budget = int(REGIMES[regime].budget * share)
    return {"regime": regime, "method": method, "setting": setting.name, "seed": seed, "budget": budget}


def tune(ledger: Ledger, regime: str, methods: Sequence[str]) -> dict[str, Setting]:
    """The best setting of each method, by successive halving over its six; a control has its method's."""
    tuned = dict.fromkeys(method_of(m).tuned_as or m for m in methods)
    left = {m: list(settings_of(m, REGIMES[regime])) for m in tuned}
    for keep, share, seeds in ((2, 1 / 4, TUNING_SEEDS[:1]), (1, 1 / 2, TUNING_SEEDS[1:])):
        jobs = {m: {s: [job(regime, m, s, seed, share) for seed in seeds] for s in left[m]} for m in tuned}
        ledger.run([j for of_method in jobs.values() for some in of_method.values() for j in some])
        for m, of_method in jobs.items():
            scores = {s: float(np.mean([area(ledger.result(j)) for j in some])) for s, some in of_method.items()}
            left[m] = sorted(scores, key=lambda s: -scores[s])[:keep]
            print(f"{regime} {m}: " + ", ".join(f"{s.name} {100 * a:.1f}" for s, a in scores.items()), flush=True)
    return {m: left[method_of(m).tuned_as or m][0] for m in methods}


def again(ledger: Ledger, regime: str, methods: Sequence[str] | None) -> None:
    """Play the first kept seed of each row. Raises SystemExit where they end lower, on average, than they did."""
    kept = json.loads((RESULTS / f"{regime}.json").read_text())
    rows = [m for m in kept["settings"] if not methods or m in methods]
    settings = {m: next(s for s in settings_of(m, REGIMES[regime]) if s.name == kept["settings"][m]) for m in rows}
    jobs = {m: job(regime, m, settings[m], kept["seeds"][0], 1.0) for m in rows}
    ledger.run(list(jobs.values()))
    now, before = ([100 * run["curve"][-1][1] for run in runs] for runs in (
        [ledger.result(jobs[m]) for m in rows], [kept["raced"][m][0] for m in rows]
    ))  # fmt: skip
    for m, ended, was in zip(rows, now, before, strict=True):
        print(f"{regime} {m}: {ended:.0f} %, kept {was:.0f} %", flush=True)
    if np.mean(now) < np.mean(before) - AGAIN:
        raise SystemExit(f"{regime}: on average {np.mean(now):.0f} %, where {np.mean(before):.0f} % are kept")


class Ledger:
    """Finished jobs, and the processes that carry out others."""

    def __init__(self, out: Path, workers: int, deadline: float) -> None:
        self.out, self.workers, self.deadline = out, workers, deadline
        self.path = out / "jobs.jsonl"
        self.done = {key(result): result for path in (UNFINISHED, self.path) for result in finished(path)}

    def result(self, job: Job) -> Job:
        return self.done[key(job)]

    def run(self, jobs: Sequence[Job]) -> None:
        """Carry out the jobs that are not done. Raises SystemExit where the hours are over before the jobs are."""
        warm = {(j["regime"], j["seed"]) for j in jobs if key(j) not in self.done}
        first = [{"regime": r, "method": "warm-up", "setting": "", "seed": s, "budget": 0} for r, s in sorted(warm)]
        for some in (first, jobs):
            self._run([j for j in some if key(j) not in self.done])

    def _run(self, jobs: Sequence[Job]) -> None:
        os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        with ProcessPoolExecutor(self.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            futures = {pool.submit(carry_out, self.out, j, self.deadline): j for j in jobs}
            for future in as_completed(futures):
                played = future.result()
                if played is None:
                    continue
                result = futures[future] | played
                with self.path.open("a") as file:
                    file.write(json.dumps(result) + "\n")
                self.done[key(result)] = result
                shown = " ".join(f"{100 * measured:.0f}" for _, measured in result["curve"])
                print("{regime} {method} {setting} seed {seed}: ".format(**result) + shown, flush=True)
        if any(key(j) not in self.done for j in jobs):
            raise SystemExit("the hours are over; run the same command again to go on")


def finished(path: Path) -> list[Job]:
    """The jobs in a file of lines. A last line that a kill cut short is taken out of the file."""
    text = path.read_text() if path.is_file() else ""
    lines, _, cut = text.rpartition("\n")
    if cut:
        path.write_text(f"{lines}\n" if lines else "")
    return [json.loads(line) for line in lines.splitlines()]


def key(job: Job) -> tuple[Any, ...]:
    return tuple(job[name] for name in ("regime", "method", "setting", "seed", "budget"))


# --- one job ------------------------------------------------------------------------------------------------------


def carry_out(out: Path, job: Job, deadline: float) -> Job | None:
    return asyncio.run(play(out, job)) if time.monotonic() < deadline else None


async def play(out: Path, job: Job) -> Job:
    """One job: {"curve": [[episodes, held-out measure], ...], "seconds": of processor time without evaluations,
    "played": episodes, fewer than the curve's where the run was stopped}."""
    import torch

    from agentgym.clients.client import connect
    from agentgym.errors import GuardTripped
    from agentgym_trainers import run
    from agentgym_trainers.monitoring.metrics import MetricsLog
    from agentgym_trainers.recipe import resolve
    from agentgym_trainers.rollout.environment import open_env

    torch.set_num_threads(1)
    regime, warm, seconds = REGIMES[job["regime"]], job["method"] == "warm-up", 0.0
    name = regime.baseline if warm else job["method"]
    method, settings = method_of(name), settings_of(name, regime)
    setting = next((s for s in settings if s.name == job["setting"]), settings[0])
    config = resolve(method.recipe, [*overrides_of(method, regime, setting), f"run.seed={job['seed']}"])
    with run.bars() as progress:
        progress.disable = True
        async with open_env(config, progress) as (connection, _), connect(regime.measured_on or regime.env) as held_out:
            first = out / "warm-up" / f"{job['regime']}-{job['seed']}"
            first.mkdir(parents=True, exist_ok=True)
            start = await run.warm_start(config, first, connection, progress)
            folder = out / "-".join(str(part).replace(" ", "_") for part in key(job))
            shutil.rmtree(folder, ignore_errors=True)  # of a job that was stopped
            folder.mkdir()
            trainer, _ = await run.start_training(config, folder, connection, start)
            log = MetricsLog(folder)
            trainer.save = lambda log: folder  # type: ignore[method-assign]  # checkpoints are only for resuming
            curve = [(0, await measured(trainer, held_out, regime, job["seed"]))]
            every = max(1, round(regime.budget / regime.evaluations / setting.episodes)) * setting.episodes
            count, stopped = 0, "warm-up" if warm else ""
            while count < job["budget"] and not stopped:
                until = count + every
                while count < until and not stopped:  # a step may play more episodes than the setting says
                    steps = trainer.config.run.model_copy(update={"steps": trainer.step + 1})
                    trainer.config = trainer.config.model_copy(update={"run": steps})
                    seconds -= time.process_time()
                    try:
                        with counted(trainer) as played:
                            await trainer.run(log)
                    except GuardTripped as error:  # nothing is learned any more: what it can do now, it ends with
                        stopped = str(error)
                    seconds += time.process_time()
                    count += played()
                curve.append((count, await measured(trainer, held_out, regime, job["seed"])))
                if regime.enough is not None and min(share for _, share in curve[-2:]) >= regime.enough:
                    stopped = "enough"
            if stopped and count < job["budget"]:
                curve.append((job["budget"], curve[-1][1]))
            await trainer.engine.aclose()
            log.close()
    shutil.rmtree(folder)
    return {"curve": curve, "seconds": seconds, "played": count, **({"stopped": stopped} if stopped else {})}


@contextmanager
def counted(trainer: Any) -> Iterator[Callable[[], int]]:
    """A count of the episodes that were played, or drawn from a recorded set where these are more; in this context."""
    from agentgym.rollouts.runner import Runner

    collect, run = trainer.collect, Runner.run
    counts = {"drawn": 0, "played": 0}

    async def collecting() -> Any:
        groups = await collect()
        counts["drawn"] += sum(len(group.trajectories) for group in groups)
        return groups

    async def running(self: Runner, policy: Any, episodes: Any, *rest: Any) -> Any:
        counts["played"] += len(episodes)
        return await run(self, policy, episodes, *rest)

    trainer.collect, Runner.run = collecting, running  # type: ignore[method-assign]
    try:
        yield lambda: max(counts.values())
    finally:
        trainer.collect, Runner.run = collect, run  # type: ignore[method-assign]


async def measured(trainer: Any, env: Any, regime: Regime, seed: int) -> float:
    """Mean success or score of one attempt at each held-out task of `env`."""
    from agentgym.rollouts.policy import EpisodeSpec

    async def open_session() -> Any:
        return env.session()

    tasks = env.spec.splits[regime.split]
    left = [EpisodeSpec(env.spec.id, regime.split, i % tasks, 10**6 + i) for i in range(regime.held_out)]
    runner, measures = replace(trainer.runner, open_session=open_session), []
    for _ in range(ATTEMPTS):
        played = await runner.run(trainer.policy(seed, 10**9), left)
        measures += [t.success if regime.measure == "success" else t.score for t in played if not t.error]
        failed = [t for t in played if t.error]
        left = [one for one, t in zip(left, played, strict=True) if t.error]
        if not left:
            return float(np.mean(measures))
    raise SystemExit(f"{len(left)} held-out episodes failed {ATTEMPTS} times, one of them because {failed[0].error}")


# --- what is kept ----------------------------------------------------------------------------------------------


def save(
    name: str, seeds: Sequence[int], raced: dict[str, list[Job]], best: dict[str, Setting], ledger: Ledger
) -> None:
    """results/ledger/REGIME.json: figures, curves, tuning, and what they were measured on. Rows that stand there and
    were not raced now stay."""
    path, regime = RESULTS / f"{name}.json", REGIMES[name]
    kept = json.loads(path.read_text()) if path.is_file() else {}
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    tuning = [r for r in ledger.done.values() if r["regime"] == name and r["seed"] in TUNING_SEEDS]
    others = [r for r in kept.get("tuning", []) if r["method"] not in {r["method"] for r in tuning}]
    rows = {m: runs for m, runs in kept.get("raced", {}).items() if m in methods_of(regime)} | raced
    now = {
        "date": f"{datetime.date.today()}",
        "commit": commit,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "versions": {package: version(package) for package in ("torch", "transformers", "numpy")},
    }
    results = {
        **{part: getattr(regime, part) for part in ("env", "question", "budget", "target", "measure")},
        "seeds": seeds,
        "measured": {m: kept.get("measured", {}).get(m, now) for m in rows} | dict.fromkeys(raced, now),
        "settings": kept.get("settings", {}) | {m: setting.name for m, setting in best.items()},
        "raced": {m: rows[m] for m in methods_of(regime) if m in rows},
        "tuning": [*others, *tuning],
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    path.write_text(in_lines(results) + "\n")


def keep_unfinished(ledger: Ledger) -> None:
    """unfinished.jsonl: the jobs of rows that stand in no regime's results. A tuned row is not raced yet."""
    kept = [json.loads(path.read_text()) for path in RESULTS.glob("*.json")]
    tuned = [run for results in kept for run in results["tuning"] if run["method"] in results["raced"]]
    raced = [run for results in kept for runs in results["raced"].values() for run in runs]
    saved = {key(run) for run in (*tuned, *raced)}
    left = [json.dumps(job) + "\n" for job in ledger.done.values() if key(job) not in saved and job["budget"]]
    UNFINISHED.write_text("".join(left)) if left else UNFINISHED.unlink(missing_ok=True)


def in_lines(kept: dict[str, Any]) -> str:
    """JSON with a line for each entry, and for each entry of those that are tables."""
    parts = []
    for key, value in kept.items():
        text = json.dumps(value)
        if isinstance(value, dict):
            text = "{\n" + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()) + "\n }"
        parts.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}"


if __name__ == "__main__":
    main()
