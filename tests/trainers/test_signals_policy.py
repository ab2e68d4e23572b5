"""Signals that ask the policy itself (an answer, its certainty, the outcome), against plain forwards; their credit."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from agentgym.rollouts.trajectory import Trajectory
from agentgym_credit.assigners.critical import critical
from agentgym_credit.assigners.hindsight import hcapo
from agentgym_credit.assigners.spae import spae
from agentgym_trainers.data.reward_shaping import information
from agentgym_trainers.nn.attention import use_packed_attention
from agentgym_trainers.rollout.tokens import ChatTemplate
from agentgym_trainers.signals.answer import Answer, AnswerOptions
from agentgym_trainers.signals.hindsight import Hindsight, HindsightOptions, ending_length, prompt_endings
from agentgym_trainers.signals.uncertainty import Uncertainty, UncertaintyOptions
from agentgym_trainers.testing import toy_batch


def annotate(signal: Answer, context) -> dict[str, np.ndarray]:
    return asyncio.run(signal.annotate(context))


@pytest.fixture
def context(kit, chatty, tokenizer):
    model = chatty()
    use_packed_attention(model)
    found = kit.signal_context(tokenizer, env="keydoor", groups=2, size=3, noise=0.4, model=model)
    return model, replace(found, trajectories=[ended(t, i == 1) for i, t in enumerate(found.trajectories)])


def ended(trajectory: Trajectory, success: bool) -> Trajectory:
    last = trajectory.turns[-1]
    return replace(trajectory, turns=(*trajectory.turns[:-1], replace(last, info={**last.info, "success": success})))


def test_the_answer_is_scored_before_every_turn(kit, context) -> None:
    model, played = context
    columns = annotate(Answer(AnswerOptions(), kit.parts(model, tokens=300)), played)
    span = played.trajectories[1].turns[-1].span
    answer = played.trajectories[1].branches[span.branch].ids[span.start : span.stop].tolist()
    n = 0
    for trajectory in played.trajectories:
        for turn in trajectory.turns:
            if trajectory.task != played.trajectories[1].task:
                assert np.isnan(columns["answer_prob_N"][n])
            else:
                prompt = trajectory.branches[turn.span.branch].ids[: turn.span.start].tolist()
                hidden = kit.plain_hidden(model, prompt + answer)
                with torch.inference_mode():
                    logits = model.lm_head(hidden)[len(prompt) - 1 : -1].float()
                distribution = torch.log_softmax(logits, dim=-1)
                logprob = distribution[torch.arange(len(answer)), torch.tensor(answer)].mean()
                entropy = -(distribution.exp() * distribution).sum(dim=-1).mean()
                assert columns["answer_prob_N"][n] == pytest.approx(logprob.exp().item(), rel=1e-3)
                assert columns["answer_conf_N"][n] == pytest.approx((-entropy).exp().item(), rel=1e-3)
            n += 1
    assert n == len(columns["answer_prob_N"])


def test_answers_are_kept_for_later_steps(kit, context) -> None:
    model, played = context
    signal, later = Answer(AnswerOptions(), kit.parts(model)), Answer(AnswerOptions(), kit.parts(model))
    before = annotate(signal, played)
    later.load_state_dict(signal.state_dict())
    lost = replace(played, trajectories=[ended(t, False) for t in played.trajectories])
    np.testing.assert_array_equal(annotate(later, lost)["answer_prob_N"], before["answer_prob_N"])
    assert asyncio.run(later.fit(lost)) == {"tasks": 1.0}
    assert np.isnan(annotate(Answer(AnswerOptions(), kit.parts(model)), lost)["answer_prob_N"]).all()


def test_uncertainty_is_the_entropy_of_what_could_be_sampled(kit, context) -> None:
    model, played = context
    signal = Uncertainty(UncertaintyOptions(), kit.parts(model, tokens=300))
    found = asyncio.run(signal.annotate(played))["entropy_N"]
    turns = [(t, turn) for t in played.trajectories for turn in t.turns]
    for n, (trajectory, turn) in enumerate(turns):
        ids = trajectory.branches[turn.span.branch].ids[: turn.span.stop].tolist()
        with torch.inference_mode():
            logits = model.lm_head(kit.plain_hidden(model, ids))[turn.span.start - 1 : -1].float()
        distribution = torch.log_softmax(logits, dim=-1)
        assert found[n] == pytest.approx(-(distribution.exp() * distribution).sum(dim=-1).mean().item(), rel=1e-3)


def test_hindsight_reads_the_outcome_at_the_end_of_the_prompt(kit, context, tokenizer) -> None:
    model, played = context
    template = ChatTemplate(tokenizer)
    signal = Hindsight(HindsightOptions(), replace(kit.parts(model, tokens=300), template=template))
    found = asyncio.run(signal.annotate(played))["hindsight_N"]
    turns = [(t, turn) for t in played.trajectories for turn in t.turns]
    for n, (trajectory, turn) in enumerate(turns):
        branch, span = trajectory.branches[turn.span.branch], turn.span
        prompt, sampled = branch.ids[: span.start].tolist(), branch.ids[span.start : span.stop].tolist()
        text, verdict = template.decode(prompt), "solved" if trajectory.success else "not solved"
        before, _, ending = text.rpartition(turn.observation)
        later = f"\n\nLater: {trajectory.final_observation}\nThe task was {verdict}."
        longer = [*template.encode(before + turn.observation), *template.encode(later), *template.encode(ending)]
        with_outcome, without = (logprob_of(kit, model, ids, sampled) for ids in (longer, prompt))
        assert found[n] == pytest.approx(with_outcome - without, abs=2e-4)
    assert len(found) == len(turns)
    assert np.abs(found).max() > 0.01


def logprob_of(kit, model, prompt: list[int], sampled: list[int]) -> float:
    with torch.inference_mode():
        logits = model.lm_head(kit.plain_hidden(model, prompt + sampled))[len(prompt) - 1 : -1].float()
    return torch.log_softmax(logits, dim=-1)[torch.arange(len(sampled)), torch.tensor(sampled)].mean().item()


def test_a_prompt_without_a_known_ending_has_none(tokenizer) -> None:
    endings = prompt_endings(ChatTemplate(tokenizer))
    assert [ending_length([1, 2, *end], endings) for end in endings] == [len(end) for end in endings]
    assert ending_length([1, 2], endings) == 0


def test_hcapo_by_hand() -> None:
    """Ratios of 3, 1.5 and 1/2 in a success, of 1.5 and 1/4 in a failure; clipped at 2."""
    batch = toy_batch([[0, 0, 1], [0, 0]], hindsight_N=np.log([3, 1.5, 0.5, 1.5, 0.25]), tokens=[1, 2, 1, 1, 1])
    expected = [1, 0.75, 0.75, 0.5, -0.75, -0.25]
    np.testing.assert_allclose(hcapo(batch).advantage_A, expected, atol=1e-12)
    half = [0.75, 0.625, 0.625, 0.5, -0.625, -0.375]
    np.testing.assert_allclose(hcapo(batch, omega=0.5).advantage_A, half, atol=1e-12)
    assert hcapo(batch, clip=4.0).advantage_A[[0, -1]].tolist() == pytest.approx([1.5, -0.125])


def test_hcapo_against_brute_force() -> None:
    """Over probabilities with and without the outcome, one turn after another, in place of their log-ratio."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        won, later, before = rng.random((2, 4)) < 0.5, rng.random((8, 3)), rng.random((8, 3))
        ratio = (later.prod(axis=1) / before.prod(axis=1)) ** (1 / 3)
        batch = toy_batch([[float(w)] for w in won.ravel()], groups=[0] * 4 + [1] * 4, hindsight_N=np.log(ratio))
        expected = []
        for n, mine in enumerate(won.ravel()):
            rest = sum(1 for other in won[n // 4] if other != mine) / 4
            weight = 2.0 if ratio[n] > 2 else 0.5 if ratio[n] < 0.5 else ratio[n]
            expected.append(rest * max(weight, 1.0) if mine else -rest * weight)
        np.testing.assert_allclose(hcapo(batch).advantage_A, expected, atol=1e-12)


def test_critical_turns_are_the_least_certain_of_their_group() -> None:
    batch = toy_batch([[0, 0, 1], [0]], groups=[0, 0], entropy_N=(0.1, 0.9, 0.5, 0.5))
    half = 2**-0.5
    assert critical(batch, share=0.5).advantage_A.tolist() == pytest.approx([0, half, half, -half], abs=1e-5)
    assert critical(batch, share=0.25).advantage_A.tolist() == pytest.approx([0, half, 0, 0], abs=1e-5)


def test_information_is_what_a_turn_taught() -> None:
    batch = toy_batch([[0, 0, 1], [0, 0]], answer_prob_N=(0.1, 0.4, 0.3, np.nan, 0.5))
    assert information(batch, weight=2.0).tolist() == pytest.approx([0.6, -0.2, 1, 0, 0])


def test_spae_by_hand() -> None:
    """Φ = 2p − 1 at full confidence, of a success; nothing is known of the other attempt."""
    phi = np.array([-0.18, -0.18, 0.25, 0.8575])
    batch = toy_batch(
        [[0, 0, 0, 1], [0]],
        groups=[0, 0],
        answer_prob_N=[*((phi + 1) / 2), np.nan],
        answer_conf_N=[1, 1, 1, 1, np.nan],
    )
    gain = np.exp([0, 0.43 / 0.6075, 1, 0, 0])
    share = np.array([1, 1, 1, 1 - 0.5 * (1 - np.exp(-1)), 1])
    expected = share * [0.5, 0.5, 0.5, 0.5, -0.5] + 0.5 * (gain - gain.mean())
    np.testing.assert_allclose(spae(batch, saturation=0.7).advantage_A, expected, atol=1e-12)
    assert spae(batch, saturation=0.7).advantage_A[3] < spae(batch).advantage_A[3]
