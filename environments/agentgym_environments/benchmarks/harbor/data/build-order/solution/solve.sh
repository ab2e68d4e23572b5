#!/bin/bash
set -e
cat > /app/site.py <<'PY'
import pathlib
import re
import sys

INCLUDE = re.compile(r"(\s*)@include (\S+)\s*")
source, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
pages = {page.stem: page.read_text().split("\n")[:-1] for page in sorted(source.glob("*.page"))}
built = {}


def build(name, way):
    if name in way:
        circle = way[way.index(name):]
        first = circle.index(min(circle))
        sys.exit("circle: " + " -> ".join([*circle[first:], *circle[:first], circle[first]]))
    if name not in built:
        lines = []
        for line in pages[name]:
            found = INCLUDE.fullmatch(line)
            if not found:
                lines.append(line)
                continue
            if found[2] not in pages:
                sys.exit(f"{name} includes {found[2]}, which does not exist")
            lines += [found[1] + one if one else one for one in build(found[2], [*way, name])]
        built[name] = lines
    return built[name]


for name in pages:
    build(name, [])
out.mkdir(parents=True, exist_ok=True)
for name, lines in built.items():
    path, text = out / f"{name}.html", "".join(f"{line}\n" for line in lines)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
for path in out.glob("*.html"):
    if path.stem not in pages:
        path.unlink()
PY
