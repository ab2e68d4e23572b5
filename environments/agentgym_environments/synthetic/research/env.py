"""Small machine-learning problems: an agent reads a baseline and data, writes something better, and submits it."""

from __future__ import annotations

from pathlib import Path

from agentgym.env import Action
from agentgym.spec import EnvSpec
from agentgym_environments.backends.sandbox import Sandbox
from agentgym_environments.backends.sandbox.actions import Command, Edit, Run, Submit, View
from agentgym_environments.base.shell_env import Judged, ShellEnv
from agentgym_environments.synthetic.research import grader, harbor
from agentgym_environments.synthetic.research.tasks import SIZES, ResearchTask, task
from agentgym_environments.tasks.harbor_folder import HarborFolder

SOLVED = 0.9
"""Share of the way from the baseline to the reference that counts as success."""

ABOUT = {
    "table": "Predict y from the other columns. The score is the root of the mean squared error on {rows} more rows of "
    "the same kind{spoilt}.",
    "stock": "Say how much stock to fill up to on each of the {rows} days after those of train.csv; y is the demand of "
    "a day. The score is the mean cost of a day: {hold} for a unit left, {short} for one that is owed; the lead time "
    "of an order is {lead} days.",
}


class Research(ShellEnv[Sandbox]):
    """hard: more is to be found. sandbox: "bubblewrap", "docker" or "auto". interface: "text", or "tools" where
    actions are tool calls. command_s, judge_s: seconds that a command, and the program when it is judged, may take.

    Raises MissingDependency where no sandbox works.
    """

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        hard: bool = False,
        sandbox: str = "auto",
        interface: str = "text",
        command_s: float = 30.0,
        judge_s: float = 30.0,
    ) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"), "research-hard" if hard else "research")
        spec = spec.model_copy(update={"splits": SIZES})
        super().__init__(spec, interface=interface, command_s=command_s, variant=hard)
        self.hard, self.sandbox, self.judge_s = hard, sandbox, judge_s

    @property
    def task(self) -> ResearchTask:
        return task(self.hard, *self.where)

    def open_sandbox(self) -> Sandbox:
        return grader.sandbox(self.task.files(), self.sandbox)

    def observe(self) -> str:
        return f"{self._about(self.task)}\nrun.py  score.py  solve.py  terms.json  train.csv"

    def _about(self, one: ResearchTask) -> str:
        spoilt = "; some y of train.csv are wrong, none of those" if one.spoilt else ""
        about = ABOUT[one.kind].format(rows=len(one.held_out), spoilt=spoilt, **one.terms)
        return (
            f"{about} Less is better. solve.py, the baseline, scores {one.baseline:.4g}; "
            f"{one.needed(SOLVED):.4g} counts as solved."
        )

    def harbor_folder(self, split: str, index: int) -> HarborFolder:
        """Return a task as a Harbor folder."""
        one = task(self.hard, split, index)
        name = f"{self.env_spec.id}-{split}-{index:03}"
        return harbor.harbor_folder(name, one, self._about(one), SOLVED, self.judge_s)

    def judged(self) -> Judged:
        files = {path: content for path, content in self.box.changes().items() if content is not None}
        if self.box.read("solve.py") is None:
            return Judged("not submitted: there is no solve.py", over=False)
        if not files:
            return Judged("nothing has changed: the score is the baseline's")
        if why := grader.too_much(files):
            return Judged(f"not submitted: {why}", over=False)
        verdict = grader.judge(self.task, files, self.sandbox, self.judge_s)
        if verdict.score is None:
            return Judged(f"no score: {verdict.why}")
        share = self.task.share(verdict.score)
        solved = "solved" if share >= SOLVED else "not solved"
        message = f"{solved}: the score is {verdict.score:.4g}, {100 * share:.0f} % of the way to the reference"
        return Judged(message, reward=share, success=share >= SOLVED)

    def offers(self) -> list[str]:
        return ["submit", "run python run.py", "run head -5 train.csv", "view solve.py", "view score.py"]

    def subject(self) -> str:
        return self.task.kind

    def solver(self) -> Action:
        """Looks at the baseline's score and program, writes the reference in its place, submits."""
        self.require_episode("solver")
        found, wanted = self.box.read("solve.py"), self.task.reference_program().rstrip()
        command: Command = Submit()
        if self.turn == 0:
            command = Run("python run.py; head -5 train.csv")
        elif self.turn == 1:
            command = View("solve.py")
        elif found is None or found.rstrip() != wanted.encode():
            command = Edit("solve.py", 1, 0 if found is None else found.count(b"\n") + 1, wanted)
        return self.say(command)

    def hint(self) -> str:
        """Return what is to be found, a thing a call."""
        self.require_episode("hint")
        texts = self.task.hints()
        self.hints += 1
        return texts[min(self.hints, len(texts)) - 1]
