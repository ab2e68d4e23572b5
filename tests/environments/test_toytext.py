"""ToyText: Gymnasium's environments in words, and any other one by its parameters."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from agentgym import registry
from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.benchmarks.toytext.env import ToyText
from agentgym_environments.benchmarks.toytext.solver import best_actions
from agentgym_environments.benchmarks.toytext.words import plain


def test_a_rendering_drops_escapes_and_keeps_the_agent():
    assert plain("  (Left)\n\x1b[41mS\x1b[0mFFF\nFHFG\n") == "@FFF\nFHFG"
    taxi = "|\x1b[35m\x1b[34;1m\x1b[43mY\x1b[0m\x1b[0m\x1b[0m: |\n|\x1b[35mR\x1b[0m: |"
    assert plain(taxi) == "|@: |\n|R: |"


def test_frozenlake_gives_a_new_map_each_task_and_does_not_slip():
    env = registry.make("frozenlake")
    maps = {env.reset(seed=0, options={"task": task})[0] for task in range(200)}
    assert len(maps) == 200
    assert all(text.startswith("@") and text.endswith("G") for text in maps)
    env.reset(options={"task": 0})
    assert env.step("left")[0].startswith("@")  # a wall: nothing moves


def test_falling_in_is_no_success():
    env = registry.make("frozenlake")
    for task in range(700):
        observation, _ = env.reset(options={"task": task})
        if observation[1] == "H":
            break
    _, reward, terminated, _, info = env.step("right")
    assert (reward, terminated, info["success"]) == (0.0, True, False)


def test_chance_follows_the_seed_and_not_the_task():
    env = registry.make("frozenlake", make_kwargs={"is_slippery": True})
    walks = []
    for seed in (0, 0, 1, 2, 3):
        env.reset(seed=seed, options={"task": 5})
        walks.append([env.step("down")[4]["state_key"] for _ in range(2) if not env.over])
    assert walks[0] == walks[1]
    assert any(walk != walks[0] for walk in walks)


def test_taxi_says_where_everything_is_and_starts_everywhere():
    env = registry.make("taxi")
    starts = set()
    for split, size in env.env_spec.splits.items():
        starts |= {env.reset(options={"split": split, "task": task})[0].splitlines()[-1] for task in range(size)}
    assert len(starts) == 300
    observation, _ = env.reset(options={"task": 0})
    assert observation.count("@") == 1
    _, reward, *_, info = env.step("dropoff")
    assert (reward, info["valid_action"], info["success"]) == (-10.0, True, False)


def test_nonsense_costs_what_a_move_costs_where_moves_cost():
    for name in ("taxi", "cliffwalking"):
        env = registry.make(name)
        env.reset(seed=0)
        assert env.step("fly")[1] == -1.0


def test_the_cliff():
    env = registry.make("cliffwalking")
    observation, _ = env.reset(options={"task": 0})
    assert observation.splitlines()[-1].startswith("x  C")  # the usual start
    _, reward, terminated, _, info = env.step("right")
    assert (reward, terminated, info["state_key"]) == (-100.0, False, "state 36")
    rewards = []
    while not env.over:
        rewards.append(env.step(env.solver())[1])
    assert rewards == [-1.0] * 13
    assert env.success


def test_blackjack_by_its_numbers():
    env = registry.make("blackjack")
    observation, info = env.reset(seed=0, options={"task": 0})
    assert observation.startswith("your sum ")
    assert "dealer" in info["state_key"]
    returns = []
    for task in range(600):
        env.reset(seed=task, options={"task": task})
        while not env.over:
            reward = env.step("stick" if int(env.observe().split()[2].strip(";")) >= 17 else "hit")[1]
        assert env.success == (reward == 1.0)
        returns.append(reward)
    assert -0.25 < np.mean(returns) < 0.1  # the dealer's own strategy loses about 0.08 a game


def test_never_to_act_loses_at_blackjack():
    env = registry.make("blackjack")
    env.reset(seed=0, options={"task": 0})
    rewards = []
    while not env.over:
        rewards.append(env.step("I would rather not.")[1])
    assert rewards == [-0.1] * 12  # the best play earns -0.05


def test_value_iteration_on_a_hand_made_table():
    # 0 -> 1 -> 2 (final, +1); action 1 stays and pays nothing.
    table = {
        0: {0: [(1.0, 1, 0.0, False)], 1: [(1.0, 0, 0.0, False)]},
        1: {0: [(0.5, 2, 1.0, True), (0.5, 1, 0.0, False)], 1: [(1.0, 1, 0.0, False)]},
        2: {0: [(1.0, 2, 0.0, True)], 1: [(1.0, 2, 0.0, True)]},
    }
    assert best_actions(table)[:2].tolist() == [0, 0]


class Dial(gymnasium.Env):
    """A stranger's environment: turn a dial to 3."""

    metadata = {"render_modes": ["ansi"]}
    observation_space = gymnasium.spaces.Discrete(7)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = int(self.np_random.choice([0, 1, 2, 4, 5, 6]))
        return self.at, {}

    def step(self, action):
        self.at = min(6, max(0, self.at + (1 if action else -1)))
        return self.at, float(self.at == 3), self.at == 3, False, {}

    def render(self):
        return f"dial {self.at}"


@pytest.fixture
def dial():
    gymnasium.register("AgentGymDial-v0", Dial)
    yield EnvSpec(
        id="dial",
        description="A dial.",
        instructions="Turn it to 3: say less or more.",
        actions=("less", "more"),
        splits={"train": 20},
        max_turns=8,
        info_keys=("success", "valid_action", "state_key"),
        capabilities=("snapshot",),
    )
    del gymnasium.registry["AgentGymDial-v0"]


def test_any_environment_with_a_few_actions_is_served(dial):
    env = ToyText(dial, env_id="AgentGymDial", tasks="seeds", show_map=True, template="it shows {0}")
    observation, info = env.reset(seed=0, options={"task": 1})
    assert observation == f"dial {env.raw}\nit shows {env.raw}"
    state = env.snapshot()
    while not env.over:
        info = env.step("more" if env.raw < 3 else "less")[4]
    assert info["success"]
    env.restore(state)
    assert env.observe() == observation


def test_words_that_do_not_fit_the_actions_are_refused(dial):
    with pytest.raises(ConfigError, match="the spec names 3"):
        ToyText(dial.model_copy(update={"actions": ("a", "b", "c")}), env_id="AgentGymDial", tasks="seeds")
    with pytest.raises(ConfigError, match="no environment 'Nowhere-v9'"):
        ToyText(dial, env_id="Nowhere-v9")
