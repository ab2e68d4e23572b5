"""The desktop's image: real applications without root, without a disk to write to, and nothing left after a session."""

from __future__ import annotations

import time

import httpx
import pytest

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

ROOM = ("--memory", "768m", "--pids-limit", "256", "--init")


@pytest.fixture(scope="module")
def desktop_image(images, kit) -> str:
    folder = kit.root / "environments" / "agentgym_environments" / "synthetic" / "gui"
    return kit.build(folder, "localhost/agentgym/gui", "--build-arg", f"BASE={images('base')}")


def test_an_episode_of_each_application_is_played_over_http(desktop_image, run, kit):
    container = run(desktop_image, "gui", options=ROOM)
    with httpx.Client(base_url=container.url, timeout=60) as http:
        for task in range(3):
            opened = http.post("/reset", json={"seed": 0, "index": 5 * task}).json()
            session, done = {"session_id": opened["session_id"]}, False
            while not done:
                action = http.post("/solver", json=session).json()["action"]
                reply = http.post("/step", json={**session, "action": action}).json()
                done = reply["done"]
            assert reply["info"]["success"] is True
            if task == 0:
                running = kit.docker("top", container.name, "-eo", "pid,user,comm")
                assert "Xvfb" in running
                assert "root" not in {line.split()[1] for line in running.splitlines()[1:]}
            assert http.post("/close", json=session).json()["closed"] is True
    desktop = {"Xvfb", "dbus-daemon", "openbox", "pcmanfm", "mousepad", "galculator"}
    for _ in range(50):  # /close answers before all of a desktop's processes have ended
        left = desktop & set(kit.docker("top", container.name, "-eo", "pid,comm").split())
        if not left:
            break
        time.sleep(0.2)
    assert not left
    left = kit.docker(
        "exec", container.name, "sh", "-c", "ls /tmp/.X11-unix; ls -d /tmp/agentgym-gui* 2>/dev/null || true"
    )
    assert left == ""
