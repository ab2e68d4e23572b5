from __future__ import annotations

from agentgym.testing import EchoEnv

from .conftest import ECHO, children_of, env_server, eventually, gateway_process, running


def test_a_restarted_gateway_finds_surviving_sessions(tmp_path):
    database = f"sqlite:///{tmp_path / 'gateway.db'}"
    with env_server(echo=EchoEnv) as server:
        with gateway_process(database) as gateway:
            assert gateway.register("given", url=server).status_code == 201
            assert gateway.register("ours", entry_point=ECHO).status_code == 201
            given, ours = gateway.begin("given", episode_id="one"), gateway.begin("ours")
            assert gateway.step("given", given, step=0)[0] == 200
            children = children_of(gateway.process.pid)
            gateway.process.kill()
        with gateway_process(database) as gateway:
            eventually(lambda: gateway.env("ours")["state"] == "live")
            eventually(lambda: not running(children))
            status, replayed = gateway.step("given", given, step=0)
            assert (status, replayed["step"]) == (200, 1)
            assert gateway.step("given", given, "brook", step=1)[1]["step"] == 2
            assert gateway.begin("given", episode_id="one") == given
            status, lost = gateway.step("ours", ours, step=0)
            assert (status, lost["code"]) == (410, "EPISODE_LOST")
            assert gateway.step("given", "0" * 32)[0] == 404
            gateway.close("ours", gateway.begin("ours"))
            children = children_of(gateway.process.pid)
            assert len(children) == 1
        assert not running(children)  # an orderly stop takes them along
