"""Base of environments that ask the questions of data files and grade an answer."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from agentgym.env import Action
from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym.tasks import Task, TaskSet
from agentgym_environments.backends.answers.graders import require_graders, score
from agentgym_environments.base.text_env import Outcome, TurnEnv
from agentgym_environments.tasks.questions import questions
from agentgym_environments.tasks.records import HUB, read_records

SPLITS = ("train", "validation", "test")


class QuestionEnv(TurnEnv):
    """own: the environment's folder of questions, a file for each split of `SPLITS`; files: by split, in place of all.

    A subclass calls `answered` with an answer as it was said.
    """

    def __init__(self, spec: EnvSpec, own: Path, files: dict[str, str]) -> None:
        given = {split: source for split, source in files.items() if source != ""}
        for split, source in given.items():
            if not isinstance(source, str):
                raise ConfigError(f"{spec.id}: {split} is the name of a file, not {source!r}")
        sources = given or {split: str(own / f"{split}.jsonl") for split in SPLITS}
        self.tasks, self.kinds = _load(tuple(sources.items()), stamps(sources))
        self.foreign = bool(given)
        """True where the questions are of other files."""
        super().__init__(spec.model_copy(update={"splits": self.tasks.splits, "task_set": self.tasks.content_hash}))
        self.place = ("", 0)
        self.text = ""
        """Action as it came, without spaces around it."""
        self.answer = ""
        """Answer of this episode, "" before there is one."""
        self.score = 0.0

    @property
    def task(self) -> Task:
        return self.tasks[self.place]

    def begin(self, split: str, task: int) -> None:
        self.place, self.answer, self.score = (split, task), "", 0.0

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.text = action.strip() if isinstance(action, str) else ""
        return super().step(action)

    def answered(self, answer: str) -> Outcome:
        """Return what an answer earns: 1 where the data set's metric calls it right, else 0."""
        self.answer, self.score = answer, score(answer, self.task.grader)
        right = self.score == 1
        return Outcome(float(right), ended=True, success=right)

    def save(self) -> Any:
        return {"place": self.place, "answer": self.answer, "score": self.score}

    def load(self, state: Any) -> None:
        self.begin(*self.select_task({"split": state["place"][0], "task": state["place"][1]}))
        self.answer, self.score = str(state["answer"]), float(state["score"])


def stamps(sources: dict[str, str]) -> tuple[float, ...]:
    """Return when the files changed: a file that has is read again."""
    paths = [Path(source).expanduser() for source in sources.values() if not source.startswith(HUB)]
    return tuple(path.stat().st_mtime for path in paths if path.is_file())


@lru_cache(maxsize=8)
def _load(sources: tuple[tuple[str, str], ...], stamps: tuple[float, ...]) -> tuple[TaskSet, tuple[str, ...]]:
    """Return the tasks, and the kinds of their graders."""
    tasks = TaskSet({split: questions(read_records(source), source) for split, source in sources})
    kinds = {tasks[split, i].grader["kind"] for split, size in tasks.splits.items() for i in range(size)}
    require_graders(sorted(kinds))
    return tasks, tuple(sorted(kinds))
