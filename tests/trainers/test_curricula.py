"""Curricula: every task equally often, from the seed alone, and resumable."""

from __future__ import annotations

import pytest

from agentgym_trainers.rollout.tasks import UniformTasks


@pytest.mark.parametrize("chunk", [1, 3, 7, 25])
def test_every_epoch_walks_all_tasks_once(chunk) -> None:
    curriculum = UniformTasks(10, seed=4)
    proposed = [pair for _ in range(0, 50, chunk) for pair in curriculum.propose(chunk)]
    epochs = [proposed[i : i + 10] for i in range(0, 50, 10)]
    for epoch in epochs:
        assert sorted(task for task, _ in epoch) == list(range(10))
    assert len({tuple(task for task, _ in epoch) for epoch in epochs}) == 5
    assert len(set(proposed)) == len(proposed)  # another environment seed each time
    assert all(0 <= seed < 2**31 for _, seed in proposed)


def test_the_seed_decides() -> None:
    assert UniformTasks(10, 1).propose(30) == UniformTasks(10, 1).propose(30)
    assert UniformTasks(10, 1).propose(30) != UniformTasks(10, 2).propose(30)


def test_resumes_where_it_was() -> None:
    undisturbed, cut = UniformTasks(7, 3), UniformTasks(7, 3)
    expected = undisturbed.propose(40)
    before = cut.propose(17)
    resumed = UniformTasks(7, 3)
    resumed.load_state_dict(cut.state_dict())
    assert before + resumed.propose(23) == expected
