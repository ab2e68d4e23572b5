"""W&B, MLflow and Trackio, offline, record a run, and go on with it where it is resumed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import agentgym
import agentgym_trainers


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_resumed_run_goes_on_in_its_tracker(name, upstream, run_upstream, tmp_path):
    missing = f"import importlib.util; raise SystemExit(importlib.util.find_spec({name!r}) is None)"
    if subprocess.run([upstream, "-c", missing]).returncode:
        pytest.skip(f"the interop environment has no {name}: delete .venv-interop and run `make interop` again")
    packages = [str(Path(package.__file__).parent.parent) for package in (agentgym, agentgym_trainers)]
    output = run_upstream("tracker_script.py", name, str(tmp_path), *packages)
    result = json.loads(output.rpartition("RESULT ")[2].splitlines()[0])
    assert result["ids"] == [result["kept"]]
    assert result["metrics"] == [[1, 0.1], [2, 0.2], [3, 0.3]]
    assert result["tables"] == 3
    assert result["lr"] == 0.5
    assert result["connected"] == []
