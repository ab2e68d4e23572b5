"""Asynchronous training: a slow environment delays nobody, no prompt is lost or learned from twice, no token is too
old."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentgym import registry
from agentgym.errors import CheckpointError, ConfigError, EnvironmentCrashed, PolicyFailure
from agentgym.rollouts.trajectory import Group
from agentgym.session import LocalSession
from agentgym_credit.batch import Credit
from agentgym_trainers.build import build
from agentgym_trainers.config.sections import Config
from agentgym_trainers.credit.assign import mask_stale_tokens
from agentgym_trainers.monitoring.metrics import MetricsLog
from agentgym_trainers.monitoring.wait_tracker import ENGINE, ENV, PROGRAM, WORKER, WaitTracker
from agentgym_trainers.nn import checkpoint
from agentgym_trainers.rollout.journal import Journal
from agentgym_trainers.rollout.sources.asynchronous import AsynchronousSource
from agentgym_trainers.train import Trainer
from agentgym_trainers.validate import validate_config

GROUPS, SIZE, STALENESS = 3, 2, 2


def config(**rollout: Any) -> Config:
    tree = {
        "name": "test",
        "run": {"steps": 5, "checkpoint_every": 2},
        "env": {"name": "oracle", "serve": False},
        "rollout": {
            "groups": GROUPS, "group_size": SIZE, "max_new_tokens": 4, "max_length": 640, "concurrency": 16,
            "staleness": STALENESS, **rollout,
        },
        "credit": {"assigner": "rloo"},
        "loss": {"entropy": 0.1},  # there is something to learn from also where nobody succeeds
        "optim": {"lr": 1e-3},
    }  # fmt: skip
    return Config.model_validate(tree)


def trainer_of(chosen: Config, model: Any, tokenizer: Any, folder: Path, open_session: Any = None) -> Trainer:
    async def local() -> LocalSession:
        return LocalSession(registry.make("oracle"))

    return build(chosen, folder, registry.get_spec("oracle"), open_session or local, model, model, tokenizer)


def run(trainer: Trainer, position: int = 0, on_step: Any = lambda step, metrics: None) -> list[dict[str, Any]]:
    log = MetricsLog(trainer.folder, position)

    async def main() -> None:
        async with asyncio.timeout(100):
            await trainer.run(log, on_step)

    try:
        asyncio.run(main())
    finally:
        log.close()
    return [json.loads(line) for line in log.path.read_text().splitlines()]


def learned(folder: Path) -> dict[int, int | None]:
    journal = Journal(folder / "journal.sqlite")
    try:
        return journal.steps()
    finally:
        journal.close()


def assert_every_prompt_once(folder: Path, steps: int) -> None:
    """Each step learned from its groups, nothing was left out but what was under way at the end."""
    found = learned(folder)
    assert list(found) == list(range(1, len(found) + 1))
    assert Counter(step for step in found.values() if step is not None) == {s: GROUPS for s in range(1, steps + 1)}
    assert sum(step is None for step in found.values()) <= (1 + STALENESS) * GROUPS


def test_a_run_uses_every_prompt_once_and_no_token_too_old(chatty, tokenizer, tmp_path) -> None:
    trainer = trainer_of(config(), chatty(), tokenizer, tmp_path)
    before = [p.clone() for p in trainer.learner.model.parameters()]
    steps: list[tuple[int, set[int]]] = []
    learn = trainer.learn

    async def spied(groups: list[Group]) -> Any:
        versions = {int(v) for g in groups for t in g.trajectories for b in t.branches for v in b.versions[b.turn >= 0]}
        steps.append((trainer.step, versions))
        return await learn(groups)

    trainer.learn = spied  # type: ignore[method-assign]
    lines = run(trainer)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert all(line["async/staleness_max"] <= STALENESS for line in lines)
    assert any(min(versions) < step for step, versions in steps), "episodes were played while weights were learned"
    assert all(max(versions) <= step for step, versions in steps)
    assert_every_prompt_once(tmp_path, 5)
    assert any(not torch.equal(p, q) for p, q in zip(before, trainer.learner.model.parameters(), strict=True))
    assert trainer.engine.version == 5
    for ours, theirs in zip(trainer.engine.model.parameters(), trainer.learner.model.parameters(), strict=True):
        assert ours is not theirs
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_run_that_was_cut_goes_on_and_loses_no_prompt(chatty, tokenizer, tmp_path, at) -> None:
    """Cut after step `at`, whose checkpoint may be the one before: what was learned since is learned from again."""

    class Cut(Exception):
        pass

    def on_step(step: int, metrics: dict[str, float]) -> None:
        if step == at:
            raise Cut

    model = chatty()
    checkpoint.save(tmp_path / "checkpoints" / "step-000000", model, tokenizer, {})
    with pytest.raises(Cut):
        run(trainer_of(config(), model, tokenizer, tmp_path), on_step=on_step)
    newest = checkpoint.latest(tmp_path)
    assert newest is not None
    again = trainer_of(config(), checkpoint.load_model(newest)[0], tokenizer, tmp_path)
    position = 0
    if checkpoint.step_of(newest):
        state = checkpoint.load_state(newest)
        again.load(state)
        position = state["metrics_bytes"]
    assert again.step == 2 * (at // 2)
    lines = run(again, position)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert_every_prompt_once(tmp_path, 5)


def test_more_prompts_than_may_wait_are_not_played_at_once(chatty, tokenizer, tmp_path) -> None:
    """As after a run that went back to an earlier checkpoint: they would be too old when they are learned from."""
    journal = Journal(tmp_path / "journal.sqlite")
    for seed in range(30):
        journal.issue(0, seed)
    journal.close()
    lines = run(trainer_of(config(), chatty(), tokenizer, tmp_path))
    assert all(line["async/playing"] + line["async/ready"] <= (1 + STALENESS) * GROUPS for line in lines)
    taken = {prompt for prompt, step in learned(tmp_path).items() if step is not None}
    assert taken <= set(range(1, 31))
    assert len(taken) == 5 * GROUPS


class Held(LocalSession):
    """An environment that does not answer for the first prompt's first attempt until it is let go."""

    held: asyncio.Event
    begun: list[int]

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        Held.begun.append(1)
        if len(Held.begun) == 1:
            await Held.held.wait()
        return await super().reset(seed=seed, options=options)


def test_an_env_that_does_not_answer_delays_nobody(chatty, tokenizer, tmp_path) -> None:
    """It is let go after four of five steps: all of them were learned without it."""
    Held.begun = []

    async def held() -> Held:
        if not Held.begun:
            Held.held = asyncio.Event()
        return Held(registry.make("oracle"))

    def on_step(step: int, metrics: dict[str, float]) -> None:
        if step == 4:
            assert not Held.held.is_set()
            assert "has waited" in trainer.source.watch.summary()
            assert "for the environment" in trainer.source.watch.summary()
            Held.held.set()

    trainer = trainer_of(config(), chatty(), tokenizer, tmp_path, held)
    assert len(run(trainer, on_step=on_step)) == 5
    assert learned(tmp_path)[1] in (5, None)


def test_a_stall_says_who_waits_for_whom(chatty, tokenizer, tmp_path, monkeypatch, caplog) -> None:
    """Every episode has its deadline, so an environment that never answers ends as failures, not as a hang."""

    class Mute(LocalSession):
        async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            await asyncio.Event().wait()

    async def mute() -> Mute:
        return Mute(registry.make("oracle"))

    monkeypatch.setattr("agentgym_trainers.rollout.sources.asynchronous.STALL_S", 0.2)
    trainer = trainer_of(config(), chatty(), tokenizer, tmp_path, mute)
    trainer.runner = replace(trainer.runner, limits=replace(trainer.runner.limits, episode_s=1.0))
    with pytest.raises(PolicyFailure, match=r"every episode of 10 groups failed: .*longer than 1 s"):
        run(trainer)
    assert re.search(
        r"no group was whole for .* s; who waits for whom:\n  task \d+ .* for the environment\n", caplog.text
    )


def test_envs_that_all_fail_stop_the_run(chatty, tokenizer, tmp_path) -> None:
    class Broken(LocalSession):
        async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            raise EnvironmentCrashed("the environment is broken")

    async def broken() -> Broken:
        return Broken(registry.make("oracle"))

    with pytest.raises(PolicyFailure, match=r"every episode of 10 groups failed: .*the environment is broken"):
        run(trainer_of(config(), chatty(), tokenizer, tmp_path, broken))


def test_tokens_too_old_have_no_advantage(kit) -> None:
    batch, _ = kit.episodes()
    age = np.arange(len(batch.turn_A)) % 5
    batch = batch.with_columns(version_A=7 - age)
    credit, metrics = mask_stale_tokens(batch, Credit(np.ones(len(age))), step=7, staleness=3)
    assert np.array_equal(credit.advantage_A, (age <= 3).astype(float))
    assert metrics["async/staleness_max"] == 3
    assert metrics["async/stale"] == pytest.approx((age == 4).mean())


def test_the_journal_keeps_what_was_played_until_it_is_forgotten(kit, chatty, tokenizer, tmp_path) -> None:
    trajectories = kit.play(chatty(), tokenizer, env="oracle", episodes=2)
    path = tmp_path / "journal.sqlite"
    journal = Journal(path)
    first, second, third = (journal.issue(task, 10 + task) for task in range(3))
    journal.ready(first, Group(tuple(trajectories)))
    journal.ready(second, Group(tuple(trajectories[:1])))
    journal.consumed([first], 1)
    journal.close()
    journal = Journal(path)
    assert journal.go_back(1)[0] == [third]
    ((prompt, group),) = journal.go_back(1)[1]
    assert prompt == second
    np.testing.assert_array_equal(group.trajectories[0].branches[0].ids, trajectories[0].branches[0].ids)
    np.testing.assert_array_equal(group.trajectories[0].branches[0].versions, trajectories[0].branches[0].versions)
    waiting, ready = journal.go_back(0)  # the checkpoint of step 1 was lost
    assert (waiting, [prompt for prompt, _ in ready]) == ([third], [first, second])
    journal.consumed([first, second], 2)
    journal.forget(2)
    assert journal.steps() == {1: 2, 2: 2, 3: None}
    assert journal.go_back(1) == ([first, second, third], [])  # forgotten: played again
    journal.close()
    path.write_bytes(b"no database at all, but long enough to be one" * 50)
    with pytest.raises(CheckpointError, match="is no journal of a run"):
        Journal(path)


@pytest.mark.parametrize(
    ("rollout", "other", "sentence"),
    [
        ({"lockstep": True}, {}, "rollout.lockstep, which waits for every episode, must be false"),
        ({"concurrency": 1}, {}, "rollout.concurrency must be at least 2, a whole group"),
        (
            {"groups": 4},
            {"source": {"kind": "selfplay"}},
            'source.kind must be "online" or "external_agent", not \'selfplay\'',
        ),
    ],
)
def test_what_does_not_go_together_is_refused(rollout, other, sentence) -> None:
    tree = config().model_dump(exclude_unset=True)
    tree["rollout"] = {**tree["rollout"], **rollout}
    with pytest.raises(ConfigError) as refusal:
        validate_config(Config.model_validate({**tree, **other}))
    assert sentence in str(refusal.value)


def test_the_watch_tells_the_longest_waits_first() -> None:
    now = [0.0]
    watch = WaitTracker(lambda: now[0])
    assert watch.summary() == "  nobody: no episode is under way"
    watch.now_for("a", ENV)
    now[0] = 2.0
    watch.now_for("b", ENGINE)
    now[0] = 5.0
    assert watch.summary() == "  a has waited 5.0 s for the environment\n  b has waited 3.0 s for the engine"
    assert watch.summary(1) == "  a has waited 5.0 s for the environment\n  and 1 more"
    watch.now_for("a", ENGINE)
    watch.now_for("b", None)
    now[0] = 6.0
    watch.now_for("a", None)
    assert watch.spent == {ENV: 5.0, ENGINE: 4.0, WORKER: 0.0, PROGRAM: 0.0}


def test_an_unused_source_closes() -> None:
    asyncio.run(AsynchronousSource().close())
