"""Tasks of research as Harbor folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from agentgym_environments.synthetic.research.tasks import ResearchTask, csv, program
from agentgym_environments.tasks.harbor_folder import BASE, WORKDIR, HarborFolder

CHECKS = Path(__file__).with_name("harbor_checks.py")
DOCKERFILE = f"""FROM {BASE}
RUN pip install --no-cache-dir --quiet numpy=={np.__version__}
ENV OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
WORKDIR {WORKDIR}
COPY files .
"""
RULES = """
The files are in {workdir}, where you have a shell; numpy is installed, the network is not there. `python run.py` trains
on four fifths of train.csv and scores the rest. Make solve.py better: a function `solve(train, inputs, terms)`, as the
baseline's. When you are done, your files are run once on held-out inputs, for at most {judge_s:g} s. The reward is how
much of the way from the baseline's score to a reference's yours is, 0 to 1; {solved:g} and more counts as solved.
"""
FIXED = ("run.py", "score.py", "terms.json", "train.csv")


def harbor_folder(name: str, task: ResearchTask, about: str, solved: float, judge_s: float) -> HarborFolder:
    """Return a task's folder. about: what the agent is told of it."""
    files = task.files()
    numbers = {
        "held_out": task.held_out,
        "terms": task.terms,
        "baseline": task.baseline,
        "reference": task.reference,
        "solved": solved,
        "judge_s": judge_s,
    }
    return HarborFolder(
        name=name,
        description=f"Improve a small machine-learning baseline ({task.kind}); a held-out score decides",
        instruction=f"{about}\n{RULES.format(workdir=WORKDIR, judge_s=judge_s, solved=solved)}",
        keywords=("research", task.kind, "numpy"),
        environment={"Dockerfile": DOCKERFILE.encode(), **{f"files/{path}": one for path, one in files.items()}},
        tests={
            "checks.py": CHECKS.read_bytes(),
            "task.json": json.dumps(numbers).encode(),
            "score.py": program(f"{task.kind}_score"),
            **{f"files/{path}": files[path] for path in FIXED},
            "files/inputs.csv": csv(task.inputs),
        },
        solve=f"cat > {WORKDIR}/solve.py <<'END_OF_PROGRAM'\n{task.reference_program().rstrip()}\nEND_OF_PROGRAM",
        memory_mb=1024,
        agent_s=1800,
        tests_s=judge_s + 120,
    )
