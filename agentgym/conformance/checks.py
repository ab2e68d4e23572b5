"""The rules of the conformance suite: what `agentgym.env` and an environment's own EnvSpec demand of it.

Every rule is a function named for what it demands; `RULES` is all of them. A rule speaks to a `Session`, so that
it judges an environment in this process and one behind a URL alike. Not covered: leaks, speed, and whether a task is
any good.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable

import numpy as np

from agentgym.conformance.context import (
    NONSENSE,
    CheckContext,
    CheckFailed,
    Episode,
    Skip,
    episodes,
    openings,
    replay,
    require_capability,
    require_deterministic,
    require_observation,
    require_refusal,
    require_same,
    short,
    tells_state,
)
from agentgym.conformance.info import milestone_problem
from agentgym.env import Action, info_problem
from agentgym.errors import EnvironmentFailure
from agentgym.session import LocalSession

OFFERS = 8
"""Offered actions that are tried in an episode, times the tasks that are to be tried."""


async def spec_is_complete(probe: CheckContext) -> None:
    """the spec says what the environment is, with sizes and ranges that make sense"""
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
        raise CheckFailed(f"{spec.id} has {'; '.join(problem for problem, found in problems.items() if found)}")


async def reset_returns_observation_and_info(probe: CheckContext) -> None:
    """reset returns (observation, info): an observation of the spec's kind, and a dict"""
    async with probe.session() as session:
        if isinstance(session, LocalSession):
            env = session.env
            answer = await session.call(lambda: env.reset(seed=probe.seed))
            if not (isinstance(answer, tuple) and len(answer) == 2):
                raise CheckFailed(f"reset returned {short(answer)}, which is not a pair")
            if not isinstance(answer[1], dict):
                raise CheckFailed(f"info of reset is a {type(answer[1]).__name__}")
        require_observation(session, "reset", (await probe.begin(session)).observation)


async def step_returns_five(probe: CheckContext) -> None:
    """step returns (observation, reward, terminated, truncated, info) with a number, two bools and a dict"""
    async with probe.session() as session:
        step = await probe.begin(session)
        action = await probe.choose(session, step, np.random.default_rng(probe.seed))
        if not isinstance(session, LocalSession):
            require_observation(session, "step", (await session.step(action)).observation)
            return
        env = session.env
        answer = await session.call(lambda: env.step(action))
        if not (isinstance(answer, tuple) and len(answer) == 5):
            raise CheckFailed(f"step returned {short(answer)}, which is not five things. The old API returned four")
        observation, reward, terminated, truncated, info = answer
        require_observation(session, "step", observation)
        if isinstance(reward, bool) or not isinstance(reward, int | float | np.integer | np.floating):
            raise CheckFailed(f"the reward is a {type(reward).__name__}: {reward!r}")
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(value, bool):
                raise CheckFailed(f"{name} is a {type(value).__name__}: wrap it in bool()")
        if not isinstance(info, dict):
            raise CheckFailed(f"info is a {type(info).__name__}")


async def rewards_stay_in_range(probe: CheckContext) -> None:
    """every reward is finite and within the spec's reward_range"""
    low, high = probe.spec.reward_range
    async for _, episode in episodes(probe):
        for turn, step in enumerate(episode.steps[1:]):
            if not math.isfinite(step.reward) or not low <= step.reward <= high:
                raise CheckFailed(
                    f"turn {turn} ({episode.actions[turn]!r}) gave {step.reward!r}, outside [{low:g}, {high:g}]. "
                    "reward_range is of a single step; one bad reward spoils every advantage of its batch"
                )


async def info_is_as_promised(probe: CheckContext) -> None:
    """every info is JSON and has the keys of info_keys, with their types"""
    async for _, episode in episodes(probe):
        for turn, step in enumerate(episode.steps):
            where = "reset" if turn == 0 else f"turn {turn - 1}"
            try:
                json.dumps(step.info, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise CheckFailed(
                    f"info of {where} is not JSON: {error}. Convert numpy values with int(), float()"
                ) from None
            missing = [name for name in probe.spec.info_keys if name not in step.info]
            if missing:
                raise CheckFailed(f"info of {where} lacks {', '.join(missing)}, which info_keys promises at every step")
            if problem := info_problem(step.info, f" of {where}"):
                raise CheckFailed(problem)
        if problem := milestone_problem(episode.steps):
            raise CheckFailed(problem)


async def same_seed_same_episode(probe: CheckContext) -> None:
    """the same task, seed and actions give the same episode, byte for byte"""
    require_deterministic(probe)
    async with probe.session() as one, probe.session() as other:
        for task in probe.task_list(probe.splits[0])[:6]:
            episode = await probe.play(one, await probe.begin(one, task, seed=task), task)
            again = [await probe.begin(other, task, seed=task), *await replay(other, episode.actions)]
            cause = "Draw only from self.np_random, after super().reset(seed=seed); sets have no fixed order"
            require_same(episode.steps, again, f"task {task}, played twice", cause)


async def instances_share_nothing(probe: CheckContext) -> None:
    """an instance changes nothing in another"""
    require_deterministic(probe)
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


async def tasks_differ(probe: CheckContext) -> None:
    """different tasks of a split open differently, for one and the same seed"""
    split = max(probe.splits, key=lambda name: probe.spec.splits[name])
    tasks = probe.task_list(split)
    if len(tasks) < 2:
        raise Skip("the environment has one task")
    if len(set(await openings(probe, split, tasks))) == 1:
        if len(set(await openings(probe, split, [tasks[0]] * 5, seeds=range(5)))) == 1 and not tells_state(probe):
            raise Skip("every episode opens alike and no state_key tells tasks apart")
        raise CheckFailed(f"{len(tasks)} tasks of {split} open alike. reset ignores options['task']: use select_task")


async def splits_are_disjoint(probe: CheckContext) -> None:
    """no task is in two splits"""
    if len(probe.splits) < 2:
        raise Skip("the environment has one split")
    first_observations = {split: await openings(probe, split, probe.task_list(split)) for split in probe.splits}
    if not tells_state(probe) and any(len(set(some)) < len(some) for some in first_observations.values()):
        raise Skip("tasks of one split open alike and no state_key tells them apart")
    owner: dict[str, str] = {}
    for split, some in first_observations.items():
        for task, opening in zip(probe.task_list(split), some):
            if owner.setdefault(opening, split) != split:
                raise CheckFailed(
                    f"{split} task {task} opens like a task of {owner[opening]}: {opening[:120]}. Derive a task from "
                    "(environment, split, index) and make sure that what one split has is drawn for no other"
                )


async def unknown_tasks_are_refused(probe: CheckContext) -> None:
    """a task or split that does not exist is refused with BadRequest"""
    size = probe.spec.splits[probe.splits[0]]
    async with probe.session() as session:
        for options in (
            {"split": probe.splits[0], "task": size},
            {"split": probe.splits[0], "task": -1},
            {"split": "no such split", "task": 0},
        ):
            await require_refusal(session.reset(seed=probe.seed, options=options), f"reset(options={options})")


async def ends_in_time(probe: CheckContext) -> None:
    """an episode is over after at most max_turns steps"""
    for acting in ("chosen actions", "nonsense"):
        async with probe.session() as session:
            episode = await probe.play(session, await probe.begin(session), nonsense=acting == "nonsense")
        if not episode.over or len(episode.actions) > probe.spec.max_turns:
            raise CheckFailed(
                f"with {acting} the episode goes on after max_turns = {probe.spec.max_turns} steps. Count every step, "
                "refused actions too, and return truncated=True"
            )
        if episode.steps[-1].terminated and episode.steps[-1].truncated:
            raise CheckFailed("an episode ended both terminated and truncated: terminated wins, set truncated to False")


async def step_needs_reset(probe: CheckContext) -> None:
    """step before the first reset is refused with a clear error"""
    async with probe.session() as session:
        action = probe.spec.actions[0] if probe.spec.actions else NONSENSE
        await require_refusal(session.step(action), "step before reset")


async def step_after_end_is_refused(probe: CheckContext) -> None:
    """step after the end of an episode is refused with a clear error, until reset"""
    async with probe.session() as session:
        episode = await probe.play(session, await probe.begin(session))
        if not episode.over:
            raise CheckFailed("the episode does not end: see ends_in_time")
        await require_refusal(session.step(episode.actions[-1]), "step after the end")
        await probe.begin(session)
        await session.step(episode.actions[0])


async def nonsense_is_survived(probe: CheckContext) -> None:
    """an invalid action costs a turn and no more: valid_action is False, success is not True"""
    tools = [tool.name for tool in probe.spec.tools[:1]]
    calls: list[Action] = [{"name": name, "arguments": {"no such": [1]}} for name in [*tools, "no such tool"] if tools]
    for action in (NONSENSE, "", " \n", "ü" * 5000, *calls):
        call = f"step({str(action)[:40]!r})"
        async with probe.session() as session:
            await probe.begin(session)
            try:
                step = await session.step(action)
            except EnvironmentFailure as error:
                raise CheckFailed(f"{call} raised {error}. Agents do say such things: answer, do not raise") from None
            closed = bool(probe.spec.actions or probe.spec.tools) and "valid_action" in probe.spec.info_keys
            if closed and step.info.get("valid_action") is not False:
                raise CheckFailed(f"{call} has valid_action {step.info.get('valid_action')!r}, not False")
            if step.info.get("success") is True:
                raise CheckFailed(f"{call} is a success")


async def available_actions_are_valid(probe: CheckContext) -> None:
    """every action that available_actions offers is understood"""
    if not {"available_actions", "valid_action"} <= set(probe.spec.info_keys):
        raise Skip("the environment does not give both available_actions and valid_action")
    random = np.random.default_rng(probe.seed)
    async for task, episode in episodes(probe, count=3):
        offered = [step.info["available_actions"] for step in episode.steps[:-1]]
        offers = [(turn, action) for turn, actions in enumerate(offered) for action in actions]
        async with probe.session() as session:
            for index in sorted(random.permutation(len(offers))[: OFFERS * probe.tasks]):
                turn, action = offers[index]
                await probe.begin(session, task, seed=task)
                await replay(session, episode.actions[:turn])
                if (await session.step(action)).info["valid_action"] is not True:
                    raise CheckFailed(f"turn {turn} offers {action!r}, which is then refused")


async def state_key_is_no_clock(probe: CheckContext) -> None:
    """state_key names the state: it stays when the state stays, and has no step counter"""
    if not tells_state(probe):
        raise Skip("the environment gives no state_key")
    async with probe.session() as session:
        for task in probe.task_list(probe.splits[0])[:3]:
            step = await probe.begin(session, task)
            before = step.info.get("state_key")
            for turn in range(min(2, probe.spec.max_turns - 1)):
                step = await session.step(NONSENSE)
                if step.info.get("valid_action") is not True and step.info.get("state_key") != before:
                    raise CheckFailed(
                        f"nonsense at turn {turn} changed state_key from {before!r} to "
                        f"{step.info.get('state_key')!r}. "
                        "With a step counter in it no two visits share a key, and grouping by state finds no group"
                    )


async def snapshot_continues(probe: CheckContext) -> None:
    """an episode restored from a snapshot on a fresh instance goes on as the first one did, chance included"""
    require_capability(probe, "snapshot")
    cause = "The snapshot must hold the whole state, the count of turns, and self.np_random.bit_generator.state"
    tasks = probe.task_list(probe.splits[0])
    for number in range(min(8, 4 * probe.tasks)):
        task = tasks[number % len(tasks)]
        async with probe.session() as one, probe.session() as other:
            start = await probe.begin(one, task, seed=number)
            first = await probe.play(one, start, number, turns=1 + number % 4) if number else Episode([], [start])
            if first.over:
                continue
            state = await one.snapshot()
            if not isinstance(state, bytes):
                raise CheckFailed(f"snapshot returned a {type(state).__name__}, not bytes")
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


async def players_take_turns(probe: CheckContext) -> None:
    """an environment of two players says who is asked and what each step gave to both; reward is the acting role's"""
    require_capability(probe, "two_player")
    if not {"role", "rewards"} <= set(probe.spec.info_keys):
        raise CheckFailed('two_player without "role" and "rewards" in info_keys: nobody can tell whose turn it is')
    roles: set[int] = set()
    async for task, episode in episodes(probe):
        for turn, (before, after) in enumerate(zip(episode.steps, episode.steps[1:])):
            role, rewards = before.info["role"], after.info["rewards"]
            roles.add(role)
            if after.reward != rewards[role]:
                raise CheckFailed(
                    f"task {task}, turn {turn}: role {role} acted, reward is {after.reward:g}, rewards {rewards}"
                )
    if roles != {0, 1}:
        raise CheckFailed(f"only role {roles} was ever asked. info['role'] is who is to act next, not who acted")


async def hints_are_text(probe: CheckContext) -> None:
    """a hint is a sentence"""
    require_capability(probe, "hint")
    async with probe.session() as session:
        await probe.begin(session)
        hint = await session.hint()
        if not (isinstance(hint, str) and hint.strip()):
            raise CheckFailed(f"hint() returned {hint!r}")


async def solver_wins(probe: CheckContext) -> None:
    """the solver succeeds on at least 95 % of tasks of every split"""
    require_capability(probe, "solver")
    for split in probe.splits:
        tasks, lost = probe.task_list(split), {}
        async with probe.session() as session:
            for task in tasks:
                step = await probe.begin(session, task, seed=task, split=split)
                while not (step.terminated or step.truncated):
                    step = await session.step(await session.solver())
                if not step.info.get("success", step.reward >= probe.spec.reward_range[1]):
                    lost[task] = short(step.observation)
        if len(lost) > 0.05 * len(tasks):
            first, ending = next(iter(lost.items()))
            raise CheckFailed(
                f"it won {len(tasks) - len(lost)} of {len(tasks)} tasks of {split} and lost {[*lost][:5]}; task "
                f"{first} ended with {ending}. A solver that can be beaten teaches losing: mend it, give it more "
                'turns, or drop the capability "solver"'
            )


RULES: tuple[Callable[[CheckContext], Awaitable[None]], ...] = (
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
    players_take_turns,
    hints_are_text,
    solver_wins,
)
