"""The conformance suite passes every shipped environment and names the fault of every broken one."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check

from agentgym import registry
from agentgym.conformance.run import RULES, CheckResult, check_env, check_session
from agentgym.env import Env
from agentgym.errors import BadRequest
from agentgym.session import LocalSession
from agentgym.spec import EnvSpec

SHIPPED = [
    name
    for name, target in registry.list_envs().items()
    if target.startswith("agentgym_environments.") and registry.get_spec(name).inline
]
"""The others, which have browsers, sandboxes or engines, are checked by `make envs`."""
ONE_OF_A_CLASS = {registry.list_envs()[name]: name for name in reversed(SHIPPED)}.values()

GOOD = EnvSpec(
    id="hill",
    description="Climb from a task's foot to the top; a gust may blow you down.",
    instructions="Say up, or rest.",
    actions=("up", "rest"),
    splits={"train": 10, "test": 5},
    max_turns=12,
    info_keys=("success", "valid_action", "state_key"),
    capabilities=("snapshot", "solver"),
    inline=True,
)


class Hill(Env):
    """An environment that keeps the contract; the broken ones below each break one thing."""

    env_spec = GOOD
    height: int = -99
    turn = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        split, task = self.select_task(options)
        self.height, self.turn, self.over = -task - 20 * (split == "test"), 0, False
        self.foot = self.height
        return self.observe(), self.info(True)

    def step(self, action) -> Any:
        if self.turn < 0 or self.over:
            raise BadRequest("call reset first")
        self.turn += 1
        known = action in self.env_spec.actions
        if action == "up":
            self.height += 5 if self.gust() < 0.5 else 4
        won = self.height >= self.foot + 20
        truncated = self.turn >= self.env_spec.max_turns and not won
        self.over = won or truncated
        return self.observe(), self.reward(won), won, truncated, self.info(known, won)

    def gust(self) -> float:
        return self.np_random.random()

    def reward(self, won: bool) -> float:
        return float(won)

    def observe(self) -> Any:
        return f"height {self.height}"

    def info(self, known: bool, won: bool = False) -> dict[str, Any]:
        return {"success": won, "valid_action": known, "state_key": f"{self.foot} {self.height}"}

    def snapshot(self) -> bytes:
        state = self.np_random.bit_generator.state
        return json.dumps([self.height, self.foot, self.turn, self.over, state]).encode()

    def restore(self, state: bytes) -> None:
        self.height, self.foot, self.turn, self.over, self.np_random.bit_generator.state = json.loads(state)

    def solver(self) -> str:
        return "up"


class Unseeded(Hill):
    def gust(self) -> float:
        return random.random()  # the process's generator, not the episode's


class RewardNan(Hill):
    def reward(self, won: bool) -> float:
        return float("nan") if won else 0.0


class RewardTooBig(Hill):
    def reward(self, won: bool) -> float:
        return 10.0 * won


class FourTuple(Hill):
    def step(self, action) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info


class NumberObservation(Hill):
    def observe(self) -> Any:
        return self.height


class NumpyInfo(Hill):
    def info(self, known: bool, won: bool = False) -> dict[str, Any]:
        return {**super().info(known, won), "height": self.np_random.bit_generator}


class ClockInKey(Hill):
    def info(self, known: bool, won: bool = False) -> dict[str, Any]:
        return {**super().info(known, won), "state_key": f"{self.foot} {self.height} at {self.turn}"}


class BeginsAtMilestone(Hill):
    def info(self, known: bool, won: bool = False) -> dict[str, Any]:
        return {**super().info(known, won), "milestone": 1 + won}


class MilestoneComesBack(Hill):
    def info(self, known: bool, won: bool = False) -> dict[str, Any]:
        return {**super().info(known, won), "milestone": "even" if self.turn and self.turn % 2 == 0 else ""}


class MilestoneList(Hill):
    def info(self, known: bool, won: bool = False) -> dict[str, Any]:
        return {**super().info(known, won), "milestone": []}


class SnapshotForgetsChance(Hill):
    def restore(self, state: bytes) -> None:
        self.height, self.foot, self.turn, self.over, _ = json.loads(state)


class SnapshotForgetsTurn(Hill):
    def restore(self, state: bytes) -> None:
        super().restore(state)
        self.turn = 0


class NeverEnds(Hill):
    def step(self, action) -> Any:
        observation, reward, won, _, info = super().step(action)
        self.over = won
        return observation, reward, won, False, info


class NoSuccess(Hill):
    def info(self, known: bool, won: bool = False) -> dict[str, Any]:
        info = super().info(known, won)
        return info if won else {name: value for name, value in info.items() if name != "success"}


class SharedState(Hill):
    @property
    def height(self) -> int:
        return type(self).__dict__["kept"]["height"]

    @height.setter
    def height(self, value: int) -> None:
        type(self).__dict__["kept"]["height"] = value

    kept: dict[str, int] = {}


class IgnoresTask(Hill):
    def select_task(self, options):
        super().select_task(options)
        return "train", int(self.np_random.integers(3))


class SplitsOverlap(Hill):
    def select_task(self, options):
        return "train", super().select_task(options)[1]


class AnyTask(Hill):
    def select_task(self, options):
        options = options or {}
        return options.get("split", "train"), options.get("task", 0)


class StepsWithoutReset(Hill):
    foot = 0
    height = 0

    def step(self, action) -> Any:
        self.turn, self.over = max(self.turn, 0), False
        return super().step(action)


class CrashesOnNonsense(Hill):
    def step(self, action) -> Any:
        {"up": 1, "rest": 0}[action]
        return super().step(action)


class WeakSolver(Hill):
    def solver(self) -> str:
        return "rest"


class BadSpec(Hill):
    env_spec = GOOD.model_copy(update={"instructions": " ", "reward_range": (1.0, 0.0)})


BROKEN = [
    (Unseeded, "same_seed_same_episode", "Draw only from self.np_random"),
    (RewardNan, "rewards_stay_in_range", "gave nan"),
    (RewardTooBig, "rewards_stay_in_range", "gave 10.0, outside [0, 1]"),
    (FourTuple, "step_returns_five", "not five things"),
    (NumberObservation, "reset_returns_observation_and_info", "the observation of reset is 0"),
    (NumpyInfo, "info_is_as_promised", "is not JSON"),
    (ClockInKey, "state_key_is_no_clock", "changed state_key from '0 0 at 0' to '0 0 at 1'"),
    (BeginsAtMilestone, "info_is_as_promised", "begins at the milestone 1"),
    (MilestoneComesBack, "info_is_as_promised", "the milestone '' comes back"),
    (MilestoneList, "info_is_as_promised", "info['milestone'] of reset is [], not a string or a count"),
    (SnapshotForgetsChance, "snapshot_continues", "self.np_random.bit_generator.state"),
    (SnapshotForgetsTurn, "snapshot_continues", "the count of turns"),
    (NeverEnds, "ends_in_time", "goes on after max_turns = 12"),
    (NoSuccess, "info_is_as_promised", "info of reset lacks success"),
    (SharedState, "instances_share_nothing", "kept on the class"),
    (IgnoresTask, "tasks_differ", "reset ignores options['task']"),
    (SplitsOverlap, "splits_are_disjoint", "test task 0 opens like a task of train"),
    (AnyTask, "unknown_tasks_are_refused", "BadRequest"),
    (StepsWithoutReset, "step_needs_reset", "was answered with"),
    (StepsWithoutReset, "step_after_end_is_refused", "was answered with"),
    (CrashesOnNonsense, "nonsense_is_survived", "raised hill raised KeyError"),
    (WeakSolver, "solver_wins", "task 0 ended with 'height 0'"),
    (BadSpec, "spec_is_complete", "no instructions"),
    (BadSpec, "spec_is_complete", "a reward_range that is no range"),
]


def by_rule(findings: list[CheckResult]) -> dict[str, CheckResult]:
    return {finding.rule: finding for finding in findings}


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_env_keeps_the_contract(name):
    findings = check_env(lambda: registry.make(name), tasks=12 if name in ONE_OF_A_CLASS else 4)
    assert [str(finding) for finding in findings if not finding.ok] == []
    gymnasium_check(registry.make(name), skip_render_check=True)


def test_a_good_env_passes_and_findings_state_the_rule():
    findings = check_env(Hill)
    assert [str(finding) for finding in findings if not finding.ok] == []
    assert [finding.rule for finding in findings] == [rule.__name__ for rule in RULES]
    assert by_rule(findings)["ends_in_time"].message == "an episode is over after at most max_turns steps"
    assert by_rule(findings)["hints_are_text"].skipped


@pytest.mark.parametrize(("broken", "rule", "reason"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_env_fails_the_rule_it_breaks(broken, rule, reason):
    finding = by_rule(check_env(broken, tasks=10))[rule]
    assert not finding.ok
    assert reason in finding.message


@pytest.mark.parametrize("broken", [RewardTooBig, ClockInKey, SnapshotForgetsChance, WeakSolver, SplitsOverlap])
def test_a_fault_is_blamed_on_one_rule_only(broken):
    expected = {rule for env, rule, _ in BROKEN if env is broken}
    assert {finding.rule for finding in check_env(broken) if not finding.ok} == expected


class Elsewhere:
    """A session that is no LocalSession, as one over a network is: only the protocol's methods."""

    def __init__(self, session: LocalSession) -> None:
        self.spec = session.spec
        for name in ("reset", "step", "solver", "hint", "snapshot", "restore", "close"):
            setattr(self, name, getattr(session, name))


@pytest.mark.parametrize(("env", "faults"), [(Hill, set()), (ClockInKey, {"state_key_is_no_clock"})])
def test_the_same_rules_check_a_remote_session(env, faults):
    async def open_session():
        return Elsewhere(LocalSession(env()))

    findings = asyncio.run(check_session(open_session))
    assert {finding.rule for finding in findings if not finding.ok} == faults


def test_what_the_spec_does_not_claim_is_not_called():
    class Chancy(Unseeded):
        env_spec = GOOD.model_copy(update={"deterministic": False, "notes": "a real wind", "capabilities": ("solver",)})

    findings = by_rule(check_env(Chancy))
    assert all(finding.ok for finding in findings.values())
    assert "a real wind" in findings["same_seed_same_episode"].message
    assert findings["snapshot_continues"].skipped
