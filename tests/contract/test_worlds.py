"""Worlds behind one real server: Gymnasium's checker, the conformance suite by URL, broken worlds."""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check

from agentgym import registry
from agentgym.clients.gym import RemoteEnv
from agentgym.clients.server_process import server_process
from agentgym.conformance.run import check_server, check_world

SHIPPED = [name for name, target in registry.list_envs().items() if target.startswith("agentgym_environments.")]
QUICK = [name for name in SHIPPED if registry.get_spec(name).inline]
"""Checked in their own process by tests/agentgym/test_check_env.py."""
WORLDS = ["blackjack", "frozenlake", "keydoor-delayed", "kuhn-poker-self", "oracle", "shop", "tools", "wordle"]
"""Of the quick ones: without a solver, of Gymnasium, of two roles, with a graph, with hints, with tools."""
NETHACK = ["nle", "nle-descend", "nle-gold"]
HEAVY = [name for name in SHIPPED if name not in (*QUICK, *NETHACK)]
"""Browsers, desktops, sandboxes, engines: each behind a server of its own."""
INTERPRETERS = {"browsergym": f"browsergym:python={os.environ.get('AGENTGYM_BROWSERGYM_PYTHON')}"}
ONE_OF_A_KIND = {registry.list_envs()[name]: name for name in reversed(HEAVY)}.values()
ONE_OF_A_FAMILY = list(
    {registry.get_spec(name).family: name for name in reversed(HEAVY) if name not in INTERPRETERS}.values()
)

HILLS = Path(__file__).resolve().parent.parent / "agentgym" / "test_check_env.py"
BROKEN = ("Unseeded", "RewardTooBig", "ClockInKey", "SnapshotForgetsChance", "WeakExpert", "NoSuccess", "IgnoresTask")
HELPER = f"""
import hills_of_check_env as hills

REASONS = {{kind.__name__: (rule, reason) for kind, rule, reason in hills.BROKEN}}
for name in {BROKEN}:  # each with a name of its own, so that one server has room for all
    spec = hills.GOOD.model_copy(update={{"id": name}})
    globals()[name] = type(name, (getattr(hills, name),), {{"env_spec": spec}})
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory) -> Iterator[str]:
    """The name of a module, importable here and in the server, that holds the broken worlds."""
    folder = tmp_path_factory.mktemp("helper")
    shutil.copy(HILLS, folder / "hills_of_check_env.py")
    (folder / "broken_worlds_helper.py").write_text(HELPER, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield "broken_worlds_helper"


@pytest.fixture(scope="module")
def url(broken) -> Iterator[str]:
    with server_process([*WORLDS, *(f"{broken}:{name}" for name in BROKEN)]) as url:
        yield url


def test_one_server_serves_them_all(url):
    listed = {world["name"] for world in httpx.get(f"{url}/envs").json()["environments"]}
    assert set(WORLDS) <= listed
    assert len(listed) == len(WORLDS) + len(BROKEN)


@pytest.mark.parametrize("world", WORLDS)
def test_gymnasiums_own_checker_passes(url, world):
    with RemoteEnv(f"{url}/envs/{world}") as env:
        gymnasium_check(env, skip_render_check=True)


@pytest.mark.parametrize("world", WORLDS)
def test_the_conformance_suite_passes_by_url(url, world):
    tasks = 3 if registry.get_spec(world).max_turns <= 24 else 2
    findings = asyncio.run(check_server(f"{url}/envs/{world}", tasks=tasks))
    assert [str(finding) for finding in findings if not finding.ok] == []


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "world",
    [pytest.param(name, marks=pytest.mark.worlds if name in ONE_OF_A_KIND else pytest.mark.every) for name in HEAVY],
)
def test_a_heavy_world_keeps_the_contract_by_url(world):
    if world in INTERPRETERS and "AGENTGYM_BROWSERGYM_PYTHON" not in os.environ:
        pytest.skip("AGENTGYM_BROWSERGYM_PYTHON names no interpreter that has BrowserGym: run `make worlds`")
    with server_process([INTERPRETERS.get(world, world)], startup_s=240) as url:
        findings = asyncio.run(check_server(f"{url}/envs/{world}", tasks=1))
    assert [str(finding) for finding in findings if not finding.ok] == []


@pytest.mark.every
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("world", ONE_OF_A_FAMILY)
def test_a_heavy_world_of_each_family_keeps_the_contract_here(world):
    findings = asyncio.run(check_world(world, tasks=1))
    assert [str(finding) for finding in findings if not finding.ok] == []


@pytest.mark.worlds
def test_nethack_keeps_the_contract_in_an_environment_of_its_own():
    if not os.environ.get("AGENTGYM_NLE_PYTHON"):
        pytest.skip("AGENTGYM_NLE_PYTHON names no interpreter that has NLE: run `make worlds`")
    code = f"""
import asyncio
from agentgym.conformance.run import check_server, check_world
from agentgym.clients.server_process import server_process

with server_process({NETHACK}, startup_s=240) as url:
    for name in {NETHACK}:
        for check in (check_world(name, tasks=2), check_server(f"{{url}}/envs/{{name}}", tasks=1)):
            for finding in asyncio.run(check):
                assert finding.ok, f"{{name}}: {{finding}}"
"""
    subprocess.run([os.environ["AGENTGYM_NLE_PYTHON"], "-c", code], check=True, cwd=HILLS.parents[2])


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_env_fails_alike_here_and_by_url(url, broken, name):
    rule, reason = importlib.import_module(broken).REASONS[name]
    for findings in (
        asyncio.run(check_world(f"{broken}:{name}", tasks=10)),
        asyncio.run(check_server(f"{url}/envs/{name}", tasks=10)),
    ):
        failed = {finding.rule: finding.message for finding in findings if not finding.ok}
        assert reason in failed[rule]
