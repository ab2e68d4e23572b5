"""Train from Python: resolve a recipe with overrides, run it, read what it left. Small enough for a minute of CPU."""

import asyncio
import json
import tempfile
from pathlib import Path

from agentgym_trainers.recipe import resolve
from agentgym_trainers.run import run

SMALL = [
    "env.name=oracle",  # three decisions; chance wins 3 of 16 episodes
    "env.serve=false",
    "run.steps=6",
    "rollout.groups=4",
    "rollout.group_size=8",
    "rollout.concurrency=32",
    "credit.gamma=1.0",
    "optim.lr=2e-3",
    "model.tiny.hidden_size=32",
    "model.tiny.layers=1",
    "sft.demonstrations=64",
    "sft.noise=0.9",  # imitate a solver that is nearly always wrong: the words are learned, the way is not
    "sft.lr=1e-2",
    "sft.max_steps=30",
    "sft.stop_at_success=",
    "eval.split=train",
    "eval.tasks=1",
    "eval.attempts=64",
]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        outcome = asyncio.run(run(resolve("quickstart", SMALL), Path(folder) / "run"))
        for line in (outcome.folder / "metrics.jsonl").read_text().splitlines():
            metrics = json.loads(line)
            if metrics["phase"] == "rl":
                report_line = f"success {metrics['rollout/success']:.0%}, gradient {metrics['optim/grad_norm']:.3f}"
                print(f"step {metrics['step']}: {report_line}")
        for name, report in (("before", outcome.before), ("after", outcome.after)):
            line = report.summary.overall
            print(f"{name}: {line.cell('success')} % of {line.attempts} attempts, {line.turns:.1f} turns")
        print("in the run's folder:", *sorted(path.name for path in outcome.folder.iterdir()))


if __name__ == "__main__":
    main()
