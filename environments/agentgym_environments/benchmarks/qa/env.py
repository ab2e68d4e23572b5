"""Questions and answers: one turn an episode, over the questions of any data file."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from agentgym.env import Action
from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym.tasks import Task, TaskSet
from agentgym_environments.base.engine_env import require_flag
from agentgym_environments.base.text_env import Outcome, TurnEnv
from agentgym_environments.benchmarks.qa.graders import require_graders, score
from agentgym_environments.tasks.questions import questions
from agentgym_environments.tasks.records import HUB, read_records

OWN = Path(__file__).with_name("data")
INSTRUCTIONS = {
    "text": "Answer the question. Say the answer in as few words as possible and nothing else.",
    "number": "Solve the problem. Say the number and nothing else.",
    "choice": "Answer the question. Say the letter of the right choice and nothing else.",
    "math": "Solve the problem. Say the final answer in LaTeX and nothing else.",
}


class QuestionAnswering(TurnEnv):
    """One question an episode.

    train, validation, test: files of questions, or data sets of the hub as `hf:OWNER/NAME@CONFIG#SPLIT`; a file that is
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
        sources = {name: source for name, source in zip(("train", "validation", "test"), (train, validation, test))}
        given = {split: source for split, source in sources.items() if source}
        for split, source in given.items():
            if not isinstance(source, str):
                raise ConfigError(f"{spec.id}: {split} is the name of a file, not {source!r}")
        self.tasks = _load(tuple((given or _own()).items()), _stamps(given))
        kinds = {self.tasks[split, i].grader["kind"] for split, size in self.tasks.splits.items() for i in range(size)}
        update: dict[str, Any] = {"splits": self.tasks.splits, "task_set": self.tasks.content_hash}
        if given:
            update["instructions"] = INSTRUCTIONS[kinds.pop()] if len(kinds) == 1 else "Answer the question."
        super().__init__(spec.model_copy(update=update))
        self.context = context
        self.score = 0.0

    def begin(self, split: str, task: int) -> None:
        self.place = (split, task)
        self.task: Task = self.tasks[split, task]
        self.score = 0.0

    def observe(self) -> str:
        paragraphs = self.task.setup.get("paragraphs", ()) if self.context else ()
        return "\n\n".join((*paragraphs, self.task.prompt))

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._answer = action.strip() if isinstance(action, str) else ""
        return super().step(action)

    def act(self, action: str) -> Outcome | None:
        if not self._answer:
            return None
        self.score = score(self._answer, self.task.grader)
        right = self.score == 1
        return Outcome(float(right), ended=True, success=right)

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

    def save(self) -> Any:
        return {"place": self.place, "score": self.score}

    def load(self, state: Any) -> None:
        self.begin(*self.select_task({"split": state["place"][0], "task": state["place"][1]}))
        self.score = float(state["score"])


def _own() -> dict[str, str]:
    return {path.stem: str(path) for path in sorted(OWN.glob("*.jsonl"))}


def _stamps(sources: dict[str, str]) -> tuple[float, ...]:
    """Return when the files changed: a file that has is read again."""
    paths = [Path(source).expanduser() for source in sources.values() if not source.startswith(HUB)]
    return tuple(path.stat().st_mtime for path in paths if path.is_file())


@lru_cache(maxsize=8)
def _load(sources: tuple[tuple[str, str], ...], stamps: tuple[float, ...]) -> TaskSet:
    tasks = TaskSet({split: questions(read_records(source), source) for split, source in sources})
    kinds = {tasks[split, i].grader["kind"] for split, size in tasks.splits.items() for i in range(size)}
    require_graders(sorted(kinds))
    return tasks
