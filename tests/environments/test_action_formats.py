"""Action formats: what a scripted solver does can be said in an environment's own action format."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentgym import registry
from agentgym.env import Action, Env
from agentgym.rollouts.policy import EpisodeSpec, ModelResponse, TextActor, TurnContext
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, rollout
from agentgym.session import LocalSession

SOLVED = {
    name: registry.get_spec(name) for name in registry.list_envs() if "solver" in registry.get_spec(name).capabilities
}
HEAVY_TURNS = 8
"""Turns that are played of an environment that has a browser, a sandbox or an engine."""


def cases() -> list[Any]:
    """Every environment that has a scripted solver. Of heavy ones a class's further variants are for `make envs`."""
    found, classes = [], set()
    for name, spec in SOLVED.items():
        again = not spec.inline and registry.target(name) in classes
        classes.add(registry.target(name))
        found.append(pytest.param(name, marks=pytest.mark.envs if again else ()))
    return found


class Solver(TextActor):
    """Says what the scripted solver does, after a thought, and keeps it."""

    def __init__(self) -> None:
        self.actions: list[Action] = []

    async def act(self, ask: TurnContext) -> ModelResponse:
        self.actions.append(await ask.session.solver())
        return ModelResponse(f"First I look.\n\n{ask.prompt_format.render(self.actions[-1], ask.session.spec)}\n")


def played_directly(env: Env, split: str) -> Any:
    _, info = env.reset(seed=0, options={"split": split, "task": 0})
    over = False
    while not over:
        _, _, terminated, truncated, info = env.step(env.solver())
        over = terminated or truncated
    return info.get("success")


@pytest.mark.filterwarnings(
    'ignore:"is" with a literal:SyntaxWarning'
)  # a package of reasoning-gym, when it is compiled
@pytest.mark.parametrize("name", cases())
def test_solver_plays_through_its_action_format(name):
    env = registry.make(name)
    try:
        spec, solver = env.env_spec, Solver()
        split = list(spec.splits)[-1]  # of `swe`'s packages, the quickest to judge a first time
        limits = Limits(None if spec.inline else HEAVY_TURNS)
        episode = EpisodeSpec(spec.id, split, 0)
        played = asyncio.run(rollout(LocalSession(env), solver, PromptFormat(), episode, limits))
        if "MissingDependency" in (played.error or ""):
            pytest.skip(played.error)
        assert not played.stop.is_failure, played.error
        assert [turn.action for turn in played.turns] == solver.actions
        if spec.tools:
            assert all(PromptFormat().parse("", spec, [action]).action == action for action in solver.actions)
        if spec.inline:
            assert played.success == played_directly(env, split)
    finally:
        env.close()


LAST_LINE = [
    case
    for case in cases()
    if not case.marks and PromptFormat().action_format(SOLVED[str(case.values[0])]) == "last_line"
]
WORDED = ("Action: {}", "**{}**", "> {}", "`{}`.", "Thought: I look first.\nAction: {}", "**Action:** {}", "{}.")


@pytest.mark.filterwarnings('ignore:"is" with a literal:SyntaxWarning')
@pytest.mark.parametrize("name", LAST_LINE)
def test_marks_and_labels_around_an_action_cost_no_turn(name):
    env = registry.make(name)
    try:
        over, task, tasks = True, 0, env.env_spec.splits["train"]
        for wording in WORDED * 2:
            if over:
                env.reset(seed=0, options={"split": "train", "task": task % tasks})
                task += 1
            text = wording.format(env.solver())
            *_, terminated, truncated, info = env.step(text)
            assert info.get("valid_action", True), text
            over = terminated or truncated
    finally:
        env.close()


def test_an_edit_of_several_lines_is_one_action():
    edit = "edit src/markupsafe/__init__.py 58-58\n    if s is None:"
    spec = registry.get_spec("swe")
    assert PromptFormat().parse(f"The test is wrong.\n<action>{edit}</action>", spec).action == edit
    assert PromptFormat().instructions(spec).endswith("Reply with one action as <action>...</action>.")


@pytest.mark.parametrize("name", ["tools", "tools-one", "tools-long", "tools-dialogue"])
def test_tools_are_offered_as_tools(name):
    spec = registry.get_spec(name)
    assert PromptFormat().tools(spec) == spec.tools
