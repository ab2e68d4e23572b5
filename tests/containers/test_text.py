"""The text environments' image: a real engine without root, and none left after a session."""

from __future__ import annotations

import time

import httpx
import pytest

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]


def test_endgames_and_a_maze_are_played_over_http(images, run, kit):
    folder = kit.root / "environments" / "agentgym_environments" / "games" / "chess"
    image = kit.build(folder, "localhost/agentgym/text", "--build-arg", f"BASE={images('base')}")
    container = run(image, "chess-endgames", "chess", "maze", options=("--init", "--memory", "512m"))
    for env in ("chess-endgames", "maze"):
        with httpx.Client(base_url=f"{container.url}/envs/{env}", timeout=60) as http:
            opened = http.post("/reset", json={"seed": 0, "index": 2}).json()
            session, done = {"session_id": opened["session_id"]}, False
            while not done:
                action = http.post("/solver", json=session).json()["action"]
                reply = http.post("/step", json={**session, "action": action}).json()
                done = reply["done"]
            assert reply["info"]["success"] is True
            if env == "chess-endgames":
                assert "stockfish" in kit.docker("top", container.name, "-eo", "pid,user,comm")
            assert http.post("/close", json=session).json()["closed"] is True
    for _ in range(50):
        if "stockfish" not in (running := kit.docker("top", container.name, "-eo", "pid,comm")):
            break
        time.sleep(0.2)
    assert "stockfish" not in running
