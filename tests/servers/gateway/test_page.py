"""The page, in a real browser."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentgym.testing import EchoEnv
from agentgym_servers.gateway import auth
from agentgym_servers.gateway.auth import new_key
from agentgym_servers.gateway.database import RegistrationStore

from .conftest import ECHO, env_server, eventually, gateway_in_thread

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "headless_shell")
pytestmark = pytest.mark.browser


@contextmanager
def browse(url: str, width: int = 1280, height: int = 900, scheme: str = "light", expected: str = "") -> Iterator[Any]:
    """The page in a real browser. At the end: nothing was fetched elsewhere, and no error but `expected` ones."""
    sync = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        pytest.skip("needs a Chromium: apt-get install chromium-headless-shell")
    errors: list[str] = []
    requests: set[str] = set()
    with sync.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=executable, args=options)
        try:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.on("console", lambda message: errors.append(message.text) if message.type != "log" else None)
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("request", lambda request: requests.add(request.url))
            page.goto(url)
            yield page
        finally:
            browser.close()
    assert [error for error in errors if not (expected and expected in error)] == []
    assert requests == {f"{url}/", f"{url}/status"}


def shoot(page: Any, name: str) -> None:
    """A screenshot to look at, where AGENTGYM_SCREENSHOTS names a folder."""
    if folder := os.environ.get("AGENTGYM_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"gateway-{name}.png", full_page=True)


def test_the_page_shows_what_happens(gateway):
    with browse(gateway.url) as page, env_server(echo=EchoEnv) as server:
        page.wait_for_selector("#empty:visible")
        assert f"agentgym register mine --url http://127.0.0.1:8000 --gateway {gateway.url}" in page.inner_text("#how")
        shoot(page, "empty")

        assert gateway.register("given", url=server).status_code == 201
        body = {"replicas": {"min": 2, "max": 4}, "max_sessions": 32}
        assert gateway.register("<b>words", entry_point=ECHO).status_code == 422
        assert gateway.register("words", entry_point=ECHO, **body).status_code == 201
        sessions = [gateway.begin("words", index=index % 8) for index in range(20)]
        for step in range(3):
            for session in sessions:
                assert gateway.step("words", session, step=step)[0] == 200
        gateway.step("words", sessions[0], step=7)
        gateway.http.post("/envs/given/reset", json={"index": 99})
        words = page.locator("[data-env=words]")
        page.wait_for_selector("[data-env=words] .replicas li:nth-child(2)")
        eventually(lambda: re.search(r"^steps\s60$", words.inner_text(), re.MULTILINE))
        text = words.inner_text()
        assert "live" in text
        assert "Repeat the word that is shown" in text
        assert "20" in page.inner_text("#totals")
        assert page.locator("[data-env=words] .spark path.line").get_attribute("d")
        words.locator("summary").click()
        page.wait_for_timeout(2000)  # it is still unfolded after the next poll
        assert "OUT_OF_ORDER" in words.locator("td.code").inner_text()
        assert "step 7 was asked for" in words.locator("td.message").inner_text()
        shoot(page, "envs")
        page.emulate_media(color_scheme="dark")
        shoot(page, "dark")
        page.set_viewport_size({"width": 400, "height": 850})
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        shoot(page, "narrow")
        page.emulate_media(color_scheme="light")
        gateway.http.delete("/environments/words?drain_s=0")
        page.wait_for_selector("[data-env=words]", state="detached")


def test_the_page_asks_for_a_key(tmp_path, monkeypatch):
    monkeypatch.setattr(auth, "REFRESH_S", 0.05)
    registry = RegistrationStore(f"sqlite:///{tmp_path / 'gateway.db'}")
    key, secret = new_key("page", ["read"])
    registry.add_key(key)
    registry.close()
    with gateway_in_thread(tmp_path) as gateway, browse(gateway.url, expected="401") as page:
        page.wait_for_selector("#locked:visible")
        shoot(page, "locked")
        page.fill("#key", "agk_00000000_wrong")
        page.press("#key", "Enter")
        page.wait_for_selector("#problem:has-text('unknown, revoked or expired')")
        page.fill("#key", secret)
        page.press("#key", "Enter")
        page.wait_for_selector("#empty:visible")
        assert page.is_hidden("#locked")
        assert secret not in page.content()
