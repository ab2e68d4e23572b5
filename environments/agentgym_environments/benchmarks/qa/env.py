"""Questions and answers: one turn an episode, over the questions of any data file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentgym.spec import EnvSpec
from agentgym_environments.base.engine_env import require_flag
from agentgym_environments.base.question_env import QuestionEnv
from agentgym_environments.base.text_env import Outcome

INSTRUCTIONS = {
    "text": "Answer the question. Say the answer in as few words as possible and nothing else.",
    "number": "Solve the problem. Say the number and nothing else.",
    "choice": "Answer the question. Say the letter of the right choice and nothing else.",
    "math": "Solve the problem. Say the final answer in LaTeX and nothing else.",
}


class QuestionAnswering(QuestionEnv):
    """One question an episode.

    train, validation, test: files of questions, or files of the hub as `hf:OWNER/NAME/FILES`; a file that is
    given replaces all of the environment's own. context: show the paragraphs that come with a question.
    """

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        train: str = "",
        validation: str = "",
        test: str = "",
        context: bool = False,
    ) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        require_flag(spec.id, "context", context)
        files = {"train": train, "validation": validation, "test": test}
        super().__init__(spec, Path(__file__).with_name("data"), files)
        if self.foreign:
            instructions = INSTRUCTIONS[self.kinds[0]] if len(self.kinds) == 1 else "Answer the question."
            self.env_spec = self.env_spec.model_copy(update={"instructions": instructions})
        self.context = context

    def observe(self) -> str:
        paragraphs = self.task.setup.get("paragraphs", ()) if self.context else ()
        shown = [": ".join(filter(None, (title, text))) for title, text in paragraphs]
        return "\n\n".join((*shown, self.task.prompt))

    def act(self, action: str) -> Outcome | None:
        return self.answered(self.text) if self.text else None

    def refuse(self, action: str) -> str:
        return f"no answer\n{self.observe()}"

    def key(self) -> str:
        return f"{self.place[0]}/{self.task.id}"

    def describe(self) -> dict[str, Any]:
        """`progress` is the grader's score: overlap of words, where the answer is text."""
        return {"progress": self.score}

    def solver(self) -> str:
        """The first of the right answers."""
        self.require_episode("solver")
        return self.task.grader["answers"][0]
