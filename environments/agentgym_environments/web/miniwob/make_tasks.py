"""Writes tasks.json, some ten minutes: `python -m agentgym_environments.web.miniwob.make_tasks`.

Of every page it tries seeds in their order. A seed counts when what it shows is new for the page; what is shown decides
its split. Pages that show little have train tasks alone. A page that does not open alike after another episode, played
at random, is to be loaded anew for every episode.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from pathlib import Path

from agentgym_environments.turns import split_of
from agentgym_environments.web.actions import NotPossible, parse
from agentgym_environments.web.miniwob.expert import EXPERTS
from agentgym_environments.web.miniwob.site import Site, names

WANTED = {"train": 60, "validation": 8, "test": 8}
SEEDS = range(10, 170)
FEW = 20
"""A page that shows no more than so much has no validation and test."""

EASY = (
    "click-button", "click-color", "click-dialog", "click-dialog-2", "click-link", "click-shape", "click-tab",
    "click-test", "click-test-2", "click-test-transfer", "click-widget", "count-shape", "email-inbox-delete",
    "email-inbox-important", "enter-text", "enter-text-2", "enter-text-dynamic", "enter-date", "enter-time",
    "find-word", "focus-text", "focus-text-2", "grid-coordinate", "identify-shape", "choose-list", "click-option",
    "read-table", "simple-algebra", "simple-arithmetic", "text-transform", "unicode-test", "visual-addition",
)  # fmt: skip


def shown(site: Site) -> str:
    """All that an agent could be shown now, as a short name."""
    seen = site.look()
    canvases = "[...document.querySelectorAll('canvas:not(#click-canvas)')].map(canvas => canvas.toDataURL()).join()"
    whole = f"{seen.task}\n{seen.tree}\n{site.html()}\n{site.evaluate(canvases)}"
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def disturb(site: Site, chance: random.Random) -> None:
    """A few actions, whatever they are."""
    for _ in range(4):
        seen = site.look(1000)
        ids = re.findall(r"\[(\d+)\]", seen.tree)
        if seen.done or not ids:
            return
        one, other = chance.choice(ids), chance.choice(ids)
        action = parse(chance.choice([f"click {one}", f"click {one}", f"fill {one} abc", f"drag {one} {other}"]))
        try:
            site.act(action)  # type: ignore[arg-type]
        except NotPossible:
            continue


def must_reload(page: str, site: Site, fresh: Site) -> bool:
    chance = random.Random(page)
    for seed in list(SEEDS)[:5]:
        fresh.start(page, seed)
        site.start(page, seed + 1000)
        disturb(site, chance)
        site.start(page, seed)
        if shown(fresh) != shown(site):
            return True
    return False


def seeds_of(page: str, site: Site) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {split: [] for split in WANTED}
    known: dict[str, int] = {}
    for seed in SEEDS:
        if all(len(found[split]) >= wanted for split, wanted in WANTED.items()):
            return found
        site.start(page, seed)
        content = shown(site)
        if content not in known:
            known[content] = seed
            split = split_of(f"{page} {content}")
            found[split] += [seed] * (len(found[split]) < WANTED[split])
    if len(known) > FEW:
        return found
    # What decides such a page is hidden, or there is but one way it looks.
    some = list(known.values()) if len(known) > 1 else list(SEEDS)[:FEW]
    return {"train": some, "validation": [], "test": []}


def main() -> None:
    everything = frozenset(names())
    soft, fresh = Site(), Site(everything)
    seeds, reload = {}, []
    for page in sorted(everything):
        anew = must_reload(page, soft, fresh)
        reload += [page] * anew
        seeds[page] = seeds_of(page, fresh if anew else soft)
        print(page, "reload" if anew else "", {split: len(some) for split, some in seeds[page].items()}, flush=True)
    groups = {"all": sorted(everything), "solved": sorted(EXPERTS), "easy": sorted(EASY)}
    text = json.dumps({"groups": groups, "reload": reload, "seeds": seeds})
    Path(__file__).with_name("tasks.json").write_text(text.replace('}, "', '},\n"') + "\n", encoding="utf-8")
    for site in (soft, fresh):
        site.close()


if __name__ == "__main__":
    main()
