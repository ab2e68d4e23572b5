"""Two processes over gloo learn what one learns: the same gradients, metrics and next weights."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from agentgym_credit.batch import Batch
from agentgym_trainers import losses
from agentgym_trainers.config.sections import LossOptions, OptimOptions
from agentgym_trainers.data.sequences import Row
from agentgym_trainers.learner.critic import Critic, ValueOptions
from agentgym_trainers.learner.full_batch_gradient import backward_full_batch
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.losses import Objective
from agentgym_trainers.nn.attention import use_packed_attention
from agentgym_trainers.nn.forward import micro_batches, pack, token_logprobs
from agentgym_trainers.nn.process_group import SINGLE_PROCESS, DataParallel
from agentgym_trainers.signals.implicit_prm import ImplicitPRM, PRMOptions
from agentgym_trainers.signals.progress import ProgressHead, ProgressOptions


def spread_of_sums(
    logprob_A: Tensor, old_logprob_A: Tensor, batch: Batch, advantage_A: Tensor, weights_A: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss that no part of the rows can compute: log Σ exp over the trajectories' log-ratios."""
    sums = torch.zeros(len(batch.group_M), dtype=logprob_A.dtype).index_add(
        0, torch.from_numpy(batch.traj_A), (logprob_A - old_logprob_A) * advantage_A
    )
    return torch.logsumexp(sums, 0), {"sums_max": sums.detach().max(), "sums": sums.detach().mean()}


def learn(setting: dict[str, Any], processes: DataParallel) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """The weights and metrics after two updates."""
    losses.OBJECTIVES["spread"] = Objective(spread_of_sums, unit="trajectory")
    model, value = copy.deepcopy(setting["model"]), copy.deepcopy(setting["value"])
    optim = OptimOptions(lr=1e-2, tokens_per_micro_batch=40)
    learner = Learner(model, optim, value=value, processes=processes)
    batch, rows, credit = setting["batch"], setting["rows"], setting["credit"]
    options = LossOptions(objective=setting["objective"], entropy=0.03, kl=0.2, reducer="turn_mean")
    metrics = [learner.update(batch, rows, credit, options) for _ in range(2)]
    metrics.append(learner.imitate(rows, np.full(len(batch.turn_A), 0.01)))
    return {**model.state_dict(), **{f"value.{n}": p for n, p in value.state_dict().items()}}, metrics


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    setting = torch.load(f"{folder}/setting.pt", weights_only=False)
    torch.save(learn(setting, DataParallel.of()), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("objective", ["ppo_clip", "spread"])
@pytest.mark.parametrize("trajectories", [5, 1], ids=["five", "one process without rows"])
def test_two_processes_equal_one(kit, tmp_path: Path, objective: str, trajectories: int) -> None:
    batch, rows = kit.episodes(trajectories=trajectories)
    credit = kit.credit_of(batch)
    model = kit.build("qwen2-gqa").double()
    value = Critic(model, ValueOptions(lr=1e-2)).double()
    setting = dict(model=model, value=value, batch=batch, rows=rows, credit=credit, objective=objective)
    torch.save(setting, tmp_path / "setting.pt")
    mp.start_processes(worker, args=(str(tmp_path),), nprocs=2, start_method="fork")
    alone, expected = learn(setting, SINGLE_PROCESS)
    moved = max((alone[name] - p).abs().max().item() for name, p in model.state_dict().items())
    assert moved > 1e-3
    for rank in range(2):
        weights, metrics = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        assert metrics == [pytest.approx(step, rel=1e-6, abs=1e-9) for step in expected]
        for name, p in alone.items():
            torch.testing.assert_close(weights[name], p, atol=1e-6, rtol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


SIGNALS = {
    "progress": lambda parts: ProgressHead(ProgressOptions(lr=1e-2, epochs=3), parts),
    "prm, outcomes": lambda parts: ImplicitPRM(PRMOptions(lr=1e-2, epochs=3), parts),
    "prm, pairs": lambda parts: ImplicitPRM(PRMOptions(lr=1e-2, epochs=3, loss="pair", beta=1.0), parts),
}


@pytest.mark.parametrize("kind", SIGNALS)
def test_a_signal_learns_alike_in_one_and_two_processes(kit, chatty, tokenizer, tmp_path, kind) -> None:
    """Pairs and sums reach across processes: no trajectory, pair or group has to lie in one."""
    model = chatty()
    context = kit.signal_context(tokenizer, env="keydoor", groups=2, size=4, noise=0.4, model=model)

    def fitted(processes: DataParallel) -> tuple[Any, dict[str, float]]:
        signal = SIGNALS[kind](replace(kit.parts(model, tokens=400), processes=processes))
        metrics = asyncio.run(signal.fit(context))
        return signal.state_dict(), metrics

    def one_of_two(rank: int) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=rank, world_size=2)
        torch.save(fitted(DataParallel.of()), tmp_path / f"{rank}.pt")
        dist.destroy_process_group()

    mp.start_processes(one_of_two, nprocs=2, start_method="fork")
    state, expected = fitted(SINGLE_PROCESS)
    assert expected["grad_norm"] > 0
    for rank in range(2):
        theirs, metrics = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        assert metrics == pytest.approx(expected, rel=1e-3, nan_ok=True)
        for part in ("head", "trunk", "model"):
            torch.testing.assert_close(theirs.get(part), state.get(part), atol=1e-4, rtol=1e-3)


def test_two_passes_are_one(kit) -> None:
    """The gradient of a coupled loss, row by row, is that of autograd through all rows at once."""
    batch, rows = kit.episodes()
    credit = kit.credit_of(batch)
    model = kit.build().double()
    use_packed_attention(model)
    advantage = torch.from_numpy(credit.advantage_A)

    def forward(part: list[Row]) -> tuple[np.ndarray, Tensor]:
        packed = pack(part, model)
        return packed.index, token_logprobs(model, packed).logprob

    def loss_of(logprob_A: Tensor) -> tuple[Tensor, Any]:
        return spread_of_sums(logprob_A, torch.zeros_like(logprob_A), batch, advantage, advantage)

    index, logprob = forward(rows)
    full, _ = loss_of(torch.zeros_like(logprob).index_copy(0, torch.from_numpy(index), logprob))
    full.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    for budget in (10**6, 40, 1):
        model.zero_grad()
        loss, _ = backward_full_batch(forward, list(micro_batches(rows, budget)), len(batch.turn_A), loss_of)
        assert loss == pytest.approx(full.item())
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.grad, expected[name], atol=1e-6, rtol=1e-5)
