"""Base of environments in which an agent works on a desktop with a mouse, a keyboard and applications."""

from __future__ import annotations

from agentgym.env import Observation
from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.backends.desktop.actions import Act, do
from agentgym_environments.backends.desktop.desktop import Desktop, pause
from agentgym_environments.backends.desktop.tree import Element, Numbers
from agentgym_environments.base.episode_env import EpisodeEnv

CALCULATOR_AGAIN_S = 0.3
"""galculator holds a button down for a quarter of a second when its key is pressed, and takes no other press of it
meanwhile; whoever looks before its end sees now this and now that."""

MENU_APART_S = 0.55
"""Seconds between two clicks while a menu is open. GTK takes a release in the first half second for the end of the
click that opened it."""

FILES_S = 0.1
"""pcmanfm takes note of a selection a little after it shows: until then it opens, renames and copies what was selected
before. Of 36 episodes .05 s lost none, where no wait lost more than half."""


class DesktopEnv(EpisodeEnv):
    """A subclass opens `self.desktop` in `begin`, and calls `act` and `look` in a step.

    observation: "text" (the accessibility tree), "image" (a screenshot, and the task in words) or "both".
    """

    def __init__(self, spec: EnvSpec, observation: str) -> None:
        if observation not in ("text", "image", "both"):
            raise ConfigError(f'observation is "text", "image" or "both", not {observation!r}')
        if observation != "text":
            changes = {"observations": ("text", "image"), "capabilities": (*spec.capabilities, "image")}
            why = "A screenshot may show a path, a tooltip or the time of a file, which are not the same every time."
            notes = f"{spec.notes} {why}".strip()
            spec = spec.model_copy(update={**changes, "deterministic": False, "notes": notes})
        super().__init__(spec)
        self.observation = observation
        self.desktop: Desktop | None = None
        self.elements: list[Element] = []
        self._numbers = Numbers()

    def close(self) -> None:
        if self.desktop is not None:
            desktop, self.desktop = self.desktop, None
            self.turn = -1
            desktop.close()

    def act(self, act: Act, desktop: Desktop) -> None:
        slow = any(
            one.role == "window" and one.name == "galculator" and "active" in one.states for one in self.elements
        )
        menu = any(one.role in ("item", "popup") for one in self.elements)
        do(act, desktop, CALCULATOR_AGAIN_S if slow else 0.0, MENU_APART_S if menu else 0.0)
        if slow and act.verb in ("type", "press"):
            desktop.ask("rest")
            pause(CALCULATOR_AGAIN_S)
        elif any(one.role == "icon" for one in self.elements):
            desktop.ask("rest")
            pause(FILES_S)

    def look(self, desktop: Desktop) -> None:
        """Read what shows into `elements`, once the desktop is at rest."""
        windows = desktop.ask("read")
        self.elements = self._numbers.elements(windows, str(desktop.home), desktop.popups())

    def where(self, number: int) -> tuple[int, int] | None:
        """Return the centre of the element of that number, in pixels."""
        return next((one.centre for one in self.elements if one.number == number), None)

    def picture(self, head: str) -> Observation:
        """Return the observation of the desktop under a head of text."""
        tree = "\n".join(one.line() for one in self.elements) or "nothing is open any more"
        if self.observation == "text":
            return f"{head}\n{tree}"
        assert self.desktop is not None
        with self.desktop.watched():
            image = self.desktop.screenshot()
        return {"text": head if self.observation == "image" else f"{head}\n{tree}", "image": image}
