"""Monte-Carlo branching: what a state is worth, found out by playing on from it many times.

    recorded     s0 -a0-> s1 -a1-> s2 -a2-> end
    V(s1)        s1 restored, chance drawn anew, n continuations of the present policy; the mean of what they collect
    Q(s1, a1)    s1 restored, chance drawn anew, a1 taken once more, then the policy: n continuations

An episode is first played again, reply by reply, which gives the snapshot, the messages and the tokens before each
turn; a continuation's prompt is exactly those tokens. Without chance in the environment Q(s, a) = r + V(s') with the
one s' that follows, so that states alone are branched. V is of the environment's whole state, with what the agent
cannot see of it (the answer of a word game), after this history, within the turns that the limits leave.

Kazemnejad et al. 2024 (VinePPO, 2410.01679) §4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from agentgym.env import Display
from agentgym.errors import ConfigError, EnvironmentFailure, PolicyFailure
from agentgym.rollouts.policy import (
    Actor,
    ContextFull,
    EpisodeSpec,
    ModelResponse,
    Policy,
    TextActor,
    Tokens,
    TurnContext,
)
from agentgym.rollouts.prompt_format import Message, text_of
from agentgym.rollouts.runner import EpisodePrefix, Runner, take
from agentgym.rollouts.trajectory import Trajectory, Turn
from agentgym.spec import EnvSpec
from agentgym_trainers.engines.base import Completion
from agentgym_trainers.rollout.policy import TokenActor, TokenPolicy
from agentgym_trainers.rollout.tokens import ChatTemplate, Transcript

PROBED = 64
"""Steps that are taken four times to see whether the environment has chance."""

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Estimate:
    """A mean of independent continuations."""

    mean: float
    error: float
    """Its standard error, s / √n with n − 1 in s; NaN of fewer than two."""
    n: int


@dataclass(frozen=True)
class BranchedValues:
    """Estimates of every turn of some trajectories, in order. NaN where no continuation was left."""

    value_N: np.ndarray
    """float64[N]: V of the state before the turn."""
    value_se_N: np.ndarray
    after_N: np.ndarray
    """float64[N]: V of the state that the turn led to; 0 where the episode ended, by a limit too."""
    after_se_N: np.ndarray
    action_N: np.ndarray
    """float64[N]: Q of the state and what was done: the turn's reward and what follows, expected over chance."""
    action_se_N: np.ndarray
    played: int
    """Continuations that count."""
    lost: int
    """Continuations, and recorded episodes, that infrastructure failed."""
    turns: int
    """Turns that the policy played for it."""
    chance: bool
    """Q was found by taking the step again."""

    @property
    def advantage_N(self) -> np.ndarray:
        """float64[N]: Q − V."""
        return self.action_N - self.value_N

    @property
    def advantage_se_N(self) -> np.ndarray:
        """float64[N]: the two come from different continuations, so their variances add."""
        return np.hypot(self.action_se_N, self.value_se_N)


def require_snapshots(spec: EnvSpec) -> None:
    """Raises ConfigError for an environment that cannot be branched."""
    if "snapshot" not in spec.capabilities:
        raise ConfigError(
            f"{spec.id} has no snapshots, so no state of it can be played from twice; branching needs an environment "
            "with the "
            'capability "snapshot"'
        )


async def branch(
    runner: Runner,
    policy: Policy,
    trajectories: Sequence[Trajectory],
    *,
    continuations: int,
    gamma: float = 1.0,
    seed: int = 0,
    action_values: bool = True,
    chance: bool | None = None,
    chances: Sequence[int] | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> BranchedValues:
    """Estimate V, and with `action_values` Q, at every turn of recorded episodes.

    A state that the same history reached in several episodes is estimated once. `seed` makes other continuations.
    chance: whether the environment's steps have chance; None takes some steps several times to see. chances: seeds of
    the environment's chance in a state's continuations, the same for every state; by default each has its own.
    """
    points, lost = await retrace(runner, policy, trajectories)
    if chance is None:
        chance = action_values and await has_chance(runner, [p for walk in points for p in walk], seed)
    found: dict[Key, Estimate] = {}
    played = turns = 0
    first = seed * 2**24 * continuations  # attempt % continuations is the number of a state's continuation
    for number, walk in enumerate(points):
        on_progress(number, len(points))
        jobs = _jobs(walk, found, again=action_values and chance)
        going = Continuations(policy, [job for job in jobs for _ in range(continuations)], first)
        pasts = [replace(job.point.past, chance=going.chance(i, chances)) for i, job in enumerate(going.jobs)]
        specs = [job.point.episode._replace(attempt=first + i) for i, job in enumerate(going.jobs)]
        ended = await runner.run(going, specs, pasts)
        for k, job in enumerate(jobs):
            mine = [t for t in ended[k * continuations : (k + 1) * continuations] if not t.stop.is_failure]
            found[job.key] = estimate([_collected(t, job.point.index, gamma) for t in mine])
            lost += continuations - len(mine)
            played += len(mine)
            turns += sum(len(t.turns) - job.point.index - job.again for t in mine)
        first += len(specs)
    on_progress(len(points), len(points))
    columns = [_columns(t, walk, found, gamma, chance) for t, walk in zip(trajectories, points, strict=True)]
    all_columns = np.concatenate(columns, axis=1) if columns else np.zeros((6, 0))
    return BranchedValues(*all_columns, played=played, lost=lost, turns=turns, chance=bool(chance))


def estimate(returns: Sequence[float]) -> Estimate:
    """The mean of `returns` and its standard error."""
    n = len(returns)
    if n == 0:
        return Estimate(float("nan"), float("nan"), 0)
    spread = float(np.std(returns, ddof=1)) if n > 1 else float("nan")
    return Estimate(float(np.mean(returns)), spread / n**0.5, n)


@dataclass(frozen=True)
class BranchPoint:
    """State before a turn of a recorded episode, with all that another rollout needs to continue from there."""

    episode: EpisodeSpec
    past: EpisodePrefix
    transcript: Transcript | None
    turn: Turn
    """The turn that was played there."""
    completion: Completion | None
    """Its tokens."""
    key: Key
    """Equal for equal histories of equal episodes."""

    @property
    def index(self) -> int:
        return self.turn.index

    @property
    def key_after(self) -> Key:
        return (*self.key, tuple(self.completion.ids) if self.completion else self.turn.reply)


async def retrace(
    runner: Runner, policy: Policy, trajectories: Sequence[Trajectory]
) -> tuple[list[list[BranchPoint]], int]:
    """The points of each trajectory, in order, found by playing it again; and how many episodes could not be.

    Where the environment fails or does not do again what it did, the points before that moment are given.
    """
    retracing = _Retracing(policy, trajectories)
    await runner.run(retracing, [EpisodeSpec(t.env, t.split, t.task, t.seed, i) for i, t in enumerate(trajectories)])
    walks = [max(retracing.walks.get(i, [[]]), key=len) for i in range(len(trajectories))]
    return walks, sum(len(walk) < len(t.turns) for walk, t in zip(walks, trajectories, strict=True))


async def has_chance(runner: Runner, points: Sequence[BranchPoint], seed: int = 0) -> bool:
    """True where any of some recorded steps has another result under another seed of chance."""
    acted = [point for point in points if point.turn.action is not None]
    rng = np.random.default_rng([seed, 3])
    chosen = [acted[i] for i in rng.permutation(len(acted))[:PROBED]]
    if not chosen:
        return False
    session = await runner.open_session()
    try:
        for point in chosen:
            assert point.turn.action is not None
            outcomes = []
            with suppress(EnvironmentFailure):
                for chance in rng.integers(2**31, size=4).tolist():
                    await session.restore(point.past.state, seed=chance)
                    step, results = await take(session, point.turn.action, point.turn.index)
                    texts = [text_of(one) for one in results or (step.observation,)]
                    outcomes.append(repr((texts, *step[1:])))
            if any(outcome != outcomes[0] for outcome in outcomes):
                return True
    finally:
        with suppress(EnvironmentFailure):
            await session.close()
    return False


@dataclass(frozen=True)
class BranchJob:
    """Continuations to play: from a point, or from the point's own turn taken again."""

    point: BranchPoint
    again: bool

    @property
    def key(self) -> Key:
        return ("Q", *self.point.key_after) if self.again else ("V", *self.point.key)

    def over(self, template: ChatTemplate | None) -> BranchJob:
        """The same with a transcript of this template: None to send it to a process that has its own."""
        transcript = self.point.transcript
        if transcript is None:
            return self
        return replace(self, point=replace(self.point, transcript=transcript.over(template)))


def _jobs(walk: Sequence[BranchPoint], found: dict[Key, Estimate], again: bool) -> list[BranchJob]:
    """Continuations that are still to be played. The last turns come first: the engine keeps the first prompt for the
    others to copy what they share with it, and theirs is the longest."""
    jobs = [BranchJob(point, kind) for point in reversed(walk) for kind in ([True, False] if again else [False])]
    return [job for job in jobs if job.key not in found]


def _collected(trajectory: Trajectory, since: int, gamma: float) -> float:
    """The discounted rewards from a turn on, less what the prompt format takes for replies without an action."""
    rewards = [turn.reward - turn.penalty for turn in trajectory.turns[since:]]
    return float(sum(reward * gamma**k for k, reward in enumerate(rewards)))


def _columns(
    trajectory: Trajectory, walk: Sequence[BranchPoint], found: dict[Key, Estimate], gamma: float, chance: bool | None
) -> np.ndarray:
    """float64[6, n]: value, its error, after, its error, action, its error, of the turns of one trajectory."""
    columns = np.full((6, len(trajectory.turns)), np.nan)
    for point in walk:
        value = found[("V", *point.key)]
        columns[:2, point.index] = value.mean, value.error
    columns[2:4, :-1] = columns[:2, 1:]
    if len(walk) == len(trajectory.turns):
        columns[2:4, -1:] = 0.0
    rewards = np.array([turn.reward - turn.penalty for turn in trajectory.turns])
    columns[4], columns[5] = rewards + gamma * columns[2], gamma * columns[3]
    for point in walk if chance else ():
        action = found.get(("Q", *point.key_after))
        if action is not None:
            columns[4:, point.index] = action.mean, action.error
    return columns


@dataclass
class _Retracing:
    """A policy that says again what was said, and keeps the points."""

    policy: Policy
    trajectories: Sequence[Trajectory]
    walks: dict[int, list[list[BranchPoint]]] = field(default_factory=dict)
    """Walks by number of trajectory; a walk that infrastructure broke off is followed by another."""

    def actor(self, episode: EpisodeSpec) -> _Retracer:
        points: list[BranchPoint] = []
        self.walks.setdefault(episode.attempt, []).append(points)
        return _Retracer(self.trajectories[episode.attempt], self.policy, points)


class _Retracer(TextActor):
    def __init__(self, trajectory: Trajectory, policy: Policy, points: list[BranchPoint]) -> None:
        self._trajectory, self._policy, self._points = trajectory, policy, points
        self._history: list[tuple[Display, str]] = []
        self._last_observation: Display = ""
        self._transcript: Transcript | None = None
        self._key: Key = (trajectory.env, trajectory.split, trajectory.task, trajectory.seed)

    async def act(self, ask: TurnContext) -> ModelResponse:
        trajectory = self._trajectory
        if ask.turn == len(trajectory.turns):
            raise ContextFull("the recorded episode ended here")
        turn = trajectory.turns[ask.turn]
        if text_of(ask.display) != turn.observation:
            raise PolicyFailure(f"{trajectory.env} did not show again what it showed before turn {ask.turn}")
        if not ask.turn or trajectory.turns[ask.turn - 1].action is not None:
            self._last_observation = ask.display
        state = await ask.session.snapshot()
        past = EpisodePrefix(
            state, ask.step, ask.display, self._last_observation, trajectory.turns[: ask.turn], tuple(self._history)
        )
        before, completion = self._tokens(ask, turn)
        self._points.append(BranchPoint(EpisodeSpec(*self._key[:4]), past, before, turn, completion, self._key))
        self._key = self._points[-1].key_after
        self._history.append((ask.display, turn.reply))
        return ModelResponse(turn.reply, finish=turn.finish)

    def _tokens(self, ask: TurnContext, turn: Turn) -> tuple[Transcript | None, Completion | None]:
        """The transcript before the turn, and the turn's own tokens. Raises PolicyFailure where they are not those of
        the record: a continuation would not go on from what was sampled."""
        if not isinstance(self._policy, TokenPolicy) or turn.span is None:
            return None, None
        if self._transcript is None:
            tools = ask.prompt_format.tools(ask.session.spec)
            self._transcript = Transcript(self._policy.template, self._policy.sampling.stop_ids, tools)
        before = self._transcript.copy()
        prompt = self._transcript.prompt(ask.messages)
        branch, span = self._trajectory.branches[turn.span.branch], turn.span
        if prompt != branch.ids[: span.start].tolist():
            raise PolicyFailure(f"turn {turn.index} cannot be told in the tokens that it was sampled after")
        own = slice(span.start, span.stop)
        ids, logprobs = branch.ids[own].tolist(), branch.logprobs[own].tolist()
        completion = Completion(ids, logprobs, turn.finish, branch.versions[own].tolist())
        self._transcript.sampled(ask.turn, completion.ids, completion.logprobs, completion.versions)
        return before, completion


@dataclass(frozen=True)
class Continuations:
    """The policy, going on from each job's point; `first` is the attempt of the first job."""

    policy: Policy
    jobs: Sequence[BranchJob]
    first: int

    def actor(self, episode: EpisodeSpec) -> Actor:
        job = self.jobs[episode.attempt - self.first]
        if isinstance(self.policy, TokenPolicy) and job.point.transcript is not None:
            policy = replace(self.policy, salt=(*self.policy.salt, 3))
            actor: Actor = policy.actor(episode, job.point.transcript.copy())
        else:
            actor = self.policy.actor(episode)
        return _Again(actor, job.point) if job.again else actor

    def chance(self, number: int, chances: Sequence[int] | None) -> int:
        """The seed of the environment's chance in a job."""
        if chances is not None:
            return chances[number % len(chances)]
        return int(np.random.default_rng([3, self.first + number]).integers(2**31))


@dataclass
class _Again:
    """Says the point's own turn again, then goes on."""

    actor: Any
    point: BranchPoint

    async def act(self, ask: TurnContext) -> ModelResponse:
        if ask.turn > self.point.index:
            return await self.actor.act(ask)
        if isinstance(self.actor, TokenActor) and self.point.completion is not None:
            return self.actor.repeat(ask, self.point.completion)
        return ModelResponse(self.point.turn.reply, finish=self.point.turn.finish)

    def finish(self, messages: list[Message] | None) -> Tokens:
        return self.actor.finish(messages)
