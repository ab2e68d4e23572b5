from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agentgym.errors import ConfigError
from agentgym.testing import EchoEnv
from agentgym_servers.gateway.auth import new_key
from agentgym_servers.gateway.database import EnvironmentRecord, RegistrationStore
from agentgym_servers.gateway.errors import DatabaseUnavailable, DuplicateName
from agentgym_servers.gateway.schemas import Registration

from .conftest import env_server, gateway_process

NOBODY = 65534


def program(name: str) -> str | None:
    """Also where Debian keeps it, off the PATH."""
    places = [str(folder) for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(places))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[str]:
    """The URL of a database in a cluster of its own, thrown away at the end."""
    initdb, postgres = program("initdb"), program("postgres")
    if initdb is None or postgres is None:
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    folder = tmp_path_factory.mktemp("postgres")
    user: dict = {}
    if os.getuid() == 0:  # which PostgreSQL refuses
        for place in (folder, *folder.parents):
            if place.owner() == "root" and not place.stat().st_mode & 0o001:  # pytest's own folders are private
                os.chmod(place, 0o755)
        os.chown(folder, NOBODY, NOBODY)
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    data = folder / "data"
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": folder, **user}
    made = subprocess.run([initdb, "-D", data, "-U", "gym", "--auth=trust", "--no-sync"], check=False, **quiet)
    assert made.returncode == 0, made.stdout
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    options = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
    with subprocess.Popen([postgres, "-D", data, "-p", str(port), *options], **quiet) as server:
        try:
            for line in server.stdout:
                if "ready to accept connections" in line:
                    break
            yield f"postgresql://gym:a-password@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)  # without waiting for its clients
            server.communicate(timeout=30)


@pytest.fixture
def database(cluster) -> str:
    """The URL of an empty database in it."""
    psycopg = pytest.importorskip("psycopg", reason="needs psycopg: pip install 'turngym[postgres]'")
    name = f"gym_{secrets.token_hex(4)}"
    with psycopg.connect(cluster, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return cluster.rpartition("/")[0] + f"/{name}"


def test_a_gateway_keeps_its_envs_and_keys_in_postgresql(database):
    with env_server(echo=EchoEnv) as server:
        with gateway_process(database) as gateway:
            assert gateway.register("words", url=server).status_code == 201
            session = gateway.begin("words")
            with closing(RegistrationStore(database)) as other, pytest.raises(ConfigError, match="another gateway"):
                other.lock()
            gateway.process.kill()
        with gateway_process(database) as gateway:
            assert gateway.register("words", url=server).json()["code"] == "DUPLICATE_NAME"
            assert gateway.step("words", session)[0] == 200
            assert gateway.http.delete("/environments/words?drain_s=0").status_code == 200


def test_what_postgresql_refuses_is_typed(database):
    with closing(RegistrationStore(database)) as registry:
        key, _ = new_key("test", ["run", "read"])
        registry.add_key(key)
        assert registry.all_keys() == [key]
        assert registry.revoke_key(key.id)
        assert not registry.all_keys()[0].valid(0)
        row = EnvironmentRecord("1", Registration(name="words", entry_point="echo"), None, 0.0)
        registry.add_env(row)
        assert registry.envs() == [row]
        with pytest.raises(DuplicateName):
            registry.add_env(row)
        registry.remove_env("1")
        assert registry.envs() == []
    absent = database.rpartition(":")[0] + ":1/postgres"
    with pytest.raises(DatabaseUnavailable, match="cannot be opened") as caught:
        RegistrationStore(absent)
    assert "a-password" not in str(caught.value)
