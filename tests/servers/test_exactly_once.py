"""However requests are repeated, delayed and reordered on their way, the episode is the one of a clean run."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app

ACTIONS = ("apple", "no", "brook", "", "what?", "cloud")
PARTS = ("observation", "reward", "terminated", "truncated", "info", "step")


def played(replies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{part: reply[part] for part in PARTS} for reply in replies]


def clean_run(episodes: int) -> list[dict[str, Any]]:
    env, replies = EchoEnv(), []
    for episode in range(episodes):
        observation, info = env.reset(seed=episode, options={"task": 0})
        replies.append((observation, None, False, False, info, 0))
        for index, action in enumerate(ACTIONS):
            replies.append((*env.step(action), index + 1))
    texts = [({"text": first, "metadata": {}}, *rest) for first, *rest in replies]
    return [dict(zip(PARTS, (o, r, te, tr, i, n))) for o, r, te, tr, i, n in texts]


def reset_body(episode: int) -> dict[str, Any]:
    return {"episode_id": f"e{episode}", "seed": episode, "index": 0}


def step_body(session_id: str, episode: int, index: int) -> dict[str, Any]:
    return {"session_id": session_id, "episode_id": f"e{episode}", "step": index, "action": {"text": ACTIONS[index]}}


@pytest.mark.parametrize("inline", [True, False])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_disorder_on_the_way_changes_nothing(inline: bool, data: st.DataObject):
    """Between the requests of a clean client come any duplicates of earlier ones and any that are ahead of time, some
    of them at the same moment; lost replies are asked for again."""
    strays = data.draw(
        st.lists(
            st.lists(
                st.tuples(st.sampled_from(("reset", "step", "ahead", "foreign")), st.integers(0, 2), st.integers(0, 5)),
                max_size=4,
            ),
            min_size=14,
            max_size=14,
        )
    )

    async def main() -> tuple[list[dict[str, Any]], int]:
        app = create_app({"echo": lambda: EchoEnv(inline=inline)})
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://env") as http:
            session_id, replies, turn = "", [], 0

            async def stray(kind: str, episode: int, index: int, now: tuple[int, int]) -> None:
                if not session_id:
                    return
                if kind == "reset" and episode <= now[0]:
                    where = {} if episode == 0 else {"session_id": session_id}
                    await http.post("/reset", json={**reset_body(episode), **where})
                elif kind == "step" and (episode, index) <= now:
                    await http.post("/step", json=step_body(session_id, episode, index))
                elif kind == "ahead" and now[1] + 3 < len(ACTIONS):  # beyond the one that is on its way
                    refused = await http.post("/step", json=step_body(session_id, episode, now[1] + 3))
                    assert refused.status_code == 409
                elif kind == "foreign" and now[1] >= 0:
                    body = {**step_body(session_id, now[0], now[1]), "action": {"text": "another"}}
                    refused = await http.post("/step", json=body)
                    assert refused.status_code == 409

            async def ask(path: str, body: dict[str, Any], now: tuple[int, int]) -> dict[str, Any]:
                nonlocal turn
                around, turn = strays[turn], turn + 1
                before = [stray(*one, before_of(now)) for one in around]
                await asyncio.gather(*before)
                while True:
                    first, second, *_ = await asyncio.gather(
                        http.post(path, json=body),
                        http.post(path, json=body),
                        *(stray(*one, before_of(now)) for one in around),
                    )
                    answers = [reply for reply in (first, second) if reply.status_code == 200]
                    if answers:
                        assert len({reply.content for reply in answers}) == 1
                        again = await http.post(path, json=body)
                        assert again.content == answers[0].content
                        return again.json()
                    assert first.json()["code"] == "SESSION_BUSY", first.text

            for episode in range(2):
                where = {"session_id": session_id} if session_id else {}
                reply = await ask("/reset", {**reset_body(episode), **where}, (episode, -1))
                session_id = reply["session_id"]
                replies.append(reply)
                for index in range(len(ACTIONS)):
                    replies.append(await ask("/step", step_body(session_id, episode, index), (episode, index)))
            return replies, len(app.state.sessions.live)

    def before_of(now: tuple[int, int]) -> tuple[int, int]:
        """The last request that has been answered before this one."""
        episode, index = now
        return (episode, index - 1) if index >= 0 else (episode - 1, len(ACTIONS) - 1)

    replies, live = asyncio.run(main())
    assert played(replies) == clean_run(2)
    assert live == 1
