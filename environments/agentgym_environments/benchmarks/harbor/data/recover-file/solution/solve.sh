#!/bin/bash
set -e
python3 - <<'PY'
import hashlib
import os
import zlib

STORE = "/app/store"


def read(name):
    with open(f"{STORE}/objects/{name[:2]}/{name[2:]}", "rb") as file:
        raw = zlib.decompress(file.read())
    if hashlib.sha1(raw).hexdigest() != name:
        return None, b""
    kind, _, content = raw.partition(b"\n")
    return kind.decode(), content


def blob(commit):
    tree = next(line.split()[1] for line in read(commit)[1].decode().splitlines() if line.startswith("tree "))
    for part in ("config", "routes.conf"):
        lines = [line.split(" ", 2) for line in read(tree)[1].decode().splitlines()]
        tree = next((one for _, one, name in lines if name == part), None)
        if tree is None:
            return None
    return tree


waiting, seen = [open(f"{STORE}/HEAD").read().strip()], set()
while waiting:
    commit = waiting.pop()
    kind, content = read(commit)
    if kind is None or commit in seen:
        continue
    seen.add(commit)
    parents = [line.split()[1] for line in content.decode().splitlines() if line.startswith("parent ")]
    alive = [parent for parent in parents if read(parent)[0]]
    before = [blob(parent) for parent in alive if blob(parent)]
    if blob(commit) is None and before:
        os.makedirs("/app/recovered", exist_ok=True)
        open("/app/recovered/routes.conf", "wb").write(read(before[0])[1])
        open("/app/recovered/deleted-by", "w").write(commit + "\n")
        break
    waiting += alive
PY
