"""GymnasiumEnv: plain Gymnasium environments keep the contract, by name and as a class of one's own."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from agentgym import GymnasiumEnv, registry
from agentgym.conformance.run import check_env
from agentgym.errors import BadRequest, ConfigError, UnknownEnvironment
from agentgym.gymnasium_env import plain


class Count(gymnasium.Env):
    """Three steps; the action is added."""

    def __init__(self, action_space=None):
        self.action_space = action_space or gymnasium.spaces.Discrete(3, start=-1)
        self.observation_space = gymnasium.spaces.Discrete(10**9)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.sum, self.steps = int(self.np_random.integers(10**9)), 0
        return self.sum, {}

    def step(self, action):
        self.steps += 1
        self.sum += action if isinstance(action, int | np.integer) else len(action)
        return self.sum, 1.0, self.steps == 3, False, {}


def counting(**fields):
    return GymnasiumEnv(Count, **{"max_turns": 5, "actions": ["down", "stay", "up"], **fields})


def test_a_plain_environment_keeps_the_rules():
    for make in (counting, lambda: registry.make("gymnasium:CartPole-v1:max_turns=30")):
        assert not [str(finding) for finding in check_env(make, tasks=5) if not finding.ok]


def test_actions_go_by_name():
    env = counting()
    first, info = env.reset(seed=0, options={"split": "test", "task": 1})
    assert info == {"valid_action": True}
    for action, change in (("up", 1), (" down ", 0), ("sideways", None)):
        observed, reward, terminated, truncated, info = env.step(action)
        if change is None:
            assert (observed, reward) == ("not an action; the actions are down, stay, up", 0.0)
        else:
            assert (observed, reward) == (str(int(first) + change), 1.0)
        assert (terminated, truncated, info) == (False, False, {"valid_action": change is not None})
    assert env.step("stay")[2] is True
    with pytest.raises(BadRequest, match="call reset before step"):
        env.step("stay")


def test_text_actions_are_handed_on():
    env = GymnasiumEnv(lambda: Count(gymnasium.spaces.Text(4, charset="abc")), max_turns=5)
    first, _ = env.reset(seed=0)
    assert env.step("abba")[0] == str(int(first) + 4)
    assert env.step("xyz")[4] == {"valid_action": False}


def test_success_is_the_threshold_of_the_registration():
    env = registry.make("gymnasium:FrozenLake-v1")
    assert env.env_spec.info_keys == ("valid_action", "success")
    env.reset(seed=0)
    env.inner.unwrapped.s = 14  # one step before the goal
    over, info = False, {}
    while not over:
        _, _, terminated, truncated, info = env.step("2")
        over = terminated or truncated
    assert info["success"] is (env.total >= 0.7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GymnasiumEnv("Nowhere-v1"), "gymnasium cannot make 'Nowhere-v1'"),
        (lambda: GymnasiumEnv(Count), "has no limit of steps: give one"),
        (lambda: GymnasiumEnv("Pendulum-v1"), r"wrap the environment in a gymnasium\.ActionWrapper"),
        (lambda: counting(actions=["up", "up", "down"]), "needs 3 different action names"),
        (lambda: counting(max_turn=3), "no EnvSpec"),
    ],
)
def test_what_cannot_be_adapted_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_plain_gymnasium_environment_gets_a_hint():
    with pytest.raises(UnknownEnvironment, match=r"is a gymnasium\.Env.*name a subclass of agentgym\.GymnasiumEnv"):
        registry.make("gymnasium.envs.classic_control.cartpole:CartPoleEnv")


def test_spec_of_an_adapted_class_is_read_from_an_instance(monkeypatch, tmp_path):
    (tmp_path / "ag_poles.py").write_text(
        "from agentgym import GymnasiumEnv\nclass Pole(GymnasiumEnv):\n    def __init__(self):\n"
        '        super().__init__("CartPole-v1", actions=["left", "right"])\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.get_spec("ag_poles:Pole").actions == ("left", "right")
    assert registry.get_spec("gymnasium:CartPole-v1").max_turns == 500


def test_observations_become_text():
    assert plain({"at": np.array([0.5, 1e-9]), "pair": (1, np.float32(2.5))}) == "at: [0.5, 0. ]\npair: 1, 2.5"
    assert plain("words") == "words"
