"""Admission of Harbor tasks: the solution scores 1 and doing nothing scores 0, or the task is not played.

python -m agentgym_environments.benchmarks.harbor.admit FOLDER      prints a line a task; exits with 1 where one fails
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import NamedTuple

from agentgym.errors import AgentGymError
from agentgym.tasks import Task
from agentgym_environments.backends.containers.engine import DockerEngine
from agentgym_environments.backends.containers.grading import RewardVerdict
from agentgym_environments.benchmarks.harbor.grader import grade, open_box
from agentgym_environments.tasks.harbor import harbor_tasks

SOLVE_S = 900.0


class Admission(NamedTuple):
    task: str
    solution: float | None
    """Reward of the solution; None where it came to none."""
    nothing: float | None
    problem: str
    """Reason against the task; "" for one that is admitted."""


def admit(engine: DockerEngine, task: Task) -> Admission:
    """Play a task's solution, and nothing. Raises EnvironmentCrashed where the machine is at fault."""
    nothing = grade(engine, task, None)
    if not (Path(task.source) / "solution" / "solve.sh").is_file():
        return Admission(task.id, None, nothing.reward, "it has no solution/solve.sh")
    box = open_box(engine, task)
    try:
        box.put_solution(Path(task.source, "solution"))
        ran = box.run(solution_command(task), task.setup["agent_s"] or SOLVE_S)
        box.remove_solution()
        solved = grade(engine, task, box)
    finally:
        box.close()
    return Admission(task.id, solved.reward, nothing.reward, _problem(solved, nothing, ran.output))


def solution_command(task: Task) -> str:
    """Return the command that runs a task's solution."""
    variables = [f"{name}={value}" for name, value in task.grader["solution_env"].items()]
    return shlex.join([*(["env", *variables] if variables else []), "bash", "/solution/solve.sh"])


def _problem(solved: RewardVerdict, nothing: RewardVerdict, output: str) -> str:
    if nothing.reward != 0:
        return f"doing nothing scores {nothing.reward:g}"
    if solved.reward != 1:
        score = "no reward" if solved.reward is None else f"{solved.reward:g}"
        return f"its solution scores {score}: {(solved.output or output).strip()[-300:]}"
    return ""


def main(folder: str) -> int:
    """Print a line for each task of a folder. Returns the exit code."""
    tasks, others = harbor_tasks(Path(folder))
    for name, reason in others.items():
        print(f"{name}: not run here, {reason}")
    failed, engine = 0, DockerEngine()
    try:
        for task in tasks:
            try:
                problem = admit(engine, task).problem
            except AgentGymError as error:
                problem = str(error)
            failed += bool(problem)
            print(f"{task.id}: {problem or 'admitted'}", flush=True)
    finally:
        engine.close()
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("python -m agentgym_environments.benchmarks.harbor.admit FOLDER")
    try:
        sys.exit(main(sys.argv[1]))
    except AgentGymError as error:
        sys.exit(str(error))
