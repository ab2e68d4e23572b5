"""The conformance suite: does a world keep the contract of `agentgym.env` and of its own EnvSpec?

    for finding in check_env(lambda: agentgym.make("my-world")):
        print(finding)

Every rule is a function below, named for what it demands; `RULES` is all of them. The rules speak to a `Session`, so
that the same ones judge a world in this process and a world behind a URL. Not covered: leaks, speed, and whether a task
is any good.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agentgym.env import Action, Env
from agentgym.errors import BadRequest, EnvironmentCrashed, EnvironmentFailure, OutOfOrder
from agentgym.session import LocalSession, Session, Step
from agentgym.spaces import Observation as ObservationSpace
from agentgym.spec import EnvSpec

NONSENSE = "xyzzy 123 {]"
"""No world should take this for an action."""


@dataclass(frozen=True)
class Finding:
    """What one rule found."""

    rule: str
    ok: bool
    message: str
    """What the rule demands; when broken, what was seen and what the cause may be; when skipped, why."""
    skipped: bool = False

    def __str__(self) -> str:
        return f"{'skip' if self.skipped else 'ok  ' if self.ok else 'FAIL'} {self.rule}: {self.message}"


class Broken(Exception):
    """The world breaks the rule; says what was seen and guesses the cause."""


class Skip(Exception):
    """The rule does not apply to this world."""


@dataclass
class Probe:
    """What the rules work with: fresh sessions of one world."""

    open_session: Callable[[], Awaitable[Session]]
    spec: EnvSpec
    tasks: int
    seed: int
    splits: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.splits = list(self.spec.splits)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        session = await self.open_session()
        try:
            yield session
        finally:
            await session.close()

    def task_list(self, split: str) -> list[int]:
        """Up to `tasks` tasks, spread over the split."""
        size = self.spec.splits[split]
        return sorted({round(i * (size - 1) / max(1, self.tasks - 1)) for i in range(min(self.tasks, size))})

    async def begin(self, session: Session, task: int = 0, seed: int = 0, split: str | None = None) -> Step:
        options = {"split": split or self.splits[0], "task": task}
        return await session.reset(seed=self.seed + seed, options=options)

    async def choose(self, session: Session, step: Step, random: np.random.Generator) -> Action:
        """An action for the present state: now and then nonsense, else the expert's or a legal one."""
        if random.random() < 0.1:
            return NONSENSE
        offered = step.info.get("available_actions") or list(self.spec.actions)
        if "expert" in self.spec.capabilities and (not offered or random.random() < 0.5):
            return await session.expert()
        if offered:
            return str(offered[random.integers(len(offered))])
        if self.spec.tools:
            return {"name": self.spec.tools[random.integers(len(self.spec.tools))].name, "arguments": {}}
        return f"{NONSENSE} {random.integers(10)}"

    async def play(
        self, session: Session, step: Step, random_seed: int = 0, turns: int | None = None, nonsense: bool = False
    ) -> Episode:
        """Play on from `step` with chosen actions (or nonsense alone), to the end or for `turns` turns."""
        random = np.random.default_rng([self.seed, random_seed])
        episode = Episode([], [step])
        while not episode.over and len(episode.actions) < (turns or self.spec.max_turns + 1):
            action = NONSENSE if nonsense else await self.choose(session, episode.steps[-1], random)
            episode.actions.append(action)
            episode.steps.append(await session.step(action))
        return episode


@dataclass
class Episode:
    actions: list[Action]
    steps: list[Step]
    """One more than actions: the first is what `reset` answered."""

    @property
    def over(self) -> bool:
        return self.steps[-1].terminated or self.steps[-1].truncated


async def replay(session: Session, actions: list[Action]) -> list[Step]:
    """What the actions lead to, up to the end of the episode."""
    steps: list[Step] = []
    for action in actions:
        steps.append(await session.step(action))
        if steps[-1].terminated or steps[-1].truncated:
            break
    return steps


def fingerprint(step: Step) -> str:
    """Everything a step says, as text that can be compared."""
    observation, reward, terminated, truncated, info = step
    if isinstance(observation, dict):
        observation = {**observation, "image": np.asarray(observation["image"]).tobytes().hex()}
    return json.dumps([observation, reward, terminated, truncated, info], sort_keys=True, default=repr)


def require_same(expected: list[Step], found: list[Step], what: str, cause: str) -> None:
    for turn, (one, other) in enumerate(zip(expected, found)):
        if fingerprint(one) != fingerprint(other):
            raise Broken(f"{what}: after {turn} steps {_short(one)} became {_short(other)}. {cause}")


# The rules.


async def spec_is_complete(probe: Probe) -> None:
    """the spec says what the world is, with sizes and ranges that make sense"""
    spec = probe.spec
    problems = {
        "no description": not spec.description.strip(),
        "no instructions, so an agent cannot know how to act": not spec.instructions.strip(),
        "no splits": not spec.splits,
        f"a split without tasks: {spec.splits}": any(size < 1 for size in spec.splits.values()),
        f"a reward_range that is no range: {spec.reward_range}": not (
            all(map(math.isfinite, spec.reward_range)) and spec.reward_range[0] <= spec.reward_range[1]
        ),
        "both actions and tools": bool(spec.actions and spec.tools),
        f"actions that repeat: {spec.actions}": len(set(spec.actions)) < len(spec.actions),
        "deterministic = false without notes that say why": not spec.deterministic and not spec.notes.strip(),
        'observations with "image" without the capability "image"': "image" in spec.observations
        and "image" not in spec.capabilities,
    }
    if any(problems.values()):
        raise Broken(f"{spec.id} has {'; '.join(problem for problem, found in problems.items() if found)}")


async def reset_returns_observation_and_info(probe: Probe) -> None:
    """reset returns (observation, info): an observation of the spec's kind, and a dict"""
    async with probe.session() as session:
        if isinstance(session, LocalSession):
            env = session.env
            answer = await session._call(lambda: env.reset(seed=probe.seed))
            if not (isinstance(answer, tuple) and len(answer) == 2):
                raise Broken(f"reset returned {_short(answer)}, which is not a pair")
            if not isinstance(answer[1], dict):
                raise Broken(f"info of reset is a {type(answer[1]).__name__}")
        _require_observation(session, "reset", (await probe.begin(session)).observation)


async def step_returns_five(probe: Probe) -> None:
    """step returns (observation, reward, terminated, truncated, info) with a number, two bools and a dict"""
    async with probe.session() as session:
        step = await probe.begin(session)
        action = await probe.choose(session, step, np.random.default_rng(probe.seed))
        if not isinstance(session, LocalSession):
            _require_observation(session, "step", (await session.step(action)).observation)
            return
        env = session.env
        answer = await session._call(lambda: env.step(action))
        if not (isinstance(answer, tuple) and len(answer) == 5):
            raise Broken(f"step returned {_short(answer)}, which is not five things. The old API returned four")
        observation, reward, terminated, truncated, info = answer
        _require_observation(session, "step", observation)
        if isinstance(reward, bool) or not isinstance(reward, int | float | np.integer | np.floating):
            raise Broken(f"the reward is a {type(reward).__name__}: {reward!r}")
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(value, bool):
                raise Broken(f"{name} is a {type(value).__name__}: wrap it in bool()")
        if not isinstance(info, dict):
            raise Broken(f"info is a {type(info).__name__}")


async def rewards_stay_in_range(probe: Probe) -> None:
    """every reward is finite and within the spec's reward_range"""
    low, high = probe.spec.reward_range
    async for _, episode in _episodes(probe):
        for turn, step in enumerate(episode.steps[1:]):
            if not math.isfinite(step.reward) or not low <= step.reward <= high:
                raise Broken(
                    f"turn {turn} ({episode.actions[turn]!r}) gave {step.reward!r}, outside [{low:g}, {high:g}]. "
                    "reward_range is of a single step; one bad reward spoils every advantage of its batch"
                )


async def info_is_as_promised(probe: Probe) -> None:
    """every info is JSON and has the keys of info_keys, with their types"""
    async for _, episode in _episodes(probe):
        for turn, step in enumerate(episode.steps):
            where = "reset" if turn == 0 else f"turn {turn - 1}"
            try:
                json.dumps(step.info, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise Broken(
                    f"info of {where} is not JSON: {error}. Convert numpy values with int(), float()"
                ) from None
            missing = [name for name in probe.spec.info_keys if name not in step.info]
            if missing:
                raise Broken(f"info of {where} lacks {', '.join(missing)}, which info_keys promises for every step")
            for name, value in step.info.items():
                if name in INFO_TYPES and not INFO_TYPES[name](value):
                    raise Broken(f"info[{name!r}] of {where} is {value!r}, not {INFO_SAYS[name]}")


async def same_seed_same_episode(probe: Probe) -> None:
    """the same task, seed and actions give the same episode, byte for byte"""
    _require_deterministic(probe)
    async with probe.session() as one, probe.session() as other:
        for task in probe.task_list(probe.splits[0])[:6]:
            episode = await probe.play(one, await probe.begin(one, task, seed=task), task)
            again = [await probe.begin(other, task, seed=task), *await replay(other, episode.actions)]
            cause = "Draw only from self.np_random, after super().reset(seed=seed); sets have no fixed order"
            require_same(episode.steps, again, f"task {task}, played twice", cause)


async def instances_share_nothing(probe: Probe) -> None:
    """what one instance does changes nothing in another"""
    _require_deterministic(probe)
    last = probe.spec.splits[probe.splits[0]] - 1
    async with probe.session() as session:
        alone = await probe.play(session, await probe.begin(session, 0, seed=1), 1)
    async with probe.session() as one, probe.session() as other:
        steps = [await probe.begin(one, 0, seed=1)]
        beside = await probe.begin(other, last, seed=2)
        random = np.random.default_rng(probe.seed)
        for action in alone.actions:
            steps.append(await one.step(action))
            if steps[-1].terminated or steps[-1].truncated:
                break
            if beside.terminated or beside.truncated:
                beside = await probe.begin(other, last, seed=3)
            else:
                beside = await other.step(await probe.choose(other, beside, random))
        cause = "State or a generator is kept on the class or the module; keep it on self"
        require_same(alone.steps, steps, "an episode beside another instance's", cause)


async def tasks_differ(probe: Probe) -> None:
    """different tasks of a split open differently, for one and the same seed"""
    split = max(probe.splits, key=lambda name: probe.spec.splits[name])
    tasks = probe.task_list(split)
    if len(tasks) < 2:
        raise Skip("the world has one task")
    if len(set(await _openings(probe, split, tasks))) == 1:
        if len(set(await _openings(probe, split, [tasks[0]] * 5, seeds=range(5)))) == 1 and not _tells_state(probe):
            raise Skip("every episode opens alike and no state_key tells tasks apart")
        raise Broken(f"{len(tasks)} tasks of {split} open alike. reset ignores options['task']: use select_task")


async def splits_are_disjoint(probe: Probe) -> None:
    """no task is in two splits"""
    if len(probe.splits) < 2:
        raise Skip("the world has one split")
    openings = {split: await _openings(probe, split, probe.task_list(split)) for split in probe.splits}
    if not _tells_state(probe) and any(len(set(some)) < len(some) for some in openings.values()):
        raise Skip("tasks of one split open alike and no state_key tells them apart")
    owner: dict[str, str] = {}
    for split, some in openings.items():
        for task, opening in zip(probe.task_list(split), some):
            if owner.setdefault(opening, split) != split:
                raise Broken(
                    f"{split} task {task} opens like a task of {owner[opening]}: {opening[:120]}. Derive a task from "
                    "(world, split, index) and make sure that what one split has is drawn for no other"
                )


async def unknown_tasks_are_refused(probe: Probe) -> None:
    """a task or split that does not exist is refused with BadRequest"""
    size = probe.spec.splits[probe.splits[0]]
    async with probe.session() as session:
        for options in (
            {"split": probe.splits[0], "task": size},
            {"split": probe.splits[0], "task": -1},
            {"split": "no such split", "task": 0},
        ):
            await _require_refusal(session.reset(seed=probe.seed, options=options), f"reset(options={options})")


async def ends_in_time(probe: Probe) -> None:
    """an episode is over after at most max_turns steps"""
    for acting in ("chosen actions", "nonsense"):
        async with probe.session() as session:
            episode = await probe.play(session, await probe.begin(session), nonsense=acting == "nonsense")
        if not episode.over or len(episode.actions) > probe.spec.max_turns:
            raise Broken(
                f"with {acting} the episode goes on after max_turns = {probe.spec.max_turns} steps. Count every step, "
                "refused actions too, and return truncated=True"
            )
        if episode.steps[-1].terminated and episode.steps[-1].truncated:
            raise Broken("an episode ended both terminated and truncated: terminated wins, set truncated to False")


async def step_needs_reset(probe: Probe) -> None:
    """step before the first reset is refused with a clear error"""
    async with probe.session() as session:
        action = probe.spec.actions[0] if probe.spec.actions else NONSENSE
        await _require_refusal(session.step(action), "step before reset")


async def step_after_end_is_refused(probe: Probe) -> None:
    """step after the end of an episode is refused with a clear error, until reset"""
    async with probe.session() as session:
        episode = await probe.play(session, await probe.begin(session))
        if not episode.over:
            raise Broken("the episode does not end: see ends_in_time")
        await _require_refusal(session.step(episode.actions[-1]), "step after the end")
        await probe.begin(session)
        await session.step(episode.actions[0])


async def nonsense_is_survived(probe: Probe) -> None:
    """what is no action costs a turn and no more: valid_action is False, success is not True"""
    tools = [tool.name for tool in probe.spec.tools[:1]]
    calls: list[Action] = [{"name": name, "arguments": {"no such": [1]}} for name in [*tools, "no such tool"] if tools]
    for action in (NONSENSE, "", " \n", "ü" * 5000, *calls):
        said = f"step({str(action)[:40]!r})"
        async with probe.session() as session:
            await probe.begin(session)
            try:
                step = await session.step(action)
            except EnvironmentFailure as error:
                raise Broken(f"{said} raised {error}. Agents do say such things: answer, do not raise") from None
            closed = bool(probe.spec.actions or probe.spec.tools) and "valid_action" in probe.spec.info_keys
            if closed and step.info.get("valid_action") is not False:
                raise Broken(f"{said} has valid_action {step.info.get('valid_action')!r}, not False")
            if step.info.get("success") is True:
                raise Broken(f"{said} is a success")


async def available_actions_are_valid(probe: Probe) -> None:
    """whatever available_actions offers is understood when said"""
    if not {"available_actions", "valid_action"} <= set(probe.spec.info_keys):
        raise Skip("the world does not give both available_actions and valid_action")
    async for task, episode in _episodes(probe, count=3):
        for turn, step in enumerate(episode.steps[:-1]):
            async with probe.session() as session:
                for action in step.info["available_actions"][:8]:
                    await probe.begin(session, task, seed=task)
                    await replay(session, episode.actions[:turn])
                    if (await session.step(action)).info["valid_action"] is not True:
                        raise Broken(f"turn {turn} offers {action!r}, which is then refused")


async def state_key_is_no_clock(probe: Probe) -> None:
    """state_key names the state: it stays when the state stays, and has no step counter"""
    if not _tells_state(probe):
        raise Skip("the world gives no state_key")
    async with probe.session() as session:
        for task in probe.task_list(probe.splits[0])[:3]:
            step = await probe.begin(session, task)
            before = step.info.get("state_key")
            for turn in range(min(2, probe.spec.max_turns - 1)):
                step = await session.step(NONSENSE)
                if step.info.get("valid_action") is not True and step.info.get("state_key") != before:
                    raise Broken(
                        f"nonsense at turn {turn} changed state_key from {before!r} to {step.info.get('state_key')!r}. "
                        "With a step counter in it no two visits share a key, and grouping by state finds no group"
                    )


async def snapshot_continues(probe: Probe) -> None:
    """an episode restored from a snapshot on a fresh instance goes on as the first one did, chance included"""
    _require_capability(probe, "snapshot")
    cause = "The snapshot must hold the whole state, the count of turns, and self.np_random.bit_generator.state"
    tasks = probe.task_list(probe.splits[0])
    for number in range(8):
        task = tasks[number % len(tasks)]
        async with probe.session() as one, probe.session() as other:
            start = await probe.begin(one, task, seed=number)
            first = await probe.play(one, start, number, turns=1 + number % 4) if number else Episode([], [start])
            if first.over:
                continue
            state = await one.snapshot()
            if not isinstance(state, bytes):
                raise Broken(f"snapshot returned a {type(state).__name__}, not bytes")
            rest = await probe.play(one, first.steps[-1], 100 + number, nonsense=number % 2 == 1)
            await other.restore(state)
            steps = await replay(other, rest.actions)
            require_same(rest.steps[1:], steps, f"task {task} restored after {len(first.actions)} turns", cause)
            if isinstance(one, LocalSession):
                afterwards = [await session.reset() for session in (one, other)]
                what = "the next reset() without a seed"
                require_same(afterwards[:1], afterwards[1:], what, cause)
                await one.restore(state)
                steps = await replay(one, rest.actions)
                require_same(rest.steps[1:], steps, f"task {task} restored on the instance it was taken from", cause)


async def hints_are_text(probe: Probe) -> None:
    """a hint is a sentence"""
    _require_capability(probe, "hint")
    async with probe.session() as session:
        await probe.begin(session)
        hint = await session.hint()
        if not (isinstance(hint, str) and hint.strip()):
            raise Broken(f"hint() returned {hint!r}")


async def expert_wins(probe: Probe) -> None:
    """the expert succeeds on at least 95 % of tasks of every split"""
    _require_capability(probe, "expert")
    for split in probe.splits:
        tasks, won = probe.task_list(split), []
        async with probe.session() as session:
            for task in tasks:
                step = await probe.begin(session, task, seed=task, split=split)
                while not (step.terminated or step.truncated):
                    step = await session.step(await session.expert())
                won.append(bool(step.info.get("success", step.reward >= probe.spec.reward_range[1])))
        if np.mean(won) < 0.95:
            lost = [task for task, win in zip(tasks, won) if not win]
            raise Broken(
                f"it won {sum(won)} of {len(won)} tasks of {split} and lost {lost[:5]}. An expert that can be beaten "
                'teaches losing: mend it, give it more turns, or drop the capability "expert"'
            )


RULES: tuple[Callable[[Probe], Awaitable[None]], ...] = (
    spec_is_complete,
    reset_returns_observation_and_info,
    step_returns_five,
    rewards_stay_in_range,
    info_is_as_promised,
    same_seed_same_episode,
    instances_share_nothing,
    tasks_differ,
    splits_are_disjoint,
    unknown_tasks_are_refused,
    ends_in_time,
    step_needs_reset,
    step_after_end_is_refused,
    nonsense_is_survived,
    available_actions_are_valid,
    state_key_is_no_clock,
    snapshot_continues,
    hints_are_text,
    expert_wins,
)


async def check_session(
    open_session: Callable[[], Awaitable[Session]], *, tasks: int = 20, seed: int = 0
) -> list[Finding]:
    """Every rule's finding on the world that `open_session` opens anew each time. tasks: how many of a split to try."""
    session = await open_session()
    probe = Probe(open_session, session.spec, tasks, seed)
    await session.close()
    return [await _judge(rule, probe) for rule in RULES]


def check_env(make: Callable[[], Env], *, tasks: int = 20, seed: int = 0) -> list[Finding]:
    """Every rule's finding on the environments that `make` makes. tasks: how many of a split to try."""

    async def open_session() -> Session:
        return LocalSession(make())

    return asyncio.run(check_session(open_session, tasks=tasks, seed=seed))


async def _judge(rule: Callable[[Probe], Awaitable[None]], probe: Probe) -> Finding:
    name, demand = rule.__name__, (rule.__doc__ or "").strip()  # type: ignore[attr-defined]
    try:
        await rule(probe)
    except Skip as reason:
        return Finding(name, True, f"{demand} (skipped: {reason})", skipped=True)
    except Broken as found:
        return Finding(name, False, f"{demand}; but {found}")
    except Exception as error:  # noqa: BLE001 - a broken world may raise anything, and that is the finding
        return Finding(name, False, f"{demand}; but the world raised {type(error).__name__}: {error}")
    return Finding(name, True, demand)


INFO_TYPES: dict[str, Callable[[Any], bool]] = {
    "success": lambda value: isinstance(value, bool),
    "valid_action": lambda value: isinstance(value, bool),
    "state_key": lambda value: isinstance(value, str),
    "progress": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1,
    "available_actions": lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
}

INFO_SAYS = {
    "success": "a bool",
    "valid_action": "a bool",
    "state_key": "a string",
    "progress": "a number from 0 to 1",
    "available_actions": "a list of strings",
}


async def _episodes(probe: Probe, count: int = 6) -> AsyncIterator[tuple[int, Episode]]:
    """A few tasks of the first split, played through."""
    async with probe.session() as session:
        for task in probe.task_list(probe.splits[0])[:count]:
            yield task, await probe.play(session, await probe.begin(session, task, seed=task), task)


async def _openings(probe: Probe, split: str, tasks: list[int], seeds: Sequence[int] = ()) -> list[str]:
    """What tells tasks apart at their start: the observation and, where there is one, the state's key."""
    seeds = seeds or [0] * len(tasks)
    async with probe.session() as session:
        steps = [await probe.begin(session, task, seed, split) for task, seed in zip(tasks, seeds)]
    return [fingerprint(step._replace(info={"state_key": step.info.get("state_key")})) for step in steps]


def _tells_state(probe: Probe) -> bool:
    return "state_key" in probe.spec.info_keys


async def _require_refusal(call: Awaitable[Any], what: str) -> None:
    try:
        answer = await call
    except (BadRequest, OutOfOrder):
        return
    except EnvironmentCrashed as error:
        raise Broken(f"{what} crashed: {error}. Raise agentgym.errors.BadRequest with a sentence instead") from None
    raise Broken(f"{what} was answered with {_short(answer)}. Raise agentgym.errors.BadRequest with a sentence")


def _require_observation(session: Session, where: str, observation: Any) -> None:
    image = "image" in session.spec.observations
    if not ObservationSpace(image=image).contains(observation):
        kind = '{"text": str, "image": uint8[H, W, 3]}' if image else "text"
        raise Broken(f"the observation of {where} is {_short(observation)}; this spec's observations are {kind}")


def _require_deterministic(probe: Probe) -> None:
    if not probe.spec.deterministic:
        raise Skip(f"the spec says the world is not deterministic: {probe.spec.notes}")


def _require_capability(probe: Probe, name: str) -> None:
    if name not in probe.spec.capabilities:
        raise Skip(f"the world does not claim {name!r}")


def _short(value: Any) -> str:
    text = fingerprint(value) if isinstance(value, Step) else repr(value)
    return text if len(text) <= 160 else f"{text[:150]}... ({type(value).__name__})"
