"""A page as an agent meets it: it is read as text, HTML or image, and acted on."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from agentgym_environments.backends.browser.actions import Action, perform
from agentgym_environments.backends.browser.browser import Browsers, Tab, browsers

if TYPE_CHECKING:
    from playwright.async_api import CDPSession

View = Literal["tree", "html"]
LEAVE_S = 10.0
"""Most seconds that a look waits for the page that an action leads to."""

LOOK = """async ([patient, view, hide, pass, also]) => {
  if (patient && (__seen.leaving || document.readyState !== "complete")) return null;
  await __seen.settled();
  if (pass && window.__clock) {
    await __clock.advance(pass);
    await __seen.settled();
  }
  return [__seen[view](hide), also ? (0, eval)(also) : null];
}"""
"""Null while another page is on its way."""


@cache
def script(name: str) -> str:
    """A JavaScript file of this folder."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


class Page:
    """A tab with what is needed to read it and act on it.

    hide: a selector of what the agent shall not see. clock: the page's time stands still but for what `look` lets
    pass, so that it does the same on every machine; else its time is the environment's.
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
        self._refused = 0
        self._session: CDPSession | None = None

    def goto(self, url: str) -> None:
        """Load a page; `back` will not lead behind it. Raises ValueError for one that is not allowed."""
        self.tab.goto(url)
        self.tab.run(self._forget())

    def act(self, action: Action) -> None:
        """Do an action; `look` waits for the page that it leads to. Raises NotPossible."""
        self.tab.run(perform(self.tab.page, action), timeout_s=2 * LEAVE_S)

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

    async def _look(self, given: list[Any]) -> list[Any]:
        """Waits for the page that is on its way, if there is one; gives up waiting after LEAVE_S."""
        from playwright.async_api import Error

        clock = asyncio.get_running_loop().time
        until = clock() + LEAVE_S
        while True:
            patient = clock() < until
            try:
                await self._stay()
                if content := await self.tab.page.evaluate(LOOK, [patient, *given]):
                    return content
            except Error:  # the old page is gone and the new one not there yet
                if self.tab.lost or self.tab.page.is_closed() or not patient:
                    raise
            await asyncio.sleep(0.01)

    async def _stay(self) -> None:
        """A page whose leaving was refused is there still."""
        if len(self.tab.refused) > self._refused:
            self._refused = len(self.tab.refused)
            await self.tab.page.evaluate("__seen.leaving = false")

    async def _forget(self) -> None:
        if self._session is None:
            self._session = await self.tab.page.context.new_cdp_session(self.tab.page)
        await self._session.send("Page.resetNavigationHistory")
