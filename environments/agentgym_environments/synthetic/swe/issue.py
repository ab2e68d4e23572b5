"""The issue of a task: what somebody who met the bug would report, made from how a test of it failed."""

from __future__ import annotations

import re

LONGEST = 900


def symptom(test: str, failure: str, root: str) -> str:
    """The failing line and what was wrong with it. `failure` is pytest's short traceback; frames outside tests are left
    out, since they would name the place of the fault."""
    lines = failure.strip().splitlines()
    frames = [index for index, line in enumerate(lines) if re.match(r"\S+:\d+: in ", line)]
    report, wrong = [], [line[1:].strip() for line in lines if re.match(r"E\s", line)]
    for start, end in zip(frames, [*frames[1:], len(lines)]):
        path = lines[start].partition(":")[0]
        if "test" in path and not path.startswith("/"):
            report = [
                line.strip() for line in lines[start + 1 : end] if line[:1].isspace() and not set(line) <= set(" ^~")
            ]
    words = re.sub(r"\[.*", "", test.rpartition("::")[2]).removeprefix("test").strip("_").replace("_", " ")
    what = "\n".join(f"    {line}" for line in report if not line.startswith("E "))
    how = "\n".join(f"    {line}" for line in wrong[:12])
    text = f"{words}: expected\n{what}\nbut got\n{how}" if what else f"{words}: got\n{how}"
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    return text.replace(f"/work/{root}/".replace("//", "/"), "")[:LONGEST]


def clearest(failed: dict[str, str]) -> str:
    """The test whose failure says most in the fewest words."""
    return min(
        failed,
        key=lambda test: ("E   " not in failed[test], "assert" not in failed[test].lower(), len(failed[test]), test),
    )
