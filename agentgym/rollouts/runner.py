"""The rollout: an actor plays one episode of a session. Every limit and deadline lives here.

A failed episode is recorded data with a StopReason; a bug in our own code stops the run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from agentgym.env import Action, Display, Observation, info_problem, reward_problem
from agentgym.errors import EnvironmentCrashed, EnvironmentFailure, PolicyFailure
from agentgym.rollouts.policy import Actor, AgentEnded, ContextFull, EpisodeSpec, Policy, Tokens, TurnContext
from agentgym.rollouts.prompt_format import Message, PromptFormat, image_url, results_of, text_of
from agentgym.rollouts.trajectory import StopReason, Trajectory, Turn, offered_in
from agentgym.session import Session, Step


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an episode."""

    max_turns: int | None = None
    """Turns before the rollout cuts it; None is the environment's own limit. (The environment counts only the steps it
    took, so an agent that never acts must be cut here.)"""
    episode_s: float = 600.0
    """Seconds for the whole episode; over it, the episode has failed (DEADLINE) and is not scored."""


@dataclass(frozen=True, slots=True)
class EpisodePrefix:
    """The first turns of an episode and the environment as they left it: another rollout goes on from there."""

    state: bytes
    """The environment's snapshot."""
    step: Step
    """The environment's last answer."""
    display: Display
    """The present observation of the agent."""
    last_observation: Display
    """The one before it where a reply without an action is being complained of, else the same."""
    turns: tuple[Turn, ...] = ()
    history: tuple[tuple[Display, str | Message], ...] = ()
    """(observation, reply) of those turns."""
    chance: int | None = None
    """Seed of what chance decides from here on; None is as the episode itself would have gone on."""


async def rollout(
    session: Session,
    actor: Actor,
    prompt_format: PromptFormat,
    episode: EpisodeSpec,
    limits: Limits,
    past: EpisodePrefix | None = None,
    keep_images: bool = False,
) -> Trajectory:
    """Play `episode` to its end and record it, from its beginning or from where `past` ends (its turns, and the limits,
    count as if played here). Raises only for bugs and for UsageError."""
    play = _Play(session, actor, prompt_format, episode, limits, past)
    play.keep_images = keep_images
    error = ""
    try:
        async with asyncio.timeout(limits.episode_s) as clock:
            stop = await play.run()
    except TimeoutError:
        if not clock.expired():  # raised by a policy: a bug, not the deadline
            actor.finish(None)
            raise
        stop, error = StopReason.DEADLINE, f"the episode took longer than {limits.episode_s:g} s"
    except EnvironmentFailure as failure:
        stop, error = StopReason.ENVIRONMENT_FAILED, f"{failure.code}: {failure}"
    except PolicyFailure as failure:
        stop, error = StopReason.POLICY_FAILED, str(failure)
    except BaseException:
        actor.finish(None)
        raise
    tokens = actor.finish(play.messages() if stop.is_truncated and stop is not StopReason.CONTEXT_FULL else None)
    return play.record(stop, error, tokens)


class _Play:
    """The state of one episode while it is played."""

    def __init__(
        self,
        session: Session,
        actor: Actor,
        prompt_format: PromptFormat,
        episode: EpisodeSpec,
        limits: Limits,
        past: EpisodePrefix | None,
    ) -> None:
        self.session, self.actor, self.prompt_format = session, actor, prompt_format
        self.episode, self.limits, self.past = episode, limits, past
        self.history: list[tuple[Display, str | Message]] = []
        self.display: Display = ""
        self.last_observation: Display = ""
        self.turns: list[Turn] = []
        self.step: Step | None = None
        self.keep_images = False

    async def begin(self) -> None:
        if self.past is None:
            options = {"split": self.episode.split, "task": self.episode.task}
            self.step = _checked(await self.session.reset(seed=self.episode.seed, options=options), self.session, None)
            self.display = self.last_observation = self.step.observation
        else:
            await self.session.restore(self.past.state, seed=self.past.chance)
            self.step, self.display, self.last_observation = (
                self.past.step,
                self.past.display,
                self.past.last_observation,
            )
            self.turns, self.history = list(self.past.turns), list(self.past.history)

    async def run(self) -> StopReason:
        await self.begin()
        assert self.step is not None
        if self.step.terminated or self.step.truncated:  # a match that was over before this role was asked
            return StopReason.TERMINATED if self.step.terminated else self.env_limit()
        most = self.session.spec.max_turns
        limit = most if self.limits.max_turns is None else self.limits.max_turns
        while len(self.turns) < limit:
            try:
                stop = await self.turn()
            except ContextFull:
                return StopReason.CONTEXT_FULL
            except AgentEnded:
                return StopReason.AGENT_ENDED
            if stop is not None:
                return stop
        return self.env_limit() if limit >= most else StopReason.MAX_TURNS

    def env_limit(self) -> StopReason:
        """Return what the environment's own limit is: a part of the task, or a cut."""
        assert self.step is not None
        part_of_task = self.session.spec.turn_limit == "terminates" and not self.step.info.get("other_left")
        return StopReason.TURN_LIMIT if part_of_task else StopReason.TRUNCATED

    async def turn(self) -> StopReason | None:
        """One reply and the environment's answer to it; why the episode ended, if it did."""
        assert self.step is not None
        before, display, started = self.step, self.display, time.perf_counter()
        ask = TurnContext(self.messages(), len(self.turns), before, display, self.session, self.prompt_format)
        reply = await self.actor.act(ask)
        policy_s = time.perf_counter() - started
        parsed = self.prompt_format.parse(reply.text, self.session.spec, reply.calls)
        if parsed.action is None:
            info = {**before.info, "valid_action": False}
            after, results = Step(before.observation, 0.0, False, False, info), ()
            self.display = self.invalid_action_message(parsed.problem)
            env_s = 0.0
        else:
            started = time.perf_counter()
            after, results = await take(self.session, parsed.action, len(self.turns))
            env_s = time.perf_counter() - started
            self.display = self.last_observation = results_of(results) if results else after.observation
        tokens = reply.tokens or (None, None)
        self.turns.append(
            Turn(
                index=len(self.turns),
                observation=text_of(display),
                reply=reply.text,
                action=parsed.action,
                reward=after.reward,
                penalty=0.0 if parsed.action is not None else self.prompt_format.invalid_penalty,
                info=after.info,
                state_key=before.info.get("state_key"),
                role=before.info.get("role", 0),
                offered=offered_in(before.info),
                span=reply.span,
                finish=reply.finish,
                policy_s=policy_s,
                env_s=env_s,
                prompt_tokens=tokens[0],
                completion_tokens=tokens[1],
                message=reply.message,
                results=tuple(text_of(result) for result in results),
                image=image_url(display) if self.keep_images else "",
            )
        )
        self.history.append((display, reply.message or reply.text))
        self.step = after
        if reply.on_step is not None:
            reply.on_step(after)
        if parsed.action is None and self.prompt_format.on_invalid == "end":
            return StopReason.INVALID_ACTION
        if after.terminated:
            return StopReason.TERMINATED
        return self.env_limit() if after.truncated else None

    def invalid_action_message(self, problem: str) -> Display:
        """Return the observation after a response without an action.

        Under a window the environment's last observation is told again, since the window would lose it.
        """
        text = self.prompt_format.invalid_action_message(self.session.spec, problem)
        if self.prompt_format.window is None:
            return text
        message = f"{text}\n\n{text_of(self.last_observation)}"
        if isinstance(self.last_observation, str):
            return message
        if "results" in self.last_observation:
            return {"text": message, "results": self.last_observation["results"]}
        return {"text": message, "image": self.last_observation["image"]}

    def messages(self) -> list[dict]:
        """The prompt. Where one actor plays both roles of an environment, neither is shown what the other saw and
        said."""
        assert self.step is not None
        own_role = self.step.info.get("role", 0)
        own = [entry for turn, entry in zip(self.turns, self.history, strict=True) if turn.role == own_role]
        return self.prompt_format.messages(self.session.spec, own, self.display)

    def record(self, stop: StopReason, error: str, tokens: Tokens) -> Trajectory:
        return Trajectory(
            **self.episode._asdict(),
            turns=tuple(self.turns),
            stop=stop,
            final_observation=text_of(self.display),
            error=error,
            branches=tokens.branches,
            forks=tokens.forks,
        )


async def take(session: Session, action: Action | list[Action], turn: int) -> tuple[Step, tuple[Observation, ...]]:
    """Take one action, or several in order until the episode ends.

    Of several, the step has the sum of the rewards and the last one's `info`, with valid_action false where one was
    not; the observations are that of each; of one there are none. Raises EnvironmentFailure.
    """
    if not isinstance(action, list):
        return _checked(await session.step(action), session, turn), ()
    steps: list[Step] = []
    for one in action:
        steps.append(_checked(await session.step(one), session, turn))
        if steps[-1].terminated or steps[-1].truncated:
            break
    info = dict(steps[-1].info)
    if any(step.info.get("valid_action") is False for step in steps):
        info["valid_action"] = False
    last = steps[-1]._replace(reward=sum(step.reward for step in steps), info=info)
    return last, tuple(step.observation for step in steps)


def _checked(step: Step, session: Session, turn: int | None) -> Step:
    """`step`, if it is one that can be shown and scored; `turn` is None for a reset's. Raises EnvironmentCrashed."""
    observed, where = step.observation, "at reset" if turn is None else f"in turn {turn}"
    if not isinstance(observed, str) and not (isinstance(observed, dict) and isinstance(observed.get("text"), str)):
        raise EnvironmentCrashed(
            f"{session.spec.id} observed a {type(observed).__name__}, not text, nor text and an image"
        )
    if problem := reward_problem(step.reward) or info_problem(step.info):
        raise EnvironmentCrashed(f"{session.spec.id} broke its contract {where}: {problem}")
    return step


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Runner:
    """Plays many episodes at once against one environment, reusing sessions."""

    open_session: Callable[[], Awaitable[Session]]
    prompt_format: PromptFormat
    limits: Limits
    concurrency: int = 64
    """Episodes in flight."""
    retries: int = 1
    """An episode that infrastructure failed is played again this many times, from its beginning with the same seed."""
    keep_images: bool = False
    """Keep the images of observations in the trajectories."""
    may_start: Callable[[], bool] = _always
    """Asked before each episode. After a False no further one is started, and the stream ends early."""

    async def run(
        self, policy: Policy, episodes: Sequence[EpisodeSpec], pasts: Sequence[EpisodePrefix] | None = None
    ) -> list[Trajectory]:
        """One trajectory an episode, in order. `pasts`: where each of them goes on, if not from its beginning."""
        done: dict[int, Trajectory] = {}
        async for index, trajectory in self.stream(policy, episodes, pasts):
            done[index] = trajectory
        return [done[index] for index in range(len(episodes))]

    async def stream(
        self, policy: Policy, episodes: Sequence[EpisodeSpec], pasts: Sequence[EpisodePrefix] | None = None
    ) -> AsyncGenerator[tuple[int, Trajectory], None]:
        """(index, trajectory) as episodes end; fewer than `episodes` where `may_start` stops them."""
        waiting = iter(enumerate(zip(episodes, pasts or [None] * len(episodes), strict=True)))
        # Bounded, so that whoever writes results down keeps up with environments and policies that never wait.
        ready: asyncio.Queue[tuple[int, Trajectory]] = asyncio.Queue(max(1, self.concurrency))

        async def worker() -> None:
            seat = SessionSlot(self.open_session)
            try:
                while self.may_start() and (item := next(waiting, None)) is not None:
                    index, (episode, past) = item
                    await ready.put((index, await self.play(policy, episode, past, seat)))
            finally:
                await seat.close()

        getter: asyncio.Future[tuple[int, Trajectory]] | None = None
        workers = [asyncio.ensure_future(worker()) for _ in range(min(self.concurrency, len(episodes)))]
        try:
            for _ in range(len(episodes)):
                getter = asyncio.ensure_future(ready.get())
                while not getter.done():
                    _raise_first(workers)
                    alive = [task for task in workers if not task.done()]
                    if not alive and ready.empty():
                        return
                    await asyncio.wait([getter, *alive], return_when=asyncio.FIRST_COMPLETED)
                yield getter.result()
            await asyncio.gather(*workers)
        finally:
            tasks = [*workers, *([getter] if getter else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def play(
        self, policy: Policy, episode: EpisodeSpec, past: EpisodePrefix | None, seat: SessionSlot
    ) -> Trajectory:
        """One episode, tried again after infrastructure's failures; the session is dropped after each."""
        for _ in range(self.retries + 1):
            trajectory = await self.play_once(policy, episode, past, seat)
            if not trajectory.stop.is_failure:
                break
            await seat.close()
        return trajectory

    async def play_once(
        self, policy: Policy, episode: EpisodeSpec, past: EpisodePrefix | None, seat: SessionSlot
    ) -> Trajectory:
        """One try at an episode."""
        try:
            session = await seat.take()
        except EnvironmentFailure as failure:
            error, stop = f"{failure.code}: {failure}", StopReason.ENVIRONMENT_FAILED
            return Trajectory(**episode._asdict(), turns=(), stop=stop, error=error)
        actor = policy.actor(episode)
        return await rollout(session, actor, self.prompt_format, episode, self.limits, past, self.keep_images)


class SessionSlot:
    """The session that a worker plays in, opened when first needed and after each failure."""

    def __init__(self, open_session: Callable[[], Awaitable[Session]]) -> None:
        self.open_session = open_session
        self.session: Session | None = None

    async def take(self) -> Session:
        if self.session is None:
            self.session = await self.open_session()
        return self.session

    async def close(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            with suppress(EnvironmentFailure):  # the lease will end it
                await session.close()


def _raise_first(tasks: Sequence[asyncio.Future[None]]) -> None:
    for task in tasks:
        if task.done() and not task.cancelled() and task.exception() is not None:
            raise task.exception()  # type: ignore[misc]
