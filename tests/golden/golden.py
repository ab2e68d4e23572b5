"""Golden runs: does a change of layout or names leave every number as it was?

Three short runs whose rollouts repeat to the bit (`rollout.lockstep`), and the credit benchmark on the oracle MDP, are
recorded as JSON lines beside this file and compared byte for byte, times aside. The last bits depend on the processor
and on PyTorch's version, so this is no test of `make test`: record before a change, check after it, on one machine.

    python tests/golden/golden.py record
    python tests/golden/golden.py check
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
RUNS = ("quickstart", "ppo-turn", "archer")
SHORT = ("run.steps=5", "rollout.lockstep=true", "eval.tasks=10", "eval.attempts=1")
RENAMED: dict[str, str] = {}
"""Metrics whose name changed since the runs were recorded: the old name's new one."""


def main() -> None:
    if sys.argv[1:] not in (["record"], ["check"]):
        raise SystemExit(__doc__)
    differing = []
    with tempfile.TemporaryDirectory() as folder:
        for name in (*RUNS, "credit-bench"):
            lines = bench(Path(folder)) if name == "credit-bench" else training(name, Path(folder) / name)
            text = "".join(f"{json.dumps(line, sort_keys=True)}\n" for line in lines)
            path = HERE / f"{name}.jsonl"
            if sys.argv[1] == "record":
                path.write_text(text)
            elif text != path.read_text():
                differing.append(name)
            print(name, "differs" if name in differing else "ok", flush=True)
    if differing:
        raise SystemExit(f"not as recorded: {', '.join(differing)}")


def training(recipe: str, out: Path) -> list[dict[str, object]]:
    """The metrics of every step, times aside."""
    command("train", recipe, *SHORT, "--out", str(out))
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [
        {RENAMED.get(key, key): value for key, value in step.items() if not key.startswith("time")} for step in steps
    ]


def bench(out: Path) -> list[object]:
    """The table of `agentgym credit bench` on the oracle MDP."""
    small = ("--groups", "4", "--group-size", "4", "--learn-groups", "4", "--continuations", "12")
    command("credit", "bench", "oracle", *small, "--out", str(out / "bench"))
    table = json.loads((out / "bench" / "bench.json").read_text())
    return [without_seconds(table)]


def without_seconds(tree: object) -> object:
    """A JSON tree without its times."""
    if isinstance(tree, dict):
        return {key: without_seconds(value) for key, value in tree.items() if not key.endswith("seconds")}
    return [without_seconds(item) for item in tree] if isinstance(tree, list) else tree


def command(*arguments: str) -> None:
    done = subprocess.run([Path(sys.executable).parent / "agentgym", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"agentgym {' '.join(arguments)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


if __name__ == "__main__":
    main()
