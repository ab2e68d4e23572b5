"""The panel of every environment, in two containers: another Python, locale and hash seed.

What a score is of must be the same task set for everyone who computes it.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from harbor_folders import harbor_folder

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

OTHER = """
ARG AGENTGYM
ARG BASE
FROM ${AGENTGYM} AS agentgym
FROM ${BASE}
RUN echo "deb http://deb.debian.org/debian trixie main" > /etc/apt/sources.list.d/trixie.list \\
 && apt-get update -qq \\
 && apt-get install -y -qq --no-install-recommends --target-release trixie python3.13 python3-pip \\
 && rm -rf /var/lib/apt/lists/*
COPY needed.txt constraints.txt /
COPY --from=agentgym /wheels /wheels
RUN for python in python3.11 python3.13; do \\
      install="$python -m pip install --quiet --break-system-packages --target /opt/$python" \\
      && $install --constraint /constraints.txt --requirement /needed.txt \\
      && $install --no-deps --ignore-requires-python /wheels/*.whl || exit 1; \\
    done
"""

PRINT = """
import hashlib
import json
import sys
import warnings

warnings.simplefilter("ignore")  # of syntax, in packages that know an older Python
from agentgym import registry
from agentgym.errors import AgentGymError

found = {}
for name in registry.list_envs():
    try:
        spec = registry.get_spec(name)
    except AgentGymError:  # its packages are not in the image
        continue
    found[name] = [spec.version, spec.task_set, spec.splits]
tasks = {}
for name in sys.argv[1].split(","):
    env, texts = registry.make(name), []
    for split, size in sorted(env.env_spec.splits.items()):
        for task in {0, size // 2, size - 1}:
            texts.append((split, task, env.reset(seed=3, options={"split": split, "task": task})[0]))
    env.close()
    lines = "".join(repr(each) for each in sorted(texts, key=lambda each: each[:2]))
    tasks[name] = hashlib.sha256(lines.encode()).hexdigest()
for name, options in (("qa", {"train": "/tasks/questions.jsonl"}), ("harbor", {"folder": "/tasks/harbor"})):
    env = registry.make(name, **options)
    tasks[name] = env.env_spec.task_set
    env.close()
print(json.dumps({"python": sys.version_info[:2], "specs": found, "tasks": tasks}))
"""

TEXTS = (
    "car-dealer", "guess-city", "keydoor", "maze", "navigation", "negotiation", "search", "sokoban", "tools",
    "tools-dialogue", "twenty-questions", "wordle",
)  # fmt: skip
"""Environments whose tasks are made by a generator, from words and random numbers."""


@pytest.fixture(scope="module")
def image(slim, images, kit, tmp_path_factory) -> str:
    """It has the next Debian's Python 3.13 beside 3.11, and for each what AgentGym and `search` need."""
    folder: Path = tmp_path_factory.mktemp("other")
    project = tomllib.loads((kit.root / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["search"]]
    needed.append("airportsdata==20260905")  # a newer one, which asks for a newer Python, has other airports
    (folder / "needed.txt").write_text("\n".join(needed))
    (folder / "constraints.txt").write_text((kit.root / "constraints.txt").read_text())
    (folder / "Dockerfile").write_text(OTHER)
    given = (f"--build-arg=BASE={slim}", f"--build-arg=AGENTGYM={images('base')}")
    return kit.build(folder, "localhost/agentgym-test/pythons", *given)


@pytest.fixture
def files(tmp_path) -> Path:
    """A file of questions and a folder of Harbor tasks, with names that locales sort differently."""
    lines = [
        {"id": name, "question": f"{name}? {1 / 3 + i}", "answer": [name, "Z", "\u00e9", "e\u0301"]}
        for i, name in enumerate(("zebra", "\u00c4pfel", "apple", "Zoo", "\u4e16\u754c", "_"))
    ]
    text = "\n".join(json.dumps(line, ensure_ascii=i % 2 == 0) for i, line in enumerate(lines))
    (tmp_path / "questions.jsonl").write_text(text, encoding="utf-8")
    for name in ("b", "A", "_a", "a-1"):
        harbor_folder(tmp_path / "harbor" / name, solution="echo \u00fc")
    return tmp_path


def test_panels_are_the_same_in_two_containers(image, files, kit) -> None:
    def panels(python: str, seed: str, locale: str) -> dict:
        settings = {
            "PYTHONPATH": f"/opt/{python}",
            "PYTHONHASHSEED": seed,
            "LC_ALL": locale,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        options = [part for name, value in settings.items() for part in ("--env", f"{name}={value}")]
        printed = kit.docker(
            "run", "--rm", "--label", kit.label, "--volume", f"{files}:/tasks:ro", *options,
            "--entrypoint", python, image, "-c", PRINT, ",".join(TEXTS), timeout=600,
        )  # fmt: skip
        return json.loads(printed)

    ours = panels("python3.11", "1", "C")
    theirs = panels("python3.13", "2", "C.UTF-8")
    assert ours["python"] != theirs["python"]
    both = ours["specs"].keys() & theirs["specs"].keys()
    assert len(both) > 40
    assert {name: theirs["specs"][name] for name in both} == {name: ours["specs"][name] for name in both}
    assert all(ours["tasks"].values())
    assert theirs["tasks"] == ours["tasks"]
