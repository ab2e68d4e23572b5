"""reasoning-gym: a question, an answer, and the data set's own verifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentgym.spec import EnvSpec
from agentgym_environments.base.engine_env import EngineEnv, require_flag
from agentgym_environments.base.text_env import Outcome
from agentgym_environments.benchmarks.reasoning_gym.checks import is_full, is_readable
from agentgym_environments.benchmarks.reasoning_gym.tasks import NO_SOLVER, UNSTEADY, question, require

RIGHT = 0.999
"""Verifiers compute in floats: from here on an answer is right."""


class ReasoningGym(EngineEnv):
    """One turn an episode.

    dataset: a name of reasoning-gym's. level: 0 and up, of the data set's curriculum; without, its usual difficulty.
    partial: reward what the verifier gives for an answer that is not right; without, that is 0.
    """

    verbatim = True

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        dataset: str = "chain_sum",
        level: int | None = None,
        partial: bool = False,
    ) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        if dataset in NO_SOLVER:
            spec = spec.model_copy(update={"capabilities": tuple(c for c in spec.capabilities if c != "solver")})
        if dataset in UNSTEADY:
            notes = f"{dataset}: another process has other questions, unless PYTHONHASHSEED is the same. {spec.notes}"
            spec = spec.model_copy(update={"deterministic": False, "notes": notes})
        super().__init__(spec)
        require_flag("reasoning-gym", "partial", partial)
        require(dataset, level)
        self.dataset, self.level, self.partial = dataset, level, partial
        self.score = 0.0
        """The verifier's, of the answer that was given."""
        self._entry: dict[str, Any] = {}

    def open(self, split: str, task: int) -> None:
        self._verifier, self._entry = question(self.dataset, self.level, split, task)
        self.score = 0.0

    def observe(self) -> str:
        return self._entry["question"]

    def apply(self, action: str) -> Outcome | None:
        if not action:
            return None
        self.score = self._judge(action)
        right = self.score >= RIGHT
        return Outcome(self.score if self.partial else float(right), ended=True, success=right)

    def refuse(self, action: str) -> str:
        return f"no answer\n{self.observe()}"

    def key(self) -> str:
        return self._entry["question"]

    def describe(self) -> dict[str, Any]:
        """`progress` is the verifier's score."""
        return {"progress": self.score}

    def solver(self) -> str:
        """The stored answer."""
        self.require_episode("solver")
        if self.dataset in NO_SOLVER:
            return super().solver()  # type: ignore[return-value]
        return self._entry["answer"]

    def _judge(self, answer: str) -> float:
        if not is_readable(self.dataset, answer):
            return 0.0
        try:
            score = min(1.0, max(0.0, float(self._verifier.score_answer(answer, self._entry))))
            return score if score < RIGHT or is_full(self.dataset, answer, self._entry["answer"]) else 0.0
        except Exception:  # noqa: BLE001 - a verifier that cannot read an answer has not been given one
            return 0.0
