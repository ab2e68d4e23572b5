"""Admission of tasks for tools: the solution scores 1 and doing nothing scores 0, or the task is refused.

python -m agentgym_environments.benchmarks.mcp.admit FILE [COMMAND]

It prints a line a task, and exits with 1 where one fails.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentgym.errors import AgentGymError, ConfigError
from agentgym.tasks import Task
from agentgym_environments.benchmarks.mcp.play import CallEndedServer, ToolEpisode
from agentgym_environments.benchmarks.mcp.tasks import solution_of, tool_tasks

AT_ONCE = 4
"""Servers that run at a time."""


def problem_of(task: Task, **options: Any) -> str:
    """Return why a task is refused; "" for one that is admitted. Raises EnvironmentCrashed where no server starts."""
    solution = solution_of(task)
    if solution is None:
        return "it has no solution"
    episode = ToolEpisode(task, **options)
    try:
        if episode.solved(""):
            return "doing nothing scores 1"
        for number, call in enumerate(solution.calls, 1):
            result = episode.call(call.name, call.arguments)
            if result.failed:
                return f"call {number} of its solution, {call.name}, fails: {result.text[:300]}"
        return "" if episode.solved(solution.answer) else "its solution scores 0"
    except CallEndedServer as error:
        return f"its solution ends the server: {error}"
    finally:
        episode.close()


def require_admitted(tasks: Iterable[Task], **options: Any) -> None:
    """Raises ConfigError that names the tasks that are refused, and why."""
    some = list(tasks)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        problems = list(pool.map(lambda task: problem_of(task, **options), some))
    refused = [f"task {task.id}: {problem}" for task, problem in zip(some, problems, strict=True) if problem]
    if refused:
        more = f"; and {len(refused) - 3} more" if len(refused) > 3 else ""
        raise ConfigError(f"{'; '.join(refused[:3])}{more}. A solution must score 1, and doing nothing 0")


def main(source: str, line: str = "") -> int:
    """Print a line for each task of a file. Returns the exit code."""
    failed = 0
    for task in tool_tasks(source, line):
        try:
            problem = problem_of(task)
        except AgentGymError as error:
            problem = str(error)
        failed += bool(problem)
        print(f"{task.id}: {problem or 'admitted'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("python -m agentgym_environments.benchmarks.mcp.admit FILE [COMMAND]")
    try:
        sys.exit(main(*sys.argv[1:]))
    except AgentGymError as error:
        sys.exit(str(error))
