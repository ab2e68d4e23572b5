"""OpenEnv's Task API, in process."""

from __future__ import annotations

import pytest

from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app


class Odd(EchoEnv):
    env_spec = EchoEnv.env_spec.model_copy(update={"splits": {"train": 4, "extra": 2, "endless": 10**9}})


def test_environments_and_splits(play):
    async def script(api):
        assert await api.get("/list_environments") == (200, ["Echo", "odd"])
        assert await api.get("/envs/odd/list_environments") == (200, ["odd"])
        assert (await api.get("/eCHO/splits"))[1][0] == {"name": "train", "type": "train"}
        assert (await api.get("/envs/odd/ODD/splits"))[1] == [
            {"name": "train", "type": "train"},
            {"name": "extra", "type": "validation"},
            {"name": "endless", "type": "validation"},
        ]
        status, unknown = await api.get("/nowhere/splits")
        assert (status, unknown["detail"]) == (404, "unknown environment 'nowhere'")
        assert (await api.get("/envs/odd/echo/splits"))[0] == 404

    play(create_app({"Echo": EchoEnv, "odd": Odd}), script)


def test_tasks(play):
    async def script(api):
        assert (await api.post("/odd/num_tasks", split="endless"))[1] == {"num_tasks": 10**9}
        assert (await api.post("/odd/tasks", split="extra"))[1] == {
            "tasks": [{"split": "extra", "index": 0}, {"split": "extra", "index": 1}],
            "env_name": "echo",
        }
        task = (await api.post("/odd/task", split="train", index=3))[1]["task"]
        assert (await api.post("/reset", **task))[0] == 200  # a task is what reset takes
        for bounds, indices in (
            ({}, [0, 1, 2, 3]),
            ({"start": 1, "stop": 3}, [1, 2]),
            ({"start": -1}, [3]),
            ({"stop": 99}, [0, 1, 2, 3]),
            ({"start": 9}, []),
        ):
            tasks = (await api.post("/odd/task_range", split="train", **bounds))[1]["tasks"]
            assert [task["index"] for task in tasks] == indices
        last = (await api.post("/odd/task_range", split="endless", start=10**9 - 1))[1]["tasks"]
        assert last == [{"split": "endless", "index": 10**9 - 1}]

    play(create_app({"odd": Odd}), script)


@pytest.mark.parametrize(
    ("path", "body", "status", "detail"),
    [
        ("task", {"split": "train", "index": 4}, 400, "Invalid task index"),
        ("task", {"split": "train", "index": -1}, 400, "Invalid task index"),
        ("tasks", {"split": "nowhere"}, 400, "it has train, extra, endless"),
        ("tasks", {"split": "endless"}, 400, "task_range"),
        ("task", {"split": "train"}, 422, None),
        ("num_tasks", {}, 422, None),
        ("task_range", {"split": "train", "start": "x"}, 422, None),
    ],
)
def test_requests_that_are_wrong(play, path, body, status, detail):
    async def script(api):
        return await api.post(f"/odd/{path}", **body)

    got, reply = play(create_app({"odd": Odd}), script)
    assert (got, reply["code"]) == (status, "BAD_REQUEST")
    if detail is None:
        assert reply["detail"][0]["loc"][0] == "body"
    else:
        assert detail in reply["detail"]
