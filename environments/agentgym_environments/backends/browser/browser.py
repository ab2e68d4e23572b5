"""Warm Chromium browsers, and tabs in them: one isolated context each, from which nothing but its own pages is reached.

    tab = browsers().open(allowed=["http://127.0.0.1:8123/"], size=(800, 600))
    tab.goto("http://127.0.0.1:8123/cart")
    tab.evaluate("document.title")
    tab.image()
    tab.close()

Playwright's asynchronous interface runs in one background thread of the process; a tab's methods hand coroutines over
to it and wait, so that any thread may call them. Browsers start when they are needed, hold a few tabs each, and stay
for a while after the last tab has closed.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import importlib.util
import io
import re
import shutil
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from agentgym.errors import DeadlineExceeded, EpisodeLost, MissingDependency
from agentgym_environments.backends.browser import orphans

if TYPE_CHECKING:
    from playwright.async_api import Browser, FloatRect, Page, Playwright, Route

PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")
NOWHERE = "http://127.0.0.1:9"
"""A proxy that answers nobody: what no tab allows cannot leave the machine, whatever asks for it."""
ARGUMENTS = (
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-smooth-scrolling",
    # Pages are small and many: less memory for each rather than faster loops.
    "--js-flags=--optimize-for-size --no-opt --no-sparkplug --single-threaded-gc",
    # Two processes fewer a browser. The first feature is Playwright's own, whose list this one replaces.
    "--in-process-gpu",
    "--enable-features=CDPScreenshotNewSurface,NetworkServiceInProcess2",
    "--font-render-hinting=none",
)
TABS = 32
"""Tabs in one browser: the more, the less memory each takes, and the more are lost together."""
LINGER_S = 15.0
"""A browser without tabs ends after so long."""
PAGE_S = 20.0
"""Most seconds for one call of a tab."""

NO_DRIVER = "web environments need Playwright and Pillow: pip install 'turngym[web]'"
NO_START = (
    "Playwright's driver does not start (playwright --version shows why; Debian's slim images lack libatomic1: "
    "apt-get install libatomic1)"
)
NO_BROWSER = (
    "web environments need a Chromium: apt-get install chromium-headless-shell (or: playwright install chromium)"
)

Result = TypeVar("Result")


def require() -> None:
    """Raises MissingDependency with the command that installs what is missing of Playwright and Pillow."""
    if importlib.util.find_spec("playwright") is None or importlib.util.find_spec("PIL") is None:
        raise MissingDependency(NO_DRIVER)


def find_program() -> str:
    """The path of an installed Chromium; empty when there is none but, perhaps, Playwright's own."""
    return next((path for path in map(shutil.which, PROGRAMS) if path), "")


class Browsers:
    """The browsers of one process. `open` may be called from any thread."""

    def __init__(self, *, tabs: int = TABS, linger_s: float = LINGER_S) -> None:
        self.tabs, self.linger_s = tabs, linger_s
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._playwright: Playwright | None = None
        self._warm: list[_Warm] = []
        self._opening = asyncio.Lock()
        self._background: set[asyncio.Future[None]] = set()

    def open(
        self, allowed: Sequence[str], size: tuple[int, int], *, scripts: Sequence[str] = (), timeout_s: float = 60.0
    ) -> Tab:
        """A new tab of `size` (width, height) in pixels that reaches only URLs that begin with one of `allowed`.

        `scripts` (JavaScript) run in every document before its own. Write origins with the slash at their end. Raises
        MissingDependency without Playwright or a browser.
        """
        return self.run(self._open(tuple(allowed), size, tuple(scripts)), timeout_s)

    def run(self, work: Coroutine[Any, Any, Result], timeout_s: float) -> Result:
        """Return what the coroutine returns, run in the browsers' thread. Raises DeadlineExceeded."""
        future = asyncio.run_coroutine_threadsafe(work, self._started())
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise DeadlineExceeded(f"the browser gave no answer in {timeout_s:g} s") from None

    def pids(self) -> list[int]:
        """The main process of every running browser."""
        return [warm.pid for warm in self._warm]

    def close(self) -> None:
        """End every browser, Playwright's driver and the thread. A later `open` starts them again."""
        with self._starting:
            loop, self._loop = self._loop, None
            if loop is None:
                return
            thread = self._thread
            with contextlib.suppress(concurrent.futures.TimeoutError):
                asyncio.run_coroutine_threadsafe(self._stop(), loop).result(20)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
            loop.close()
            orphans.reap()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                require()
                self._loop, self._opening = asyncio.new_event_loop(), asyncio.Lock()
                self._thread = threading.Thread(target=self._loop.run_forever, name="agentgym-browsers", daemon=True)
                self._thread.start()
                atexit.register(self.close)
            return self._loop

    async def _open(self, allowed: tuple[str, ...], size: tuple[int, int], scripts: tuple[str, ...]) -> Tab:
        warm = await self._place()
        try:
            return await _make_tab(self, warm, allowed, size, scripts)
        except BaseException:
            await self._leave(warm)
            raise

    async def _place(self) -> _Warm:
        """A browser with room for one more tab, which is counted already."""
        async with self._opening:
            for warm in self._warm:
                if warm.tabs < self.tabs and warm.browser.is_connected():
                    warm.tabs += 1
                    return warm
            return await self._launch()

    async def _launch(self) -> _Warm:
        from playwright.async_api import async_playwright

        if self._playwright is None:
            orphans.adopt()
            try:
                self._playwright = await async_playwright().start()
            except Exception as error:  # a bare Exception when its program ends at once
                raise MissingDependency(f"{NO_START}: {error}") from error
        program = find_program() or self._playwright.chromium.executable_path
        if not Path(program).exists():
            raise MissingDependency(NO_BROWSER)
        browser = await self._playwright.chromium.launch(
            executable_path=program, args=[*ARGUMENTS], proxy={"server": NOWHERE, "bypass": "<-loopback>"}
        )
        asking = await browser.new_browser_cdp_session()
        processes = (await asking.send("SystemInfo.getProcessInfo"))["processInfo"]
        await asking.detach()
        warm = _Warm(browser, next(process["id"] for process in processes if process["type"] == "browser"), tabs=1)
        self._warm.append(warm)
        browser.on("disconnected", lambda _: self._gone(warm))
        return warm

    def _gone(self, warm: _Warm) -> None:
        """The browser has ended, by our will or not: its tabs are lost, and its dead children are reaped."""
        if warm in self._warm:
            self._warm.remove(warm)
        for delay in (0.1, 1.0):
            asyncio.get_running_loop().call_later(delay, orphans.reap)

    async def _leave(self, warm: _Warm) -> None:
        """One tab fewer; a browser that stays without tabs ends."""
        warm.tabs -= 1
        if warm.tabs == 0 and warm in self._warm:
            self.later(self._end_if_idle(warm))

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine for which nobody waits; the event loop alone would not keep it alive."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _end_if_idle(self, warm: _Warm) -> None:
        await asyncio.sleep(self.linger_s)
        async with self._opening:
            if warm.tabs == 0 and warm in self._warm:
                self._warm.remove(warm)
                with contextlib.suppress(Exception):
                    await warm.browser.close()
            if not self._warm:
                await self._stop_driver()

    async def _stop(self) -> None:
        async with self._opening:  # one that is being opened or ended is first, lest the loop stop in its midst
            for warm in self._warm[:]:
                with contextlib.suppress(Exception):
                    await warm.browser.close()
            self._warm.clear()
            await self._stop_driver()
        background = list(self._background)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)

    async def _stop_driver(self) -> None:
        driver, self._playwright = self._playwright, None
        if driver is not None:
            with contextlib.suppress(Exception):
                await driver.stop()


@dataclass(eq=False)
class _Warm:
    """A running browser and how many tabs it holds."""

    browser: Browser
    pid: int
    tabs: int


class Tab:
    """One session's page, in a context of its own: no cookie or storage is shared with another tab.

    Every method raises EpisodeLost once the tab has crashed, its browser has ended or it was closed.
    """

    def __init__(
        self, pool: Browsers, warm: _Warm, page: Page, allowed: tuple[str, ...], size: tuple[int, int]
    ) -> None:
        self.page = page
        """Playwright's asynchronous page, to be used in coroutines given to `run`."""
        self.allowed, self.size = allowed, size
        self.refused: list[str] = []
        """URLs that were asked for and not allowed."""
        self.lost = ""
        """Reason why the tab is gone; empty while it is there."""
        self._pool, self._warm, self._closed = pool, warm, False

    def run(self, work: Coroutine[Any, Any, Result], timeout_s: float = PAGE_S) -> Result:
        """Return what the coroutine returns. Raises DeadlineExceeded, after which the tab is lost."""
        from playwright.async_api import Error

        if self.lost:
            work.close()
            raise EpisodeLost(self.lost)
        try:
            return self._pool.run(work, timeout_s)
        except DeadlineExceeded:
            self.lost = "the page hung and its tab was given up"
            raise
        except Error as error:
            if self.page.is_closed() or not self._warm.browser.is_connected():
                self.lost = self.lost or "the browser of this session has ended"
            if self.lost:
                raise EpisodeLost(self.lost) from error
            raise

    def goto(self, url: str) -> None:
        """Open a page and wait until it has loaded. Raises ValueError for a URL that is not allowed."""
        before = len(self.refused)
        try:
            if not url.startswith(self.allowed):
                raise ValueError(f"{url} is none of this tab's pages")
            self.run(self.page.goto(url))
        except Exception as error:
            if len(self.refused) > before:  # it led elsewhere
                raise ValueError(f"{url} is none of this tab's pages") from error
            raise

    def evaluate(self, expression: str, argument: Any = None) -> Any:
        """The value of a JavaScript expression, or of a function called with `argument`, as JSON."""
        return self.run(self.page.evaluate(expression, argument))

    def image(self, size: tuple[int, int] | None = None) -> np.ndarray:
        """Return what is to be seen: uint8[height, width, 3]. With `size`, so many pixels (width, height) of its
        corner."""
        width, height = size or self.size
        clip: FloatRect = {"x": 0, "y": 0, "width": width, "height": height}
        return pixels(self.run(self.page.screenshot(type="png", clip=clip)))

    def close(self) -> None:
        """Free everything; does nothing the second time."""
        if self._closed:
            return
        self._closed, self.lost = True, self.lost or "the tab was closed"
        with contextlib.suppress(DeadlineExceeded):
            self._pool.run(self._free(), PAGE_S)

    async def _free(self) -> None:
        try:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self.page.context.close(), PAGE_S / 2)
        finally:
            await self._pool._leave(self._warm)

    def _crashed(self) -> None:
        self.lost = self.lost or "the page of this session has crashed"

    async def _refuse(self, route: Route) -> None:
        """A navigation that is refused leaves the page where it is."""
        self.refused.append(route.request.url)
        await route.abort("aborted")


async def _make_tab(
    pool: Browsers, warm: _Warm, allowed: tuple[str, ...], size: tuple[int, int], scripts: tuple[str, ...]
) -> Tab:
    context = await warm.browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        accept_downloads=False,
        service_workers="block",
        locale="en-US",
        timezone_id="UTC",
        reduced_motion="reduce",
        proxy={"server": NOWHERE, "bypass": ",".join(["<-loopback>", *map(_host, filter(_is_http, allowed))])},
    )
    page = await context.new_page()
    tab = Tab(pool, warm, page, allowed, size)
    for script in scripts:
        await context.add_init_script(script)
    beginnings = "|".join(re.escape(beginning) for beginning in (*allowed, "data:", "blob:"))
    await context.route(re.compile(f"^(?!{beginnings})"), tab._refuse)
    # WebSockets pass by `route`; the proxy refuses all but those to an allowed host.
    page.on("crash", lambda _: tab._crashed())
    page.on("popup", lambda popup: pool.later(popup.close()))
    return tab


def _is_http(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def _host(url: str) -> str:
    """Host and port, as a proxy's list of exceptions wants them."""
    return url.split("/")[2]


def pixels(png: bytes) -> np.ndarray:
    """uint8[height, width, 3]"""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB"))


_shared = Browsers()


def browsers() -> Browsers:
    """The browsers that this process's environments share."""
    return _shared
