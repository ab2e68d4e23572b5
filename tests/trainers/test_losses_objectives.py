"""Objectives of tokens, turns and trajectories: the numbers of their papers and of the released code."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agentgym_trainers.credit import ASSIGNERS
from agentgym_trainers.losses import ppo_clip, token_weights
from agentgym_trainers.losses.direct_advantage import direct_advantage
from agentgym_trainers.losses.sequence import a_lol, clip_cov, gspo, hashed, ratio_clip
from agentgym_trainers.losses.soft_bellman import oreo
from agentgym_trainers.losses.token import awr, cispo, loop_clip
from agentgym_trainers.testing import toy_batch


def tensor(*numbers: float, grad: bool = False) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=grad)


def at_ratio(*ratios: float) -> tuple[torch.Tensor, torch.Tensor]:
    old = torch.full((len(ratios),), -1.0, dtype=torch.float64)
    return (old + tensor(*ratios).log()).requires_grad_(), old


def at_log_ratio(*ratios: float) -> tuple[torch.Tensor, torch.Tensor]:
    return at_ratio(*np.exp(ratios))


def weights(batch, mode="trajectory_mean") -> torch.Tensor:
    return torch.from_numpy(token_weights(batch, mode))


# ---- tokens -------------------------------------------------------------------------------------------------------


def test_cispo_gradients() -> None:
    """ε = (.2, .28) around 1 of the released code is ratio_min = .8, ratio_max = 1.28 here."""
    new, old = at_ratio(5, 1.5, 0.5)
    loss_A, metrics = cispo(new, old, tensor(1, 1, 1), ratio_min=0.8, ratio_max=1.28)
    loss_A.mean().backward()
    assert new.grad.tolist() == pytest.approx([-0.426667, -0.426667, -0.266667], abs=1e-6)
    assert metrics["clip_high"].item() == pytest.approx(2 / 3)
    assert metrics["clip_low"].item() == pytest.approx(1 / 3)


def test_cispo_bounds_are_ratios_without_a_lower_default() -> None:
    new, old = at_ratio(50, 5, 0.01)
    cispo(new, old, tensor(1, -1, 1))[0].sum().backward()
    assert new.grad.tolist() == pytest.approx([-5, 5, -0.01])


def test_cispo_gradient_is_never_zero_where_ppo_s_is() -> None:
    advantage = tensor(1, -1)
    new, old = at_ratio(5, 0.1)
    ppo_clip(new, old, advantage)[0].sum().backward()
    assert new.grad.tolist() == [0, 0]
    new, old = at_ratio(5, 0.1)
    cispo(new, old, advantage, ratio_max=1.28)[0].sum().backward()
    assert new.grad.tolist() == pytest.approx([-1.28, 0.1])


def test_cispo_bounds_in_the_wrong_order() -> None:
    new, old = at_ratio(1)
    with pytest.raises(ValueError, match="ratio_min"):
        cispo(new, old, tensor(1), ratio_min=2, ratio_max=1.28)


@pytest.mark.parametrize(("ratio", "advantage", "loss"), [(2, 1, -1.1), (0.5, -1, 1 / 1.1), (1.05, 1, -1.05)])
def test_loop_clip_range_is_symmetric_in_the_logarithm(ratio: float, advantage: float, loss: float) -> None:
    new, old = at_ratio(ratio)
    assert loop_clip(new, old, tensor(advantage))[0].item() == pytest.approx(loss)


def test_awr_weights() -> None:
    new, old = at_ratio(3, 3, 0.01, 1)
    advantage = tensor(2, -1, 1, 0)
    loss_A, metrics = awr(new, old, advantage, ratio="token")
    loss_A.sum().backward()
    assert new.grad.tolist() == pytest.approx([-1.9 * 2, 0, -0.1, 0])
    assert metrics["used"].item() == 0.5
    new, old = at_ratio(3, 3, 0.01, 1)
    loss_A, _ = awr(new, old, advantage)
    assert loss_A.tolist() == pytest.approx((-advantage.clamp(min=0) * new.detach()).tolist())


# ---- turns and trajectories ---------------------------------------------------------------------------------------


def test_gspo_numbers() -> None:
    new, old = at_log_ratio(0.2, -0.1, 0.05)
    batch = toy_batch([[1]], tokens=3)
    loss, metrics = gspo(new, old, batch, tensor(1, 1, 1), weights(batch), clip_high=0.1)
    loss.backward()
    assert loss.item() == pytest.approx(-1.051271, abs=1e-6)
    assert new.grad.tolist() == pytest.approx([-0.350424] * 3, abs=1e-6)
    assert metrics["ratio_mean"].item() == pytest.approx(1.051271, abs=1e-6)


def test_gspo_clips_the_trajectory_at_its_own_narrow_range() -> None:
    new, old = at_log_ratio(0.2, -0.1, 0.05)
    batch = toy_batch([[1]], tokens=3)
    loss, metrics = gspo(new, old, batch, tensor(1, 1, 1), weights(batch))
    loss.backward()
    assert loss.item() == pytest.approx(-1.0004)
    assert new.grad.tolist() == [0, 0, 0]
    assert metrics["clip_high"].item() == 1


@pytest.mark.parametrize(
    ("unit", "ratio", "expected"),
    [
        ("turn", "sum", (0.1, 0.1, 0.05)),
        ("turn", "mean", (0.05, 0.05, 0.05)),
        ("trajectory", "sum", (0.15, 0.15, 0.15)),
        ("trajectory", "mean", (0.05, 0.05, 0.05)),
    ],
)
def test_ratio_of_a_unit(unit, ratio, expected) -> None:
    new, old = at_log_ratio(0.2, -0.1, 0.05)
    batch = toy_batch([[0, 1]], tokens=[2, 1])
    loss, _ = ratio_clip(new, old, batch, tensor(1, 1, 1), weights(batch), unit=unit, ratio=ratio)
    loss.backward()
    assert new.grad.tolist() == pytest.approx((-np.exp(expected) / 3).tolist())
    assert loss.item() == pytest.approx(-np.exp(expected).mean())


def test_one_token_a_turn_is_ppo() -> None:
    ratios, advantage = (5, 1.5, 0.5), tensor(1, -1, -1)
    batch = toy_batch([[0, 0, 1]])
    gradients = []
    for turn in (True, False):
        new, old = at_ratio(*ratios)
        if turn:
            loss = ratio_clip(new, old, batch, advantage, weights(batch), dual_clip=3.0)[0]
        else:
            loss = (weights(batch) * ppo_clip(new, old, advantage, dual_clip=3.0)[0]).sum()
        loss.backward()
        gradients.append([loss.item(), *new.grad.tolist()])
    assert gradients[0] == pytest.approx(gradients[1])


def test_a_turn_is_clipped_as_one() -> None:
    """Each token is inside the range, their product is not; and a token's own excess may be made good by another."""
    batch = toy_batch([[1]], tokens=2)
    new, old = at_ratio(1.15, 1.15)
    ratio_clip(new, old, batch, tensor(1, 1), weights(batch))[0].backward()
    assert new.grad.tolist() == [0, 0]
    new, old = at_ratio(2, 0.5)
    ratio_clip(new, old, batch, tensor(1, 1), weights(batch))[0].backward()
    assert new.grad.tolist() == pytest.approx([-0.5, -0.5])


def test_long_turns_do_not_overflow() -> None:
    batch = toy_batch([[1]], tokens=200)
    new, old = torch.zeros(200, requires_grad=True), torch.full((200,), -5.0)
    loss, metrics = ratio_clip(new, old, batch, torch.full((200,), -1.0), weights(batch).float(), dual_clip=3.0)
    loss.backward()
    assert loss.item() == pytest.approx(3)
    assert torch.isfinite(new.grad).all()
    assert torch.isfinite(metrics["ratio_max"])


@pytest.mark.parametrize(("ratio", "weight"), [("trajectory", 1.9), ("turn", 1.9), ("token", 1.5)])
def test_a_lol_ratio(ratio, weight: float) -> None:
    """Two tokens of ratio 1.5 to the reference are a turn of ratio 2.25; a ratio of 3 or of 2.25 weighs 1.9."""
    batch = toy_batch([[1]], tokens=2, ref_logprob_A=(-1, -1))
    new, _ = at_ratio(1.5, 1.5)
    loss, metrics = a_lol(new, torch.full_like(new, -9), batch, tensor(2, 2), weights(batch, "token_mean"), ratio=ratio)
    loss.backward()
    assert new.grad.tolist() == pytest.approx([-weight] * 2)
    assert metrics["used"] == 1


def test_a_lol_at_the_reference_is_weighted_behavior_cloning() -> None:
    batch = toy_batch([[1], [0]], groups=[0, 0], ref_logprob_A=(-1, -1))
    new, old = at_ratio(1, 1)
    a_lol(new, old, batch, tensor(0.5, -0.5), weights(batch, "trajectory_sum"))[0].backward()
    assert new.grad.tolist() == pytest.approx([-0.25, 0])


# ---- clip-cov -----------------------------------------------------------------------------------------------------


def spread(tokens: int = 100) -> tuple:
    """Log-probabilities and advantages that vary together; PPO clips some."""
    generator = torch.Generator().manual_seed(0)
    batch = toy_batch([[0]] * 4, tokens=tokens // 4)
    old = -torch.rand(tokens, generator=generator, dtype=torch.float64) * 6
    batch.logprob_A[:] = old.numpy()
    advantage = old + torch.randn(tokens, generator=generator, dtype=torch.float64)
    new = (old + torch.randn(tokens, generator=generator, dtype=torch.float64) * 0.1).requires_grad_()
    return batch, new, old, advantage


def test_clip_cov_of_no_fraction_is_ppo() -> None:
    batch, new, old, advantage = spread()
    w = weights(batch)
    loss, metrics = clip_cov(new, old, batch, advantage, w, fraction=0.0, cov_low=0.0)
    expected = (w * ppo_clip(new, old, advantage)[0]).sum()
    assert loss.item() == expected.item()
    assert torch.equal(*(torch.autograd.grad(x, new)[0] for x in (loss, expected)))
    assert metrics["cov_dropped"] == 0


def test_clip_cov_drops_a_share_of_tokens_in_the_band() -> None:
    batch, new, old, advantage = spread()
    w = weights(batch)
    loss, metrics = clip_cov(new, old, batch, advantage, w, fraction=0.29, cov_low=0.1, cov_high=6.0)
    (gradient,) = torch.autograd.grad(loss, new)
    (ppo,) = torch.autograd.grad((w * ppo_clip(new, old, advantage)[0]).sum(), new)
    dropped = (gradient == 0) & (ppo != 0)
    assert dropped.sum() == round(metrics["cov_dropped"].item() * 100) == 29
    assert metrics["cov_candidates"].item() > 0.29
    cov = (advantage - advantage.mean()) * (new - new.mean()).detach()
    assert (cov[dropped] > 0.1).all()
    assert (cov[dropped] < 6.0).all()
    assert torch.equal(gradient[~dropped], ppo[~dropped])  # the others' denominators stay


def test_clip_cov_takes_only_candidates_that_ppo_keeps() -> None:
    batch, new, old, advantage = spread()
    loss, metrics = clip_cov(new, old, batch, advantage, weights(batch), fraction=1.0, cov_low=-1e9, cov_high=1e9)
    ppo = torch.autograd.grad((weights(batch) * ppo_clip(new, old, advantage)[0]).sum(), new)[0]
    assert metrics["cov_dropped"].item() == pytest.approx((ppo != 0).double().mean().item())
    assert metrics["cov_dropped"] < 1
    assert torch.autograd.grad(loss, new)[0].abs().max() == 0


def test_clip_cov_choice_depends_on_the_seed_not_the_order() -> None:
    batch, new, old, advantage = spread()
    order = torch.from_numpy(np.random.default_rng(0).permutation(100))
    options = {"fraction": 0.2, "cov_low": 0.0}

    def chosen(index: torch.Tensor, **more) -> torch.Tensor:
        moved = toy_batch([[0]] * 4, tokens=25)
        moved.logprob_A[:] = batch.logprob_A[index.numpy()]
        leaf = new.detach()[index].requires_grad_()
        loss, _ = clip_cov(leaf, old[index], moved, advantage[index], weights(moved), **options, **more)
        return torch.autograd.grad(loss, leaf)[0] == 0

    plain = chosen(torch.arange(100))
    assert torch.equal(chosen(order), plain[order])
    assert not torch.equal(chosen(torch.arange(100), seed=1), plain)


def test_the_hash_is_even() -> None:
    """Of 4096 neighbouring log-probabilities each eighth of the range holds an eighth, whatever the seed."""
    logprob = -np.arange(1, 4097, dtype=np.float32) / 1024
    for seed in (0, 1, 2**40):
        counts = np.bincount((hashed(logprob, seed) >> np.uint64(61)).astype(np.int64), minlength=8)
        assert (abs(counts - 512) < 90).all()
    same = (hashed(logprob, 0) >> np.uint64(61)) == (hashed(logprob, 1) >> np.uint64(61))
    assert same.mean() < 0.2


# ---- OREO ---------------------------------------------------------------------------------------------------------


def path(values=(0.97, 1.0, 0.985), **options) -> tuple:
    """lr = (1, −.5, .5), R = 1 at the end. V as given makes every state consistent."""
    batch = toy_batch([[0, 0, 1]], ref_logprob_A=(-3, -3, -3), value_N=values, **options)
    return tensor(-2, -3.5, -2.5, grad=True), batch, tensor(0, 0, 0), weights(batch, "turn_mean")


def test_oreo_is_at_rest_on_the_path_consistent_value() -> None:
    new, batch, advantage, w = path()
    loss, metrics = oreo(new, new.detach(), batch, advantage, w)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-20)
    assert new.grad.tolist() == pytest.approx([0, 0, 0], abs=1e-12)
    assert metrics["path_error"].item() == pytest.approx(0, abs=1e-10)


def test_oreo_without_temperature_regresses_the_return() -> None:
    for beta, ratios in ((1e-9, (1, -0.5, 0.5)), (0.03, (0, 0, 0))):
        _, batch, advantage, w = path(values=(1, 1, 1))
        new = (tensor(*ratios) - 3).requires_grad_()
        assert oreo(new, new.detach(), batch, advantage, w, beta=beta)[0].item() == pytest.approx(0, abs=1e-16)


def test_oreo_gradient_is_of_the_turn_s_own_log_ratio() -> None:
    """The later ones are constants: each token's gradient is w · 2β · its own turn's error."""
    new, batch, advantage, w = path(values=(0.5, 0.4, 0.3))
    oreo(new, new.detach(), batch, advantage, w)[0].backward()
    error = np.array([0.5, 0.4, 0.3]) - [0.97, 1.0, 0.985]
    assert new.grad.tolist() == pytest.approx((2 * 0.03 * error / 3).tolist())


def test_oreo_turns_of_several_tokens() -> None:
    """A turn's log-ratio is its tokens' sum, and every one of them has the turn's gradient."""
    batch = toy_batch([[0, 1]], tokens=[2, 1], ref_logprob_A=(-1, -1, -1), value_N=(0.2, 0.3))
    new = tensor(-0.5, -0.75, -2, grad=True)
    loss, metrics = oreo(new, new.detach(), batch, tensor(0, 0, 0), weights(batch, "turn_mean"), beta=0.1)
    errors = np.array([0.1 * (0.75 - 1) + 0.2 - 1, 0.1 * -1 + 0.3 - 1])
    loss.backward()
    assert loss.item() == pytest.approx((errors**2).mean())
    assert metrics["path_bias"].item() == pytest.approx(errors.mean())
    assert new.grad.tolist() == pytest.approx((0.2 * errors[[0, 0, 1]] / 2).tolist())


def test_oreo_is_at_rest_on_what_its_assigner_tells_the_critic() -> None:
    """Both halves say the same: turns of several tokens, rewards on the way, a cut trajectory."""
    rng = np.random.default_rng(0)
    rewards, tokens = [[0.5, 0, 1], [0, 0]], [2, 1, 3, 1, 2]
    now, ref = rng.normal(-2, 1, (2, 9))
    batch = toy_batch(
        rewards, tokens=tokens, truncated=[False, True], bootstrap_M=(9, 0.7), ref_logprob_A=ref, prox_logprob_A=now,
        value_N=np.zeros(5),
    )  # fmt: skip
    with_values = batch.with_columns(value_N=ASSIGNERS["oreo"].function(batch, beta=0.2).targets["value_N"])
    new = torch.from_numpy(now).requires_grad_()
    loss, _ = oreo(new, new.detach(), with_values, torch.zeros(9), weights(with_values, "turn_mean"), beta=0.2)
    assert loss.item() == pytest.approx(0, abs=1e-20)


def test_oreo_bootstraps_only_where_truncated() -> None:
    for truncated, reward in ((True, 1.7), (False, 1.0)):
        _, batch, advantage, w = path(values=(0, 0, 0), truncated=[truncated], bootstrap_M=(0.7,))
        still = tensor(-3, -3, -3)
        assert oreo(still, still, batch, advantage, w)[0].item() == pytest.approx(reward**2)


def test_direct_advantage_is_at_rest_at_its_target() -> None:
    """Two turns of two tokens and one; β lr_t = A_t in both."""
    batch = toy_batch([[0, 1]], tokens=[2, 1])
    old, advantage = tensor(-1, -1, -2), tensor(0.3, 0.3, -0.5)
    new = (old + tensor(0.5, 0.1, -1.0)).requires_grad_()
    loss, metrics = direct_advantage(new, old, batch, advantage, weights(batch, "turn_mean"), beta=0.5)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-15)
    assert new.grad.tolist() == pytest.approx([0, 0, 0], abs=1e-7)
    assert metrics["advantage_error"].item() == pytest.approx(0, abs=1e-7)


def test_direct_advantage_leaves_out_tokens_without_weight() -> None:
    """Two of a turn's three tokens are too old: the third alone is fitted to the turn's advantage, which is its own."""
    batch, left = toy_batch([[1]], tokens=3), toy_batch([[1]], tokens=1)
    new = tensor(-1, -3, -2, grad=True)
    mask = tensor(0, 0, 1)
    loss, metrics = direct_advantage(
        new, tensor(-2, -2, -2.5), batch, mask * 0.8, weights(batch, "turn_mean") * mask, beta=0.5
    )
    loss.backward()
    alone = tensor(-2, grad=True)
    other, expected = direct_advantage(alone, tensor(-2.5), left, tensor(0.8), weights(left, "turn_mean") / 3, beta=0.5)
    other.backward()
    assert new.grad.tolist() == pytest.approx([0, 0, alone.grad.item()])
    assert metrics["advantage_error"].item() == pytest.approx(expected["advantage_error"].item())


def test_direct_advantage_on_policy_is_a_policy_gradient() -> None:
    """Half of the turns' advantages each; a turn's loss is ½ A² / β."""
    batch = toy_batch([[0, 1]], tokens=[2, 1])
    new = tensor(-1, -1, -2, grad=True)
    advantage = tensor(0.2, 0.4, -0.5)
    loss, _ = direct_advantage(new, new.detach(), batch, advantage, weights(batch, "turn_mean"), beta=0.5)
    loss.backward()
    assert new.grad.tolist() == pytest.approx([-0.15, -0.15, 0.25])
    assert loss.item() == pytest.approx((0.3**2 + 0.5**2) / 2)
