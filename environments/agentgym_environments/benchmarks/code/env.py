"""One function an episode: it is written from its docstring or a sentence, and tests that are not shown decide."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentgym.env import Action
from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym.tasks import Task, TaskSet
from agentgym_environments.backends.sandbox import backends
from agentgym_environments.base.engine_env import require_int
from agentgym_environments.base.text_env import Outcome, TurnEnv
from agentgym_environments.benchmarks.code import grader, lazy
from agentgym_environments.tasks.code import code_tasks
from agentgym_environments.tasks.records import HUB, read_records

OWN = Path(__file__).parent / "data" / "tasks.jsonl"
OUTPUT = 1000
"""Last characters of a program's output that are shown."""


class Code(TurnEnv):
    """file: records of HumanEval or MBPP, a file or `hf:OWNER/NAME/FILES`, in place of the environment's own tasks.
    shown: tests of an MBPP task that the agent reads. turns: the agent may try its code on the examples before it
    submits. sandbox: "bubblewrap", "docker" or "auto". judge_s: seconds that the tests may take.

    Raises MissingDependency at a reset where no sandbox works.
    """

    lazy_policies = lazy.POLICIES

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        file: str = "",
        shown: int = 1,
        turns: bool = False,
        sandbox: str = "auto",
        judge_s: float = 10.0,
    ) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"), "code-turns" if turns else "code")
        require_int(spec.id, "shown", shown, 1)
        if isinstance(judge_s, bool) or not isinstance(judge_s, int | float) or not 0 < judge_s <= 60:
            raise ConfigError(f"{spec.id}: judge_s is a number of seconds up to 60, not {judge_s!r}")
        if not isinstance(file, str):
            raise ConfigError(f"{spec.id}: file is the name of a file, not {file!r}")
        self.tasks = _load(file or str(OWN), _changed(file))
        super().__init__(spec.model_copy(update={"splits": self.tasks.splits, "task_set": self.tasks.content_hash}))
        self.foreign = bool(file)
        """True where the tasks are of another file: each is admitted before it is played."""
        self.shown, self.turns, self.sandbox, self.judge_s = shown, turns, sandbox, float(judge_s)
        self.place = ("", 0)
        self.raw = ""
        """Action as it came."""
        self.answer = ""
        """Code of this episode, "" before there is some."""
        self.message = ""
        """Text that follows the last action."""

    @property
    def task(self) -> Task:
        return self.tasks[self.place]

    @property
    def examples(self) -> list[list[str]]:
        """Calls and results that the agent reads, and that are right."""
        examples = self.task.setup["examples"]
        if self.foreign:
            examples = grader.right_examples(self.task, backend=self.sandbox, timeout_s=self.judge_s)
        return examples[: self.shown] if "tests" in self.task.setup else examples

    def begin(self, split: str, task: int) -> None:
        backends.choose(self.sandbox)
        if self.foreign:
            admission = grader.admit(self.tasks[split, task], backend=self.sandbox, timeout_s=self.judge_s)
            if admission.problem:
                raise ConfigError(f"{admission.task} is not played: {admission.problem}")
        self.place, self.answer, self.message = (split, task), "", ""

    def observe(self) -> str:
        return self.message or self._question()

    def _question(self) -> str:
        setup = self.task.setup
        if "tests" not in setup:
            return self.task.prompt
        tests = setup["tests"][: self.shown]
        before = "\n".join(filter(None, (setup["setup"], *tests)))
        all_shown = len(tests) == len(setup["tests"])
        return (
            f"{self.task.prompt}\nThe code is to pass {'these tests' if all_shown else 'tests like these'}:\n{before}"
        )

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.raw = action if isinstance(action, str) else ""
        return super().step(action)

    def act(self, action: str) -> Outcome | None:
        first, _, rest = self.raw.lstrip().partition("\n")
        verb = first.strip().strip(":`*").lower()
        code = rest if verb in ("run", "submit") else self.raw
        if not code.strip() and not (verb == "submit" and self.answer):
            return None
        code = code if code.strip() else self.answer
        if not self.turns or verb == "submit" or self.turn + 1 >= self.env_spec.max_turns:
            return self._judged(code)
        self.answer = code
        self.message = self._tried(code)
        return Outcome()

    def refuse(self, action: str) -> str:
        how = "say run or submit, and the code on the next lines" if self.turns else "say the code of the function"
        return f"no code: {how}\n{self._question()}"

    def _judged(self, answer: str) -> Outcome:
        self.answer = answer
        passed = grader.judge(self.task, answer, backend=self.sandbox, timeout_s=self.judge_s).passed
        self.message = "all tests pass" if passed else "not all tests pass"
        return Outcome(float(passed), ended=True, success=passed)

    def _tried(self, answer: str) -> str:
        """Return what the visible examples give, and what the program printed."""
        examples = self.examples or [[f"callable({self.task.grader['entry_point']})", "True"]]
        verdict = grader.try_examples(self.task, answer, examples, backend=self.sandbox, timeout_s=self.judge_s)
        lines = list(verdict.lines) or [verdict.why]
        printed = verdict.output.strip()[-OUTPUT:]
        return "\n".join([*lines, *([f"output:\n{printed}"] if printed else [])])

    def key(self) -> str:
        answer = hashlib.sha256(self.answer.encode(errors="replace")).hexdigest()[:16] if self.answer else ""
        return f"{self.place[0]}/{self.task.id}/{answer}"

    def save(self) -> Any:
        answer = self.answer.encode("utf-8", "surrogatepass").hex()
        return {"place": self.place, "answer": answer, "message": self.message}

    def load(self, state: Any) -> None:
        self.begin(*self.select_task({"split": state["place"][0], "task": state["place"][1]}))
        self.answer = bytes.fromhex(state["answer"]).decode("utf-8", "surrogatepass")
        self.message = str(state["message"])

    def solver(self) -> str:
        """The task's own solution; where it may be tried, it is tried first."""
        self.require_episode("solver")
        solution = self.task.grader["solution"].strip("\n")
        if not self.turns:
            return solution
        return f"run\n{solution}" if self.turn == 0 else "submit"


def _changed(file: str) -> float:
    path = Path(file).expanduser()
    return path.stat().st_mtime if file and not file.startswith(HUB) and path.is_file() else 0.0


@lru_cache(maxsize=8)
def _load(source: str, changed: float) -> TaskSet:
    return TaskSet(code_tasks(read_records(source), source))
