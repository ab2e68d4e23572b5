"""Two processes that keep half of every weight learn what one learns that keeps all of it."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.tensor import DTensor

from agentgym_credit.batch import Batch
from agentgym_trainers import losses
from agentgym_trainers.config.sections import LossOptions, OptimOptions
from agentgym_trainers.learner import fsdp
from agentgym_trainers.learner.critic import Critic, ValueOptions
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.losses import Objective
from agentgym_trainers.nn import checkpoint, slices
from agentgym_trainers.nn import lora as adapters
from agentgym_trainers.nn.gradient_checkpointing import use_recompute
from agentgym_trainers.nn.lora import LoraOptions
from agentgym_trainers.nn.process_group import SINGLE_PROCESS, DataParallel

NO_PEFT = "peft is not installed: pip install 'turngym[train]'"


def spread_of_sums(
    logprob_A: Tensor, old_logprob_A: Tensor, batch: Batch, advantage_A: Tensor, weights_A: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss that no part of the rows can compute: log Σ exp over the trajectories' log-ratios."""
    sums = torch.zeros(len(batch.group_M), dtype=logprob_A.dtype).index_add(
        0, torch.from_numpy(batch.traj_A), (logprob_A - old_logprob_A) * advantage_A
    )
    return torch.logsumexp(sums, 0), {"sums_max": sums.detach().max(), "sums": sums.detach().mean()}


def exact(model: Any) -> Any:
    """In float64 throughout: transformers' RMSNorm computes in float32 whatever the model's dtype."""
    model = model.double()
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            if type(module).__name__.endswith("RMSNorm"):
                norm = torch.nn.RMSNorm(module.weight.shape, eps=module.variance_epsilon, dtype=torch.float64)
                norm.weight = module.weight
                setattr(parent, name, norm)
    return model


def learner_of(setting: dict[str, Any], processes: DataParallel) -> Learner:
    model, value, reference = (copy.deepcopy(setting[part]) for part in ("model", "value", "reference"))
    if setting.get("lora"):
        adapters.add_lora(model, LoraOptions(rank=4), seed=0)
        reference = model
    if setting.get("recompute"):
        use_recompute(model)
    dtype: Any = setting.get("dtype", "float32")
    if processes.size > 1:
        fsdp.shard(processes, model, value=value, reference=reference, dtype=dtype)
        kept = [p.to_local().numel() for p in (*model.parameters(), *value.parameters()) if isinstance(p, DTensor)]
        assert len(kept) == len([*model.parameters(), *value.parameters()])
        assert sum(kept) < 0.6 * sum(p.numel() for p in (*model.parameters(), *value.parameters()))
    optim = OptimOptions(lr=setting.get("lr", 1e-2), tokens_per_micro_batch=40, max_grad_norm=0.5)
    return Learner(model, optim, value=value, reference=reference, processes=processes, dtype=dtype)


def taught(learner: Learner, setting: dict[str, Any], steps: int = 3) -> list[dict[str, float]]:
    """Metrics of some updates, every column annotated before each."""
    losses.OBJECTIVES["spread"] = Objective(spread_of_sums, unit="trajectory")
    rows, credit, metrics = setting["rows"], setting["credit"], []
    options = LossOptions(objective=setting["objective"], entropy=0.03, kl=0.2, reducer="turn_mean")
    for _ in range(steps):
        batch = learner.annotate(setting["batch"], rows, prox=True)
        names = ("value_N", "bootstrap_M", "ref_logprob_A", "prox_logprob_A")
        metrics.append({name: float(np.abs(batch.x[name]).sum()) for name in names})
        metrics.append(learner.update(batch, rows, credit, options))
        if learner.value is not None:
            metrics.append(learner.fit_value(batch, rows, credit))
    metrics.append(learner.imitate(rows, np.full(len(setting["batch"].turn_A), 0.01)))
    return metrics


def over_processes(folder: Path, work: Callable[[DataParallel], Any], count: int = 2, replicas: int = 1) -> list[Any]:
    """What `work` returns in each of `count` processes."""
    folder = Path(tempfile.mkdtemp(dir=folder))  # where they meet, anew: what was left there would be believed

    def one(rank: int) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=count)
        torch.save(work(DataParallel.of(replicas=replicas)), folder / f"{rank}.pt")
        dist.destroy_process_group()

    mp.start_processes(one, nprocs=count, start_method="fork")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(count)]


def setting_of(
    kit: Any, *, objective: str = "ppo_clip", head: str = "scalar", trajectories: int = 5, **more: Any
) -> Any:
    batch, rows = kit.episodes(trajectories=trajectories)
    models = [kit.build("qwen3", seed=seed) for seed in (0, 1)]
    if "dtype" not in more:
        models = [exact(model) for model in models]
    value = Critic(models[0], ValueOptions.model_validate({"lr": 1e-2, "head": head})).to(models[0].dtype)
    return dict(
        model=models[0], reference=models[1], value=value, batch=batch, rows=rows, credit=kit.credit_of(batch),
        objective=objective, **more,
    )  # fmt: skip


def assert_same(ours: Any, theirs: Any, tolerance: float) -> None:
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("objective", "head", "trajectories", "lora", "recompute"),
    [
        ("ppo_clip", "scalar", 5, False, False),
        ("ppo_clip", "scalar", 1, False, False),  # one process has no rows
        ("spread", "scalar", 1, False, True),
        ("spread", "hl_gauss", 5, False, True),
        ("ppo_clip", "scalar", 5, True, True),
        ("spread", "hl_gauss", 1, True, False),
    ],
)
def test_two_halves_equal_one(kit, tmp_path: Path, objective, head, trajectories, lora, recompute) -> None:
    """With critic and reference. Five trajectories of unequal length: one process has more micro-batches."""
    if lora:
        pytest.importorskip("peft", reason=NO_PEFT)
    setting = setting_of(kit, objective=objective, head=head, trajectories=trajectories, lora=lora, recompute=recompute)

    def work(processes: DataParallel) -> Any:
        learner = learner_of(setting, processes)
        expected = taught(learner, setting)
        return learner.weights(), learner.state_dict(), expected, len(learner._mine(setting["rows"]))

    alone = learner_of(setting, SINGLE_PROCESS)
    before = copy.deepcopy(alone.weights())
    expected = taught(alone, setting)
    (weights, state, metrics, forwards), (none, _, others, as_often) = over_processes(tmp_path, work)
    assert forwards == as_often
    assert none == {}
    moved = max((alone.weights()[name] - before[name]).abs().max().item() for name in before)
    assert moved > 1e-3
    for actual in (metrics, others):
        assert actual == [pytest.approx(step, rel=1e-6, abs=1e-9) for step in expected]
    assert_same(weights, dict(alone.weights()), 1e-8)
    assert_same(state["value"], dict(alone.state_dict()["value"]), 1e-8)
    assert_same(state["adapters"], alone.state_dict()["adapters"], 1e-8)


def test_two_replicas_of_two_halves_equal_one(kit, tmp_path: Path) -> None:
    """Each of four processes has its own rows and half of the weights; a state of one is gone on from by all."""
    setting = setting_of(kit)
    alone = learner_of(setting, SINGLE_PROCESS)
    expected = taught(alone, setting, steps=2)
    state = copy.deepcopy(alone.state_dict())

    def work(processes: DataParallel) -> Any:
        learner = learner_of(setting, processes)
        placements = {str(parameter.placements) for parameter in learner.model.parameters()}
        metrics = taught(learner, setting, steps=2)
        weights, found = dict(learner.weights()), learner.state_dict()
        learner.load_state_dict(state)
        return placements, metrics, weights, found, learner.state_dict()

    found = over_processes(tmp_path, work, 4, replicas=2)
    for placements, metrics, *_ in found:
        assert placements == {"(Replicate(), Shard(dim=0))"}
        assert metrics == [pytest.approx(step, rel=1e-6, abs=1e-9) for step in expected]
    _, _, weights, theirs, loaded = found[0]
    assert_same(weights, dict(alone.weights()), 1e-8)
    for part in (theirs, loaded):
        assert_same(part["value"], dict(state["value"]), 1e-8)
        assert_same(part["optimizer"]["state"], state["optimizer"]["state"], 1e-8)


def test_resume_in_one_process_of_two_and_in_two_of_one(kit, tokenizer, tmp_path: Path) -> None:
    """The checkpoint of sliced weights, of which each process wrote its own, is the checkpoint of whole ones."""
    setting, folder = setting_of(kit), tmp_path / "step-000001"

    def begun(processes: DataParallel) -> Any:
        learner = learner_of(setting, processes)
        taught(learner, setting)
        weights, state = learner.weights(), learner.state_dict()

        def own_slices(partial: Path) -> dict[str, Any]:
            dist.barrier()
            assert slices.is_shared(partial, processes)
            return {"step": 1, **slices.save_slices(learner.state_dict(gather=False), partial, processes)}

        if processes.rank:
            own_slices(folder.with_name(f".{folder.name}.partial"))
        else:
            checkpoint.save(folder, learner.model, tokenizer, own_slices, weights)
            assert len(list((folder / "slices").iterdir())) == 2
        return state

    def continued(processes: DataParallel) -> Any:
        model, _ = checkpoint.load_model(tmp_path / "step-000001")
        target = copy.deepcopy(setting["model"])
        target.load_state_dict(model.double().state_dict())
        learner = learner_of({**setting, "model": target}, processes)
        learner.load_state_dict(checkpoint.load_state(tmp_path / "step-000001"))
        taught(learner, setting)
        return dict(learner.weights()), learner.state_dict()

    unbroken = learner_of(setting, SINGLE_PROCESS)
    taught(unbroken, setting)
    taught(unbroken, setting)
    state = over_processes(tmp_path, begun)[0]
    read = checkpoint.load_state(folder)
    for part in ("optimizer", "value"):
        assert_same(read[part], state[part], 0.0)  # to the bit
    for weights, state in (continued(SINGLE_PROCESS), over_processes(tmp_path, continued)[0]):
        # The checkpoint's weights are read in float32.
        assert_same(weights, dict(unbroken.weights()), 1e-4)
        assert_same(state["value"], dict(unbroken.state_dict()["value"]), 1e-4)


def test_bfloat16_slices_learn_as_bfloat16_does(kit, tmp_path: Path) -> None:
    """Layers are gathered in bfloat16; what is kept stays float32."""
    setting = setting_of(kit, dtype="bfloat16", lr=1e-3)

    def work(processes: DataParallel) -> Any:
        learner = learner_of(setting, processes)
        return taught(learner, setting, steps=1), dict(learner.weights())

    reference, weights = work(SINGLE_PROCESS)
    (metrics, sliced), _ = over_processes(tmp_path, work)
    assert {tensor.dtype for tensor in sliced.values()} == {torch.float32}
    for actual, expected in zip(metrics, reference, strict=True):
        assert actual == pytest.approx(expected, rel=0.2, abs=0.1)
    before = setting["model"].state_dict()
    ours, theirs = (torch.cat([(w[name] - before[name]).flatten() for name in before]) for w in (sliced, weights))
    assert torch.cosine_similarity(ours, theirs, dim=0) > 0.8  # Adam's first steps are signs of gradients
