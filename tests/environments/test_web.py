"""Browsers for environments: tabs that share nothing and reach only their own pages, what is read of a page, and
actions."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
from running import alive

from agentgym.errors import DeadlineExceeded, EpisodeLost
from agentgym_environments.backends.browser import orphans
from agentgym_environments.backends.browser.actions import Action, NotPossible, parse
from agentgym_environments.backends.browser.browser import PROGRAMS, Browsers, find_program
from agentgym_environments.backends.browser.page import Page

pytest.importorskip("playwright", reason="Playwright is not installed: pip install 'turngym[web]'")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not find_program(), reason=f"none of {PROGRAMS} is installed: apt-get install {PROGRAMS[0]}"),
]

FORM = """<!doctype html><title>Form</title>
<style>#far { margin-top: 900px } #list { height: 40px; overflow: auto }</style>
<h1>Order</h1>
<p>Take <b>two</b> of them</p>
<label>Name <input id=name></label>
<input type=checkbox id=gift aria-label=Gift>
<select id=size><option>Small</option><option>Large one</option></select>
<input type=date id=day>
<textarea>old</textarea>
<div id=list><p>one</p><p>two</p><p>three</p><p>four</p></div>
<div id=box style="width:30px;height:30px;background:#ff0000;cursor:pointer" onmouseover="log('over')"></div>
<svg width=40 height=40><circle cx=20 cy=20 r=10 fill=blue></circle></svg>
<button onclick="log('pressed')">Send</button> <button disabled>Never</button> <button hidden>Hidden</button>
<a href="other.html">Other page</a> <a href="file:///etc/passwd">Secrets</a>
<a href="other.html" target=_blank>New window</a>
<button id=far onclick="log('far')">Far</button>
<script>
  function log(text) { document.title += ' ' + text }
  document.addEventListener('mousedown', e => log(`down ${e.clientX},${e.clientY}`));
  document.addEventListener('mouseup', e => log(`up ${e.clientX},${e.clientY}`));
</script>"""

TREE = """[1] heading "Order"
text "Take"
[2] text "two"
text "of them"
text "Name"
[3] textbox "Name" value=""
[4] checkbox "Gift"
[5] combobox selected "Small" option "Large one"
[6] date value=""
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[Browsers]:
    pool = Browsers()
    yield pool
    pool.close()


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "form.html").write_text(FORM)
    (tmp_path / "other.html").write_text("<title>Other</title><button>Here</button>")
    return tmp_path


@pytest.fixture
def form(pool, folder) -> Iterator[Page]:
    page = Page([f"{folder.as_uri()}/"], (400, 500), pool=pool)
    page.goto(f"{folder.as_uri()}/form.html")
    yield page
    page.close()


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of a web server that answers everything and says which cookie it was sent."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(f"<title>Site</title><p>{self.headers.get('cookie')}".encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("click 12", Action("click", (12,))),
        (" CLICK [12] ", Action("click", (12,))),
        ("click 3, 4.5", Action("click", ((3.0, 4.5),))),
        ("hover (3,4)", Action("hover", ((3.0, 4.0),))),
        ("fill 3 Two  words", Action("fill", (3,), ("Two  words",))),
        ('fill 3 "a \\"b\\""', Action("fill", (3,), ('a "b"',))),
        ('fill 3 ""', Action("fill", (3,), ("",))),
        ('fill 3 "two".', Action("fill", (3,), ("two",))),
        ("Action: click [3].", Action("click", (3,))),
        ('Thought: grey.\nAction: select 3 "grey"', Action("select", (3,), ("grey",))),
        ('fill 3 say "hi"', Action("fill", (3,), ('say "hi"',))),
        ("fill 3", Action("fill", (3,), ("",))),
        ('select 3 "A" "B, C"', Action("select", (3,), ("A", "B, C"))),
        ("select 3 New York", Action("select", (3,), ("New York",))),
        ("type hello there", Action("type", texts=("hello there",))),
        ("press Control+a", Action("press", texts=("Control+a",))),
        ("scroll down", Action("scroll", (), ("down",), 100.0)),
        ("scroll up 7 300", Action("scroll", (7,), ("up",), 300.0)),
        ("scroll [7] left", Action("scroll", (7,), ("left",), 100.0)),
        ("drag 3 4", Action("drag", (3, 4))),
        ("drag 3 10,10 20,20", Action("drag", (3, (10.0, 10.0), (20.0, 20.0)))),
        ("back", Action("back")),
        ("wait", Action("wait")),
    ],
)
def test_what_is_understood(text, action):
    assert parse(text) == action


@pytest.mark.parametrize(
    "text",
    ["", "dance", "click", "click x", "click 1 2", "click -1,2", "fill x y", "fill 1,2 x", "select 3", "drag 3",
     "scroll", "scroll 1 2 3 up", "scroll up down", "press", "press a b", "type", "back 2", "goto http://example.com",
     "click javascript:1", "fill 3 " + "x" * 2001],
)  # fmt: skip
def test_what_is_not(text):
    assert parse(text) is None


def test_the_tree_names_visible_elements_and_their_actions(form):
    tree = form.look()[0]
    assert tree.startswith(TREE)
    lines = [line.strip().partition("] ")[2] or line for line in tree.splitlines()]
    assert 'button "Send"' in lines
    assert 'button "Never" disabled' in lines
    assert 'link "Other page"' in lines
    assert any(line.startswith("box #ff0000 30x30 at ") for line in lines)
    assert any(line.startswith("circle #0000ff 20x20 at ") for line in lines)
    assert any(line.startswith("group scrolled 0 of ") for line in lines)
    assert lines[-1].startswith("page scrolled 0 of ")
    assert "Hidden" not in tree
    assert "log(" not in tree


def number(page: Page, words: str) -> int:
    """The id of the first element whose line holds the words."""
    line = next(line for line in page.look()[0].splitlines() if words in line)
    return int(line.partition("[")[2].partition("]")[0])


def test_ids_stay_with_their_elements(form):
    before = number(form, "Send")
    form.tab.evaluate("document.querySelector('h1').insertAdjacentHTML('afterend', '<button>New</button>')")
    assert number(form, "Send") == before
    assert number(form, "New") > before
    form.tab.evaluate("document.querySelector('h1').remove()")
    with pytest.raises(NotPossible, match="there is no element 1 to be seen"):
        form.act(Action("click", (1,)))
    form.renumber(70)
    assert form.look()[0].startswith('[70] button "New"\ntext "Take"\n[71] text "two"')


def test_html_has_the_same_ids_and_no_scripts(form):
    send = number(form, "Send")
    html = form.look("html")[0]
    assert f'ref="{send}">Send</button>' in html
    assert "<script" not in html
    assert "onclick" not in html


def test_the_image_shows_the_page(form):
    image = form.image()
    assert image.shape == (500, 400, 3)
    assert (image == (255, 0, 0)).all(-1).sum() == 900
    assert form.image((100, 50)).shape == (50, 100, 3)


def wait_until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def page_title(page: Page) -> str:
    return page.tab.evaluate("document.title")


def test_every_action_reaches_the_page(form):
    def do(text: str) -> None:
        action = parse(text)
        assert action is not None
        form.act(action)

    def value(selector: str) -> str:
        return form.tab.evaluate(f"document.querySelector('{selector}').value")

    do(f"fill {number(form, 'textbox')} first")
    do(f"fill {number(form, 'textbox')} Ann  Ü")
    assert value("#name") == "Ann  Ü"
    do("press Backspace")
    do("type x!")
    assert value("#name") == "Ann  x!"
    do("press Control+a")
    do("press Delete")
    assert value("#name") == ""
    do(f"click {number(form, 'Gift')}")
    assert "checked" in form.look()[0]
    do(f"select {number(form, 'combobox')} Large one")
    assert value("#size") == "Large one"
    do(f"fill {number(form, 'date')} 2024-02-29")
    assert value("#day") == "2024-02-29"
    do(f"hover {number(form, 'box #ff0000')}")
    assert page_title(form).endswith("over")
    do("drag 5,5 60,70 20,30")
    assert page_title(form).endswith("down 5,5 up 20,30")
    do(f"scroll down {number(form, 'group scrolled')} 30")
    assert "group scrolled 30 of" in form.look()[0]
    do(f"click {number(form, 'Far')}")  # far below the window
    assert page_title(form).endswith("far")
    do("scroll up 0 9999")
    assert "page scrolled 0 of" in form.look()[0]
    do(f"click {number(form, 'Other page')}")
    assert form.look()[0] == '[1] button "Here"'
    do("back")
    assert "Order" in form.look()[0]


def test_an_impossible_action_has_a_reason_and_no_effect(form):
    before = form.look()
    send, size, gift, day = (number(form, words) for words in ("Send", "combobox", "Gift", "date"))
    for text, why in (
        ("click 999", "no element 999"),
        ("click 400,10", "400,10 is outside the window"),
        (f"fill {send} x", "no field"),
        (f"fill {gift} x", "no field"),
        (f"fill {day} tomorrow", "takes a date, as in 2024-01-31"),
        (f"select {size} Huge", 'no option "Huge"'),
        (f'select {size} "Small" "Large one"', "takes one option"),
        (f"select {send} x", "no list"),
        ("press Sesame", "no key 'Sesame'"),
        ("scroll down 999", "no element 999"),
    ):
        action = parse(text)
        assert action is not None
        with pytest.raises(NotPossible, match=why):
            form.act(action)
    assert form.look() == before


def test_back_does_not_lead_behind_the_first_page(form, folder):
    form.goto(f"{folder.as_uri()}/other.html")
    form.act(Action("back"))
    assert form.look()[0] == '[1] button "Here"'


def test_the_clock_stands_still_but_for_looking(pool, folder):
    (folder / "clock.html").write_text(
        "<body><script>let n = 0; setInterval(() => n++, 100); let promised = 0;"
        "setTimeout(() => Promise.resolve().then(() => setTimeout(() => promised = Date.now() - begin, 200)), 300);"
        "const begin = Date.now()</script>"
    )
    page = Page([f"{folder.as_uri()}/"], (100, 100), clock=True, pool=pool)
    page.goto(f"{folder.as_uri()}/clock.html")
    time.sleep(0.3)
    assert page.look(also="[n, promised, Date.now() - begin]")[1] == [0, 0, 0]
    assert page.look(pass_ms=1000, also="[n, promised, Date.now() - begin]")[1] == [10, 500, 1000]
    assert page.look(also="[new Date().toISOString(), Math.random()]")[1][0] == "2024-01-15T12:00:01.000Z"
    page.close()


def test_two_sessions_share_no_cookies_and_no_storage(pool, site):
    one, two = (Page([site], (100, 100), pool=pool) for _ in "ab")
    assert len(pool.pids()) == 1  # in one and the same browser
    for page in (one, two):
        page.goto(site)
    one.tab.evaluate(
        "() => { document.cookie = 'who=one'; localStorage.who = 'one'; sessionStorage.who = 'one';"
        "return new Promise(done => { const open = indexedDB.open('who'); open.onsuccess = () => done(1) }) }"
    )
    for page in (one, two):
        page.goto(site)
    script = "async () => [document.body.innerText, localStorage.who ?? '', (await indexedDB.databases()).length]"
    assert one.tab.evaluate(script) == ["who=one", "one", 1]
    assert two.tab.evaluate(script) == ["None", "", 0]
    one.close()
    three = Page([site], (100, 100), pool=pool)
    three.goto(site)
    assert three.tab.evaluate(script) == ["None", "", 0]
    two.close()
    three.close()


REACH = """async url => {
  const tries = {
    fetch: async () => (await fetch(url, { mode: 'no-cors' })) && 'reached',
    frame: () => new Promise(done => {
      const frame = Object.assign(document.createElement('iframe'), { src: url });
      frame.onload = () => {
        try { done(frame.contentDocument?.body?.innerText ? 'reached' : 'empty') } catch { done('reached') }
      };
      document.body.append(frame);
      setTimeout(() => done('never'), 1000);
    }),
    image: () => new Promise((done, no) =>
      Object.assign(new Image(), { onload: () => done('reached'), onerror: no, src: url })),
    socket: () => new Promise((done, no) => {
      const socket = new WebSocket(url.replace(/^(http|file)/, 'ws'));
      socket.onopen = () => done('reached');
      socket.onerror = no;
    }),
  };
  const found = {};
  for (const [name, attempt] of Object.entries(tries)) found[name] = await attempt().catch(() => 'refused');
  return found;
}"""


def test_nothing_but_its_own_pages_can_be_reached(form, site):
    """By its address, asked by us or of the browser itself, and by whatever a page may try."""
    from playwright.async_api import Error

    before = form.look()[0]
    for url in ("file:///etc/passwd", "file:///etc/", site, "http://example.com/", "https://192.0.2.1/", "ftp://x/"):
        with pytest.raises(ValueError, match="is none of this tab's pages"):
            form.goto(url)
        with pytest.raises(Error, match="ERR_"):
            form.tab.run(form.tab.page.goto(url))
    for url in ("file:///etc/passwd", site, "http://192.0.2.1/"):
        assert "reached" not in form.tab.evaluate(REACH, url).values(), url
    for words in ("Secrets", "New window"):
        form.act(Action("click", (number(form, words),)))
    assert form.look()[0].startswith(before[:60])
    wait_until(lambda: len(form.tab.page.context.pages) == 1)  # a new window is closed
    assert {"file:///etc/passwd", site} <= set(form.tab.refused)


def test_only_allowed_pages_are_reached(pool, site):
    page = Page([f"{site}shop/"], (100, 100), pool=pool)
    page.goto(f"{site}shop/cart?item=1")
    assert page_title(page) == "Site"
    with pytest.raises(ValueError, match="none of this tab's pages"):
        page.goto(f"{site}admin")
    page.close()


def children() -> list[tuple[str, str]]:
    """(name, state) of this process's children."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            found.append((child.name(), child.status()))
    return found


def test_a_dead_browser_loses_only_its_sessions(folder):
    pool, allowed = Browsers(tabs=1), [f"{folder.as_uri()}/"]
    before = len(children())
    one, two = (Page(allowed, (100, 100), pool=pool) for _ in "ab")
    first, second = pool.pids()
    for page in (one, two):
        page.goto(f"{allowed[0]}other.html")
    os.kill(first, signal.SIGKILL)
    with pytest.raises(EpisodeLost, match="has ended"):  # noqa: PT012  (which look finds out is chance)
        for _ in range(100):
            one.look()
    assert one.tab.lost
    assert two.look()[0] == '[1] button "Here"'
    three = Page(allowed, (100, 100), pool=pool)
    three.goto(f"{allowed[0]}other.html")
    assert three.look()[0] == '[1] button "Here"'
    assert second in pool.pids()
    assert first not in pool.pids()
    two.tab.run(two.tab.page.close())
    with pytest.raises(EpisodeLost, match="ended"):
        two.look()
    for page in (one, two, three):
        page.close()
        page.close()
    wait_until(
        lambda: not any(state == psutil.STATUS_ZOMBIE and name.startswith(orphans.NAMES) for name, state in children())
    )
    pool.close()
    assert len(children()) <= before


def test_a_page_that_hangs_is_given_up(pool, folder):
    page = Page([f"{folder.as_uri()}/"], (100, 100), pool=pool)
    page.goto(f"{folder.as_uri()}/other.html")
    with pytest.raises(DeadlineExceeded, match=r"no answer in 0\.5 s"):
        page.tab.run(page.tab.page.evaluate("for (;;);"), timeout_s=0.5)
    with pytest.raises(EpisodeLost, match="hung"):
        page.look()
    page.close()


def test_browsers_without_tabs_end_and_come_again(folder):
    pool, before = Browsers(linger_s=0.2), len(children())
    for _ in range(2):
        page = Page([f"{folder.as_uri()}/"], (100, 100), pool=pool)
        page.goto(f"{folder.as_uri()}/other.html")
        page.close()
        wait_until(lambda: not pool.pids())
    while pool._playwright is not None:
        time.sleep(0.001)
    loop = pool._loop
    pool.close()  # while the driver is still ending
    assert not asyncio.all_tasks(loop)
    assert len(children()) <= before


def test_a_killed_process_leaves_no_browser(folder):
    code = (
        "import sys, time; from agentgym_environments.backends.browser.browser import browsers\n"
        "tab = browsers().open([sys.argv[1]], (100, 100)); print(*browsers().pids(), flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, folder.as_uri()], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    wait_until(lambda: not alive(pid))


def test_without_a_browser_one_sentence_says_how_to_get_one():
    code = (
        "from agentgym_environments.backends.browser.browser import browsers\n"
        "from agentgym.errors import MissingDependency\n"
        "try: browsers().open([], (9, 9))\n"
        "except MissingDependency as error: print(error)"
    )
    nowhere = {**os.environ, "PATH": "/nowhere", "PLAYWRIGHT_BROWSERS_PATH": "/nowhere"}
    done = subprocess.run([sys.executable, "-c", code], env=nowhere, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("web environments need a Chromium: apt-get install chromium-headless-shell"), done
