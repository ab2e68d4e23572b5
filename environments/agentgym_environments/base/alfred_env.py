"""Base of environments on ALFWorld's engine: household chores in text, solved by its planner."""

from __future__ import annotations

import hashlib
from typing import Any

from agentgym.spec import EnvSpec
from agentgym_environments.base.engine_env import TEXTWORLD, EngineEnv, package
from agentgym_environments.base.text_env import Outcome


class AlfredEnv(EngineEnv):
    """The only reward is 1 when the chore is done. A subclass implements `game`."""

    alone = TEXTWORLD

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        textworld = package("textworld", "alfworld")
        pddl = package("textworld.envs.pddl.pddl", "alfworld")
        if pddl.fast_downward_missing:
            package("fast_downward", "alfworld")
        tools = package("alfworld.agents.environment.alfred_tw_env", "alfworld")
        self.planner: Any = pddl.PddlEnv(
            textworld.EnvInfos(admissible_commands=True, facts=True, feedback=True, won=True)
        )
        self.inner: Any = tools.AlfredDemangler(self.planner)
        self.state: Any = None
        """The engine's last GameState."""
        self._text = ""
        self._plan: list[str] = []
        """The rest of the planner's plan, while it is followed."""

    def game(self, split: str, task: int) -> dict[str, str]:
        """Return a task's `pddl_domain`, `grammar` and `pddl_problem`."""
        raise NotImplementedError

    def open(self, split: str, task: int) -> None:
        self.inner.load(self.game(split, task))
        _remember_commands(self.planner._logic.grammar)
        self.state = self.inner.reset()
        self._text, self._plan = plain(self.state.feedback), []

    def observe(self) -> str:
        return self._text

    def apply(self, action: str) -> Outcome | None:
        if action not in self._possible():
            return None
        self.state, _, _ = self.inner.step(action)
        self._plan = self._plan[1:] if self._plan[:1] == [action] else []
        self._text = plain(self.state.feedback)
        won = bool(self.state.won)
        return Outcome(float(won), ended=won, success=won)

    def refuse(self, action: str) -> str:
        return f"not possible here; you can {', '.join(self._possible())}"

    def key(self) -> str:
        """Return where everything is and what was done to it. What was merely looked at is left out, and what is not
        so: the engine writes that down of some things, and only once it was so."""
        left_out = ("checked", "examined", "not_")
        facts = sorted(str(fact) for fact in self.state.facts if not fact.name.startswith(left_out))
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]

    def describe(self) -> dict[str, Any]:
        return {"available_actions": [] if self.over else self._possible()}

    def solver(self) -> str:
        """The next step of the planner's plan."""
        self.require_episode("solver")
        if not self._plan:
            with self.alone:
                plan = self.planner._pddl_state.replan(self.planner._entity_infos)
            self._plan = [" ".join(action.split()) for action in plan]
        return self._plan[0] if self._plan else "look"

    def close(self) -> None:
        with self.alone:
            self.inner.close()

    def _possible(self) -> list[str]:
        return [command for command in self.state.admissible_commands if command != "help"]


def _remember_commands(grammar: Any) -> None:
    """The engine parses every possible command anew at every step, which is nine tenths of its time; each is parsed
    once here. What a command says depends on its template and the things it names alone."""
    derive, known = grammar.derive, {}

    def remembered(start: str, context: dict[str, Any]) -> Any:
        if "#" in start or not context["mapping"]:
            return derive(start, context)
        key = start, tuple(sorted((place.name, thing.name) for place, thing in context["mapping"].items()))
        if key not in known:
            known[key] = derive(start, context)
        return known[key]

    grammar.derive = remembered


def plain(text: str) -> str:
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return "\n".join(line for line in lines if line and not line.startswith("-="))
