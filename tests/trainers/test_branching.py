"""Branching against what is known: the oracle environment in closed form, exact tokens, calibrated errors, and
crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import comb
from typing import Any

import numpy as np
import pytest

from agentgym import registry as load
from agentgym.clients.client import connect
from agentgym.errors import ConfigError
from agentgym.rollouts.policy import EpisodeSpec, ModelResponse, RandomPolicy, ScriptedPolicy, TextActor, TurnContext
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, Runner
from agentgym.rollouts.trajectory import Trajectory
from agentgym.session import LocalSession, Session
from agentgym_environments.diagnostics.oracle.env import ACTIONS, ADVANTAGE, VALUE, Oracle
from agentgym_servers.env_server.app import create_app
from agentgym_servers.web.run import serve_in_thread
from agentgym_trainers.build import build
from agentgym_trainers.config.sections import Config
from agentgym_trainers.credit import ASSIGNERS
from agentgym_trainers.engines.base import Sampling
from agentgym_trainers.rollout.monte_carlo import BranchedValues, branch, estimate, require_snapshots, retrace
from agentgym_trainers.rollout.policy import TokenPolicy
from agentgym_trainers.rollout.tokens import ChatTemplate
from agentgym_trainers.signals.annotate import annotate, fit_signals
from agentgym_trainers.signals.mc_value import columns_of
from agentgym_trainers.testing import ScriptedEngine

SPEC = load.get_spec("oracle")


@dataclass(frozen=True)
class Bits:
    """Attempt j says, on turn t, the first of the room's words if bit t of j is 0."""

    def actor(self, episode: EpisodeSpec) -> TextActor:
        return _Bits(episode.attempt)


class _Bits(TextActor):
    def __init__(self, number: int) -> None:
        self.number = number

    async def act(self, ask: TurnContext) -> ModelResponse:
        return ModelResponse(ACTIONS[ask.step.info["state_key"]][self.number >> ask.turn & 1])


def seed_of(low: bool) -> int:
    """A seed whose first three draws are all below one half, or all above."""
    return next(s for s in range(1000) if all((np.random.default_rng(s).random(3) < 0.5) == low))


CHANCES = [seed_of(True)] * 8 + [seed_of(False)] * 8


def runner(make: Any = Oracle, **options: Any) -> Runner:
    async def open_session() -> Session:
        return LocalSession(make())

    return Runner(open_session, PromptFormat(), Limits(), 32, **options)


def oracle_episodes(run: Runner, actions: Sequence[str] | None = None) -> list[Trajectory]:
    """Every sequence of words under both outcomes of chance, or one sequence."""

    async def play() -> list[Trajectory]:
        played = []
        for number, seed in product(range(8), (seed_of(True), seed_of(False))):
            policy = Bits() if actions is None else ScriptedPolicy(actions)
            played += await run.run(policy, [EpisodeSpec("oracle", "train", 0, seed, number)])
        return played[:1] if actions is not None else played

    return asyncio.run(play())


def expected(trajectories: Sequence[Trajectory]) -> tuple[np.ndarray, np.ndarray]:
    """The closed form: V before each turn, and its advantage."""
    turns = [turn for t in trajectories for turn in t.turns]
    first = [turn.action == ACTIONS[str(turn.state_key)][0] for turn in turns]
    signs = np.where(first, 1.0, -1.0)
    return np.array([VALUE[t.state_key] for t in turns]), signs * [ADVANTAGE[t.state_key] for t in turns]


def exactly(run: Runner, **options: Any) -> tuple[BranchedValues, list[Trajectory]]:
    trajectories = oracle_episodes(run)
    found = asyncio.run(branch(run, Bits(), trajectories, continuations=16, chances=CHANCES, **options))
    return found, trajectories


def test_the_enumerated_oracle_is_the_closed_form_exactly():
    found, trajectories = exactly(runner())
    value, advantage = expected(trajectories)
    assert found.chance
    np.testing.assert_array_equal(found.value_N, value)
    np.testing.assert_array_equal(found.advantage_N, advantage)
    after = np.append(value[1:], 0.0)
    after[2::3] = 0.0
    np.testing.assert_array_equal(found.after_N, after)
    assert found.lost == 0


def test_the_same_over_the_wire():
    """Restored, with its seed, by a server."""

    async def main() -> tuple[np.ndarray, np.ndarray]:
        with serve_in_thread(create_app(["oracle"])) as url:
            async with connect(url) as env:

                async def open_session() -> Session:
                    return env.session()

                run = Runner(open_session, PromptFormat(), Limits(), 16)
                found = await branch(run, Bits(), trajectories, continuations=16, chances=CHANCES)
                return found.value_N, found.advantage_N

    trajectories = oracle_episodes(runner())[:8]
    for got, wanted in zip(asyncio.run(main()), expected(trajectories), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_forgetting_that_chance_is_drawn_anew_is_found_out():
    """The defect: continuations with the snapshot's own chance. V(birch) is then 1/4 or 0, never their mean."""
    run = runner()
    trajectories = [t for t in oracle_episodes(run) if t.turns[0].action == "right"]
    stuck = [CHANCES[0]] * 16
    found = asyncio.run(branch(run, Bits(), trajectories, continuations=16, chances=stuck))
    assert not np.allclose(found.value_N, expected(trajectories)[0])
    assert set(found.value_N[1::3]) == {0.25}


def test_sampled_continuations_agree_with_the_closed_form():
    run = runner()
    trajectories = oracle_episodes(run)
    found = asyncio.run(branch(run, RandomPolicy(1), trajectories, continuations=200, seed=4))
    value, advantage = expected(trajectories)
    assert np.all(np.abs(found.value_N - value) <= 3.5 * found.value_se_N + 1e-12)
    assert np.all(np.abs(found.advantage_N - advantage) <= 3.5 * found.advantage_se_N + 1e-12)
    again = asyncio.run(branch(run, RandomPolicy(1), trajectories, continuations=200, seed=4))
    np.testing.assert_array_equal(again.value_N, found.value_N)


@pytest.mark.parametrize("p", [0.125, 0.1875, 0.25, 0.5])
def test_standard_errors_are_calibrated(p):
    """Over every outcome of n continuations, weighted by its probability: E[se²] is the mean's variance, and the truth
    is within two errors about as often as it should be."""
    n = 48
    chance = np.array([comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)])
    found = [estimate([1.0] * k + [0.0] * (n - k)) for k in range(n + 1)]
    squared, wrong = (np.array([f.error**2 * scale for f in found]) for scale in (1.0, n))
    assert chance @ squared == pytest.approx(p * (1 - p) / n)
    covered = chance @ [abs(f.mean - p) <= 2 * f.error for f in found]
    assert 0.9 < covered < 0.98
    assert chance @ wrong != pytest.approx(p * (1 - p) / n)  # the spread of one return is not the mean's error
    assert np.isnan(estimate([0.5]).error)
    assert estimate([]).n == 0


def test_a_history_that_several_episodes_share_is_estimated_once():
    run = runner()
    one = oracle_episodes(run, ["left", "gold", "gold"])[0]
    twice = [one, one]
    found = asyncio.run(branch(run, Bits(), twice, continuations=16, chances=CHANCES, action_values=False))
    assert found.played == 3 * 16
    np.testing.assert_array_equal(found.value_N, [0.1875, 0.25, 0.5] * 2)
    np.testing.assert_array_equal(found.action_N, [0.25, 0.5, 1.0] * 2)  # r + V(s') of the one s' that followed
    assert found.turns == 16 * (3 + 2 + 1)


class Brittle(Oracle):
    """Crashes where it is told to."""

    bad_room, bad_word, broken = "", "", ""

    def act(self, action: str) -> Any:
        if (self.room, action) == (self.bad_room, self.bad_word):
            raise RuntimeError("the floor gave way")
        return super().act(action)

    def load(self, state: Any) -> None:
        super().load(state)
        if self.room == self.broken:
            raise RuntimeError("the door is stuck")


def test_an_env_that_crashes_loses_that_estimate_alone():
    run = runner()
    trajectories = oracle_episodes(run, ["left", "gold", "gold"])

    class Stuck(Brittle):
        broken = "amber"

    found = asyncio.run(branch(runner(Stuck), Bits(), trajectories, continuations=16, chances=CHANCES, chance=False))
    np.testing.assert_array_equal(found.value_N, [0.1875, np.nan, 0.5])
    np.testing.assert_array_equal(found.action_N, [np.nan, 0.5, 1.0])
    assert found.lost == 16

    class Trap(Brittle):
        bad_room, bad_word = "cedar", "blue"

    found = asyncio.run(branch(runner(Trap), Bits(), trajectories, continuations=16, chances=CHANCES, chance=False))
    assert found.value_N[2] == 1.0  # of the continuations that are left
    assert found.lost == 8 + 4 + 3  # half of cedar's, of amber's those that got there, of fork's likewise


def test_an_unreplayable_episode_keeps_its_first_states():
    class Other(Oracle):
        def observe(self) -> str:
            return super().observe().replace("cedar", "oaken")

    trajectories = oracle_episodes(runner(), ["left", "gold", "gold"])
    walks, lost = asyncio.run(retrace(runner(Other, retries=0), Bits(), trajectories))
    assert ([len(walk) for walk in walks], lost) == ([2], 1)
    found = asyncio.run(branch(runner(Other), Bits(), trajectories, continuations=16, chances=CHANCES, chance=False))
    np.testing.assert_array_equal(found.value_N, [0.1875, 0.25, np.nan])
    assert np.isnan(found.after_N[1:]).all()


def test_complaints_are_history_and_limits_count_earlier_turns():
    """A reply without an action costs a turn; the environment is not stepped and its snapshot stays."""
    run = runner()
    trajectories = oracle_episodes(run, ["", "left", "gold"])
    assert trajectories[0].turns[0].action is None
    calls: list[tuple[int, int]] = []

    class Counting(Bits):
        def actor(self, episode: EpisodeSpec) -> TextActor:
            class Count(_Bits):
                async def act(self, ask: TurnContext) -> ModelResponse:
                    calls.append((ask.turn, len(ask.messages)))
                    return await super().act(ask)

            return Count(episode.attempt)

    found = asyncio.run(branch(run, Counting(), trajectories, continuations=16, chances=CHANCES, chance=False))
    assert {(turn, messages) for turn, messages in calls} == {(t, 2 + 2 * t) for t in range(3)}
    assert found.value_N[0] == 0.1875
    assert found.value_N[1] == 0.0  # two turns are left, and three are needed
    walks, _ = asyncio.run(retrace(run, Bits(), trajectories))
    assert str(walks[0][1].past.display).startswith("No action taken")
    assert walks[0][0].past.state == walks[0][1].past.state


def test_an_env_without_snapshots_is_refused_in_a_sentence():
    with pytest.raises(ConfigError, match="echo has no snapshots, so no state of it can") as refused:
        require_snapshots(load.get_spec("agentgym.testing:EchoEnv").model_copy(update={"capabilities": ()}))
    assert "\n" not in str(refused.value)
    require_snapshots(SPEC)


@pytest.mark.parametrize("window", [None, 1])
def test_a_continuation_sees_the_tokens_of_the_trajectory(tokenizer, window):
    """Whatever the engine is asked after a branch begins with the tokens sampled up to there, never re-tokenized."""
    template = ChatTemplate(tokenizer)
    words = [tokenizer("go north")["input_ids"], tokenizer("pick up")["input_ids"], [*range(65, 70)]]

    def script(call: int, prompt: Sequence[int]) -> list[int]:
        return [*words[(call + len(prompt)) % 3], *sorted(template.stop_ids())[:1]]

    async def open_session() -> Session:
        return LocalSession(load.make("keydoor"))

    run = Runner(open_session, PromptFormat(window=window), Limits(4), 4)

    def policy() -> TokenPolicy:
        return TokenPolicy(ScriptedEngine(script), template, Sampling(1.0, 8, template.stop_ids()))

    recorded = asyncio.run(run.run(policy(), [EpisodeSpec("keydoor", "train", 0, 0)]))
    own = policy()
    asyncio.run(branch(run, own, recorded, continuations=2, chance=False))
    prefixes = {tuple(recorded[0].branches[t.span.branch].ids[: t.span.start].tolist()) for t in recorded[0].turns}
    first: dict[int, Sequence[int]] = {}
    for conversation, prompt, _ in own.engine.calls:
        first.setdefault(conversation, prompt)
    assert {tuple(prompt) for prompt in first.values()} == prefixes
    assert len(first) == 2 * 4


def test_a_turn_taken_again_keeps_its_tokens(tokenizer):
    """Q(s, a) is of the very tokens that were sampled."""
    template = ChatTemplate(tokenizer)
    stop = sorted(template.stop_ids())[0]
    tokens = {"left": tokenizer("left")["input_ids"], "gold": tokenizer("gold")["input_ids"]}

    def script(call: int, prompt: Sequence[int]) -> list[int]:
        return [
            *tokens["left" if "amber" not in (text := template.decode(prompt)) and "cedar" not in text else "gold"],
            stop,
        ]

    run = runner()
    policy = TokenPolicy(ScriptedEngine(script), template, Sampling(1.0, 8, template.stop_ids()))
    recorded = asyncio.run(run.run(policy, [EpisodeSpec("oracle", "train", 0, 0)]))
    assert recorded[0].score == 1.0
    policy = TokenPolicy(ScriptedEngine(script), template, Sampling(1.0, 8, template.stop_ids()))
    found = asyncio.run(branch(run, policy, recorded, continuations=3, chance=True))
    np.testing.assert_array_equal(found.action_N, [1.0, 1.0, 1.0])
    before = tuple(recorded[0].branches[0].ids[: recorded[0].turns[1].span.start].tolist())
    prompts = [tuple(prompt) for _, prompt, _ in policy.engine.calls]
    assert before in prompts


def test_a_turn_without_an_estimate_has_no_advantage():
    """Lost before the turn or after it: the columns stay finite but for the error, and A = r + V' − V is 0."""
    nan = np.nan
    found = BranchedValues(
        np.array([0.5, nan, 0.25, 0.75]), np.array([0.1, nan, 0.1, 0.1]), np.array([nan, 0.25, 0.75, 0.0]),
        np.array([nan, 0.1, 0.1, 0.0]), *np.zeros((2, 4)), played=0, lost=1, turns=0, chance=False,
    )  # fmt: skip
    reward_N = np.array([0.0, 0.0, 0.0, 1.0])
    columns = columns_of(found, reward_N)
    advantage_N = reward_N + columns["mc_after_N"] - columns["mc_value_N"]
    np.testing.assert_allclose(advantage_N, [0.0, 0.0, 0.5, 0.25])
    np.testing.assert_allclose(columns["mc_se_N"], [np.inf, np.inf, 0.1 * 2**0.5, 0.1])


def test_the_signal_in_a_training_step(kit, chatty, tokenizer, tmp_path):
    """Measured values of a model's own episodes: telescoping, 0 after the end, shared before the first turn."""

    async def open_session() -> Session:
        return LocalSession(load.make("oracle"))

    tree = {
        "name": "t", "env": {"name": "oracle", "serve": False}, "credit": {"assigner": "mc_branch"},
        "rollout": {"groups": 2, "group_size": 2, "max_new_tokens": 4, "max_length": 640, "concurrency": 8},
        "signals": {"branched_value": {"continuations": 3}}, "optim": {"minibatches": 2},
    }  # fmt: skip
    model = chatty()
    trainer = build(Config.model_validate(tree), tmp_path, SPEC, open_session, model, model, tokenizer)

    async def step() -> tuple[Any, dict[str, float]]:
        context = trainer.make_context(await trainer.collect())
        context, _ = await annotate(context, trainer.learner, trainer.signals, prox=False)
        return context.batch, await fit_signals(context, trainer.signals, first=False)

    batch, metrics = asyncio.run(step())
    value_N, after_N = batch.x["mc_value_N"], batch.x["mc_after_N"]
    same = ~batch.last_N[:-1]
    np.testing.assert_array_equal(after_N[:-1][same], value_N[1:][same])
    assert not after_N[batch.last_N].any()
    first_N = np.flatnonzero(np.append(True, batch.last_N[:-1]))
    assert value_N[first_N[0]] == value_N[first_N[1]]
    assert metrics["branched_value/lost"] == 0
    assert metrics["branched_value/continuations"] >= 3 * 2
    credit = ASSIGNERS["mc_branch"].function(batch)
    np.testing.assert_allclose(credit.advantage_A, (batch.reward_N + after_N - value_N)[batch.turn_A])
