"""ToyText: any Gymnasium environment with a few discrete actions, told in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from agentgym.errors import ConfigError
from agentgym.evaluation.action_values import ActionValues
from agentgym.spec import EnvSpec
from agentgym_environments.base.text_env import Outcome, TurnEnv, split_of, task_random
from agentgym_environments.benchmarks.toytext.exact import exact_values
from agentgym_environments.benchmarks.toytext.solver import best_actions
from agentgym_environments.benchmarks.toytext.tasks import maps, newest, starts
from agentgym_environments.benchmarks.toytext.words import plain, state_key, values

DISCOUNT = 0.95
"""Discount of exact values: without one, every detour on ice that does not slip is worth as much as the shortest
path."""


class ToyText(TurnEnv):
    """A Gymnasium environment behind words. The spec's actions name the environment's actions 0, 1, 2, ...

    env_id, make_kwargs: for `gymnasium.make`; an id without version is its newest one.
    tasks: "maps" (FrozenLake: one map a task), "starts" (tabular: one start state a task) or "seeds".
    map_size: side of the maps. show_map: the observation begins with the environment's text rendering.
    template: a sentence with {0}, {1}, ... for the parts of the observation; `labels` names the values of a part.
    success_reward: an episode that terminates with at least this reward is a success.
    invalid_reward: for words that are no action; where moves cost, so must nonsense.

    The task decides how an episode opens; chance within it follows the seed of `reset`. A snapshot is the list of
    actions, which `restore` plays again.
    """

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        env_id: str = "FrozenLake",
        make_kwargs: dict[str, Any] | None = None,
        tasks: str = "maps",
        map_size: int = 4,
        show_map: bool = True,
        template: str = "",
        labels: dict[str, list[str]] | None = None,
        success_reward: float = 1.0,
        invalid_reward: float = 0.0,
    ) -> None:
        super().__init__(spec or EnvSpec.load(Path(__file__).with_name("spec.toml")))
        self.env_id, self.tasks, self.map_size, self.show_map = newest(env_id), tasks, map_size, show_map
        self.make_kwargs = self.env_spec.kwargs.get("make_kwargs", {}) if make_kwargs is None else make_kwargs
        self.template, self.labels = template, {int(part): names for part, names in (labels or {}).items()}
        self.success_reward, self.invalid_reward = success_reward, invalid_reward
        self.inner = self._make()
        self._list = self._tasks()
        self.raw: Any = None
        """The inner environment's last observation."""
        self._opening: tuple[str, int, int] = ("", 0, 0)
        """Split, task and the seed of chance."""
        self._taken: list[int] = []
        self._reseeded: list[tuple[int, int]] = []
        """(actions taken before, seed) of every new chance within the episode."""
        self._policy: np.ndarray | None = None

    def begin(self, split: str, task: int) -> None:
        self._open(split, task, int(self.np_random.integers(2**31)))

    def observe(self) -> str:
        inner = self.inner.unwrapped
        parts = values(self.raw, getattr(inner, "decode", None))
        named = [self.labels[i][part] if i in self.labels else part for i, part in enumerate(parts)]
        shown = [plain(self.inner.render())] if self.show_map else []  # type: ignore[arg-type]
        if self.template:
            shown.append(self.template.format(*named))
        return "\n".join(shown)

    def act(self, action: str) -> Outcome | None:
        if action not in self.env_spec.actions:
            return None
        number = self.env_spec.actions.index(action)
        self._taken.append(number)
        self.raw, reward, terminated, truncated, _ = self.inner.step(number)
        success = terminated and float(reward) >= self.success_reward
        return Outcome(float(reward), bool(terminated), bool(success), bool(truncated))

    def key(self) -> str:
        return state_key(self.inner.unwrapped, self.raw, maps=self.tasks == "maps")

    def describe(self) -> dict[str, Any]:
        """`available_actions`: of a tabular environment, those that may change the state."""
        table, words = getattr(self.inner.unwrapped, "P", None), self.env_spec.actions
        if self.over:
            return {"available_actions": []}
        if table is None:
            return {"available_actions": list(words)}
        here = self.inner.unwrapped.s  # type: ignore[attr-defined]
        doing = [a for a, outcomes in table[here].items() if any(o[1] != here or o[3] for o in outcomes)]
        return {"available_actions": [words[action] for action in doing]}

    def solver(self) -> str:
        """Value iteration on the environment's table."""
        self.require_episode("solver")
        inner: Any = self.inner.unwrapped
        if not hasattr(inner, "P"):
            return super().solver()  # type: ignore[return-value]
        if self._policy is None:
            self._policy = best_actions(inner.P)
        return self.env_spec.actions[self._policy[inner.s]]

    def action_values(
        self, split: str, tasks: Sequence[int], *, epsilon: float = 0.0, discount: float | None = None
    ) -> list[ActionValues]:
        """Exact values of all actions in every state of the tasks, under an epsilon-greedy policy on the optimal
        values.

        The discount is 0.95 unless one is given. The episode that was running is lost. Raises ConfigError without a
        transition table.
        """
        if not hasattr(self.inner.unwrapped, "P"):
            raise ConfigError(f"{self.env_spec.id} has no transition table, so no exact values: take frozenlake")
        found = []
        for task in tasks:
            self._open(split, task, 0)
            inner: Any = self.inner.unwrapped
            found += exact_values(
                self.env_spec,
                inner.P,
                int(inner.s),
                self._show,
                f"{split}/{task}",
                epsilon=epsilon,
                discount=discount or DISCOUNT,
            )
        self.turn, self.over = -1, False
        return found

    def _show(self, state: int) -> tuple[str, str]:
        """(key, observation) of a state of the table."""
        inner: Any = self.inner.unwrapped
        self.raw = inner.s = state
        return self.key(), self.observe()

    def save(self) -> Any:
        return {"opening": self._opening, "actions": self._taken, "reseeded": self._reseeded}

    def load(self, state: Any) -> None:
        self._open(*state["opening"])
        for number, action in enumerate([*state["actions"], None]):
            for before, chance in state.get("reseeded", ()):
                if before == number:
                    self._draw_from(chance)
            if action is not None:
                self.act(self.env_spec.actions[action])

    def reseed(self, seed: int) -> None:
        super().reseed(seed)
        self._draw_from(int(self.np_random.integers(2**31)))

    def _draw_from(self, chance: int) -> None:
        inner: Any = self.inner.unwrapped
        inner.np_random = np.random.default_rng(chance)
        self._reseeded.append((len(self._taken), chance))

    def close(self) -> None:
        self.inner.close()

    def _make(self, **more: Any) -> gymnasium.Env:
        mode = "ansi" if self.show_map else None
        limit = self.env_spec.max_turns
        given = {**self.make_kwargs, **more}
        made = gymnasium.make(self.env_id, render_mode=mode, max_episode_steps=limit, disable_env_checker=True, **given)
        space, words = made.action_space, self.env_spec.actions
        if not isinstance(space, gymnasium.spaces.Discrete) or space.n != len(words):
            raise ConfigError(f"{self.env_id} has the actions {space}; the spec names {len(words)}: {', '.join(words)}")
        return made

    def _tasks(self) -> tuple:
        """Every task of "maps" and "starts", the splits one after another."""
        if self.tasks == "seeds":
            return ()
        if self.tasks not in ("maps", "starts"):
            raise ConfigError(f'toytext: tasks is "maps", "starts" or "seeds", not {self.tasks!r}')
        wanted = sum(self.env_spec.splits.values())
        if self.tasks == "maps":
            return maps(self.map_size, wanted)
        found = starts(self.inner.unwrapped, self.env_id)
        if wanted > len(found):
            raise ConfigError(f"{self.env_id} has {len(found)} start states, fewer than the {wanted} tasks of the spec")
        return found

    def _open(self, split: str, task: int, chance: int) -> None:
        sizes, names = self.env_spec.splits, list(self.env_spec.splits)
        number = sum(sizes[name] for name in names[: names.index(split)]) + task
        inner: Any = self.inner.unwrapped
        if self.tasks == "seeds":
            random = task_random("toytext", self.env_id, split, task)
            self.raw, _ = self.inner.reset(seed=random.randrange(2**31))
            while split_of(self.key()) != split:
                self.raw, _ = self.inner.reset(seed=random.randrange(2**31))
        elif self.tasks == "maps":
            self.inner, self._policy = self._make(desc=list(self._list[number])), None
            inner = self.inner.unwrapped
            self.raw, _ = self.inner.reset(seed=0)
        else:
            self.inner.reset(seed=0)
            self.raw = inner.s = self._list[number]
        inner.np_random = np.random.default_rng(chance)
        self._opening, self._taken, self._reseeded = (split, task, chance), [], []
