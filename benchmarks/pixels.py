"""Learning from pixels: one page of MiniWoB++ from its screenshots alone, clicked by coordinates.

    python benchmarks/pixels.py --seeds 0 1 --out runs/pixels --save

On `click-test` a button of 40 to 100 pixels lies anywhere on the page, and the text is the same for every task. A tiny
vision-language model is made from a seed and imitates clicks at random points of a grid that happened to hit: it knows
how a click is written, and where buttons often are. Then GRPO trains it on the page's train tasks, a click an episode.

The limit that matters is `blind`: the success of the best single point of the page. Whoever is above it has seen the
picture. Prints for each seed the score of RL's first and last steps, and success in four attempts at every task before
and after (held-out tasks are few); then what RL's success on train tasks, of all seeds, is above that of the best point
and above that before, with 95 % bootstrap intervals over tasks. `--save` keeps it in benchmarks/results/pixels.json.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ledger_report import Estimate, bootstrap, mean_rows

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "pixels.json"
PAGE = "click-test"
ENV = f"miniwob:page={PAGE},observation=screenshot"
XS, YS = range(30, 131, 25), range(80, 181, 25)
"""Points of the grid, in pixels: at least one lies in every button."""
BOX = "(() => { const r = document.querySelector('#subbtn').getBoundingClientRect(); return [r.x, r.y, r.width]; })()"
EDGE = 4
"""Steps at either end of RL whose mean score is compared."""
OPTIONS = (
    "run.threads=1", f'env.name="{ENV}"', "env.serve=false", "env.max_turns=1", "eval.tasks=0",
    'prompt_format.system="Click the button: click X,Y"', "rollout.groups=16", "rollout.group_size=8",
    "rollout.concurrency=8", "rollout.max_new_tokens=8", "rollout.max_length=128", "sft.noise=0",
    "sft.demonstrations=600", "sft.max_steps=600", "sft.batch=16", "sft.lr=3e-3", "sft.stop_at_success=",
    "model.tiny.max_length=128", "model.tiny.layers=2", "model.tiny.vision.layers=1", "model.tiny.vision.max_tokens=12",
    "model.tiny.vision.image_mean=1.0", "model.tiny.vision.image_std=0.1",
    "optim.lr=2e-3", "optim.minibatches=2",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/pixels"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--steps", type=int, default=32, help="steps of RL, of 128 episodes each")
    parser.add_argument("--demonstrations", type=int, default=600, help="random clicks tried")
    parser.add_argument("--save", action="store_true", help=f"keep the results in {RESULTS.relative_to(ROOT)}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    limits = {split: blind(split) for split in ("train", "validation", "test")}
    print(f"blind: {limits}", flush=True)
    shown = options.out / "demonstrations.jsonl"
    if not shown.is_file():
        hits = asyncio.run(demonstrate(shown, options.demonstrations))
        print(f"{hits} of {options.demonstrations} random clicks hit", flush=True)
    runs = [train(seed, options.steps, options.out / f"seed-{seed}", shown) for seed in options.seeds]
    gains = {over: gain(runs, over, limits) for over in ("blind", "before")}
    print(f"success on train tasks less that of: {gains}", flush=True)
    if options.save:
        save(limits, runs, gains, shown)


def blind(split: str) -> dict[str, Any]:
    """The best single point of the page for a split's tasks, of points five pixels apart.

    {"share", "x", "y", "hits"}: success, place, and whether it hits, of every task.
    """
    from agentgym_environments.benchmarks.miniwob.site import MiniWobSite
    from agentgym_environments.benchmarks.miniwob.tasks import tasks_of

    site, boxes = MiniWobSite(), []
    for page, seed in tasks_of([PAGE])[split]:
        site.start(page, seed)
        boxes.append(site.evaluate(BOX))
    site.close()
    x, y, size = np.array(boxes).T
    hits = {
        (a, b): (x <= a) & (a < x + size) & (y <= b) & (b < y + size)
        for a in range(0, 160, 5)
        for b in range(50, 210, 5)
    }
    (a, b), best = max(hits.items(), key=lambda item: item[1].mean())
    return {"share": float(best.mean()), "x": a, "y": b, "hits": best.tolist()}


async def demonstrate(path: Path, count: int) -> int:
    """Write the clicks at random points of the grid that hit a button; returns how many."""
    from agentgym import registry
    from agentgym.rollouts.policy import EpisodeSpec, ScriptedPolicy
    from agentgym.rollouts.prompt_format import PromptFormat
    from agentgym.rollouts.runner import Limits, Runner
    from agentgym.rollouts.trajectory import write_jsonl
    from agentgym.session import LocalSession

    async def open_session() -> LocalSession:
        return LocalSession(registry.make(ENV))

    rng, tasks = np.random.default_rng(0), registry.get_spec(ENV).splits["train"]
    policy = ScriptedPolicy(lambda _: f"click {rng.choice(XS)},{rng.choice(YS)}")
    runner = Runner(open_session, PromptFormat(), Limits(1), 8, keep_images=True)
    played = await runner.run(policy, [EpisodeSpec(ENV, "train", i % tasks, 0, i // tasks) for i in range(count)])
    hits = [trajectory for trajectory in played if trajectory.success]
    write_jsonl(path, hits)
    return len(hits)


def train(seed: int, steps: int, folder: Path, shown: Path) -> dict[str, Any]:
    """The warm-up and RL of one seed: scores of every step, and held-out success before and after."""
    from agentgym_trainers.recipe import resolve
    from agentgym_trainers.run import run

    options = [*OPTIONS, f"run.seed={seed}", f"run.steps={steps}", f"run.checkpoint_every={steps}", f"sft.path={shown}"]
    if not (folder / "checkpoints" / f"step-{steps:06d}").is_dir():
        asyncio.run(run(resolve("grpo", options), folder, resume=(folder / "config.toml").is_file()))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    scores = [line["rollout/score"] for line in lines if line["phase"] == "rl"]
    first, last = (float(np.mean(part)) for part in (scores[:EDGE], scores[-EDGE:]))
    gap = max(line["policy/engine_gap"] for line in lines if "policy/engine_gap" in line)
    found = {
        when: asyncio.run(success(folder / "checkpoints" / f"step-{step:06d}"))
        for when, step in (("before", 0), ("after", steps))
    }
    shares = {when: {split: round(float(np.mean(x)), 3) for split, x in some.items()} for when, some in found.items()}
    print(f"seed {seed}: RL {first:.2f} -> {last:.2f}; success {shares}; engine gap {gap:.1e}", flush=True)
    return {
        "seed": seed,
        "scores": scores,
        "first": first,
        "last": last,
        "success": found,
        "engine_gap": gap,
    }


async def success(folder: Path) -> dict[str, list[float]]:
    """Success of a checkpoint in four attempts at each task, by split."""
    from agentgym import registry
    from agentgym.rollouts.policy import EpisodeSpec
    from agentgym.rollouts.runner import Limits, Runner
    from agentgym.session import LocalSession
    from agentgym_trainers.load import checkpoint_policy

    async def open_session() -> LocalSession:
        return LocalSession(registry.make(ENV))

    loaded = checkpoint_policy(folder, temperature=None, max_new_tokens=None, max_sequences=8)
    runner = Runner(open_session, loaded.prompt_format, Limits(1), 8)
    splits = registry.get_spec(ENV).splits
    found = {}
    for split in splits:
        episodes = [EpisodeSpec(ENV, split, task, 0, k) for task in range(splits[split]) for k in range(4)]
        played = await runner.run(loaded.policy, episodes)
        found[split] = np.reshape([t.success for t in played], (-1, 4)).mean(1).tolist()
    return found


def gain(runs: list[dict[str, Any]], over: str, limits: dict[str, Any]) -> Estimate:
    """Success on train tasks after RL, less that before or of the blind point: a mean and its 95 % interval."""
    before, after = (np.mean([run["success"][when]["train"] for run in runs], axis=0) for when in ("before", "after"))
    return bootstrap(mean_rows, after - (np.array(limits["train"]["hits"]) if over == "blind" else before))


def save(limits: dict[str, Any], runs: list[dict[str, Any]], gains: dict[str, Estimate], shown: Path) -> None:
    """Keep the raw numbers, and where they come from."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    found = {
        "environment": ENV,
        "options": OPTIONS,
        "demonstrations": sum(1 for _ in shown.open()),
        "blind": limits,
        "runs": runs,
        "gains": gains,
        "measured": {
            "date": datetime.date.today().isoformat(),
            "commit": commit.stdout.strip(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, one used",
            "versions": {name: version(name) for name in ("torch", "transformers", "pillow", "playwright", "miniwob")},
        },
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
