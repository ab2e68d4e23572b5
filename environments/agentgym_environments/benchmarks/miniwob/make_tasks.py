"""Writes tasks.json: `python -m agentgym_environments.benchmarks.miniwob.make_tasks`.

Of every page it tries seeds in their order. A seed counts when what it shows is new for the page; what is shown decides
its split. Pages that show little have train tasks alone.
"""

from __future__ import annotations

import json
from pathlib import Path

from agentgym_environments.base.text_env import split_of
from agentgym_environments.benchmarks.miniwob.site import MiniWobSite, names

WANTED = {"train": 60, "validation": 8, "test": 8}
SEEDS = list(range(10, 260))
AT_ONCE = 25
FEW = 20
"""A page that shows no more than so much has no validation and test."""

SHOWN = """seeds => {
  core.EPISODE_MAX_TIME = 1e9;
  const hidden = "script, style, #reward-display, #reward-display *, #sync-task-cover, #click-canvas";
  return seeds.map(seed => {
    Math.seedrandom(seed);
    core.startEpisodeReal();
    const said = core.getUtterance(), parts = [typeof said === "string" ? said : said.utterance];
    for (const element of document.body.querySelectorAll("*")) {
      if (element.matches(hidden)) continue;
      const own = [...element.childNodes].filter(node => node.nodeType === 3).map(node => node.data.trim()).join(" ");
      const box = element.getBoundingClientRect();
      parts.push([element.tagName, own, element.value || "", element.getAttribute("fill") || "", Math.round(box.x),
        Math.round(box.y), Math.round(box.width), Math.round(box.height), element.style.cssText].join("|"));
      if (element.tagName === "CANVAS") parts.push(element.toDataURL());
    }
    return parts.join("\\n");
  });
}"""
"""Return what the page shows of each seed, without names that count up from episode to episode."""


def seeds_of(page: str, site: MiniWobSite) -> dict[str, list[int]]:
    site.start(page, SEEDS[0])
    found: dict[str, list[int]] = {split: [] for split in WANTED}
    known: dict[str, int] = {}
    for first in range(0, len(SEEDS), AT_ONCE):
        some = SEEDS[first : first + AT_ONCE]
        for seed, content in zip(some, site.evaluate(SHOWN, some)):
            if content not in known:
                known[content] = seed
                split = split_of(f"{page} {content}")
                found[split] += [seed] * (len(found[split]) < WANTED[split])
        if all(len(found[split]) == wanted for split, wanted in WANTED.items()):
            break
    if len(known) > FEW:
        return found
    # What decides such a page is hidden, or there are but few ways it looks.
    return {"train": list(known.values()) if len(known) > 1 else SEEDS[:FEW], "validation": [], "test": []}


def main() -> None:
    site, seeds = MiniWobSite(), {}
    for page in names():
        seeds[page] = seeds_of(page, site)
        print(page, {split: len(some) for split, some in seeds[page].items()}, flush=True)
    site.close()
    text = ",\n".join(f"{json.dumps(page)}: {json.dumps(some)}" for page, some in seeds.items())
    Path(__file__).with_name("tasks.json").write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
