"""The instruction's value: read after the first prompt, on a trunk that never moves."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from agentgym_trainers.nn import checkpoint
from agentgym_trainers.signals.base import SignalContext
from agentgym_trainers.signals.fitting import outcomes
from agentgym_trainers.signals.task_value import InstructionOptions, InstructionValue, first_prompts

HEADS = pytest.mark.parametrize(
    "options", [{}, {"head": "scalar", "target": "return"}, {"head": "hl_gauss", "target": "return"}], ids=str
)


def fit(signal: InstructionValue, context: SignalContext) -> dict[str, float]:
    return asyncio.run(signal.fit(context))


def inst_value_M(signal: InstructionValue, context: SignalContext) -> np.ndarray:
    return asyncio.run(signal.annotate(context))["inst_value_M"]


@pytest.fixture(scope="module")
def context(kit, tokenizer) -> SignalContext:
    """Four tasks, three attempts at each: tasks 0 and 2 always succeed, 1 never, 3 once."""
    context = kit.signal_context(tokenizer, env="keydoor", groups=4, size=3, noise=0.4)
    changed = []
    for trajectory, success in zip(context.trajectories, [1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 0, 0], strict=True):
        turns = [replace(turn, reward=0.0) for turn in trajectory.turns]
        turns[-1] = replace(turns[-1], reward=float(success), info={"success": bool(success)})
        changed.append(replace(trajectory, turns=tuple(turns)))
    return replace(context, trajectories=changed)


@pytest.mark.parametrize("tokens", [10**6, 1])
@pytest.mark.parametrize("rows", ["an attempt", "a turn", "shuffled"])
def test_it_is_read_at_the_last_token_of_the_first_prompt(kit, chatty, tokenizer, context, tokens, rows) -> None:
    model = chatty()
    signal = InstructionValue(InstructionOptions(head="scalar"), kit.parts(model, tokens=tokens))
    torch.nn.init.ones_(signal.head.weight)
    laid = list(context.rows)
    if rows == "a turn":
        laid = [
            replace(row, ids=row.ids[: at[-1] + 1], action_at=at, action_index=index)
            for row in laid
            for at, index in (
                (row.action_at[mine], row.action_index[mine])
                for turn in np.unique(context.batch.turn_A[row.action_index])
                for mine in [context.batch.turn_A[row.action_index] == turn]
            )
        ]
    if rows == "shuffled":
        laid = laid[::-1]
    context = replace(context, rows=laid)
    for prompt, trajectory in zip(first_prompts(context), context.trajectories, strict=True):
        text = tokenizer.decode(prompt.tolist())
        assert text.endswith(f"{trajectory.turns[0].observation}<|im_end|>\n<|im_start|>assistant\n")
    found = inst_value_M(signal, context)
    for value, trajectory in zip(found, context.trajectories, strict=True):
        ids, first = trajectory.branches[0].ids.tolist(), trajectory.turns[0].span.start
        assert value == pytest.approx(kit.plain_hidden(model, ids)[first - 1].sum().item(), abs=1e-3)
    tasks = found.reshape(4, 3)
    assert (tasks == tasks[:, :1]).all()  # attempts at one task begin alike
    assert len(np.unique(tasks)) == 4


@pytest.mark.parametrize(
    ("options", "first"), [({}, 0.5), ({"initial": 0.2}, 0.2), ({"head": "scalar"}, 0.0), ({"head": "hl_gauss"}, 0.5)]
)
def test_a_constant_at_first_so_the_curriculum_ranks_by_reward(kit, chatty, context, options, first) -> None:
    signal = InstructionValue(InstructionOptions(**options), kit.parts(chatty()))
    value_M = inst_value_M(signal, context)
    assert value_M == pytest.approx([first] * 12, abs=1e-6)
    outcome_M = outcomes(context.trajectories, "success")
    assert np.argsort(outcome_M - value_M, kind="stable").tolist() == np.argsort(outcome_M, kind="stable").tolist()


@HEADS
def test_every_fit_moves_the_head_alone_and_the_loss_falls(kit, chatty, context, options) -> None:
    model = chatty()
    signal = InstructionValue(InstructionOptions(**options), kit.parts(model))
    trunk = copy.deepcopy(signal.trunk.state_dict())
    policy = copy.deepcopy(model.state_dict())
    history = []
    for _ in range(15):
        before = copy.deepcopy(signal.head.state_dict())
        history.append(fit(signal, context))
        assert all(not torch.equal(p, before[name]) for name, p in signal.head.named_parameters())
    assert all(metrics["grad_norm"] > 0 for metrics in history)
    losses = [metrics["loss"] for metrics in history]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]
    assert np.isnan(history[0]["correlation"])  # of a constant
    assert history[-1]["correlation"] > 0.5
    assert all(torch.equal(p, trunk[name]) for name, p in signal.trunk.state_dict().items())
    assert all(torch.equal(p, policy[name]) for name, p in model.state_dict().items())


@HEADS
def test_it_learns_which_tasks_are_easy(kit, chatty, context, options) -> None:
    signal = InstructionValue(InstructionOptions(lr=0.03, epochs=150, **options), kit.parts(chatty()))
    fit(signal, context)
    value = inst_value_M(signal, context).reshape(4, 3)[:, 0]
    assert value == pytest.approx([1, 0, 1, 1 / 3], abs=0.1)
    assert fit(signal, context)["correlation"] > 0.8


def test_it_speaks_of_the_policy_as_rl_began(kit, chatty, context) -> None:
    model = chatty()
    signal = InstructionValue(InstructionOptions(), kit.parts(model))
    fit(signal, context)
    before = inst_value_M(signal, context)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert (inst_value_M(signal, context) == before).all()


def test_state_goes_on_where_it_was(kit, chatty, context) -> None:
    model, options = chatty(), InstructionOptions(epochs=3)
    signal, again = (InstructionValue(options, kit.parts(model)) for _ in range(2))
    fit(signal, context)
    again.load_state_dict(copy.deepcopy(signal.state_dict()))
    assert fit(again, context) == fit(signal, context)
    assert (inst_value_M(again, context) == inst_value_M(signal, context)).all()
    nothing = replace(context, batch=context.batch.select(np.zeros(0, int))[0], rows=[], trajectories=[])
    assert fit(signal, nothing) == {}


def test_what_it_cannot_say_is_refused() -> None:
    with pytest.raises(ValidationError, match="initial must lie between 0 and 1"):
        InstructionOptions(initial=1.5)


def test_it_trains(kit, warm_oracle, tmp_path) -> None:
    """A-LoL's advantage, R − V_ref of the prompt."""
    options = ["credit.assigner=a_lol", "signals.instruction.head=scalar", "signals.instruction.target=return"]
    steps = kit.trained("reinforce", warm_oracle, tmp_path, *options, "signals.instruction.epochs=10")
    assert len(steps) == 3
    for step in steps:
        assert step["optim/skipped"] == 0
        assert step["instruction/grad_norm"] > 0
    assert abs(steps[2]["instruction/bias"]) < steps[0]["rollout/score"]  # from 0 towards the mean return
    assert checkpoint.load_state(tmp_path / "checkpoints" / "step-000003")["signals"]["instruction"]["head"]
