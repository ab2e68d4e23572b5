"""Trajectories with their credit: what is written is what the report reads."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest

from agentgym.rollouts.policy import EpisodeSpec
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, rollout
from agentgym.rollouts.trajectory import Group, Trajectory, read_jsonl
from agentgym.session import LocalSession
from agentgym.testing import EchoEnv
from agentgym_credit.batch import Credit
from agentgym_trainers.data.sequences import collate
from agentgym_trainers.engines.base import Sampling
from agentgym_trainers.monitoring.report.page import write_report
from agentgym_trainers.monitoring.trajectory_log import LIMIT, write_trajectories
from agentgym_trainers.nn.tiny import make_tokenizer
from agentgym_trainers.rollout.policy import TokenPolicy
from agentgym_trainers.rollout.tokens import ChatTemplate
from agentgym_trainers.testing import ScriptedEngine

TEMPLATE = ChatTemplate(make_tokenizer(["Say: apple", "cloud"], 280, 1024))


def play(*replies: str, window: int | None = None, attempt: int = 0) -> Trajectory:
    ids = [[*TEMPLATE.encode(reply), TEMPLATE.end_id] for reply in replies]
    policy = TokenPolicy(ScriptedEngine(ids), TEMPLATE, Sampling(stop_ids=TEMPLATE.stop_ids()))
    episode, limits = EpisodeSpec("echo", "train", 0, 0, attempt), Limits(max_turns=len(replies))
    return asyncio.run(
        rollout(LocalSession(EchoEnv()), policy.actor(episode), PromptFormat(window=window), episode, limits)
    )


def written(tmp_path, trajectories: list[Trajectory], **columns: np.ndarray):
    batch, _, kept = collate([Group(tuple(trajectories))])
    batch = batch.with_columns(**columns)
    credit = Credit(np.arange(len(batch.turn_A), dtype=np.float64))
    path = tmp_path / "trajectories" / "step-000001.jsonl"
    write_trajectories(path, batch, credit, kept, TEMPLATE.tokenizer)
    return path, [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("window", [None, 0, 1])
def test_credit_stands_at_the_tokens_it_is_for(tmp_path, window: int | None) -> None:
    trajectories = [play("apple", "🍎", "brook", window=window), play("x", window=window)]
    path, records = written(tmp_path, trajectories)
    assert [t.to_json() for t in read_jsonl(path)] == [t.to_json() for t in trajectories]
    index = 0
    for trajectory, record in zip(trajectories, records, strict=True):
        notes = record["annotations"]
        expected = [[None] * len(branch.ids) for branch in trajectory.branches]
        for turn, mean in zip(trajectory.turns, notes["advantage"], strict=True):
            place = range(turn.span.start, turn.span.stop)
            for position in place:
                expected[turn.span.branch][position] = float(index)
                index += 1
            assert mean == np.mean([expected[turn.span.branch][position] for position in place])
        assert notes["token_advantage"] == expected
        assert notes["value"] == [None] * len(trajectory.turns)
        for branch, credit, text in zip(
            trajectory.branches, notes["token_advantage"], notes["token_text"], strict=True
        ):
            assert [x is not None for x in credit] == (branch.turn >= 0).tolist()
            assert text == [TEMPLATE.decode([token]) for token in branch.ids.tolist()]


def test_values_are_the_turns(tmp_path) -> None:
    _, records = written(tmp_path, [play("apple", "x"), play("x")], value_N=np.array([0.5, 0.25, 0.125]))
    assert [record["annotations"]["value"] for record in records] == [[0.5, 0.25], [0.125]]


def test_what_envs_and_models_say_can_be_written(tmp_path) -> None:
    """Numbers of numpy in an environment's info, and half a surrogate pair in what it showed."""
    trajectory = play("apple", "x")
    turn = replace(trajectory.turns[0], info={"progress": np.float32(0.5), "map": np.eye(2)}, observation="\ud83c")
    _, records = written(tmp_path, [replace(trajectory, turns=(turn, *trajectory.turns[1:]))])
    assert records[0]["turns"][0]["info"] == {"progress": 0.5, "map": [[1, 0], [0, 1]]}
    assert records[0]["turns"][0]["observation"] == "\ud83c"


def test_no_more_than_the_limit(tmp_path) -> None:
    _, records = written(tmp_path, [play("apple", attempt=i) for i in range(LIMIT + 3)])
    assert [record["attempt"] for record in records] == list(range(LIMIT))


def test_the_report_takes_all_of_it(tmp_path) -> None:
    written(tmp_path, [play("apple", "🍎", "x", window=1), play("apple", "brook", "cloud")], value_N=np.ones(6))
    (tmp_path / "metrics.jsonl").write_text('{"phase": "rl", "step": 1, "rollout/success": 0.5}\n')
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert '"notes":[]' in page
    assert "All 2 trajectories that the run kept are here" in page
