"""The pages of the `miniwob` package, and one of them open: started by a seed, read, acted on."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agentgym.errors import MissingDependency
from agentgym_environments.backends.browser import browser
from agentgym_environments.backends.browser.actions import Action
from agentgym_environments.backends.browser.browser import Browsers
from agentgym_environments.backends.browser.page import Page

WINDOW = (332, 214)
"""Pixels, as BrowserGym has it; tasks use the left part."""
PICTURE = (160, 210)
HIDE = "#query, #reward-display, #sync-task-cover, #click-canvas"
PAUSE_MS = 5000
"""Milliseconds after which what was moving when an episode ended has come to rest."""

OPENING_MS = 500
"""Pages that put the focus somewhere, or let something move in, have done so by then."""

START = """async ([pause, seed, first, opening]) => {
  await __clock.advance(pause);
  document.activeElement?.blur();
  __seen.restart(first);
  core.EPISODE_MAX_TIME = 1e9;
  Math.seedrandom(seed);
  core.startEpisodeReal();
  const pictures = [...document.images].map(image => image.src);
  for (const style of document.querySelectorAll("style"))
    for (const [, , url] of style.textContent.matchAll(/url\\((["']?)([^)"']+)\\1\\)/g)) pictures.push(url);
  const loaded = (window.__pictures ??= new Map());
  const fresh = [...new Set(pictures)].filter(url => url && !loaded.has(url));
  for (const url of fresh) loaded.set(url, Object.assign(new Image(), { src: url }));
  await Promise.all(fresh.map(url => loaded.get(url).decode().catch(() => null)));
  if (fresh.length) await new Promise(done => requestAnimationFrame.real(() => requestAnimationFrame.real(done)));
  await __clock.advance(opening);
}"""
"""Puts the page at the start of an episode, and waits for its pictures: places depend on their sizes."""
STATE = """(() => {
  const said = core.getUtterance();
  return [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL, typeof said === "string" ? said : said.utterance];
})()"""


class PageState(NamedTuple):
    tree: str
    task: str
    """Request of the page."""
    done: bool
    score: float
    """The page's own, without its penalty for time."""


@cache
def folder() -> Path:
    """Return where the pages are. Importing the package would need Selenium. Raises MissingDependency."""
    found = importlib.util.find_spec("miniwob")
    if found is None or not found.submodule_search_locations:
        raise MissingDependency("MiniWoB++ is not installed: pip install 'turngym[web]'")
    return Path(next(iter(found.submodule_search_locations))) / "html"


def names() -> list[str]:
    """Every page there is."""
    return sorted(path.stem for path in (folder() / "miniwob").glob("*.html"))


class MiniWobSite:
    """A tab that holds one task page after another."""

    def __init__(self, reload: frozenset[str] = frozenset(), pool: Browsers | None = None) -> None:
        browser.require()
        self._base = f"{folder().as_uri()}/"
        self._page = Page([self._base], WINDOW, hide=HIDE, clock=True, pool=pool)
        self._reload = reload
        self._name = ""

    @property
    def lost(self) -> str:
        """Return why the tab is gone; empty while it is there."""
        return self._page.tab.lost

    def start(self, name: str, seed: int, first: int = 1) -> None:
        """Put a page at the start of the episode of a seed; its elements get numbers from `first` on."""
        if name != self._name or name in self._reload:
            self._page.goto(f"{self._base}miniwob/{name}.html")
            self._name = name
        self._page.tab.run(self._rest())
        self._page.tab.evaluate(START, [PAUSE_MS, seed, first, OPENING_MS])

    def look(self, pass_ms: int = 0) -> PageState:
        tree, (done, score, task) = self._page.look(pass_ms=pass_ms, also=STATE)
        return PageState(tree, " ".join(task.split()), done, float(score))

    def html(self) -> str:
        return self._page.look("html")[0]

    def image(self) -> np.ndarray:
        """uint8[210, 160, 3]"""
        return self._page.image(PICTURE)

    def act(self, action: Action) -> None:
        """Raises NotPossible."""
        self._page.act(action)

    def evaluate(self, expression: str, argument: Any = None) -> Any:
        """Evaluate a script, to make tasks; agents act by `act` alone."""
        return self._page.tab.evaluate(expression, argument)

    def close(self) -> None:
        self._page.close()

    async def _rest(self) -> None:
        """The mouse where it is at first, outside of everything."""
        await self._page.tab.page.mouse.move(0, 0)
