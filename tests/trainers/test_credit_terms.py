"""Credit as a sum of terms, each normalized by itself and weighted, perhaps by what its signal knows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.errors import ConfigError
from agentgym_credit.assigners.gigpo import gigpo
from agentgym_credit.assigners.group_baselines import rloo
from agentgym_credit.assigners.implicit import istar, prime, prm_turns
from agentgym_credit.assigners.skill import of_reward_model, of_token_values, of_turn_values
from agentgym_credit.batch import Batch, Credit
from agentgym_credit.normalize import normalize
from agentgym_credit.segments import reverse_scan, segment_mean
from agentgym_trainers.config.sections import CreditOptions
from agentgym_trainers.credit import ASSIGNERS
from agentgym_trainers.credit.assign import apply_stages, assign_credit
from agentgym_trainers.losses import OBJECTIVES, token_weights
from agentgym_trainers.recipe import resolve, to_toml
from agentgym_trainers.testing import random_batch, t4, toy_batch
from agentgym_trainers.validate import validate_config

many = settings(deadline=None, derandomize=True, database=None, max_examples=25)
seeds = st.integers(0, 2**32 - 1)


def terms(**tables: dict) -> CreditOptions:
    return CreditOptions.model_validate({"terms": tables})


def batch_of(seed: int) -> Batch:
    return random_batch(np.random.default_rng(seed), group_size=4)


def test_terms_are_normalized_weighted_and_added() -> None:
    options = terms(
        outcome={"assigner": "rloo"}, states={"assigner": "gigpo", "gamma": 0.5, "normalize": "turn", "weight": 0.3}
    )
    credit, metrics = assign_credit(t4(), options)
    second = normalize(gigpo(t4(), gamma=0.5), t4(), population="turn").advantage_A
    assert credit.advantage_A == pytest.approx(rloo(t4()).advantage_A + 0.3 * second)
    assert metrics == {
        "credit/outcome_std": pytest.approx(rloo(t4()).advantage_A.std()),
        "credit/states_std": pytest.approx(0.3 * second.std()),
    }


def test_one_term_of_weight_one_is_the_assigner_alone() -> None:
    alone, _ = assign_credit(t4(), CreditOptions(assigner="gigpo", normalize="token"))
    one, _ = assign_credit(t4(), terms(it={"assigner": "gigpo", "normalize": "token"}))
    np.testing.assert_array_equal(one.advantage_A, alone.advantage_A)


@many
@given(seed=seeds)
def test_published_sums_are_sums_of_terms(seed: int) -> None:
    """PRIME's paper form and iStar are an outcome term and a process term."""
    batch = batch_of(seed)
    outcome, _ = assign_credit(batch, terms(a={"assigner": "rloo"}, b={"assigner": "prm_tokens", "weight": 0.05}))
    assert outcome.advantage_A == pytest.approx(prime(batch, variant="paper", beta=0.05).advantage_A)
    process_A = istar(batch, alpha=1.0, beta=1.0).advantage_A - istar(batch, alpha=0.0, beta=1.0).advantage_A
    sum_N, group_N = np.bincount(batch.turn_A, batch.x["prm_A"]), batch.group_M[batch.traj_N]
    for group in np.unique(group_N):
        own_A = (group_N == group)[batch.turn_A]
        spread = np.std(sum_N[group_N == group], ddof=1)
        assert prm_turns(batch).advantage_A[own_A] == pytest.approx(process_A[own_A] * (spread + 1e-6), abs=1e-9)


def test_a_mean_over_a_turns_tokens_knows_nothing_of_its_length() -> None:
    """Turns of 1, 2 and 4 tokens, each with its own log-ratio a token."""
    ratios = np.array([-0.3, -0.1, -0.2])
    batch = toy_batch([[0, 1, 0]], tokens=[1, 2, 4], prm_A=np.repeat(ratios, [1, 2, 4]))
    by_mean, by_sum = (segment_mean(prm_turns(batch, aggregate=a).advantage_A, batch.turn_A) for a in ("mean", "sum"))
    assert by_mean == pytest.approx([-0.1, 0.1, 0.0])
    assert np.argmax(by_mean) == 1
    assert by_sum == pytest.approx(np.array([-0.3, -0.2, -0.8]) + 1.3 / 3)  # the longest turn is the worst


def test_the_skill_of_exact_values_is_one() -> None:
    batch = toy_batch([[0, 0, 1], [0, 0, 0]])
    exact_N = reverse_scan(batch.reward_N, batch.traj_N, 0.5)
    batch = batch.with_columns(value_N=exact_N, value_A=reverse_scan(batch.reward_N, batch.traj_N, 1.0))
    assert of_turn_values(batch, {"gamma": 0.5}) == pytest.approx(1.0)
    assert of_token_values(batch, {"gamma": 1.0}) == pytest.approx(1.0)


def test_skill_numbers() -> None:
    """Returns 1, 1, 0, 0 about their mean: 1. V is wrong by 1/4 everywhere, which the variance of G - V would miss."""
    batch = toy_batch([[0, 1], [0, 0]], value_N=(1.25, 1.25, 0.25, 0.25))
    assert of_turn_values(batch, {"gamma": 1.0}) == pytest.approx(1 - 4 / 16)
    constant = batch.with_columns(value_N=np.full(4, 0.5))
    assert of_turn_values(constant, {"gamma": 1.0}) == pytest.approx(0.0)
    wrong = batch.with_columns(value_N=np.array([0.0, 0.0, 1.0, 1.0]))
    assert of_turn_values(wrong, {"gamma": 1.0}) == 0.0


def test_a_cut_counts_as_what_the_critic_says_of_it() -> None:
    batch = toy_batch([[0], [0]], truncated=[True, False], value_N=(2.0, 0.0), bootstrap_M=(4.0, 9.0))
    assert of_turn_values(batch, {"gamma": 0.5}) == pytest.approx(1.0)


def test_skill_of_a_reward_model_numbers() -> None:
    """Three pairs, two of them in the right order: D is 1/3. Four of five attempts are in a group with both ends."""
    batch = toy_batch(
        [[1], [0], [0], [0], [1]], groups=[0, 0, 0, 0, 1], success_M=(1, 0, 0, 0, 1), prm_logit_M=(2.0, 1, 1.5, 3, -50)
    )
    assert of_reward_model(batch, {}) == pytest.approx(0.8 / 9)
    right = batch.with_columns(prm_logit_M=np.array([1.0, 0, 0, 0, 0]))
    assert of_reward_model(right, {}) == pytest.approx(0.8)
    small = right.with_columns(prm_logit_M=1e-3 * right.x["prm_logit_M"])  # a small β
    assert of_reward_model(small, {}) == pytest.approx(0.8)
    assert of_reward_model(batch.with_columns(prm_logit_M=np.zeros(5)), {}) == 0.0
    assert of_reward_model(batch.with_columns(prm_logit_M=np.array([0, 3.0, 3, 3, 0])), {}) == 0.0
    assert of_reward_model(batch.with_columns(success_M=np.ones(5)), {}) == 0.0  # nothing to be right about


def test_a_coin_has_little_skill() -> None:
    """15 pairs of eight attempts, which are not independent: .10 on average, half of the coins below 0."""
    rng, groups, won = np.random.default_rng(0), np.zeros(8, int), (1, 1, 1, 0, 0, 0, 0, 0)
    batch = toy_batch([[w] for w in won], groups=groups.tolist(), success_M=won)
    coins = [of_reward_model(batch.with_columns(prm_logit_M=rng.normal(size=8)), {}) for _ in range(200)]
    assert np.mean(coins) < 0.15


@many
@given(seed=seeds)
def test_a_signal_of_noise_weighs_nothing(seed: int) -> None:
    """Gated credit of a critic that is far off equals the other term's, to the bit."""
    batch = batch_of(seed)
    batch = batch.with_columns(value_N=batch.x["value_N"] + 100.0)
    both = terms(outcome={"assigner": "rloo"}, values={"assigner": "turn_gae", "gate": True})
    credit, metrics = assign_credit(batch, both)
    np.testing.assert_array_equal(credit.advantage_A, rloo(batch).advantage_A)
    assert metrics["credit/values_skill"] == 0.0
    assert "value_N" in credit.targets  # the critic goes on learning


def test_the_gate_is_the_skill() -> None:
    batch = toy_batch([[0, 1], [0, 0]], value_N=(1.25, 1.25, 0.25, 0.25))
    plain, _ = assign_credit(batch, terms(values={"assigner": "turn_gae", "gamma": 1.0}))
    gated, metrics = assign_credit(batch, terms(values={"assigner": "turn_gae", "gamma": 1.0, "gate": True}))
    assert metrics["credit/values_skill"] == pytest.approx(0.75)
    assert gated.advantage_A == pytest.approx(0.75 * plain.advantage_A)


VALUE = "value.lr=1e-3"
BOTH = ("credit.assigner=", "credit.terms.outcome.assigner=rloo", "credit.terms.values.assigner=turn_gae", VALUE)


@pytest.mark.parametrize("gate", [False, True])
def test_a_gate_alone_needs_what_the_skill_reads(gate) -> None:
    terms = ["credit.assigner=", "credit.terms.p.assigner=prm_turns", f"credit.terms.p.gate={str(gate).lower()}"]
    needs = resolve("grpo", [*terms, "signals.prm.fit_first=false"]).needs["credit.terms.p.assigner = 'prm_turns'"]
    assert needs == {"groups", "prm_A"} | ({"prm_logit_M", "success_M"} if gate else set())


def test_a_recipe_of_terms_resolves_and_is_written(tmp_path) -> None:
    config = resolve("grpo", [*BOTH, "credit.terms.values.gate=true", "credit.terms.values.gamma=0.9"])
    (tmp_path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    assert resolve(tmp_path / "config.toml") == config
    assert config.credit.terms["values"].options == {"gamma": 0.9, "lam": 0.9}


def test_weights_of_terms_can_be_scheduled(tmp_path) -> None:
    path = tmp_path / "faded.toml"
    rise = '"credit.terms.values.weight" = { kind = "linear", start = 0.0, end = 1.0, steps = 10 }'
    text = to_toml(resolve("grpo", BOTH)).replace("[schedules]", f"[schedules]\n{rise}")
    path.write_text(text, encoding="utf-8")
    assert resolve(path).at(5).credit.terms["values"].weight == 0.5


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["credit.assigner="], "either assigner is set, or"),
        (["credit.terms.a.assigner=rloo"], "either assigner is set, or"),
        ([*BOTH, "credit.gamma=0.5"], "options go to the terms: credit.terms.NAME.gamma"),
        ([*BOTH, "credit.normalize=turn"], "options go to the terms: credit.terms.NAME.normalize"),
        ([*BOTH, "credit.terms.values.gama=0.5"], "did you mean 'gamma'"),
        (
            [*BOTH, "credit.terms.outcome.gate=true"],
            "there is no measure of what 'rloo' reads; there is one for bilevel_gae",
        ),
        ([*BOTH, "credit.terms.more.assigner=token_gae"], "both set the critic's targets: only one term"),
        (BOTH[:3], "credit.terms.values.assigner = 'turn_gae' reads"),
        (
            [
                "credit.assigner=",
                "credit.terms.p.assigner=prm_turns",
                "credit.terms.p.gate=true",
                "signals.prm.fit_first=true",
            ],
            "signals.prm.fit_first lets it learn from them first",
        ),
    ],
)
def test_terms_that_do_not_fit_are_refused(overrides, message) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("grpo", list(overrides))
    assert message in str(caught.value)


def test_skills_are_declared_where_something_learns() -> None:
    measured = {name for name, part in ASSIGNERS.items() if part.skill is not None}
    assert measured == {"turn_gae", "token_gae", "bilevel_gae", "prm_tokens", "prm_turns"}
    assert replace(ASSIGNERS["rloo"], skill=of_reward_model).skill is of_reward_model


@pytest.mark.parametrize("objective", ["direct_advantage", "oreo", "ppo_clip"])
@pytest.mark.parametrize("cause", ["filter", "staleness"])
def test_dropped_tokens_have_no_gradient(objective, cause) -> None:
    """Neither where the objective is a regression, to which an advantage of 0 is a target like any other."""
    batch = toy_batch(
        [[0, 1], [0, 0]], tokens=2, value_N=np.zeros(4), ref_logprob_A=np.full(8, -1.0),
        version_A=[7, 7, 7, 7, 5, 5, 5, 5],
    )  # fmt: skip
    config = resolve("grpo", ["rollout.staleness=1"] if cause == "staleness" else [])
    if cause == "filter":
        batch = batch.with_columns(kept_M=np.array([1.0, 0.0]))
    credit, _ = apply_stages(batch, Credit(np.ones(8)), config, 7)
    logprob, old = torch.full((8,), -0.5, dtype=torch.float64, requires_grad=True), torch.from_numpy(batch.logprob_A)
    advantage, weights = torch.from_numpy(credit.advantage_A), token_weights(batch, "token_mean") * credit.weight_A
    part = OBJECTIVES[objective]
    if part.unit == "token":
        loss = (torch.from_numpy(weights) * part.function(logprob, old, advantage)[0]).sum()
    else:
        loss, _ = part.function(logprob, old, batch, advantage, torch.from_numpy(weights))
    loss.backward()
    assert logprob.grad is not None
    assert (logprob.grad != 0).tolist() == [True] * 4 + [False] * 4


def test_a_mask_keeps_the_weights_of_the_others() -> None:
    batch = toy_batch([[1], [0]], prox_logprob_A=np.log([0.6, 0.6]), kept_M=[1, 0])
    credit, _ = apply_stages(batch, Credit(np.ones(2)), resolve("grpo", ["correct.kind=tis"]), 0)
    assert credit.weight_A is not None
    assert credit.weight_A.tolist() == [pytest.approx(1.2), 0]
    plain, _ = apply_stages(batch.with_columns(kept_M=np.ones(2)), Credit(np.ones(2)), resolve("grpo"), 0)
    assert plain.weight_A is None


def test_a_filter_that_no_comparison_would_see_is_refused() -> None:
    options = ["select.kind=instruction", "signals.instruction.head=two_class", "loss.objective=pacs"]
    options += ["loss.clip_low=", "loss.clip_high="]
    with pytest.raises(ConfigError, match="stays in the batch for the critic"):
        validate_config(resolve("ppo-turn", options))
