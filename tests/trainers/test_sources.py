"""Sources: branched attempts share their beginning to the token, and an offline set is the same after a resume."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agentgym import registry
from agentgym.errors import ConfigError
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.trajectory import Group, StopReason, Trajectory, write_jsonl
from agentgym.session import LocalSession, Session
from agentgym.testing import EchoEnv
from agentgym_trainers.build import build
from agentgym_trainers.config.sections import Config
from agentgym_trainers.data.sequences import collate, is_demonstration
from agentgym_trainers.monitoring.metrics import rollout_metrics
from agentgym_trainers.recipe import resolve
from agentgym_trainers.rollout.environment import check_environment
from agentgym_trainers.rollout.sources.offline import cut, grouped
from agentgym_trainers.rollout.tokens import ChatTemplate, tokenize
from agentgym_trainers.train import Trainer

Opener = Callable[[], Awaitable[Session]]
ROLLOUT = {
    "groups": 3, "group_size": 2, "max_new_tokens": 6, "max_length": 640, "concurrency": 16, "lockstep": True,
}  # fmt: skip


def trainer_of(model: Any, tokenizer: Any, folder: Any, source: dict, open_session: Opener | None = None,
               env: str = "keydoor", **sections: Any) -> Trainer:  # fmt: skip
    base: dict[str, Any] = {
        "name": "test",
        "env": {"name": env, "serve": False, "max_turns": 4},
        "source": source,
        "rollout": ROLLOUT,
        "credit": {"assigner": "rloo"},
        "optim": {"lr": 1e-3},
    }  # fmt: skip
    config = Config.model_validate({**base, **sections})

    async def local() -> LocalSession:
        return LocalSession(registry.make(env))

    return build(config, folder, registry.get_spec(env), open_session or local, model, model, tokenizer)


def collect(trainer: Trainer, groups: int = 3) -> list[Group]:
    return asyncio.run(trainer.source.collect(trainer, groups))


def tokens(trajectory: Trajectory, turns: int | None = None) -> list[list[tuple[int, float, int]]]:
    """(id, log-probability, version) of each turn's sampled tokens."""
    columns_of_turns = []
    for turn in trajectory.turns[:turns]:
        assert turn.span is not None
        branch, span = trajectory.branches[turn.span.branch], slice(turn.span.start, turn.span.stop)
        columns = (branch.ids[span], branch.logprobs[span], branch.versions[span])
        columns_of_turns.append(list(zip(*(c.tolist() for c in columns), strict=True)))
    return columns_of_turns


def responses_of(trajectory: Trajectory) -> list[str]:
    return [turn.reply for turn in trajectory.turns]


def parts_at(trajectory: Trajectory) -> int:
    marked = [turn.index for turn in trajectory.turns if turn.info.get("branched")]
    assert len(marked) == 1
    return marked[0]


# Branched


@pytest.mark.parametrize("snapshots", [True, False])
def test_branched_pairs_share_every_token_before_they_part(chatty, tokenizer, tmp_path, snapshots) -> None:
    trainer = trainer_of(chatty(), tokenizer, tmp_path, {"kind": "branched", "snapshots": snapshots})
    branch_points, parted = set(), 0
    for step in range(4):
        trainer.step = step
        groups = collect(trainer)
        assert len(groups) == 3
        for group in groups:
            one, two = group.trajectories
            at = parts_at(one)
            assert parts_at(two) == at
            assert tokens(one, at) == tokens(two, at)
            for ours, theirs in zip(one.turns[: at + 1], two.turns[: at + 1], strict=True):
                assert (ours.observation, ours.state_key) == (theirs.observation, theirs.state_key)
            for ours, theirs in zip(one.turns[:at], two.turns[:at], strict=True):
                assert (ours.reward, ours.action, ours.info) == (theirs.reward, theirs.action, theirs.info)
            assert one.turns[at].span.start == two.turns[at].span.start  # the prompt of turn h is the same
            start = one.turns[at].span.start
            branch = one.turns[at].span.branch
            assert np.array_equal(one.branches[branch].ids[:start], two.branches[branch].ids[:start])
            branch_points.add(at)
            parted += tokens(one, at + 1)[at] != tokens(two, at + 1)[at]
        batch, _, _ = collate(groups)
        assert batch.x["branched_N"].sum() == 6
    assert len(branch_points) > 1
    assert parted > 6  # of 12: two samples may be the same
    trainer.engine.shutdown()


def test_a_snapshot_and_a_second_play_are_the_same_branch(chatty, tokenizer, tmp_path) -> None:
    """An environment with chance: the state that is restored and the beginning played again go on alike."""
    found = []
    for snapshots in (True, False):
        trainer = trainer_of(chatty(), tokenizer, tmp_path, {"kind": "branched", "snapshots": snapshots}, env="oracle")
        found.append([[tokens(t), t.score, t.stop] for group in collect(trainer, 6) for t in group.trajectories])
        trainer.engine.shutdown()
    assert found[0] == found[1]


def test_the_learner_agrees_with_every_branched_token(chatty, tokenizer, tmp_path) -> None:
    """Tokens that were repeated, not sampled, have the log-probabilities of the prompt that they stand in now."""
    trainer = trainer_of(chatty(), tokenizer, tmp_path, {"kind": "branched"})
    batch, rows, _ = collate(collect(trainer))
    assert trainer.learner.logprobs(batch, rows) == pytest.approx(batch.logprob_A, abs=1e-4)
    trainer.engine.shutdown()


def test_the_turn_of_parting_is_drawn_evenly(chatty, tokenizer, tmp_path) -> None:
    """The trunk's tail is not used: over its turns, h is uniform. Episodes here have four turns, all but always."""
    trainer = trainer_of(chatty(), tokenizer, tmp_path, {"kind": "branched"}, rollout={
        **ROLLOUT, "groups": 40, "max_new_tokens": 2, "concurrency": 80})  # fmt: skip
    at = [parts_at(group.trajectories[0]) for step in range(2) for group in collect(trainer, 40)]
    counts = np.bincount(at, minlength=4)
    assert counts.sum() == 80
    assert counts.min() >= 9  # 20 ± 3.9
    trainer.engine.shutdown()


def test_groups_may_have_more_than_two_branches(chatty, tokenizer, tmp_path) -> None:
    trainer = trainer_of(chatty(), tokenizer, tmp_path, {"kind": "branched"}, rollout={
        **ROLLOUT, "groups": 2, "group_size": 4})  # fmt: skip
    for group in collect(trainer, 2):
        at = parts_at(group.trajectories[0])
        assert {parts_at(t) for t in group.trajectories} == {at}
        assert [t.attempt for t in group.trajectories] == [0, 1, 2, 3]
        assert len({str(tokens(t, at)) for t in group.trajectories}) == 1
        assert len({str(tokens(t)) for t in group.trajectories}) > 1
    trainer.engine.shutdown()


class Fragile(EchoEnv):
    """Dies at the first step after it was restored, on the tasks told."""

    def __init__(self, doomed: set[int]) -> None:
        super().__init__()
        self.doomed = doomed

    def restore(self, state: bytes, **chance: Any) -> None:
        super().restore(state, **chance)
        if self._task in self.doomed:
            self.crash_at = self._turns


def opener(env: Callable[[], EchoEnv]) -> Opener:
    async def open_session() -> LocalSession:
        return LocalSession(env())

    return open_session


def test_a_crash_inside_a_branch_loses_only_that_pair(chatty, tokenizer, tmp_path) -> None:
    name = "agentgym.testing:EchoEnv"
    trainer = trainer_of(chatty(), tokenizer, tmp_path, {"kind": "branched"}, opener(EchoEnv), name)
    expected = {group.trajectories[0].task: [responses_of(t) for t in group.trajectories] for group in collect(trainer)}
    doomed = min(expected)
    fragile = trainer_of(chatty(), tokenizer, tmp_path, {"kind": "branched"}, opener(lambda: Fragile({doomed})), name)
    groups = collect(fragile)
    for group in groups:
        if group.trajectories[0].task == doomed:
            assert {t.stop for t in group.trajectories} == {StopReason.ENVIRONMENT_FAILED}
            assert all("EchoEnv was told to crash" in t.error for t in group.trajectories)
        else:
            assert [responses_of(t) for t in group.trajectories] == expected[group.trajectories[0].task]
    _, _, counted = collate(groups)
    assert {t.task for t in counted} == set(expected) - {doomed}
    for one in (trainer, fragile):
        one.engine.shutdown()


def test_a_trunk_that_fails_is_a_failure_of_its_group(chatty, tokenizer, tmp_path) -> None:
    trainer = trainer_of(
        chatty(), tokenizer, tmp_path, {"kind": "branched"}, opener(lambda: EchoEnv(crash_at=1)),
        "agentgym.testing:EchoEnv",
    )  # fmt: skip
    groups = collect(trainer)
    assert len(groups) == 3
    assert all(len(group.trajectories) == 1 and group.trajectories[0].stop.is_failure for group in groups)
    trainer.engine.shutdown()


class Fickle(EchoEnv):
    """Neither snapshots nor the same way twice."""

    played = 0

    def step(self, action: Any) -> Any:
        Fickle.played += 1
        observation, *rest = super().step(action)
        return f"{observation} ({Fickle.played})", *rest


def test_an_env_that_goes_another_way_cannot_be_branched(chatty, tokenizer, tmp_path) -> None:
    trainer = trainer_of(
        chatty(), tokenizer, tmp_path, {"kind": "branched", "snapshots": False}, opener(Fickle),
        "agentgym.testing:EchoEnv",
    )  # fmt: skip
    attempts = [t for group in collect(trainer, 6) for t in group.trajectories]
    later = [t for t in attempts if t.stop.is_failure]
    assert later
    assert all("cannot be branched" in t.error for t in later)
    for t in attempts:  # what is branched at its first turn needs no beginning
        assert t.stop.is_failure or parts_at(t) == 0
    trainer.engine.shutdown()


def test_the_same_step_is_the_same_branches(chatty, tokenizer, tmp_path) -> None:
    runs = []
    for _ in range(2):
        trainer = trainer_of(chatty(), tokenizer, tmp_path, {"kind": "branched"})
        trainer.step = 3
        runs.append([tokens(t) for group in collect(trainer) for t in group.trajectories])
        trainer.engine.shutdown()
    assert runs[0] == runs[1]


# Offline


def drawn(trainer: Trainer, steps: range, groups: int = 3) -> list[list[list]]:
    draws = []
    for step in steps:
        trainer.step = step
        draws.append([[tokens(t) for t in group.trajectories] for group in collect(trainer, groups)])
    return draws


def test_every_group_is_drawn_before_any_is_drawn_again(chatty, tokenizer, tmp_path) -> None:
    trainer = trainer_of(chatty(), tokenizer, tmp_path, {"kind": "offline", "groups": 6})
    draws = drawn(trainer, range(4))
    epochs = [draws[0] + draws[1], draws[2] + draws[3]]
    for epoch in epochs:
        assert len({str(group) for group in epoch}) == 6
    assert sorted(map(str, epochs[0])) == sorted(map(str, epochs[1]))
    assert epochs[0] != epochs[1]
    assert [p.name for p in (tmp_path / "dataset").iterdir()] == ["round-0000.jsonl"]
    batch, rows, _ = collate(collect(trainer))
    assert trainer.learner.logprobs(batch, rows) == pytest.approx(batch.logprob_A, abs=1e-4)
    trainer.engine.shutdown()


@pytest.mark.parametrize("refresh", [None, 2])
@pytest.mark.parametrize("cut_after", [0, 2, 3, 4])
def test_a_resumed_run_draws_what_an_undisturbed_one_does(chatty, tokenizer, tmp_path, refresh, cut_after) -> None:
    source = {"kind": "offline", "groups": 3, "refresh_every": refresh}
    reference = trainer_of(chatty(), tokenizer, tmp_path / "whole", source)
    expected = drawn(reference, range(5), 2)
    first = trainer_of(chatty(), tokenizer, tmp_path / "cut", source)
    (tmp_path / "cut").mkdir()
    states = [(first.source.state_dict(), first.curriculum.state_dict())]
    for step in range(cut_after):
        drawn(first, range(step, step + 1), 2)
        states.append((first.source.state_dict(), first.curriculum.state_dict()))
    kept = max(0, cut_after - 1)  # the step after the checkpoint was played, and lost
    again = trainer_of(chatty(), tokenizer, tmp_path / "cut", source)
    if kept:
        again.source.load_state_dict(states[kept][0])
        again.curriculum.load_state_dict(states[kept][1])
    assert drawn(again, range(kept, 5), 2) == expected[kept:]
    assert again.curriculum.position == reference.curriculum.position
    for trainer in (reference, first, again):
        trainer.engine.shutdown()


def test_a_later_set_of_lost_weights_is_played_again(chatty, tokenizer, tmp_path) -> None:
    """Killed after round 1 was written and before any checkpoint knew of it: those weights never come back."""
    source = {"kind": "offline", "groups": 3, "refresh_every": 1}
    lost = trainer_of(chatty(), tokenizer, tmp_path, source)
    state, before = None, lost.curriculum.state_dict()
    drawn(lost, range(1))
    state, before = lost.source.state_dict(), lost.curriculum.state_dict()
    drawn(lost, range(1, 2))
    stale = (tmp_path / "dataset" / "round-0001.jsonl").read_bytes()
    again = trainer_of(chatty(seed=7), tokenizer, tmp_path, source)  # other weights at step 1
    again.source.load_state_dict(state)
    again.curriculum.load_state_dict(before)
    batch, rows, _ = collate(collect_at(again, 1))
    assert again.learner.logprobs(batch, rows) == pytest.approx(batch.logprob_A, abs=1e-4)
    assert (tmp_path / "dataset" / "round-0001.jsonl").read_bytes() != stale
    for trainer in (lost, again):
        trainer.engine.shutdown()


def collect_at(trainer: Trainer, step: int) -> list[Group]:
    trainer.step = step
    return collect(trainer)


def test_a_file_of_episodes(chatty, tokenizer, tmp_path, kit) -> None:
    trajectories = kit.play(chatty(), tokenizer, episodes=6)
    failed = replace(trajectories[0], stop=StopReason.DEADLINE, attempt=9)
    path = tmp_path / "given.jsonl"
    write_jsonl(path, [*trajectories, failed])
    trainer = trainer_of(chatty(), tokenizer, tmp_path, {"kind": "offline", "path": str(path)})
    groups = collect(trainer)
    assert sorted(t.task for g in groups for t in g.trajectories) == sorted(t.task for t in trajectories)
    assert all(len(group.trajectories) == 2 for group in groups)
    by = {(t.task, t.seed, t.attempt): tokens(t) for t in trajectories}
    for group in groups:
        for t in group.trajectories:
            assert tokens(t) == by[t.task, t.seed, t.attempt]
    path.unlink()  # what is drawn lies in the run's folder
    again = trainer_of(chatty(), tokenizer, tmp_path, {"kind": "offline", "path": str(path)})
    assert drawn(again, range(1)) == [[[tokens(t) for t in group.trajectories] for group in groups]]
    for one in (trainer, again):
        one.engine.shutdown()


def test_a_file_without_tokens_is_tokenized_and_scored(chatty, tokenizer, tmp_path, kit) -> None:
    path = tmp_path / "text.jsonl"
    write_jsonl(path, [replace(t, branches=()) for t in kit.play(chatty(), tokenizer, episodes=4)], tokens=False)
    trainer = trainer_of(chatty(), tokenizer, tmp_path, {"kind": "offline", "path": str(path)})
    batch, rows, _ = collate(collect(trainer, 2))
    assert len(batch.group_M) == 4
    assert trainer.learner.logprobs(batch, rows) == pytest.approx(batch.logprob_A, abs=1e-4)
    assert (batch.logprob_A < 0).all()
    trainer.engine.shutdown()


def test_nothing_to_draw_from_is_an_error(chatty, tokenizer, tmp_path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("")
    trainer = trainer_of(chatty(), tokenizer, tmp_path, {"kind": "offline", "path": str(path)})
    with pytest.raises(ConfigError, match="holds no episode that counts"):
        collect(trainer)
    trainer.engine.shutdown()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"path": "x.jsonl", "refresh_every": 3}, "remove one of the two"),
        ({"rounds_over_solver": 5}, "add solver = 1"),
    ],
)
def test_options_that_do_not_fit(options, says, chatty, tokenizer, tmp_path) -> None:
    with pytest.raises(ValueError, match=says):
        trainer_of(None, None, tmp_path, {"kind": "offline", **options})


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["source.kind=offline", "source.grups=3"], "source: unknown option 'grups' (did you mean 'groups'?)"),
        (
            ["source.kind=ofline"],
            "source: there is no source 'ofline' (did you mean 'offline'?); there are",
        ),
        (["source.kind=offline", "source.groups=0"], "source: groups should be greater than 0, not 0"),
        (["source.groups=3"], "source: kind is missing"),
        (["source.kind=branched", "source.groups=3"], "source: unknown option 'groups'; known: kind, snapshots"),
        (["replay.sise=1"], "unknown option 'replay.sise' (did you mean 'size'?)"),
        (["select.kind=top_std", "select.fractoin=1"], "select: unknown option 'fractoin' (did you mean 'fraction'?)"),
    ],
)
def test_what_is_wrong_is_a_sentence(overrides, says) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("gigpo", overrides)
    assert says in str(caught.value)


def test_an_env_without_a_solver_is_refused_at_the_start() -> None:
    spec = EchoEnv.env_spec.model_copy(update={"capabilities": ()})
    config = Config.model_validate({
        "name": "x", "env": {"name": "echo"}, "credit": {"assigner": "rloo"}, "eval": {"tasks": 0},
        "source": {"kind": "offline", "solver": 1},
    })  # fmt: skip
    with pytest.raises(ConfigError, match="needs an environment with 'solver'; echo has none"):
        check_environment(config, SimpleNamespace(spec=spec))  # type: ignore[arg-type]
    check_environment(config, SimpleNamespace(spec=EchoEnv.env_spec))  # type: ignore[arg-type]


def test_demonstrations(chatty, tokenizer, tmp_path) -> None:
    """One a group, on its task and seed, tokenized as a warm-up's are, and at first of ratio 1."""
    trainer = trainer_of(chatty(), tokenizer, tmp_path, {"kind": "offline", "groups": 3, "solver": 1})
    groups = collect(trainer)
    for group in groups:
        shown = [t for t in group.trajectories if is_demonstration(t)]
        assert len(shown) == 1
        assert len(group.trajectories) == 3
        assert len({(t.task, t.seed) for t in group.trajectories}) == 1
        for turn, ids in zip(shown[0].turns, tokens(shown[0]), strict=True):
            assert tokenizer.decode([token for token, _, _ in ids[:-1]]) == turn.reply
            assert ids[-1][0] == tokenizer.eos_token_id
    batch, rows, trajectories = collate(groups)
    assert batch.x["solver_M"].sum() == 3
    assert trainer.learner.logprobs(batch, rows) == pytest.approx(batch.logprob_A, abs=1e-4)
    everyone = rollout_metrics(trajectories)
    alone = rollout_metrics([t for t in trajectories if not is_demonstration(t)])
    assert everyone == alone  # a solver's success is not the policy's
    assert alone["rollout/success"] < 1
    trainer.engine.shutdown()


def test_attempts_are_cut_some_rounds_after_the_demonstration(chatty, tokenizer, tmp_path) -> None:
    """The oracle's solver needs three turns; attempts whose replies are no actions would have four."""
    source = {"kind": "offline", "groups": 4, "solver": 1, "rounds_over_solver": 0}
    trainer = trainer_of(chatty(), tokenizer, tmp_path, source, env="oracle", rollout={**ROLLOUT, "max_new_tokens": 2})
    lengths = set()
    for group in collect(trainer, 4):
        shown = [len(t.turns) for t in group.trajectories if is_demonstration(t)]
        tried = [len(t.turns) for t in group.trajectories if not is_demonstration(t)]
        assert max(tried) <= max(shown)
        lengths |= set(tried)
    assert lengths == {3}
    trainer.engine.shutdown()


@pytest.mark.parametrize("window", [None, 1], ids=["", "window"])
def test_a_cut_episode_is_one_that_the_limit_ended(chatty, tokenizer, kit, window) -> None:
    """Playing three turns and cutting four after the third leave the same tokens, the next prompt's included. With a
    window every turn begins a branch."""
    shape = {"episodes": 2, "lockstep": True, "prompt_format": PromptFormat(window=window)}
    long = kit.play(chatty(), tokenizer, max_turns=4, **shape)
    short = kit.play(chatty(), tokenizer, max_turns=3, **shape)
    for full, limited in zip(long, short, strict=True):
        if len(full.turns) < 4:
            continue
        ours = cut(full, 3)
        assert ours.stop is limited.stop is StopReason.MAX_TURNS
        assert ours.final_observation == limited.final_observation
        assert ours.score == limited.score
        for a, b in zip(ours.branches, limited.branches, strict=True):
            assert a.ids.tolist() == b.ids.tolist()
            assert a.turn.tolist() == b.turn.tolist()
        assert ours.forks == limited.forks
        collate([Group((ours,))])
    assert cut(long[0], 99) is long[0]


def test_a_cut_episode_of_text_ends_with_its_next_prompt(chatty, tokenizer, kit) -> None:
    """There the critic is read; what the context cuts, and what ends by itself, has no prompt more."""
    spec, template = registry.get_spec("keydoor"), ChatTemplate(tokenizer)
    played = kit.play(chatty(), tokenizer, max_turns=3, episodes=2)[0]
    bare = replace(played, branches=(), forks=(), turns=tuple(replace(turn, span=None) for turn in played.turns))
    assert played.stop is StopReason.MAX_TURNS
    ends = {}
    for stop in (StopReason.MAX_TURNS, StopReason.CONTEXT_FULL, StopReason.TERMINATED):
        (branch,) = tokenize(replace(bare, stop=stop), spec, PromptFormat(), template).branches
        sampled = np.flatnonzero(branch.turn >= 0)[-1]
        ends[stop] = template.decode(branch.ids[sampled + 1 :].tolist())
    assert played.final_observation in ends[StopReason.MAX_TURNS]
    assert ends[StopReason.MAX_TURNS].endswith("assistant\n")
    assert ends[StopReason.CONTEXT_FULL] == ends[StopReason.TERMINATED] == ""
    short = tokenize(bare, spec, PromptFormat(), template, max_length=len(played.branches[0].ids) - 4).branches[0]
    assert len(short.ids) <= len(played.branches[0].ids) - 4


def test_groups_are_found_by_task_and_seed(chatty, tokenizer, kit) -> None:
    trajectories = kit.play(chatty(), tokenizer, episodes=6)
    rng = np.random.default_rng(0)
    mixed = [trajectories[i] for i in rng.permutation(6)]
    for group in grouped(mixed):
        assert len(group.trajectories) == 2
        assert len({(t.task, t.seed) for t in group.trajectories}) == 1
