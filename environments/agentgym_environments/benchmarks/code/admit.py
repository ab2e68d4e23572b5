"""Admission of programming tasks: the solution passes its tests and an empty body does not, or the task is not played.

python -m agentgym_environments.benchmarks.code.admit FILE      prints a line a task; exits with 1 where one fails
"""

from __future__ import annotations

import sys

from agentgym.errors import AgentGymError, ConfigError
from agentgym_environments.benchmarks.code import grader
from agentgym_environments.tasks.code import code_tasks
from agentgym_environments.tasks.records import read_records


def main(source: str) -> int:
    """Print a line for each task of a file. Returns the exit code."""
    failed = 0
    for split, tasks in code_tasks(read_records(source), source).items():
        for task in tasks:
            try:
                problem = grader.admit(task).problem
            except ConfigError as error:
                problem = str(error)
            failed += bool(problem)
            print(f"{split} {task.id}: {problem or 'admitted'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("python -m agentgym_environments.benchmarks.code.admit FILE")
    try:
        sys.exit(main(sys.argv[1]))
    except AgentGymError as error:
        sys.exit(str(error))
