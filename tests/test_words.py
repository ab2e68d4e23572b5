"""Words that are not used: docs, help, errors and identifiers have one term for each thing."""

from __future__ import annotations

import re
import subprocess
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEXT = (".py", ".md", ".toml", ".tmpl", ".html", ".yml", ".yaml", "Makefile", "Dockerfile", "run")
AS_IT_WAS = ("CHANGELOG.md", "docs/LOG.md", "tests/test_words.py")
"""They tell of the past, or of this rule."""
WORLD = re.compile(r"(?<![A-Za-z])worlds?(?![a-z])|(?<=[a-z])Worlds?(?![a-z])", re.IGNORECASE)
NAMES = re.compile(
    r"(?i)(?:science|sci|text|app|alf|os)-?world|world_size"  # names of others
    r"|game\.world\b"  # TextWorld's own attribute
    r"|world's airports|knows the world guesses|amazing world of TextWorld"  # the Earth
)

STEMS = "normal|optim|regular|token|general|standard|initial|serial|recogn|organ|summar|minim|maxim|penal|character"
BRITISH = re.compile(rf"(?i)(?<![a-z])((re|un|de)?({STEMS})is(e|ed|es|er|ers|ing|ation)|behaviour|centred?)(?![a-z])")


def files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split("\0") if name.endswith(TEXT) and name not in AS_IT_WAS]
    data = re.compile("environments/.*/data/")  # what agents read
    return [ROOT / name for name in names if not data.match(name) and (ROOT / name).is_file()]


def test_an_environment_is_not_called_a_world():
    """The glossary's words are environment, in prose, and env, in code."""
    offenders = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if WORLD.search(NAMES.sub("", line))
    ]
    assert offenders == []


def test_spelling_is_american():
    """As the field writes: normalize, optimizer, behavior. What agents read in environments stays as it was."""
    offenders = [
        f"{path.relative_to(ROOT)}:{number}: {found[0]}"
        for path in files()
        if "environments" not in path.relative_to(ROOT).parts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (found := BRITISH.search(line))
    ]
    assert offenders == []


PARTICIPLES = {"told", "said", "seen", "asked", "whole", "lesson", "scene", "crew", "relive"}
"""They say that something happened to a thing, and not what it is."""
SHOWN_TO_AGENTS = "environments/agentgym_environments/synthetic/research/programs/"


def test_no_participle_is_a_name():
    """Names say what a thing is: metrics, response, observation, request."""
    offenders = []
    for path in files():
        place = str(path.relative_to(ROOT))
        if path.suffix != ".py" or place.startswith(SHOWN_TO_AGENTS):
            continue
        with path.open("rb") as source:
            for token in tokenize.tokenize(source.readline):
                if token.type == tokenize.NAME and PARTICIPLES & set(re.split("_+", token.string.lower())):
                    offenders.append(f"{place}:{token.start[0]}: {token.string}")
    assert offenders == []
