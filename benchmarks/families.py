"""Learning beyond grids: what RL adds to a warm-up, with GRPO and with turn-level credit.

    python benchmarks/families.py --families maze shop --out runs/families

A model of one to four million parameters is made from a seed, imitates the scripted solver made noisy, and is then
trained by RL on the train split over HTTP: the environment runs in a server process. GRPO and one turn-level recipe
start from the same warm-up. Before and after RL it plays each held-out task once, with the same tasks and the same
seeds of chance; the difference is paired by task, with a 95 % bootstrap interval over tasks.

Finished parts are kept in OUT/jobs.jsonl: a run that is stopped goes on. `--save` writes the results, with machine,
versions, commit and date, to benchmarks/results/families.json after every family, and docs/families.md anew.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from family_settings import BASELINE, FAMILIES, Family, overrides_of
from ledger import finished, in_lines
from ledger_report import Estimate, bootstrap, interval, mean_rows

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "families.json"
PAGE = ROOT / "docs" / "families.md"
BEGIN, END = "<!-- from the results: python benchmarks/families.py --page -->\n", "<!-- end -->\n"
WARM_UP = "warm-up"
MIN_GAIN = 15.0
"""Points of success that count as an improvement, if the interval is above 0 as well."""
Job = dict[str, Any]
"""A finished part: family, method (or "warm-up"), seed, success (one number a held-out task), seconds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/families"))
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--methods", nargs="+", help="recipes beside the warm-up (default: grpo and the family's own)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--hours", type=float, default=24.0, help="begin no part after this many hours")
    parser.add_argument("--save", action="store_true", help="keep the results in benchmarks/results/families.json")
    parser.add_argument("--page", action="store_true", help="only write docs/families.md from the saved results")
    options = parser.parse_args()
    if options.page:
        write_page()
        return
    options.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 3600 * options.hours
    for seed in options.seeds:
        for name in options.families:
            parts = Parts(options.out, deadline)
            asyncio.run(play(parts, name, seed, options.methods or [BASELINE, FAMILIES[name].recipe]))
            print(name, seed, line_of(name, parts.of(name)), flush=True)
            if options.save:
                save(name, parts.of(name))


class Parts:
    """Finished parts, and the file that keeps them."""

    def __init__(self, out: Path, deadline: float) -> None:
        self.out, self.deadline = out, deadline
        self.path = out / "jobs.jsonl"
        self.done = {key(part): part for part in finished(self.path)}

    def missing(self, name: str, method: str, seed: int) -> bool:
        """Raise SystemExit where a part is missing and the hours are over."""
        missing = (name, method, seed) not in self.done
        if missing and time.monotonic() > self.deadline:
            raise SystemExit("the hours are over; run the same command again to go on")
        return missing

    def add(self, part: Job) -> None:
        """Keep a finished part."""
        with self.path.open("a") as file:
            file.write(json.dumps(part) + "\n")
        self.done[key(part)] = part
        success = 100 * float(np.mean(part["success"]))
        print(
            "{family} {method} seed {seed}: ".format(**part) + f"{success:.1f} %, {part['seconds']:.0f} s", flush=True
        )

    def of(self, name: str) -> list[Job]:
        """Finished parts of a family."""
        return [part for part in self.done.values() if part["family"] == name]


def key(part: Job) -> tuple[Any, ...]:
    return part["family"], part["method"], part["seed"]


# --- one family ---------------------------------------------------------------------------------------------------


async def play(parts: Parts, name: str, seed: int, methods: Sequence[str]) -> None:
    """Warm up, evaluate, and train with each method, as far as it is not done."""
    from agentgym_trainers import run
    from agentgym_trainers.recipe import resolve
    from agentgym_trainers.rollout.environment import open_env

    family, wanted = FAMILIES[name], [WARM_UP, *methods]
    if not any(parts.missing(name, method, seed) for method in wanted):
        return
    folder = parts.out / f"{name}-{seed}"
    folder.mkdir(exist_ok=True)
    shown = folder / "demonstrations.jsonl" if family.all_splits else None
    config = resolve(BASELINE, overrides_of(family, BASELINE, seed))
    with run.bars() as progress:
        progress.disable = True
        async with open_env(config, progress) as (connection, _):
            if shown is not None and not shown.is_file():
                await demonstrate(family, config, connection, seed, shown)
            for method in wanted:
                if not parts.missing(name, method, seed):
                    continue
                recipe = BASELINE if method == WARM_UP else method
                config = resolve(recipe, overrides_of(family, recipe, seed, shown))
                measured = await train(family, config, connection, folder, method, progress)
                episodes = family.steps * family.groups * 8  # of RL, as this part was played
                parts.add({"family": name, "method": method, "seed": seed, "episodes": episodes, **measured})


async def demonstrate(family: Family, config: Any, connection: Any, seed: int, path: Path) -> None:
    """Write the noisy solver's games on tasks of all splits."""
    from agentgym.rollouts.trajectory import write_jsonl

    tasks = [(split, task) for split, count in connection.spec.splits.items() for task in range(count)]
    chosen = [(*tasks[i % len(tasks)], i // len(tasks)) for i in range(2 * family.demonstrations)]
    write_jsonl(path, await solve(config, connection, chosen, family.noise, seed))


async def solve(
    config: Any, connection: Any, episodes: Sequence[tuple[str, int, int]], noise: float, seed: int
) -> list[Any]:
    """Episodes of the noisy solver, each on a (split, task, attempt)."""
    from agentgym.rollouts.policy import EpisodeSpec, SolverPolicy
    from agentgym.rollouts.runner import Limits, Runner

    async def session() -> Any:
        return connection.session()

    specs = [EpisodeSpec(connection.spec.id, split, task, seed, attempt) for split, task, attempt in episodes]
    runner = Runner(session, config.prompt_format, Limits(config.env.max_turns), config.rollout.concurrency)
    return await runner.run(SolverPolicy(noise, seed), specs)


async def train(
    family: Family, config: Any, connection: Any, folder: Path, method: str, progress: Any
) -> dict[str, Any]:
    """Success on each held-out task after the warm-up or after RL, and what it took."""
    from agentgym.errors import GuardTripped
    from agentgym_trainers import run
    from agentgym_trainers.monitoring.metrics import MetricsLog

    started = time.perf_counter()
    start = await run.warm_start(config, folder, connection, progress)
    own = folder / method
    shutil.rmtree(own, ignore_errors=True)  # of a part that was stopped
    own.mkdir()
    trainer, _ = await run.start_training(config, own, connection, start)
    trainer.save = lambda log: own  # type: ignore[method-assign]  # checkpoints are only for resuming
    log, stopped = MetricsLog(own), ""
    try:
        if method != WARM_UP:
            await trainer.run(log)
    except GuardTripped as error:
        stopped = str(error)
    trained = time.perf_counter()
    success = await held_out(trainer, connection.spec, family, config.run.seed)
    await trainer.engine.aclose()
    log.close()
    return {
        "success": success,
        "seconds": round(trained - started, 1),
        "evaluation_seconds": round(time.perf_counter() - trained, 1),
        "parameters": sum(p.numel() for p in trainer.learner.model.parameters()),
        **({"stopped": stopped} if stopped else {}),
    }


async def held_out(trainer: Any, spec: Any, family: Family, seed: int) -> list[float]:
    """Mean success of each held-out task over its attempts."""
    from agentgym.rollouts.policy import EpisodeSpec

    tasks = min(family.held_out, spec.splits[family.split])
    every = [(task, attempt) for attempt in range(family.attempts) for task in range(tasks)]
    episodes = [EpisodeSpec(spec.id, family.split, task, 10**6 + attempt) for task, attempt in every]
    trajectories = await trainer.runner.run(trainer.policy(seed, 10**9), episodes)
    success = np.array([float(bool(t.success)) for t in trajectories]).reshape(family.attempts, tasks)
    return [round(float(x), 4) for x in success.mean(axis=0)]


# --- the report -----------------------------------------------------------------------------------------------------


def differences(parts: Sequence[Job], method: str) -> np.ndarray:
    """Success of each held-out task after RL less before it, in points, of all seeds that have both."""
    of = {(part["method"], part["seed"]): part["success"] for part in parts}
    seeds = [seed for m, seed in of if m == method and (WARM_UP, seed) in of]
    pairs = [100 * (np.array(of[method, seed]) - np.array(of[WARM_UP, seed])) for seed in seeds]
    return np.mean(pairs, axis=0) if pairs else np.zeros(0)


def gain(parts: Sequence[Job], method: str) -> Estimate | None:
    """Mean paired difference in points with its interval over tasks."""
    paired = differences(parts, method)
    return bootstrap(mean_rows, paired) if len(paired) else None


def improves(estimate: Estimate | None) -> bool:
    return estimate is not None and estimate[0] >= MIN_GAIN and estimate[1] > 0


def percent(parts: Sequence[Job], method: str) -> float | None:
    """Mean success of a part over held-out tasks and seeds, in per cent."""
    found = [100 * float(np.mean(part["success"])) for part in parts if part["method"] == method]
    return float(np.mean(found)) if found else None


def line_of(name: str, parts: Sequence[Job]) -> list[str]:
    """The row of a family; empty cells where a part is not finished. Episodes and seconds are those of one seed."""
    family = FAMILIES[name]
    before = percent(parts, WARM_UP)
    cells = [name, f"`{family.env}`", "" if before is None else f"{before:.0f}"]
    for method in (BASELINE, family.recipe):
        after, estimate = percent(parts, method), gain(parts, method)
        mark = "**" if improves(estimate) else ""
        cells += ["" if after is None else f"{after:.0f}", f"{mark}{interval(estimate)}{mark}"]
    tasks = max((len(part["success"]) for part in parts), default=0)
    planned = family.steps * family.groups * 8
    episodes = next((part["episodes"] for part in parts if "episodes" in part), planned)
    seeds = sorted({part["seed"] for part in parts})
    seconds = sum(part["seconds"] for part in parts) / max(len(seeds), 1)
    note = family.note if any(part["method"] != WARM_UP for part in parts) else "not played yet"
    if len(seeds) > 1:
        of_seeds = [gain([part for part in parts if part["seed"] == seed], BASELINE) for seed in seeds]
        note += f"; GRPO by seed {', '.join(f'{one[0]:+.0f}' for one in of_seeds if one)}"
    for part in parts:
        if "stopped" in part:
            note += f"; {part['method']} was stopped: {part['stopped'].partition('; ')[0]}"
    return [*cells, family.recipe, f"{tasks}", f"{episodes}", f"{seconds:.0f}", note]


HEAD = (
    "family", "environment", "before, %", "GRPO, %", "difference", "turn level, %", "difference", "recipe", "tasks",
    "episodes", "seconds", "note",
)  # fmt: skip


def tables(results: Mapping[str, Any]) -> str:
    """The generated part of docs/families.md."""
    rows = [HEAD, *(line_of(name, results.get(name, {}).get("parts", [])) for name in FAMILIES)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(HEAD))
    improved = [
        name
        for name in FAMILIES
        for parts in [results.get(name, {}).get("parts", [])]
        if any(improves(gain(parts, method)) for method in (BASELINE, FAMILIES[name].recipe))
    ]
    played = [saved for saved in results.values() if saved["parts"]]
    summary = (
        f"{len(improved)} of {len(FAMILIES)} families improve by at least {MIN_GAIN:.0f} points with an interval above "
        f"0 (bold): {', '.join(improved)}."
    )
    about = f" {played[0]['machine']}; {', '.join(sorted({s['date'] for s in played}))}." if played else ""
    return "\n".join(lines) + f"\n\n{summary}{about}\n"


def save(name: str, parts: Sequence[Job]) -> None:
    """Put a family into results/families.json, with what it was measured on, and write the page."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    family, results = FAMILIES[name], saved_results()
    results[name] = {
        "env": family.env,
        "seeds": sorted({part["seed"] for part in parts}),
        "date": f"{datetime.date.today()}",
        "commit": commit,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "versions": {package: version(package) for package in ("torch", "transformers", "numpy")},
        "overrides": overrides_of(family, BASELINE, 0),
        "parts": list(parts),
    }
    RESULTS.write_text(in_lines({n: results[n] for n in FAMILIES if n in results}) + "\n")
    write_page()


def saved_results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}


def write_page() -> None:
    """Write the generated part of docs/families.md anew."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + tables(saved_results()) + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
