"""Household chores in kitchens of our own, in ALFWorld's language and on its engine."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.base.alfred_env import AlfredEnv
from agentgym_environments.base.engine_env import package
from agentgym_environments.base.text_env import split_of, task_random
from agentgym_environments.synthetic.kitchen_textworld.tasks import KINDS, PLACES, chore


class KitchenTextWorld(AlfredEnv):
    """The only reward is 1 when the chore is done.

    kind: "put", "clean", "heat", "cool", "two" or "mixed". size: "small" or "large" kitchens.
    """

    def __init__(self, spec: EnvSpec | None = None, *, kind: str = "put", size: str = "small") -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        if kind not in (*KINDS, "mixed"):
            raise ConfigError(f"{spec.id} has no chores of kind {kind!r}; it has {', '.join(KINDS)} and mixed")
        if size not in PLACES:
            raise ConfigError(f"{spec.id} has no kitchens of size {size!r}; it has {', '.join(PLACES)}")
        super().__init__(spec)
        self.kind, self.size = kind, size

    def game(self, split: str, task: int) -> dict[str, str]:
        random = task_random("alfworld", self.kind, self.size, split, task)  # as in version 1.0.0, which had that name
        while True:
            made = chore(random, self.kind, self.size)
            if split_of(made.content) == split:
                break
        domain, grammar = language()
        grammar = grammar.replace("UNKNOWN GOAL", made.goal.rstrip("."))
        return {"pddl_domain": domain, "grammar": grammar, "pddl_problem": made.problem()}


@cache
def language() -> tuple[str, str]:
    """ALFWorld's PDDL domain and its grammar, as its package carries them."""
    folder = Path(package("alfworld", "alfworld").__file__).parent / "data"
    return (folder / "alfred.pddl").read_text(), (folder / "alfred.twl2").read_text()
