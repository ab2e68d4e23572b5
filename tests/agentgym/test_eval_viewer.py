"""The page of an evaluation: what it embeds, and that its filters work in a real browser."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path

import pytest

from agentgym.errors import CheckpointError
from agentgym.evaluation import viewer
from agentgym.evaluation.evaluate import evaluate
from agentgym.evaluation.suite import Suite
from agentgym.evaluation.viewer import write_viewer
from agentgym.rollouts.policy import ModelResponse, TextActor, Usage
from agentgym.rollouts.prompt_format import render_call
from agentgym.spec import ToolSpec
from agentgym.testing import EchoEnv

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "headless_shell")
WORD = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}


class ToolEcho(EchoEnv):
    """Echo whose words are said by a tool, and seen."""

    env_spec = EchoEnv.env_spec.model_copy(
        update={"tools": (ToolSpec(name="say", description="Say.", parameters=WORD),), "action_format": "tool_call"}
    )

    def __init__(self) -> None:
        super().__init__(image=True)

    def step(self, action):
        return super().step(action["arguments"]["word"])


class Odd:
    """Solves even tasks, closes the page's script in odd ones."""

    def actor(self, episode):
        return _Odd(episode.task % 2 == 0)


class _Odd(TextActor):
    def __init__(self, good):
        self.good = good

    async def act(self, ask):
        word = await ask.session.solver() if self.good else "</script><!-- <b>é"
        text = render_call({"name": "say", "arguments": {"word": word}}) if ask.session.spec.tools else word
        return ModelResponse(text, usage=Usage(9, 3))


ENVS = [{"name": f"{__name__}:ToolEcho", "tasks": 2}, {"name": "agentgym.testing:EchoEnv", "tasks": 4, "max_turns": 4}]
SUITE = Suite.model_validate({"name": "s", "env": ENVS})


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("evaluation")
    asyncio.run(evaluate(SUITE, Odd(), out, identity="odd <b>"))
    return out


def embedded(page: Path) -> dict:
    found = re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_every_attempt_is_embedded(folder, tmp_path):
    page = tmp_path / "page.html"
    assert write_viewer(folder, page) == 6
    data = embedded(page)
    assert [attempt["outcome"] for attempt in data["attempts"]] == ["success", "no success"] * 3
    assert {attempt["stop"] for attempt in data["attempts"]} == {"terminated", "max_turns", "turn_limit"}
    assert data["attempts"][0]["tokens"] == [27, 9]
    assert "<title>s: odd &lt;b&gt;" in page.read_text()


def test_folders_without_trajectories_and_large_ones(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(viewer, "TRAJECTORY_BYTES", 3000)
    write_viewer(folder, tmp_path / "page.html")
    data = embedded(tmp_path / "page.html")
    assert 0 < sum(attempt["trajectory"] is not None for attempt in data["attempts"]) < 6
    assert "trajectories are in the page" in data["notes"][0]
    for name in ("run.json", "attempts.jsonl"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    write_viewer(tmp_path, tmp_path / "page.html")
    assert embedded(tmp_path / "page.html")["notes"] == ["Trajectories were not kept."]
    with pytest.raises(CheckpointError, match="holds no evaluation"):
        write_viewer(tmp_path / "none", tmp_path / "page.html")


@pytest.mark.parametrize("left", [1, 100])
def test_a_trajectory_that_a_kill_cut_short_is_left_out(folder, tmp_path, left):
    shutil.copytree(folder, tmp_path / "killed")
    path = tmp_path / "killed" / "trajectories.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:left])
    assert write_viewer(tmp_path / "killed", tmp_path / "page.html") == 6
    assert sum(attempt["trajectory"] is None for attempt in embedded(tmp_path / "page.html")["attempts"]) == 1
    path.write_bytes(lines[0][:left] + b"\n" + lines[1])
    with pytest.raises(CheckpointError, match=r"trajectories\.jsonl, line 1 is not a trajectory"):
        write_viewer(tmp_path / "killed", tmp_path / "page.html")


@pytest.mark.browser
def test_filters_and_trajectories_in_a_browser(folder, tmp_path):
    sync = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        pytest.skip("needs a Chromium: apt-get install chromium-headless-shell")
    path = tmp_path / "page.html"
    write_viewer(folder, path)
    errors: list[str] = []
    requests: list[str] = []
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.on("console", lambda message: errors.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        assert page.inner_text("#title") == "s: odd <b>"
        assert page.inner_text("#count") == "6 of 6 attempts"
        page.select_option("#outcome", "no success")
        assert page.inner_text("#count") == "3 of 6 attempts"
        page.select_option("#stop", "turn_limit")
        assert page.inner_text("#count") == "1 of 6 attempts"
        assert "ToolEcho test task 1" in page.inner_text("#attempt .name")
        assert page.locator("#attempt .turn").count() == 9
        assert page.locator("#attempt pre.call").first.inner_text() == 'say({"word": "</script><!-- <b>\\u00e9"})'
        assert page.locator("#attempt img").count() == 8
        assert page.locator("#attempt img").first.evaluate("image => image.naturalWidth") == 8
        page.select_option("#stop", "")
        page.select_option("#outcome", "")
        page.fill("#task", "2")
        assert page.inner_text("#count") == "1 of 6 attempts"
        page.fill("#task", "0")
        page.click("#list button:nth-child(2)")
        assert page.get_attribute("#list button:nth-child(2)", "aria-pressed") == "true"
        assert "ToolEcho test task 0" in page.inner_text("#attempt .name")
        assert "tokens: 27 read, 9 sampled" in page.inner_text("#attempt")
        page.fill("#task", "77")
        assert "No attempt is like that" in page.inner_text("#attempt")
        page.fill("#task", "1")
        browser.close()
    assert errors == []
    assert requests == [path.as_uri(), *[url for url in requests if url.startswith("data:")]]
