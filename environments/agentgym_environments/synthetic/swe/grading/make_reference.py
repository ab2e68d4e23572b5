"""Make the expected observations: the package without the bug is run in a sandbox of its own, and cached."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path

from agentgym.errors import EnvironmentCrashed
from agentgym_environments.synthetic.swe.grading.observations import END, Observations, digest
from agentgym_environments.synthetic.swe.grading.reference import Reference, as_json, from_json
from agentgym_environments.synthetic.swe.grading.run import observe
from agentgym_environments.synthetic.swe.grading.template import Template, make_template
from agentgym_environments.synthetic.swe.source import TOOLS, PackageSource

ALARM_S = 5
"""Seconds that a variant may take."""
FOLDER = "observations"
"""Folder of the cache."""
LIMIT_S = 400.0
MOST_PROBES = 20
RUNS = 3


@lru_cache(maxsize=16)
def reference(package: PackageSource, cache: Path, backend: str = "auto") -> Reference:
    """The package's reference, from the cache folder; it takes four runs of the tests where that has none, for which
    other processes wait."""
    path = cache / FOLDER / f"{package.module.strip('/').rpartition('/')[2]}-{fingerprint(package, backend)}.json"
    with alone(path):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return from_json(json.loads(path.read_text(encoding="utf-8")))
        made = make_reference(package, cache, backend)
        with contextlib.suppress(OSError):  # a cache that cannot be written is made anew by the next process
            with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
                json.dump(as_json(made), file)
            os.replace(file.name, path)
    return made


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait until nobody else makes what will be at `path`: of eight workers that judge their first fix of a package,
    each would run its tests. Nobody waits where the folder cannot be written."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(stack.enter_context(path.with_suffix(".lock").open("a")), fcntl.LOCK_EX)
        yield


def fingerprint(package: PackageSource, backend: str) -> str:
    """A hash of all that the observations come from: the package, its tests, this code, Python and the tools."""
    content = hashlib.sha256(repr((backend, platform.python_version(), TOOLS)).encode())
    for folder in (package.visible, package.hidden):
        for path, text in sorted(folder.items()):
            content.update(f"{path} {len(text)} ".encode() + text)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        content.update(path.read_bytes())
    return content.hexdigest()[:20]


def make_reference(package: PackageSource, cache: Path, backend: str) -> Reference:
    """Run the tests and all variants once to find what says too little or takes too long, and `RUNS` times to find what
    differs from run to run."""
    seed = hashlib.sha256(json.dumps(sorted(package.hidden)).encode()).hexdigest()
    draft = make_template(package.hidden, seed)
    first, chosen = probe(package, draft, cache, backend)
    kept = {
        point for points in first.values() for point, texts in points.items() if any(t.endswith("~") for t in texts)
    }
    template = make_template(package.hidden, seed, kept)
    with ThreadPoolExecutor(RUNS) as threads:
        run = partial(observe, package, {}, template, chosen, cache, backend=backend, timeout_s=LIMIT_S)
        runs = list(threads.map(lambda _: run(), range(RUNS)))
    common = [test for test in runs[0] if all(test in run for run in runs)]
    expected = {test: agreed([run[test] for run in runs]) for test in common}
    expected = {test: points for test, points in expected.items() if not test[1] or points.get(END)}
    if not expected:
        raise EnvironmentCrashed(f"no hidden test of {package.module} ran in its sandbox, so that no fix can be judged")
    return Reference(without(template, template.variants() - chosen), expected)


def probe(
    package: PackageSource, draft: Template, cache: Path, backend: str
) -> tuple[Observations, set[tuple[str, int]]]:
    """A first run, and the variants that end in time; one that ends the run is left out of the next."""
    chosen = draft.variants()
    found: Observations = {}
    for _ in range(MOST_PROBES):
        found = observe(package, {}, draft, chosen, cache, backend=backend, timeout_s=LIMIT_S, alarm_s=ALARM_S)
        ends = {test: points.get(END, [""]) for test, points in found.items() if test[1]}
        cut = {test for test, texts in ends.items() if not texts[-1].startswith("teardown")}
        overdue = {test for test, texts in ends.items() if any("Overdue" in text for text in texts)}
        chosen = chosen - {(identity.rpartition("::")[2], number) for identity, number in cut | overdue}
        if not cut:
            break
    return found, chosen


def agreed(runs: list[dict[int, list[str]]]) -> dict[int, str]:
    """The digest of each point, "" where the runs differ."""
    points = {point: [run.get(point) for run in runs] for run in runs for point in run}
    return {
        point: digest(texts[0]) if texts[0] is not None and texts.count(texts[0]) == len(runs) else ""
        for point, texts in points.items()
    }


def without(template: Template, left_out: set[tuple[str, int]]) -> Template:
    """The template without some variants."""
    files = {
        path: [one for one in parts if not one.variant or (one.test, one.variant) not in left_out]
        for path, parts in template.files.items()
    }
    return Template(files, template.others, template.names)
