"""Real packages with bugs: an agent with a shell and an edit tool mends one, and hidden tests say whether it has."""

from __future__ import annotations

import base64
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentgym.env import Action, Env
from agentgym.errors import BadRequest, ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.sandbox import Limits, Sandbox
from agentgym_environments.swe import actions, source
from agentgym_environments.swe.actions import Edit, Run, Submit, View
from agentgym_environments.swe.allowed import problem
from agentgym_environments.swe.judge import Verdict, judge
from agentgym_environments.swe.mutate import PLANS
from agentgym_environments.swe.source import Source
from agentgym_environments.swe.tasks import SPLITS, Suite, Task, of_split, suites

LINES = 150
"""Lines that one `view` shows."""


class Swe(Env):
    """bugs: 1 with the file named in the issue, or 2 with nothing but what goes wrong. sandbox: "bubblewrap", "docker"
    or "auto". interface: "text", or "tools" where actions are tool calls (both are understood either way).
    cache: folder of the packages' archives; ~/.cache/agentgym when it is "". command_s: longest command, in seconds.

    Raises MissingDependency where no sandbox works; `reset` does, where a package can neither be found nor fetched.
    """

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        bugs: int = 1,
        sandbox: str = "auto",
        interface: str = "text",
        cache: str = "",
        command_s: float = 30.0,
    ) -> None:
        if interface not in ("text", "tools"):
            raise ConfigError(f"interface is text or tools, not {interface!r}")
        spec = spec or EnvSpec.load(Path(__file__).with_name("swe.toml" if bugs == 1 else "swe-hard.toml"))
        self._tasks = {split: of_split(split, bugs) for split in SPLITS}
        if not all(self._tasks.values()):
            raise ConfigError(f"bugs is 1 or 2, not {bugs}")
        splits = {split: len(found) for split, found in self._tasks.items()}
        tools = actions.TOOLS if interface == "tools" else ()
        super().__init__(spec.model_copy(update={"splits": splits, "tools": tools}))
        self.bugs, self.sandbox, self.command_s = bugs, sandbox, command_s
        self.cache = Path(cache).expanduser() if cache else source.default_cache()
        self.where: tuple[str, int] = ("", 0)
        """Split and number of the present task."""
        self.turn, self.over, self.success, self.hints = -1, False, False, 0
        self._box: Sandbox | None = None
        self._broken: dict[str, bytes] = {}

    # An episode.

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._begin(*self.select_task(options))
        return self._opening(), self._info(valid=True)

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._require_episode("step")
        if self.over:
            raise BadRequest(f"the episode of {self.env_spec.id} is over: call reset before the next step")
        said = actions.understand(action)
        self.turn += 1
        submitted = False
        if isinstance(said, Run):
            observation = self._run(said.command)
        elif isinstance(said, View):
            observation = self._view(said)
        elif isinstance(said, Edit):
            observation = self._edit(said)
        elif isinstance(said, Submit):
            observation, submitted = self._submit()
        else:
            observation = f"not an action; {actions.GRAMMAR}"
        truncated = self.turn >= self.env_spec.max_turns and not submitted
        self.over = submitted or truncated
        return observation, float(self.success), submitted, truncated, self._info(valid=said is not None)

    def close(self) -> None:
        if self._box is not None:
            self._box.close()
            self._box = None

    def snapshot(self) -> bytes:
        self._require_episode("snapshot")
        whole = {
            "id": self.env_spec.id,
            "bugs": self.bugs,
            "where": self.where,
            "counts": [self.turn, self.over, self.success, self.hints],
            "random": self.np_random.bit_generator.state,
            "box": base64.b64encode(self.box.snapshot()).decode(),
        }
        return json.dumps(whole).encode()

    def restore(self, state: bytes) -> None:
        try:
            whole = json.loads(state)
            if (whole["id"], whole["bugs"]) != (self.env_spec.id, self.bugs):
                raise BadRequest(f"this snapshot is of {whole['id']}, not of {self.env_spec.id}")
            (split, task), counts, box = whole["where"], whole["counts"], base64.b64decode(whole["box"])
            split, task = self.select_task({"split": split, "task": task})
            self.np_random.bit_generator.state = whole["random"]
        except (ValueError, KeyError, TypeError) as error:
            raise BadRequest(f"not a snapshot of {self.env_spec.id}: {error}") from error
        if self._box is None or self.where != (split, task):
            self._begin(split, task)
        self.box.restore(box)
        self.turn, self.over, self.success, self.hints = counts

    # Help.

    def expert(self) -> Action:
        """Looks at the place, puts back each line that is not as it was, submits."""
        self._require_episode("expert")
        first = self.task.edits[0]
        if self.turn == 0:
            said: actions.Said = View(first.path, max(1, first.line - 10), first.line + 10)
        else:
            said = self._next_edit() or Submit()
        return actions.as_call(said) if self.env_spec.tools else actions.as_text(said)

    def hint(self) -> str:
        """More with each call: the file, the function, what to do there, the fix."""
        self._require_episode("hint")
        self.hints += 1
        left = [edit for edit in self.task.edits if self._line(edit.path, edit.line) != edit.fixed]
        if not left:
            return "Nothing is left to mend: submit."
        edit = left[0]
        told = [
            f"Look at {edit.path}.",
            f"Look at `{edit.function}` in {edit.path}, near line {edit.line}.",
            f"In `{edit.function}` of {edit.path}, line {edit.line}: {PLANS[edit.kind]}. Mend that line, check it with "
            "`run python -c ...`, and submit.",
        ]
        return told[min(self.hints, len(told)) - 1]

    # What the agent is told.

    @property
    def task(self) -> Task:
        split, number = self.where
        return self._tasks[split][number]

    @property
    def suite(self) -> Suite:
        return suites()[self.task.package]

    @property
    def source(self) -> Source:
        return source.unpack(self.suite.package, self.cache)

    @property
    def box(self) -> Sandbox:
        if self._box is None:
            raise BadRequest(f"{self.env_spec.id} is closed")
        return self._box

    def _begin(self, split: str, number: int) -> None:
        self.close()
        self.where = (split, number)
        self.turn, self.over, self.success, self.hints = 0, False, False, 0
        self._broken = self.task.broken(self.source)
        self._box = Sandbox(
            {**self.source.seen, **self._broken},
            limits=Limits(output_kb=16),  # pyright: ignore[reportCallIssue]
            readonly={str(source.tools(self.cache)): "/opt/tools"},
            env={"PYTHONPATH": f"/opt/tools:/work/{self.source.root}"},
            backend=self.sandbox,
        )

    def _opening(self) -> str:
        package, issue = self.suite.package, self.task.issue
        where = f"\nThe fault is in {self.task.edits[0].path}." if self.bugs == 1 else ""
        return f"{package.name} {package.version} in /work. {issue}{where}"

    # What the actions do.

    def _run(self, command: str) -> str:
        ran = self.box.run(command, self.command_s)
        why = f"\n[stopped: {ran.stopped}]" if ran.stopped else ""
        code = f"\n[exit code {ran.code}]" if ran.code and not ran.stopped else ""
        return f"{ran.output.rstrip()}{why}{code}".strip() or "[no output]"

    def _view(self, view: View) -> str:
        content = self.box.read(view.path)
        if content is None:
            return f"there is no file {view.path}; `run ls` lists a folder"
        lines = content.decode(errors="replace").split("\n")
        first = max(1, view.first)
        last = min(view.last or len(lines), len(lines), first + LINES - 1)
        shown = [f"{number:5d}  {lines[number - 1][:400]}" for number in range(first, last + 1)]
        more = f"\n[{view.path} has {len(lines)} lines]" if first > 1 or last < len(lines) else ""
        return ("\n".join(shown) or "[no such lines]") + more

    def _edit(self, edit: Edit) -> str:
        found = self.box.read(edit.path)
        if found is None and (edit.first, edit.last) != (1, 0):
            return f"there is no file {edit.path}; `edit {edit.path} 1-0` makes it"
        old = (found or b"").decode(errors="surrogateescape")
        new = actions.replace(old, edit)
        if new is None:
            count = old.count("\n") + 1
            return f"{edit.path} has lines 1 to {count}, not {edit.first}-{edit.last}"
        why = self.box.write(edit.path, new.encode(errors="surrogateescape"))
        if why:
            return f"{edit.path} was not written: {why}"
        added = len(new.split("\n")) - len(old.split("\n")) + edit.last - edit.first + 1
        return self._view(View(edit.path, max(1, edit.first - 2), edit.first + min(added, 20) + 1))

    def _submit(self) -> tuple[str, bool]:
        """What is said, and whether the episode is over; a fix that is refused can be mended."""
        files: dict[str, bytes | None] = dict(self._broken)
        for path, content in self.box.changes().items():
            if self.source.is_code(path):
                files[path] = content
                before = self._broken.get(path, self.source.seen.get(path, b""))
                why = problem(path, before, content or b"", self.task.package)
                if why:
                    return f"not submitted: {why}", False
        if files == self._broken:
            return "no file of the package has changed: not solved", True
        same = {path: content for path, content in files.items() if content != self.source.seen.get(path)}
        verdict = judged(self.source, frozenset(same.items()), self.cache, self.sandbox, 40 + 10 * self.suite.seconds)
        wanted = self.task.fail_to_pass
        self.success = verdict.solved(wanted, self.suite.passing, self.suite.unstable)
        if self.success:
            return "solved: every hidden test passes", True
        others = len(verdict.failed.keys() - wanted - self.suite.unstable)
        mended = len(wanted & verdict.passed)
        return f"not solved: {mended} of the {len(wanted)} tests that failed pass, {others} others fail", True

    def _next_edit(self) -> Edit | None:
        """The next run of lines that are not as they were before the bugs."""
        changed = [path for path in self.box.changes() if path in self.source.seen and self.source.is_code(path)]
        for path in sorted({*changed, *self._broken}):
            right = self.source.seen[path].decode().split("\n")
            found = self.box.read(path)
            if found is None:
                return Edit(path, 1, 0, actions.text_of(right))
            now = found.decode(errors="replace").split("\n")
            if now == right:
                continue
            first = next((i for i, (a, b) in enumerate(zip(now, right)) if a != b), min(len(now), len(right)))
            if len(now) == len(right):
                end = next((i for i in range(first, len(now)) if now[i] == right[i]), len(now))
                return Edit(path, first + 1, end, actions.text_of(right[first:end]))
            return Edit(path, first + 1, len(now), actions.text_of(right[first:]))
        return None

    def _line(self, path: str, line: int) -> str:
        lines = (self.box.read(path) or b"").decode(errors="replace").split("\n")
        return lines[line - 1] if line <= len(lines) else ""

    def _info(self, valid: bool) -> dict[str, Any]:
        """`state_key` names the files of /work; `available_actions` are a few of the many there are."""
        code = [path for path in sorted(self.source.seen) if self.source.is_code(path)][:5]
        offered = [] if self.over else ["submit", "run ls", *(f"view {path}" for path in code)]
        return {
            "success": self.success,
            "valid_action": valid,
            "state_key": f"{self.task.package}/{self.box.digest()[:20]}",
            "available_actions": offered,
        }

    def _require_episode(self, what: str) -> None:
        if self.turn < 0:
            raise BadRequest(f"{self.env_spec.id} has no episode yet: call reset before {what}")


@lru_cache(maxsize=256)
def judged(
    package: Source, files: frozenset[tuple[str, bytes | None]], cache: Path, backend: str, timeout_s: float
) -> Verdict:
    """`judge`, once for one fix. The processor is shared: a verdict may take ten times what the tests take alone."""
    return judge(package, dict(files), cache, backend=backend, timeout_s=min(timeout_s, 150))
