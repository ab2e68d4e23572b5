"""Credit in other trainers refuses what would be silently another credit: options, needs, rows and columns."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from agentgym_credit import from_rows
from agentgym_credit.adapters import prime_rl, trl, verl
from agentgym_trainers.testing import toy_batch

MASK = np.array([[1, 1, 0, 1], [1, 0, 1, 1]])
REWARD = np.array([[0.0, 0, 0, 1], [0, 0, 0, 0]])
STATES = [["hall", "key"], ["hall", "wall"]]
NAN = float("nan")


def rows(**changes):
    return from_rows(**{"mask_BT": MASK, "reward_BT": REWARD, "group_B": ["x", "x"], "states": STATES} | changes)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("gigpo", {"gama": 0.9}, "gigpo has no option 'gama'; it has omega, gamma, norm"),
        ("dr_grpo", {"eps": 0.9}, "dr_grpo has no option 'eps'; it has none"),
        ("gigpo", {"norm": "sdt"}, "norm is one of 'mean', 'std', not 'sdt'"),
        ("gigpo", {"norm": None}, "norm is one of 'mean', 'std', not None"),
        ("prime", {"variant": "papr"}, "variant is one of 'released', 'paper', not 'papr'"),
        ("filtered", {"keep": "sucess"}, "keep is one of 'success', 'threshold', 'quantile', not 'sucess'"),
        ("gigpo", {"omega": NAN}, "omega is a finite number, not nan"),
        ("gigpo", {"omega": float("inf")}, "omega is a finite number, not inf"),
        ("gigpo", {"gamma": "0.9"}, "gamma is a number, not '0.9'"),
        ("gigpo", {"gamma": True}, "gamma is a number, not True"),
        ("hgpo", {"history": 1.5}, "history is an integer, not 1.5"),
        ("hgpo", {"history": -1}, "history is 0 or more, not -1"),
        ("reinforce", {"reward_to_go": "no"}, "reward_to_go is True or False, not 'no'"),
        ("gigpo", {"normalize": "tokens"}, "normalize is one of 'none', 'token', 'turn', 'trajectory', not 'tokens'"),
    ],
)
def test_a_wrong_option_is_refused_with_its_choices(name, options, why):
    with pytest.raises(ValueError, match=why):
        rows().assign(name, **options)
    with pytest.raises(ValueError, match=why):
        verl.estimator(name, **options)


def test_numbers_of_numpy_are_options():
    found = rows().assign("hgpo", gamma=np.float32(0.5), history=np.int64(1), alpha=1)
    np.testing.assert_array_equal(found, rows().assign("hgpo", gamma=0.5, history=1))


@pytest.mark.parametrize("name", ["gigpo", "hgpo", "gagpo", "rewardflow"])
def test_without_states_nothing_compares_them(name):
    for states in (None, [None, None], [[None, None], None]):
        with pytest.raises(ValueError, match=f"{name} compares turns at equal states, and no turn has a state: give"):
            rows(states=states).assign(name)
    rows(states=[None, ["hall", None]]).assign(name)


def test_groups_of_one_have_nothing_to_compare():
    with pytest.raises(ValueError, match="rloo compares attempts at one task, and there is one attempt at each"):
        rows(group_B=[0, 1]).assign("rloo")
    assert rows(group_B=[0, 1]).assign("reinforce").any()
    assert not rows(mask_BT=MASK * [[1], [0]], skip_idle=True).assign("rloo").any()  # one of two was cut


def test_a_gate_alone_reads_what_its_skill_reads():
    assert rows(prm_A=np.ones(MASK.shape)).assign("prm_turns").any()
    assert rows(prm_A=np.ones(MASK.shape)).assign("prm_tokens", normalize="token").shape == MASK.shape
    for keep in ("threshold", "quantile"):
        assert rows().assign("filtered", keep=keep)[0].tolist() == [1, 1, 0, 1]
    with pytest.raises(ValueError, match="filtered reads success_M"):
        rows().assign("filtered")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mask_BT": [[-100, 5, 6, 7]] * 2}, "1 where the policy sampled the token, else 0; row 0, column 0 is -100"),
        ({"mask_BT": np.where(MASK > 0, MASK, NAN)}, "else 0; row 0, column 2 is nan"),
        ({"mask_BT": [["1"] * 4] * 2}, r"the mask is numbers \[rows, tokens\]; not <U1"),
        ({"reward_BT": np.where(REWARD > 0, NAN, 0)}, "rewards are finite numbers; row 0, column 3 is nan"),
        ({"reward_BT": np.where(REWARD > 0, np.inf, 0)}, "rewards are finite numbers; row 0, column 3 is inf"),
        ({"group_B": [{}, {}]}, "groups: row 0 is of type dict, which has no hash"),
        ({"states": [["hall", "key"], ["hall", [1]]]}, "states: row 1, turn 1 is of type list, which has no hash"),
    ],
)
def test_rows_of_another_meaning_are_refused(changes, why):
    with pytest.raises(ValueError, match=why):
        rows(**changes)


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ({"value_N": [0.5]}, r"value_N has the shape \(1,\), expected \(4,\)"),
        ({"value_A": np.zeros(3)}, r"value_A has the shape \(3,\), expected \(4,\)"),
        ({"inst_value_M": [0.5]}, r"inst_value_M has the shape \(1,\), expected \(2,\)"),
        ({"q_N": np.zeros((4, 1))}, r"q_N has the shape \(4, 1\), expected \(4,\)"),
        ({"value": np.zeros(4)}, "value: a column's name ends in its level, _M, _N, _A"),
    ],
)
def test_a_column_of_another_length_is_refused(column, why):
    with pytest.raises(ValueError, match=why):
        toy_batch([[0, 1], [0, 0]], **column)


def test_verl_refuses_what_it_cannot_feed():
    """At the start where nothing can help, and with a way out where another trainer might pass it."""
    with pytest.raises(ValueError, match="there is no assigner 'gipo'"):
        verl.estimator("gipo")
    with pytest.raises(ValueError, match="prime reads prm_A, which verl does not have: take another"):
        verl.estimator("prime")
    mask, reward = torch.tensor(MASK), torch.tensor(REWARD)
    with pytest.raises(ValueError, match=r"turn_gae reads a critic's values, .* take verl's gae \(algorithm.adv_esti"):
        verl.estimator("turn_gae")(reward, mask, ["x", "x"])
    with pytest.raises(ValueError, match="in verl anchor_obs"):
        verl.estimator("gigpo")(reward, mask, ["x", "x"])


class Scored:
    """GRPOTrainer's part of the contract."""

    accelerator, model = SimpleNamespace(process_index=0), SimpleNamespace(training=True)
    num_generations, reward_weights = 2, torch.ones(1)
    num_generations_eval = 1

    def _calculate_rewards(self, inputs):
        return torch.tensor([[1.0], [0.0]])

    def _generate_and_score_completions(self, inputs):
        self._calculate_rewards(inputs)
        return {"completion_mask": torch.ones(2, 4), "tool_mask": torch.tensor(MASK), "advantages": torch.zeros(2)}


def credit_of(name: str, *inputs: dict, training: bool = True) -> list:
    class Trainer(trl.TurnCredit, Scored):
        credit, model = name, SimpleNamespace(training=training)

    return Trainer()._generate_and_score_completions(list(inputs))["advantages"].tolist()


@pytest.mark.parametrize(("given", "count"), [([0.5], 1), ([0.5, 0.1, 0.2], 3), (0.5, 1)])
def test_trl_wants_a_reward_for_every_turn(given, count):
    with pytest.raises(ValueError, match=f"row 1 has 2 turns and {count} turn_rewards: one a turn"):
        credit_of("reinforce", {}, {"turn_rewards": given})


def test_trl_rows_without_rewards_or_states():
    """None is no reward of turns, and the states of one row count though the first has none."""
    assert credit_of("reinforce", {"turn_rewards": None}, {"turn_rewards": [0.5, 0]}) == [
        [1, 1, 0, 1],
        [0.5, 0, 0.5, 0.5],
    ]
    repeated = credit_of("gigpo", {}, {"turn_states": ["hall", "hall"], "turn_rewards": [1, 0]})
    assert repeated[1][0] > repeated[1][2]
    with pytest.raises(ValueError, match="in TRL turn_states"):
        credit_of("gigpo", {}, {})


def test_lone_attempts_are_no_error_in_trainers():
    """An evaluation may play each task once, and a rollout may be all that is left of its group."""
    assert credit_of("rloo", {}, {}, training=False) == [[0] * 4] * 2
    step = {"tokens": {"prompt_ids": [0], "completion_ids": [1], "completion_mask": [1]}}
    inputs = SimpleNamespace(rollouts=[{"reward": 1.0, "trajectory": [step]}], completion_lengths=[1])
    assert prime_rl.advantages(inputs, assigner="rloo") == [[0.0]]
