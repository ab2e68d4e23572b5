"""TextWorld: a generated text adventure. Commands are those that the engine calls admissible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.base.engine_env import TEXTWORLD, EngineEnv, package
from agentgym_environments.base.text_env import Outcome
from agentgym_environments.benchmarks.textworld.tasks import digest, game_file, require


class TextWorld(EngineEnv):
    """The reward of a step is the game's points for it, as a share of all there are; a win makes 1 in sum.

    challenge: "treasure_hunter" (levels 1 to 30), "coin_collector" (1 to 300), "simple" (1 to 3: how much is told),
    "cooking" (1 to 5). cache: where compiled games are kept; `~/.cache/agentgym/textworld` when empty.
    """

    alone = TEXTWORLD

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        challenge: str = "treasure_hunter",
        level: int = 3,
        cache: str = "",
    ) -> None:
        super().__init__(spec or EnvSpec.load(Path(__file__).with_name("spec.toml")))
        textworld = package("textworld", "textworld")
        require(challenge, level)
        self.challenge, self.level = challenge, level
        self.cache = Path(cache) if cache else Path.home() / ".cache" / "agentgym" / "textworld"
        self._wanted = textworld.EnvInfos(
            admissible_commands=True,
            description=True,
            facts=True,
            feedback=True,
            inventory=True,
            lost=True,
            max_score=True,
            objective=True,
            policy_commands=True,
            score=True,
            won=True,
        )
        self.inner: Any = None
        self.state: Any = None
        """The engine's last GameState."""
        self._text = ""

    def open(self, split: str, task: int) -> None:
        self.close()
        try:
            path = game_file(self.challenge, self.level, split, task, self.cache)
        except OSError as error:
            raise ConfigError(f"textworld: compiled games are kept in {self.cache}: {error}") from error
        self.inner = package("textworld", "textworld").start(str(path), request_infos=self._wanted)
        self.state = self.inner.reset()
        self._text = f"{self.state.objective}\n\n{plain(self.state.description)}"

    def observe(self) -> str:
        return self._text

    def apply(self, action: str) -> Outcome | None:
        if action not in self._lowered():
            return None
        before = self.state.score or 0
        self.state, _, _ = self.inner.step(self._lowered()[action])
        self._text = plain(self.state.feedback)
        gained = ((self.state.score or 0) - before) / (self.state.max_score or 1)
        won, lost = bool(self.state.won), bool(self.state.lost)
        return Outcome(gained, ended=won or lost, success=won)

    def refuse(self, action: str) -> str:
        return f"not possible here; you can {', '.join(self._lowered())}"

    def key(self) -> str:
        return digest([self.state.objective, str(self.state.score), *sorted(map(str, self.state.facts))])

    def describe(self) -> dict[str, Any]:
        share = min(1.0, max(0.0, (self.state.score or 0) / (self.state.max_score or 1)))
        return {
            "progress": share,
            "milestone": max(0, self.state.score or 0),
            "available_actions": [] if self.over else list(self._lowered()),
        }

    def solver(self) -> str:
        """The engine's own plan from here; `look` when the game can no longer be won."""
        self.require_episode("solver")
        plan = self.state.policy_commands
        return plan[0] if plan else "look"

    def close(self) -> None:
        with self.alone:
            if self.inner is not None:
                self.inner.close()
                self.inner = None

    def _lowered(self) -> dict[str, str]:
        """Command as it is told to us: as the engine writes it."""
        return {command.lower(): command for command in self.state.admissible_commands}


def plain(text: str) -> str:
    """The engine's text without its prompt, its closing menu and empty lines."""
    text = text.partition("*** The End ***")[0]
    lines = [line.strip() for line in text.splitlines()]
    return "\n".join(line for line in lines if line and not line.startswith(">"))
