"""The critic: V is read before what it values is sampled, and after the last observation of what was cut."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from agentgym.harness import Harness
from agentgym.trajectory import StopReason
from agentgym_trainers.attention import use_packed_attention
from agentgym_trainers.batch import Batch, Credit
from agentgym_trainers.config import LossOptions, OptimOptions
from agentgym_trainers.learner import Learner
from agentgym_trainers.rows import Row, collate
from agentgym_trainers.signals.value import ValueHead, ValueOptions

TRUNKS = pytest.mark.parametrize("trunk", ["own", "detached", "shared"])


class Positions(ValueHead):
    """Says which token it reads, and where: V = 1000 · position + token."""

    def forward(self, inputs: dict[str, Any], policy_hidden_TH: torch.Tensor | None, at: torch.Tensor) -> torch.Tensor:
        return (1000 * inputs["position_ids"][0] + inputs["input_ids"][0])[at].float()


@pytest.mark.parametrize("tokens", [10**6, 1], ids=["packed", "one by one"])
@pytest.mark.parametrize("window", [None, 0], ids=["one branch", "forks"])
def test_where_values_are_read(kit, chatty, tokenizer, tokens, window) -> None:
    model = chatty()
    trajectories = kit.play(model, tokenizer, max_turns=3, harness=Harness(window=window))
    assert {t.stop for t in trajectories} == {StopReason.MAX_TURNS}
    batch, rows, _ = collate(kit.in_pairs(trajectories))
    learner = Learner(
        model, OptimOptions(tokens_per_micro_batch=tokens), value=Positions(model, ValueOptions(trunk="own"))
    )
    batch = learner.annotate(batch, rows)

    def read(trajectory: Any, branch: int, position: int) -> float:
        return 1000 * position + int(trajectory.branches[branch].ids[position])

    spans = [(t, turn.span) for t in trajectories for turn in t.turns]
    assert batch.x["value_N"].tolist() == [read(t, span.branch, span.start - 1) for t, span in spans]
    each = [read(t, span.branch, at - 1) for t, span in spans for at in range(span.start, span.stop)]
    assert batch.x["value_A"].tolist() == each
    last = [read(t, len(t.branches) - 1, len(t.branches[-1].ids) - 1) for t in trajectories]
    assert batch.x["bootstrap_M"].tolist() == last
    for t in trajectories:  # the prompt of the reply that was not to come
        text = tokenizer.decode(t.branches[-1].ids.tolist())
        assert text.endswith(f"<|im_start|>user\n{t.final_observation}<|im_end|>\n<|im_start|>assistant\n")


def test_an_episode_that_ended_has_no_bootstrap(kit, chatty, tokenizer) -> None:
    model = chatty()
    trajectories = kit.play(model, tokenizer, world="oracle", max_turns=50)
    value = ValueHead(model, ValueOptions())
    torch.nn.init.ones_(value.head.weight)
    batch, rows, _ = collate(kit.in_pairs(trajectories))
    learner = Learner(model, OptimOptions(), value=value)
    bootstrap = learner.annotate(batch, rows).x["bootstrap_M"]
    assert ((bootstrap != 0) == batch.truncated_M).all()


@TRUNKS
def test_values_are_of_the_final_hidden_state(kit, trunk) -> None:
    model = kit.build()
    head = ValueHead(model, ValueOptions(trunk=trunk))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.nn.init.normal_(head.head.weight)
    ids = np.random.default_rng(0).integers(0, 64, 20)
    with torch.inference_mode():
        plain = copy.deepcopy(model.base_model)
        hidden = plain(input_ids=torch.from_numpy(ids)[None], use_cache=False).last_hidden_state[0]
        expected = head.head(hidden)[:, 0].numpy()
    at = np.array([5, 6, 12])
    batch = Batch(
        group_M=np.zeros(1, int), traj_N=np.zeros(2, int), reward_N=np.zeros(2), turn_A=np.array([0, 0, 1]),
        truncated_M=np.ones(1, bool), anchor_N=np.full(2, -1), logprob_A=np.zeros(3, np.float32),
    )  # fmt: skip
    annotated = Learner(model, OptimOptions(), value=head).annotate(batch, [Row(ids, at, np.arange(3), 0, True)])
    np.testing.assert_allclose(annotated.x["value_A"], expected[at - 1], atol=1e-5)
    np.testing.assert_allclose(annotated.x["value_N"], expected[[4, 11]], atol=1e-5)
    np.testing.assert_allclose(annotated.x["bootstrap_M"], expected[[19]], atol=1e-5)


@TRUNKS
def test_a_new_critic_says_zero(kit, trunk) -> None:
    model = kit.build()
    use_packed_attention(model)
    head = ValueHead(model, ValueOptions(trunk=trunk))
    assert head.head(torch.randn(4, 32)).abs().max() == 0


@TRUNKS
def test_who_the_value_loss_moves(kit, chatty, tokenizer, trunk) -> None:
    model = chatty()
    batch, rows, _ = collate(kit.in_pairs(kit.play(model, tokenizer, episodes=2, max_turns=2)))
    head = ValueHead(model, ValueOptions(trunk=trunk, lr=0.01))
    torch.nn.init.ones_(head.head.weight)
    learner = Learner(model, OptimOptions(lr=0.01), value=head)
    policy = copy.deepcopy(model.state_dict())
    critic = copy.deepcopy(head.state_dict())
    silent = Credit(np.zeros(len(batch.turn_A)), {"value_A": np.ones(len(batch.turn_A))})
    first = learner.update(batch, rows, silent, LossOptions())["loss/value"]
    moved = {name for name, p in model.state_dict().items() if not torch.equal(p, policy[name])}
    if trunk == "shared":
        assert any("layers.0" in name for name in moved)
        assert "lm_head.weight" not in moved
    else:
        assert not moved
    learned = {name for name, p in head.state_dict().items() if not torch.equal(p, critic[name])}
    assert "head.weight" in learned
    assert any("trunk" in name for name in learned) == (trunk == "own")
    for _ in range(20):
        last = learner.update(batch, rows, silent, LossOptions())["loss/value"]
    assert last < 0.7 * first


def test_an_own_trunk_is_a_copy(kit) -> None:
    model = kit.build()
    head = ValueHead(model, ValueOptions(trunk="own"))
    ours, theirs = dict(head.trunk.named_parameters()), dict(model.base_model.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(p, theirs[name]) and p is not theirs[name] for name, p in ours.items())
