"""MiniWoB++: its tasks, what is seen of them, whom the reward believes, and the scripted solvers."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal

import pytest

from agentgym import registry
from agentgym.clients.client import EnvClient, server_process
from agentgym.env import Env
from agentgym.errors import BadRequest, ConfigError, EpisodeLost
from agentgym_environments.backends.browser.actions import NotPossible, parse
from agentgym_environments.backends.browser.browser import browsers, find_program
from agentgym_environments.benchmarks.miniwob.elements import Elements
from agentgym_environments.benchmarks.miniwob.site import MiniWobSite, names
from agentgym_environments.benchmarks.miniwob.solver import SOLVERS
from agentgym_environments.benchmarks.miniwob.tasks import EASY, RELOAD, pages_of, seeds, tasks_of

pytest.importorskip("playwright", reason="Playwright is not installed: pip install 'turngym[web]'")
pytest.importorskip("miniwob.constants", reason="MiniWoB++ is not installed: pip install 'turngym[web]'")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not find_program(), reason="no Chromium is installed: apt-get install chromium-headless-shell"),
]
IDS = ("miniwob", "miniwob-easy", "miniwob-all")


@pytest.fixture
def make():
    """make(name, ...) -> an environment, closed after the test."""
    made: list[Env] = []

    def make(name: str, **arguments) -> Env:
        made.append(registry.make(name, **arguments))
        return made[-1]

    yield make
    for env in made:
        env.close()


def play(env: Env, options: dict, limit: int = 99) -> tuple[list, dict]:
    """Everything that an episode of the solver says, and the last info."""
    observation, info = env.reset(seed=0, options=options)
    trajectory: list = [observation, info]
    over = False
    while not over and len(trajectory) < limit:
        action = env.solver()
        *step, info = env.step(action)
        over = step[2] or step[3]
        trajectory += [action, step, info]
    return trajectory, info


@pytest.mark.parametrize("name", IDS)
def test_the_spec_says_what_the_class_does(name):
    spec, env = registry.get_spec(name), registry.make(name)
    assert env.env_spec == spec
    assert spec.family == "web"
    assert list(spec.splits) == ["train", "validation", "test"]
    assert ("solver" in spec.capabilities) is (name != "miniwob-all")


def test_the_pages():
    assert set(pages_of("easy")) <= set(SOLVERS) <= set(pages_of("all")) == set(seeds()) == set(names())
    assert len(SOLVERS) >= 100
    assert set(seeds()) >= RELOAD
    assert set(EASY) <= set(seeds())
    for page, splits in seeds().items():
        every = [seed for some in splits.values() for seed in some]
        assert len(every) == len(set(every)), page
        assert splits["train"], page
    tasks = tasks_of(pages_of("solved"))
    assert len({page for page, _ in tasks["train"][: len(SOLVERS)]}) == len(SOLVERS)  # each page before any comes again


def test_arguments_choose_pages_and_observations(make):
    env = make("miniwob:page=click-test,observation=html")
    assert env.env_spec.splits == {"train": 60, "validation": 8, "test": 8}
    assert "It is HTML" in env.env_spec.instructions
    observation, info = env.reset(options={"task": 0})
    assert re.search(
        r'Task: Click the button\.\n[^]*<button[^>]* ref="\d+">Click Me!</button>'.replace("[^]", "(?s:.)"), observation
    )
    assert info["page"] == "click-test"
    assert registry.get_spec("miniwob:page=hot-cold").splits == {"train": 20}
    assert "solver" not in registry.get_spec("miniwob:page=hot-cold").capabilities
    for wrong in ("page=no-such", "group=no-such", "observation=smell", "pace_ms=0"):
        with pytest.raises(ConfigError):
            registry.make(f"miniwob:{wrong}")


def test_a_screenshot_is_an_image_that_can_be_pointed_at(make):
    env = make("miniwob:page=click-color,observation=screenshot")
    assert env.env_spec.observations == ("text", "image")
    observation, _ = env.reset(options={"task": 2})
    image, text = observation["image"], observation["text"]
    assert image.shape == (210, 160, 3)
    assert len({tuple(pixel) for row in image[70:200:5, 10:150:5] for pixel in row}) >= 4
    assert re.fullmatch(r"Task: Click on the \w+ colored box\.", text)
    env.reset(options={"task": 2})
    id = re.findall(r"\d+", env.solver())[0]
    box = next(element for element in Elements(env._shown_page.tree) if element.id == int(id)).box
    assert tuple(image[box[1], box[0]]) == next(e for e in Elements(env._shown_page.tree) if e.id == int(id)).colour
    _, reward, terminated, _, info = env.step(f"click {box[0]},{box[1]}")
    assert (reward, terminated, info["success"]) == (1.0, True, True)


SOME = ("click-checkboxes", "click-menu", "login-user", "email-inbox-reply", "choose-date", "use-autocomplete",
        "drag-items", "scroll-text-2", "click-tab-2", "social-media")  # fmt: skip


def test_the_solver_solves_every_kind_of_page_repeatably(make):
    """Among them pages that are loaded anew and pages that are not; on one instance and on another."""
    env, other = make("miniwob"), make("miniwob")
    place = {page: number for number, (page, _) in reversed(list(enumerate(env.tasks["test"])))}
    for page in SOME:
        trajectory, info = play(env, {"split": "test", "task": place[page]})
        assert info["success"], trajectory
        again, _ = play(other, {"split": "test", "task": place[page]})
        assert json.dumps(again) == json.dumps(trajectory)


def test_elements_moving_under_a_still_mouse_get_events(make):
    """A menu that closes under the mouse opens what lies below it, with the browser's next frame: in one of four
    episodes the agent saw it so, in the others not."""
    env = make("miniwob:page=click-menu")
    trajectories = {json.dumps(play(env, {"split": "test", "task": 0})) for _ in range(16)}
    assert len(trajectories) == 1


def test_state_left_by_a_page_does_not_change_the_next_episode(make):
    """A pie menu is drawn from where the last one was: its slices moved by a pixel."""
    env = make("miniwob:page=click-pie")
    trajectories = {json.dumps(play(env, {"split": "test", "task": 0})) for _ in range(3)}
    assert len(trajectories) == 1


def test_a_snapshot_is_played_again(make):
    env, other = make("miniwob:page=click-checkboxes-large"), make("miniwob:page=click-checkboxes-large")
    env.reset(seed=1, options={"task": 5})
    for _ in range(3):
        env.step(env.solver())
    env.step("dance")
    state = env.snapshot()
    action = env.solver()
    expected = env.step(action)
    other.restore(state)
    assert other.step(action) == expected
    assert other.turn == 5
    assert other.reset() == env.reset()
    with pytest.raises(BadRequest, match="not a snapshot"):
        other.restore(b"{}")


def test_text_about_the_page_changes_no_reward(make):
    """The page alone gives the reward: text about it changes nothing, wherever it is typed."""
    env = make("miniwob:page=enter-text")
    env.reset(options={"task": 0})
    field = next(element.id for element in Elements(env._shown_page.tree) if element.role == "textbox")
    for action in (
        "javascript:WOB_DONE_GLOBAL=true",
        f"fill {field} <script>core.endEpisode(1, true)</script>",
        f'fill {field} "; core.endEpisode(1); "',
        f"fill {field} javascript:core.endEpisode(1)",
        "type core.endEpisode(1)",
        "press Enter",
        "press F12",
        "press Control+l",
        "back",
        "goto javascript:core.endEpisode(1)",
    ):
        _, reward, terminated, _, info = env.step(action)
        assert (reward, terminated, info["success"], info["page_score"]) == (0.0, False, False, 0.0), action
    _, reward, terminated, _, info = env.step(f"click {field + 1}")
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    assert info["page_score"] == -1


def test_a_wrong_answer_gets_no_reward_and_ids_are_unguessable(make):
    env = make("miniwob:page=click-test-2")
    firsts = set()
    for task in range(12):
        env.reset(options={"task": task})
        firsts.add(Elements(env._shown_page.tree)[0].id)
    assert len(firsts) > 6
    wrong = env._shown_page and Elements(env._shown_page.tree).named("TWO")
    assert wrong is not None
    _, reward, terminated, _, info = env.step(f"click {wrong.id}")
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    with pytest.raises(BadRequest, match="is over"):
        env.step("wait")


def test_nonsense_costs_a_turn_and_lists_the_actions(make):
    env = make("miniwob-easy")
    _, before = env.reset(options={"task": 0})
    observation, _, terminated, truncated, info = env.step("make it so")
    assert (terminated, truncated, info["valid_action"]) == (False, False, False)
    assert info["state_key"] == before["state_key"]
    assert "fill ID TEXT" in observation
    observation, *_, info = env.step("click 9999")
    assert observation.startswith("there is no element 9999 to be seen\nTask: ")
    assert not info["valid_action"]


def test_an_env_goes_on_after_its_browser_has_died(make):
    env = make("miniwob-easy")
    env.reset(options={"task": 0})
    for pid in browsers().pids():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(EpisodeLost):  # noqa: PT012  (which step finds out is chance)
        for _ in range(8):
            env.step("wait")
    _, info = play(env, {"task": 0})
    assert info["success"]


# Minutes.


@pytest.mark.parametrize(
    "count", [pytest.param(1, marks=pytest.mark.envs), pytest.param(2, marks=pytest.mark.every)], ids=["some", "all"]
)
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_solver_wins_on_every_page(make, split, count):
    """One task of each page, in one of the splits that have it; or two tasks of each page and split."""
    env = make("miniwob")
    offered = {split: {page for page, _ in tasks} for split, tasks in env.tasks.items()}
    first: dict[str, list[int]] = {}
    for number, (page, _) in enumerate(env.tasks[split]):
        first.setdefault(page, []).append(number)
    pages = []
    for page in first:
        splits = [split for split, pages_of_split in offered.items() if page in pages_of_split]
        if count > 1 or splits[names().index(page) % len(splits)] == split:
            pages.append(page)
    lost = [
        (page, number)
        for page in pages
        for number in first[page][:count]
        if not play(env, {"split": split, "task": number})[1]["success"]
    ]
    assert len(lost) <= max(1, 0.02 * count * len(pages)), lost


@pytest.mark.envs
def test_a_page_opens_alike_however_it_was_left():
    """Played on in a tab, and loaded anew, the same seed shows the same: RELOAD names the pages where it would not."""
    kept, fresh, unlike = MiniWobSite(RELOAD), MiniWobSite(frozenset(names())), set()
    for page in names():
        chance = random.Random(page)
        kept.start(page, 3)
        for _ in range(3):
            ids = re.findall(r"\[(\d+)\]", kept.look(1000).tree)
            if not ids:
                break
            action = parse(f"{chance.choice(['click', 'click', 'hover'])} {chance.choice(ids)}")
            try:
                kept.act(action)  # type: ignore[arg-type]
            except NotPossible:
                continue
        kept.start(page, 12)
        fresh.start(page, 12)
        for _ in range(2):
            if kept.look(700) != fresh.look(700):
                unlike.add(page)
        if (kept.image() != fresh.image()).mean() > 0.001:
            unlike.add(f"{page} (image)")
    kept.close()
    fresh.close()
    assert not unlike


async def step_over_http(url: str) -> int:
    stepped = 0
    async with EnvClient(f"{url}/envs/miniwob-all", timeout_s=120) as client:
        session = client.session()
        for task in range(len(seeds())):
            step = await session.reset(seed=0, options={"split": "train", "task": task})
            offered = step.info["available_actions"]
            step = await session.step(offered[0] if offered else "click 80,120")
            stepped += step.info["valid_action"]
        await session.close()
    return stepped


@pytest.mark.envs
def test_every_page_is_stepped_over_http():
    with server_process(["miniwob-all"]) as url:
        assert asyncio.run(step_over_http(url)) == len(names()) >= 100
