"""Rows of tokens as other trainers hold them: to a Batch and back, and the adapters' contracts."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_credit import ASSIGNERS, Batch, from_rows
from agentgym_credit.adapters import prime_rl, trl, verl
from agentgym_credit.segments import reverse_scan

MASK = np.array([[0, 1, 1, 0, 0, 1, 0, 0], [1, 0, 0, 1, 1, 1, 0, 0], [0, 0, 1, 0, 1, 0, 1, 0]])
REWARD = np.zeros(MASK.shape)
REWARD[0, [4, 6]] = 0.25, 0.5  # after the first turn, and after the last
REWARD[1, 5] = 1.0
STATES = [["a", "b"], ["a", None], ["a", "b", "b"]]


def test_a_turn_is_a_run_of_action_tokens():
    rows = from_rows(MASK, REWARD, ["x", "x", "y"], states=STATES)
    batch = rows.batch
    assert batch.group_M.tolist() == [0, 0, 1]
    assert batch.traj_N.tolist() == [0, 0, 1, 1, 2, 2, 2]
    assert batch.turn_A.tolist() == [0, 0, 1, 2, 3, 3, 3, 4, 5, 6]
    assert batch.reward_N.tolist() == [0.25, 0.5, 0, 1, 0, 0, 0]
    assert batch.anchor_N.tolist() == [0, 1, 0, -1, 0, 1, 1]
    np.testing.assert_array_equal(rows.padded(batch.turn_A + 1.0) > 0, MASK == 1)


def test_a_row_a_turn_is_the_same_batch():
    """An attempt in one row, or each of its turns in a row of its own, as some trainers hold them."""
    one = from_rows(MASK, REWARD, [0, 0, 1], states=STATES)
    state = [name for row in STATES for name in row]
    cut = [(0, 0, 5), (0, 5, 8), (1, 0, 3), (1, 3, 8), (2, 0, 4), (2, 4, 6), (2, 6, 8)]
    mask, reward = (np.zeros((len(cut), 8)) for _ in range(2))
    for row, (origin, start, stop) in enumerate(cut):
        mask[row, start:stop], reward[row, start:stop] = MASK[origin, start:stop], REWARD[origin, start:stop]
    order = [0, 2, 4, 1, 3, 5, 6]  # rows of different attempts in turn
    many = from_rows(
        mask[order],
        reward[order],
        [(0, 0, 1)[cut[i][0]] for i in order],
        trajectory_B=[cut[i][0] for i in order],
        states=[[state[i]] for i in order],
    )
    for name in ("group_M", "traj_N", "reward_N", "turn_A", "anchor_N"):
        np.testing.assert_array_equal(getattr(many.batch, name), getattr(one.batch, name))
    by_row = many.assign("gigpo")
    np.testing.assert_allclose(by_row.sum(axis=1)[np.argsort(order)], [
        one.assign("gigpo")[origin, start:stop].sum() for origin, start, stop in cut
    ])  # fmt: skip


@st.composite
def tables(draw):
    rows, width = draw(st.integers(2, 5)), draw(st.integers(1, 9))
    mask = np.array(
        draw(st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=rows, max_size=rows))
    )
    mask[:, draw(st.integers(0, width - 1))] = True
    numbers = st.floats(-2, 2).map(lambda x: round(x, 3))
    reward = np.array(draw(st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=rows, max_size=rows)))
    return mask, reward, [0, 0, *draw(st.lists(st.integers(0, 1), min_size=rows - 2, max_size=rows - 2))]


@settings(max_examples=60, deadline=None)
@given(tables())
def test_nothing_is_lost_on_the_way(table):
    """Every reward is in the batch once, credit is where the mask is, and a batch built by hand has the same credit."""
    mask, reward, groups = table
    starts = [[t for t in range(mask.shape[1]) if row[t] and (t == 0 or not row[t - 1])] for row in mask]
    states = [[t % 2 for t in range(len(runs))] for runs in starts]
    rows = from_rows(mask, reward, groups, states=states)
    np.testing.assert_allclose(rows.batch.return_M, reward.sum(axis=1), atol=1e-9)
    turns, traj, rewards = [], [], []
    for row, runs in enumerate(starts):
        for first, after in zip(runs, [*runs[1:], mask.shape[1]], strict=True):
            turns += [len(traj)] * int(mask[row, first:after].sum())
            rewards.append(reward[row, (0 if first == runs[0] else first) : after].sum())
            traj.append(row)
    order = {g: i for i, g in enumerate(dict.fromkeys(groups))}
    by_hand = Batch(
        np.array([order[g] for g in groups]), np.array(traj), np.array(rewards), np.array(turns),
        np.zeros(len(mask), bool), np.concatenate(states), np.zeros(len(turns), np.float32),
    )  # fmt: skip
    for name in ("reinforce", "grpo", "rloo", "rtg_loo", "mt_grpo", "gigpo", "hgpo", "rewardflow"):
        found = rows.assign(name)
        assert not found[~mask].any()
        np.testing.assert_allclose(found[mask], ASSIGNERS[name].function(by_hand).advantage_A, atol=1e-9)


def test_equal_rewards_of_turns_stay_equal():
    """.2 after .1 and .2 after .3 are the same number: a group without a difference has a credit of exactly 0."""
    rewards = np.array([[0.1, 0, 0.2], [0.3, 0, 0.2]])
    rows = from_rows([[1, 0, 1], [1, 0, 1]], rewards, [0, 0])
    assert rows.batch.reward_N.tolist() == [0.1, 0.2, 0.3, 0.2]
    assert not rows.assign("mt_grpo")[:, 2].any()


COMPARES_RETURNS = ("rloo", "grpo", "dr_grpo", "loop", "gigpo", "hgpo", "gagpo", "rtg_loo")


@pytest.mark.parametrize("name", COMPARES_RETURNS)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_equal_returns_of_float32_have_no_credit(name, scale):
    """.1 and then .2 is as much as .3; what rounding leaves must not be scaled up to a credit."""
    rewards = scale * np.array([[0.1, 0, 0.2], [0.3, 0, 0]])
    states = [["a", "b"], ["a", "c"]]
    options = {"gamma": 1.0} if "gamma" in ASSIGNERS[name].function.__annotations__ else {}
    exact, rounded = (
        from_rows([[1, 0, 1], [1, 0, 1]], r, [0, 0], states=states) for r in (rewards, rewards.astype("f"))
    )
    for normalize in ("none", "token", "turn", "trajectory"):
        wanted, found = (rows.assign(name, normalize=normalize, **options) for rows in (exact, rounded))
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-12)
        if name != "rtg_loo":  # there the second turns differ in what is to come
            assert not found.any()


def test_small_differences_stay_credit():
    rewards = np.array([[0, 0, 1.0], [0, 0, 1.00001]], "f")
    found = from_rows([[1, 0, 1], [1, 0, 1]], rewards, [0, 0]).assign("rloo", normalize="token")
    np.testing.assert_allclose(np.abs(found[:, [0, 2]]), 0.866, atol=2e-3)


def test_values_of_a_critic():
    value = np.arange(24.0).reshape(3, 8) / 24
    rows = from_rows(MASK, REWARD, [0, 0, 1], value_N=value, value_A=value)
    assert rows.batch.x["value_N"].tolist() == [
        value[i] for i in ((0, 1), (0, 5), (1, 0), (1, 3), (2, 2), (2, 4), (2, 6))
    ]
    found = rows.assign("turn_gae", gamma=1.0, lam=1.0)
    np.testing.assert_allclose(found[0, [1, 5]], [0.75 - value[0, 1], 0.5 - value[0, 5]])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"reward_BT": REWARD[:, :3]}, r"rewards: \[rows, tokens\] as the mask, \(3, 8\); not \(3, 3\)"),
        ({"group_B": [0, 0]}, "2 groups for 3 rows"),
        ({"mask_BT": MASK * [[1], [0], [1]]}, r"rows \[1\] have no action token: leave them out"),
        ({"truncated_B": [True]}, "1 truncated flags for 3 rows"),
        ({"turn_BT": MASK[:, :4]}, r"turn_BT: \[rows, tokens\] as the mask, \(3, 8\); not \(3, 4\)"),
        ({"value_N": np.ones((5, 9))}, r"value_N: \[rows, tokens\] as the mask, \(3, 8\); not \(5, 9\)"),
        ({"trajectory_B": [0, 1, 1]}, "an attempt has rows of two groups"),
        ({"mask_BT": MASK[:0], "reward_BT": REWARD[:0], "group_B": []}, "there are no rows"),
        ({"states": [["a", "b"], ["a"], ["a", "b", "b"]]}, "row 1 has 2 turns and 1 states"),
        ({"value": np.ones((3, 8))}, "value: a column's name ends in its level, _A, _N, _M"),
    ],
)
def test_what_does_not_fit_is_refused(change, why):
    with pytest.raises(ValueError, match=why):
        from_rows(**{"mask_BT": MASK, "reward_BT": REWARD, "group_B": [0, 0, 1]} | change)


def test_an_assigner_names_what_it_lacks():
    rows = from_rows(MASK, REWARD, [0, 0, 1])
    with pytest.raises(ValueError, match="turn_gae reads value_N: give each to from_rows by its name"):
        rows.assign("turn_gae")
    with pytest.raises(ValueError, match="there is no assigner 'gipo'; there are reinforce, rloo"):
        rows.assign("gipo")


def test_an_option_outside_its_bounds_is_refused():
    rows = from_rows(MASK, REWARD, [0, 0, 1])
    for options, why in (
        ({"gamma": 2.0}, "gamma is 0 to 1, not 2.0"),
        ({"gamma": float("nan")}, "gamma is 0 to 1, not"),
    ):
        with pytest.raises(ValueError, match=why):
            rows.assign("rtg_loo", **options)
    rows.assign("rtg_loo", gamma=1)


def test_a_cut_attempt_asks_for_the_value_after_it():
    value = np.ones((3, 8))
    rows = from_rows(MASK, REWARD, [0, 0, 1], truncated_B=[True, False, False], value_N=value)
    with pytest.raises(ValueError, match="turn_gae reads bootstrap_M: give each to from_rows by its name"):
        rows.assign("turn_gae")
    rows = from_rows(MASK, REWARD, [0, 0, 1], truncated_B=[True, False, False], value_N=value, bootstrap_M=value)
    assert rows.assign("turn_gae", gamma=1.0, lam=0.0)[0, 5] == REWARD[0, 5:].sum()


def test_verl(monkeypatch):
    """Against the contract of verl's registry: a decorator by name, tensors [B, T], groups by `index`."""
    registry, core = {}, ModuleType("verl.trainer.ppo.core_algos")
    core.register_adv_est = lambda name: lambda function: registry.setdefault(name, function)
    for name in ("verl", "verl.trainer", "verl.trainer.ppo"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, core.__name__, core)
    assert verl.register("gigpo", gamma=0.9) == "agentgym_gigpo"
    mask, reward = torch.tensor(MASK), torch.tensor(REWARD, dtype=torch.float32)
    uid = np.array(["x", "x", "y"], dtype=object)
    advantages, returns = registry["agentgym_gigpo"](
        token_level_rewards=reward, response_mask=mask, index=uid, config=None, anchor_obs=STATES
    )
    wanted = from_rows(MASK, REWARD, [0, 0, 1], states=STATES).assign("gigpo", gamma=0.9)
    np.testing.assert_allclose(advantages.numpy(), wanted, atol=1e-6)
    assert advantages.dtype == returns.dtype == torch.float32
    values = torch.rand(MASK.shape)
    advantages, returns = verl.estimator("turn_gae", gamma=1.0, lam=1.0)(reward, mask, uid, values=values)
    np.testing.assert_allclose(returns[0, [1, 5]], [0.75, 0.5], atol=1e-6)
    half = verl.estimator("turn_gae")(reward.bfloat16(), mask, uid, values=values.bfloat16())[0]
    single = verl.estimator("turn_gae")(reward, mask, uid, values=values.bfloat16().float())[0]
    torch.testing.assert_close(half, single)


@pytest.mark.parametrize(
    ("name", "options"),
    [("token_gae", {"lam": 1.0, "normalize": "token"}), ("turn_gae", {"gamma": 1.0, "lam": 1.0}), ("digirl", {})],
)
def test_verl_fits_the_critic_to_what_is_to_come(name, options):
    """Not to normalized advantages plus the values, nor at a turn's later tokens to values of their own."""
    mask, reward = torch.tensor(MASK), torch.tensor(REWARD, dtype=torch.float32)
    _, returns = verl.estimator(name, **options)(reward, mask, ["x", "x", "y"], values=torch.rand(MASK.shape))
    rows = from_rows(MASK, REWARD, [0, 0, 1])
    to_come = rows.padded(reverse_scan(rows.batch.reward_N, rows.batch.traj_N, 1.0)[rows.batch.turn_A])
    np.testing.assert_allclose(returns.numpy(), to_come, atol=1e-6)


def test_verl_rows_that_are_masked_out_have_no_credit():
    """An estimator cannot leave rows out; the others' credit is as if these were not there."""
    mask, reward = torch.tensor(MASK * [[1], [0], [1]]), torch.tensor(REWARD, dtype=torch.float32)
    advantages, _ = verl.estimator("rloo")(reward, mask, ["x", "x", "x"])
    wanted = from_rows(MASK[[0, 2]], REWARD[[0, 2]], ["x", "x"]).assign("rloo")
    np.testing.assert_allclose(advantages.numpy()[[0, 2]], wanted, atol=1e-6)
    assert not advantages[1].any()
    assert not verl.estimator("rloo")(reward, mask * 0, ["x", "x", "x"])[0].any()


def test_verl_counts_a_repeated_return_once():
    """Where a row is a turn and its token-level rewards are the episode's, `rewards` are the row's own."""
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]])
    repeated = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.5]])
    found, _ = verl.estimator("rloo")(
        repeated, mask, ["x"] * 3, traj_uid=["a", "a", "b"], rewards=np.array([0.0, 1.0, 0.5], dtype=object)
    )
    np.testing.assert_allclose(found.numpy(), np.array([[0.5, 0.5, 0], [0.5, 0, 0], [-0.5, -0.5, -0.5]]))


class Scored:
    """GRPOTrainer's part of the contract: rewards first, then a batch whose advantages are a number a row."""

    accelerator, model = SimpleNamespace(process_index=0), SimpleNamespace(training=True)
    num_generations, reward_weights, mask = 2, torch.ones(1), torch.ones(2, 3)

    def _calculate_rewards(self, inputs):
        return torch.tensor([[1.0], [0.0]])

    def _generate_and_score_completions(self, inputs):
        self._calculate_rewards(inputs)
        return {"completion_mask": self.mask, "advantages": torch.zeros(2)}


def test_trl_where_every_completion_is_masked_out():
    """As with `mask_truncated_completions`, where all of them were cut: no credit, and no error."""

    class Trainer(trl.TurnCredit, Scored):
        credit = "rloo"

    found = Trainer()._generate_and_score_completions([{}, {}])["advantages"]
    assert found.tolist() == [[1.0] * 3, [-1.0] * 3]
    cut = Trainer()
    cut.mask = torch.zeros(2, 3)
    assert cut._generate_and_score_completions([{}, {}])["advantages"].tolist() == [[0.0] * 3] * 2


def test_prime_rl():
    """Against its contract: one group, a list of numbers for each rollout's completion tokens."""

    def step(prompt: int, completion: int, reward: float | None, state: str) -> dict:
        tokens = {"prompt_ids": [0] * prompt, "completion_ids": [1] * completion, "completion_mask": [1] * completion}
        return {"tokens": tokens, "reward": reward, "extras": {"state_key": state}}

    rollouts = [
        {"reward": 1.0, "trajectory": [step(4, 2, 0.25, "a"), step(9, 1, None, "b")]},
        {"reward": 0.0, "trajectory": [step(4, 3, None, "a")]},
    ]
    inputs = SimpleNamespace(rollouts=rollouts, completion_lengths=[6, 3])
    found = prime_rl.advantages(inputs, assigner="rtg_loo")
    assert found == [[1.0, 1.0, 0.0, 0.0, 0.0, 0.75], [-1.0, -1.0, -1.0]]
    rollouts[0]["trajectory"][1]["tokens"]["prompt_ids"] = [0]
    with pytest.raises(ValueError, match="rollout 0: turn 1 does not continue the one before it"):
        prime_rl.advantages(inputs)
    rollouts[1]["reward"] = None
    rollouts[0]["trajectory"].pop()
    with pytest.raises(ValueError, match="rollout 1 has no reward: leave rollouts that failed out"):
        prime_rl.advantages(inputs)
    assert prime_rl.advantages(SimpleNamespace(rollouts=[], completion_lengths=[])) == []


def test_prime_rl_rollouts_without_a_sampled_token():
    """One that failed before its first turn has no credit; the others' is as if it were not there."""

    def step(mask: list[int]) -> dict:
        return {"tokens": {"prompt_ids": [0, 0], "completion_ids": [1] * len(mask), "completion_mask": mask}}

    rollouts = [{"reward": r, "trajectory": [step([1, 1])]} for r in (1.0, 0.0)]
    rollouts += [{"reward": 0.0, "trajectory": []}, {"reward": 0.0, "trajectory": [step([0, 0])]}]
    inputs = SimpleNamespace(rollouts=rollouts, completion_lengths=[2, 2, 0, 2])
    assert prime_rl.advantages(inputs, assigner="rloo") == [[1.0, 1.0], [-1.0, -1.0], [], [0.0, 0.0]]
