"""`openenv validate --url` against our server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from agentgym_servers.env_server.app import create_app
from agentgym_servers.web.run import serve_in_thread


@pytest.mark.parametrize("mode", ["simulation", "production"])
def test_the_validator_passes(upstream, mode):
    program = Path(upstream).with_name("openenv")
    with serve_in_thread(create_app(["agentgym.testing:EchoEnv"], mode=mode)) as url:
        done = subprocess.run(
            [str(program), "validate", "--url", url, "--json"], capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["passed"] is True
    assert report["mode"] == mode
    assert [criterion["id"] for criterion in report["criteria"] if not criterion["passed"]] == []
