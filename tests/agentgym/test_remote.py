from __future__ import annotations

import threading
from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from agentgym.clients.gym import BackgroundLoop, RemoteEnv, RemoteVectorEnv
from agentgym.errors import BadRequest, EnvironmentCrashed, EpisodeLost, Unreachable, UsageError
from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app
from agentgym_servers.web.run import serve_in_thread


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    envs = {
        "echo": EchoEnv,
        "seen": lambda: EchoEnv(image=True),
        "crash": lambda: EchoEnv(crash_at=1),
        "short": lambda: EchoEnv(max_turns=2),
    }
    with serve_in_thread(create_app(envs)) as url:
        yield url


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert BackgroundLoop._shared is None
    assert "agentgym-remote" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("wire", ["socket", "http"])
@pytest.mark.parametrize("environment", ["echo", "seen"])
def test_gymnasiums_own_check(url, environment, wire):
    env = RemoteEnv(f"{url}/envs/{environment}", wire=wire)
    check_env(env, skip_render_check=True)
    env.close()


def test_an_episode(url):
    with RemoteEnv(url) as env:
        observation, info = env.reset(seed=1, options={"task": 0})
        assert (observation, info["success"]) == ("Say: apple", False)
        assert env.hint() == "The word begins with 'a'."
        state = env.snapshot()
        observation, reward, terminated, truncated, info = env.step(env.solver())
        assert (observation, reward, terminated, truncated) == ("You said: apple\nSay: brook", 0.0, False, False)
        env.restore(state)
        assert env.solver() == "apple"
    env.close()  # twice is no mistake
    with pytest.raises(UsageError, match="closed"):
        env.reset()


def test_failures_are_raised(url):
    with RemoteEnv(f"{url}/envs/crash") as env:
        env.reset()
        env.step("x")
        with pytest.raises(EnvironmentCrashed):
            env.step("x")
        with pytest.raises(EpisodeLost):
            env.step("x")
        env.reset()
    with pytest.raises(Unreachable):
        RemoteEnv("http://127.0.0.1:9", retries=0)


@pytest.mark.parametrize("wire", ["socket", "http"])
def test_a_vector_behaves_as_gymnasiums_own(url, wire):
    ours = RemoteVectorEnv(f"{url}/envs/short", 3, wire=wire)
    theirs = SyncVectorEnv([lambda: EchoEnv(max_turns=2)] * 3)
    assert ours.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    assert ours.observation_space == theirs.observation_space
    assert ours.num_envs == 3
    assert isinstance(ours, gymnasium.vector.VectorEnv)

    def same(one, other):
        assert one[0] == other[0]
        for a, b in zip(one[1:-1], other[1:-1]):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype
        assert one[-1].keys() == other[-1].keys()
        for key in one[-1]:
            np.testing.assert_array_equal(one[-1][key], other[-1][key])

    same(ours.reset(seed=4), theirs.reset(seed=4))
    for actions in (["x", "", "apple"], ["x"] * 3, ["ignored"] * 3, ["apple"] * 3):
        same(ours.step(actions), theirs.step(actions))
    same(ours.reset(seed=[1, 2, None], options={"task": 3}), theirs.reset(seed=[1, 2, None], options={"task": 3}))
    ours.close()
    theirs.close()


def test_a_vector_used_wrongly(url):
    with pytest.raises(UsageError):
        RemoteVectorEnv(url, 0)
    env = RemoteVectorEnv(f"{url}/envs/crash", 2)
    with pytest.raises(BadRequest, match="3 seeds"):
        env.reset(seed=[1, 2, 3])
    env.reset()
    with pytest.raises(BadRequest, match="1 actions"):
        env.step(["x"])
    env.step(["x", "x"])
    for failure in (EnvironmentCrashed, EpisodeLost):
        with pytest.raises(failure):
            env.step(["x", "x"])
    env.reset()
    env.step(["x", "x"])
    env.close()


def test_several_share_one_thread(url):
    first, second = RemoteEnv(url), RemoteEnv(url)
    assert [thread.name for thread in threading.enumerate()].count("agentgym-remote") == 1
    first.close()
    second.reset()
    second.close()
