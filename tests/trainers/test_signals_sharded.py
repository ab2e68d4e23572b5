"""Signals whose models two processes keep half of each: they say and learn what one process does."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.tensor import DTensor

from agentgym_trainers.learner import fsdp
from agentgym_trainers.nn.attention import use_packed_attention
from agentgym_trainers.nn.process_group import SINGLE_PROCESS, DataParallel
from agentgym_trainers.rollout.tokens import ChatTemplate
from agentgym_trainers.signals import SIGNALS
from agentgym_trainers.signals.archer.critic import CriticExamples, TwinCritic, action_read
from agentgym_trainers.signals.archer.transitions import transitions_of
from agentgym_trainers.signals.base import SignalContext, unsharded

STEPS = 3
CRITIC = {"updates": 2, "batch": 6, "hidden": (16,), "lr": 1e-2}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "progress": ("progress", {"lr": 1e-2, "epochs": 2}),
    "progress, frozen": ("progress", {"lr": 1e-2, "trunk": "frozen", "divide": True}),
    "prm, outcomes": ("prm", {"lr": 1e-2}),
    "prm, pairs": ("prm", {"lr": 1e-2, "loss": "pair", "beta": 1.0}),
    "instruction": ("instruction", {"lr": 1e-2}),
    "answer": ("answer", {}),
    "hindsight": ("hindsight", {}),
    "uncertainty": ("uncertainty", {}),
    "twin": ("twin", CRITIC),
    "twin, trained": ("twin", {**CRITIC, "encoder": "trained"}),
    "twin, warmed up": ("twin", {**CRITIC, "encoder": "warmed_up"}),
    "digiq": ("digiq", CRITIC),
}
SLICED = {"progress", "progress, frozen", "prm, outcomes", "prm, pairs", "twin, trained", "twin, warmed up"}
"""Those whose state has slices."""


class Setting:
    """What every process has alike."""

    def __init__(self, kit: Any, model: Any, context: SignalContext, template: ChatTemplate) -> None:
        self.kit, self.model, self.context, self.template = kit, model, context, template

    def build(self, case: str, processes: DataParallel) -> Any:
        """The part of a signal that has models, beside a policy that is sliced where there are several processes."""
        name, options = CASES[case]
        kind, model = SIGNALS[name], copy.deepcopy(self.model)
        several = processes.size > 1
        parts = replace(
            self.kit.parts(model, tokens=300), processes=processes, template=self.template,
            shard=partial(fsdp.shard_module, processes) if several else unsharded,
        )  # fmt: skip
        assert kind.learned is not None
        part = kind.learned(kind.options.model_validate(options), parts)
        use_packed_attention(model)
        if several:
            fsdp.shard(processes, model)
        return part

    def columns(self, part: Any) -> dict[str, np.ndarray]:
        if isinstance(part, TwinCritic):
            return dict(zip(("q_N", "v_N"), part.values(self.turns), strict=True))
        return asyncio.run(part.annotate(self.context))

    def step(self, part: Any, number: int) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """(columns before a step, the step's metrics)."""
        columns = self.columns(part)
        if isinstance(part, TwinCritic):
            pool = CriticExamples(self.turns, [action_read(t) for t in self.turns[::-1]])
            return columns, part.learn(pool, np.random.default_rng(number), warm=number > 0)
        return columns, asyncio.run(part.fit(replace(self.context, step=number)))

    @property
    def turns(self) -> list[Any]:
        return transitions_of(self.context.batch, self.context.rows, 0.95)

    def taught(self, case: str, processes: DataParallel) -> tuple[Any, list[Any], Any]:
        """(the signal, columns and metrics of each step, its state)."""
        part = self.build(case, processes)
        steps = [self.step(part, number) for number in range(STEPS)]
        return part, steps, fsdp.full_state_dict(part.state_dict(), processes)


def sliced(tree: Any) -> bool:
    return isinstance(tree, DTensor) or (isinstance(tree, dict) and any(map(sliced, tree.values())))


def same(ours: Any, theirs: Any, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance, equal_nan=True)


def test_two_halves_of_a_signal_equal_one(kit, chatty, tokenizer, tmp_path: Path) -> None:
    """Columns, metrics and weights of every kind over three steps; and the state of one is gone on from by two."""
    model = kit.exact(chatty())
    context = kit.signal_context(tokenizer, env="oracle", groups=2, size=3, noise=0.5)
    setting = Setting(kit, model, context, ChatTemplate(tokenizer))
    alone = {case: setting.taught(case, SINGLE_PROCESS) for case in CASES}
    assert any(t.success for t in context.trajectories)

    def one_of_two(rank: int) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=rank, world_size=2)
        processes, found = DataParallel.of(), {}
        for case in CASES:
            part, steps, state = setting.taught(case, processes)
            again = setting.build(case, processes)
            again.load_state_dict(copy.deepcopy(alone[case][2]))
            found[case] = steps, state, sliced(part.state_dict()), setting.columns(again)
        torch.save(found, tmp_path / f"{rank}.pt")
        dist.destroy_process_group()

    mp.start_processes(one_of_two, nprocs=2, start_method="fork")
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2)]
    for case, (part, expected, full) in alone.items():
        last = setting.columns(part)
        for rank, found in enumerate(ranks):
            steps, state, has_slices, resumed = found[case]
            assert has_slices == (case in SLICED), case
            for (columns, metrics), (other_columns, other_metrics) in zip(steps, expected, strict=True):
                same(columns, other_columns)
                assert metrics == pytest.approx(other_metrics, rel=1e-6, abs=1e-6, nan_ok=True), case
            same(resumed, last)
            if rank == 0:
                same(state, full)
    for case in SLICED:
        before, after = (alone[case][1][step][0] for step in (0, STEPS - 1))
        assert max(np.abs(after[name] - before[name]).max() for name in before) > 1e-3, case
