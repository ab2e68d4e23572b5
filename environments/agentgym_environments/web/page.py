"""A page as an agent meets it: it is read as text, HTML or image, and acted on."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from agentgym_environments.web.actions import Action, perform
from agentgym_environments.web.browser import Browsers, Tab, browsers

View = Literal["tree", "html"]
LEAVE_S = 10.0
"""Most seconds that an action waits for the page it leads to."""

LOOK = """async ([view, hide, pass, also]) => {
  if (pass && window.__clock) await __clock.advance(pass);
  return [__seen[view](hide), also ? (0, eval)(also) : null];
}"""


@cache
def script(name: str) -> str:
    """A JavaScript file of this folder."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


class Page:
    """A tab with what is needed to read it and act on it.

    hide: a selector of what the agent shall not see. clock: the page's time stands still but for what `look` lets
    pass, so that it does the same on every machine; else its time is the world's.
    """

    def __init__(
        self,
        allowed: list[str],
        size: tuple[int, int],
        *,
        hide: str = "",
        clock: bool = False,
        pool: Browsers | None = None,
    ) -> None:
        scripts = [*([script("clock.js")] if clock else []), script("observe.js")]
        self.tab: Tab = (pool or browsers()).open(allowed, size, scripts=scripts)
        self.hide = hide

    def goto(self, url: str) -> None:
        """Load a page; `back` will not lead behind it. Raises ValueError for one that is not allowed."""
        self.tab.goto(url)
        self.tab.run(self._forget())

    def act(self, action: Action) -> None:
        """Do an action, and wait for the page that it leads to. Raises NotPossible."""
        self.tab.run(self._act(action), timeout_s=2 * LEAVE_S)

    def look(self, view: View = "tree", *, pass_ms: int = 0, also: str = "") -> tuple[str, Any]:
        """The text of the page after `pass_ms` of its time, and the value of a JavaScript expression in it."""
        return tuple(self.tab.run(self._look([view, self.hide, pass_ms, also]), timeout_s=2 * LEAVE_S))

    def image(self, size: tuple[int, int] | None = None) -> np.ndarray:
        """uint8[height, width, 3]; with `size`, so many pixels (width, height) of its upper left."""
        return self.tab.image(size)

    def renumber(self, first: int = 1) -> None:
        """Forget the numbers of elements; the next to be seen gets `first`."""
        self.tab.evaluate("first => __seen.restart(first)", first)

    def close(self) -> None:
        self.tab.close()

    async def _act(self, action: Action) -> None:
        await perform(self.tab.page, action)
        await self._settle()

    async def _look(self, given: list[Any]) -> list[Any]:
        from playwright.async_api import Error

        try:
            return await self.tab.page.evaluate(LOOK, given)
        except Error:
            if self.tab.lost or self.tab.page.is_closed():
                raise
        await self._settle()  # the page went elsewhere by itself
        return await self.tab.page.evaluate(LOOK, given)

    async def _settle(self) -> None:
        """Wait for the page that is on its way, if there is one."""
        until = asyncio.get_running_loop().time() + LEAVE_S
        while await self._leaving() and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.01)

    async def _leaving(self) -> bool:
        """Whether another page is on its way. A refused one is not."""
        from playwright.async_api import Error

        refused = len(self.tab.refused)
        if refused > self._refused:
            self._refused = refused
            await self.tab.page.evaluate("__seen.leaving = false")
        try:
            return await self.tab.page.evaluate("__seen.leaving || document.readyState !== 'complete'")
        except Error:  # the old page is gone and the new one not there yet
            if self.tab.lost or self.tab.page.is_closed():
                raise
            return True

    _refused = 0

    async def _forget(self) -> None:
        session = await self.tab.page.context.new_cdp_session(self.tab.page)
        await session.send("Page.resetNavigationHistory")
        await session.detach()
