"""The verifier of an exported task: the agent's files are run on held-out inputs, and the numbers compared here."""

import json
import math
import runpy
import sys
from pathlib import Path

from agentgym_environments.tasks import harbor_verifier as verifier

TESTS = Path(__file__).parent

USER = 65534
FOLDER = "/work"
GREATEST = 1e9
MOST_BYTES, MOST_FILES = 16 << 20, 1000
OUT_BYTES = 1_000_000
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}
ENVIRONMENT |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def submitted(fixed):
    """The agent's files, without those that have the name of one of the task's own."""
    found, size = {}, 0
    for path, length in verifier.regular_files("/app", MOST_FILES):
        if path.partition("/")[0] in fixed:
            continue
        size += length
        if size > MOST_BYTES:
            raise ValueError(f"the files are more than {MOST_BYTES} bytes")
        content = verifier.content(f"/app/{path}", MOST_BYTES)
        if content is not None:
            found[path] = content
    return found


def predictions(count):
    """The numbers that the program wrote. Raises ValueError where there are not so many."""
    content = verifier.content(f"{FOLDER}/out.csv", OUT_BYTES)
    if content is None:
        raise ValueError("out.csv is not there, or too large")
    found = [float(line) for line in content.decode("ascii").split("\n") if line.strip()]
    if len(found) != count:
        raise ValueError(f"out.csv has {len(found)} numbers, not {count}")
    if not all(math.isfinite(x) and abs(x) <= GREATEST for x in found):
        raise ValueError("out.csv has numbers that are not finite, or far too large")
    return found


def main():
    task = json.loads((TESTS / "task.json").read_text())
    own = {path.name: path.read_bytes() for path in (TESTS / "files").iterdir()}
    try:
        verifier.write_files(FOLDER, {**submitted({*own, "out.csv"}), **own}, USER)
        code = verifier.run_as(USER, [sys.executable, "run.py"], FOLDER, ENVIRONMENT, task["judge_s"])
        if code != 0:
            raise ValueError("the program was stopped" if code is None else f"the program failed with code {code}")
        found = predictions(len(task["held_out"]))
    except ValueError as error:
        return verifier.write_reward(0, f"no score: {error}")
    got = runpy.run_path(str(TESTS / "score.py"))["score"](found, task["held_out"], task["terms"])
    way = (task["baseline"] - got) / (task["baseline"] - task["reference"])
    share = round(min(1.0, max(0.0, way)), 4)
    return verifier.write_reward(share, f"the score is {got:.4g}, {100 * share:.0f} % of the way to the reference")


if __name__ == "__main__":
    main()
