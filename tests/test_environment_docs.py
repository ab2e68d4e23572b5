"""docs/environments.md tells of every environment what its `spec.toml` says.

python tests/test_environment_docs.py      writes its table anew
"""

from __future__ import annotations

from pathlib import Path

import agentgym_environments
from agentgym.spec import EnvSpec, read_variants

PACKAGE = Path(agentgym_environments.__file__).parent
DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "environments.md"
BEGIN, END = "<!-- from every spec.toml: python tests/test_environment_docs.py -->\n", "<!-- end -->\n"


def readme(folder: Path) -> str:
    """A link to the folder's README, or to that of the nearest folder around it."""
    inside = [around for around in [folder, *folder.parents] if PACKAGE in around.parents]
    found = next((around for around in inside if (around / "README.md").is_file()), None)
    assert found, f"{folder} has no README.md"
    place = found.relative_to(PACKAGE).as_posix()
    return f"[{place}](../environments/agentgym_environments/{place}/README.md)"


def table() -> str:
    """A row for each id, in the order of folders and, within one, of its file."""
    lines = ["| id | what it is and teaches | turns | solver | README |", "|---|---|---|---|---|"]
    for path in sorted(PACKAGE.rglob("spec.toml")):
        for name in read_variants(path):
            spec = EnvSpec.load(path, name)
            solved = "yes" if "solver" in spec.capabilities else "no"
            cells = [f"`{name}`", spec.description, str(spec.max_turns), solved, readme(path.parent)]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def test_the_table_is_what_the_specs_say() -> None:
    written = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert written == table(), "python tests/test_environment_docs.py writes it anew"


if __name__ == "__main__":
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    DOCUMENT.write_text(f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}", encoding="utf-8")
