"""Does the quickstart keep its promise? Five seeds of it, each a whole run: paired improvement in held-out success.

    python benchmarks/quickstart.py --out runs/quickstart-seeds

Fails unless, for every seed, the paired improvement is at least +30 points with its 95 % interval above +15, and no run
took ten minutes. Finished seeds are kept in OUT.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from agentgym.evaluation.evaluate import compare

SEEDS = (0, 1, 2, 3, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart-seeds"))
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    options = parser.parse_args()
    print(f"{'seed':>4} {'before':>8} {'after':>8} {'paired difference [95 % interval]':>36} {'seconds':>8}")
    kept = True
    for seed in options.seeds:
        folder = options.out / f"seed-{seed}"
        seconds = carry_out(folder, seed)
        line = compare(folder / "eval" / "before", folder / "eval" / "after").overall
        gap = line.difference
        assert gap is not None
        assert line.a is not None
        assert line.b is not None
        good = gap.estimate >= 0.30 and gap.low > 0.15 and seconds < 600
        kept = kept and good
        shown = f"{100 * gap.estimate:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
        remark = "" if good else "   below the claim"
        print(f"{seed:4} {100 * line.a:8.1f} {100 * line.b:8.1f} {shown:>36} {seconds:8.0f}{remark}", flush=True)
    print("claim: at least +30 points, interval above +15, under 600 s, for every seed:", "holds" if kept else "FAILS")
    sys.exit(0 if kept else 1)


def carry_out(folder: Path, seed: int) -> float:
    """The run's seconds; a finished run is not repeated."""
    stamp = folder / "seconds"
    if not stamp.is_file():
        started = time.perf_counter()
        command = [sys.executable, "-m", "agentgym", "quickstart", "--out", str(folder), f"run.seed={seed}"]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
        stamp.write_text(f"{time.perf_counter() - started:.1f}")
    return float(stamp.read_text())


if __name__ == "__main__":
    main()
