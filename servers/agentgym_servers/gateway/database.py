"""The gateway's database, in SQLite or PostgreSQL: the registered environments, the API keys, its own id.

An environment's row is written when the environment has passed its check and is live, and deleted before it is drained,
so that whatever runs without a row is left over from a crash. Every method blocks: call it from a thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, SQLAlchemyError

from agentgym.errors import ConfigError, MissingDependency
from agentgym_servers.gateway.errors import DatabaseUnavailable, DuplicateName
from agentgym_servers.gateway.schemas import Registration

_schema = sql.MetaData()
_envs = sql.Table(
    "agentgym_envs",
    _schema,
    sql.Column("name", sql.String(64), primary_key=True),
    sql.Column("id", sql.String(32), nullable=False, unique=True),
    sql.Column("registration", sql.Text, nullable=False),
    sql.Column("spec", sql.Text, nullable=False),
    sql.Column("created", sql.Float, nullable=False),
)
_keys = sql.Table(
    "agentgym_keys",
    _schema,
    sql.Column("id", sql.String(16), primary_key=True),
    sql.Column("name", sql.String(64), nullable=False),
    sql.Column("digest", sql.String(64), nullable=False),
    sql.Column("scopes", sql.String(64), nullable=False),
    sql.Column("created", sql.Float, nullable=False),
    sql.Column("expires", sql.Float),
    sql.Column("revoked", sql.Float),
)
_gateway = sql.Table("agentgym_gateway", _schema, sql.Column("id", sql.String(32), primary_key=True))

LOCKED_S = 5.0
"""A database that somebody else has locked is waited for so long."""
_LOCK = 0x4147_5F47_5701
"""The advisory lock of a gateway on its PostgreSQL database."""


@dataclass(frozen=True)
class EnvironmentRecord:
    """A registered environment."""

    id: str
    registration: Registration
    spec: dict[str, Any] | None
    """Its EnvSpec as JSON; None for an environment that does not speak AgentGym's extension of the protocol."""
    created: float
    """Seconds since 1970."""
    image_id: str | None = None
    """The image that its registration's name had when it was registered."""


@dataclass(frozen=True)
class ApiKey:
    """An API key, without the key: only its SHA-256 is kept."""

    id: str
    name: str
    digest: str
    """Hexadecimal SHA-256 of the whole key."""
    scopes: frozenset[str]
    created: float
    expires: float | None
    revoked: float | None

    def valid(self, now: float) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)


class RegistrationStore:
    """The tables behind a database URL, made where they are missing.

    Raises ConfigError for a URL that names no database, and everywhere DatabaseUnavailable when the database fails.
    """

    def __init__(self, url: str) -> None:
        try:
            self._url = make_url(url)
            if self._url.drivername == "postgresql":
                self._url = self._url.set(drivername="postgresql+psycopg")
            lite = self._url.drivername.startswith("sqlite")
            options = {"timeout": LOCKED_S} if lite else {"connect_timeout": int(LOCKED_S)}
            self._engine = sql.create_engine(self._url, pool_pre_ping=True, connect_args=options)
        except (ArgumentError, NoSuchModuleError) as error:
            raise ConfigError(
                "this is no database URL that the gateway can use; write sqlite:///FILE or postgresql://USER@HOST/NAME"
            ) from error
        except ModuleNotFoundError as error:
            raise MissingDependency(
                f"this database needs the package {error.name}: pip install 'turngym[postgres]'"
            ) from error
        with self._talking("cannot be opened"):
            _schema.create_all(self._engine)
        self.id = self._own_id()
        self._lock: Any = None

    def lock(self) -> None:
        """Make this the database's only gateway until `close`. Raises ConfigError when there is another."""
        taken = ConfigError("another gateway runs on this database; give each its own")
        if self._url.drivername.startswith("sqlite"):
            file = Path(f"{self._url.database}.lock").open("w")  # noqa: SIM115  (open as long as the gateway runs)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                raise taken from None
            self._lock = file
        else:
            with self._talking("cannot be locked"):
                connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
                if not connection.scalar(sql.text(f"SELECT pg_try_advisory_lock({_LOCK})")):
                    connection.close()
                    raise taken
                self._lock = connection

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
        self._engine.dispose()

    def envs(self) -> list[EnvironmentRecord]:
        with self._talking("cannot be read") as connection:
            rows = connection.execute(sql.select(_envs).order_by(_envs.c.created)).all()
        try:
            return [_record(row) for row in rows]
        except ValueError as error:  # pydantic's and json's are both
            raise DatabaseUnavailable(
                f"the gateway's database holds an environment that it cannot read: {error}"
            ) from error

    def add_env(self, row: EnvironmentRecord) -> None:
        """Raises DuplicateName."""
        values = {
            "name": row.registration.name,
            "id": row.id,
            "registration": json.dumps(row.registration.model_dump(mode="json") | {"image_id": row.image_id}),
            "spec": json.dumps(row.spec),
            "created": row.created,
        }
        with self._talking("cannot be written") as connection:
            try:
                connection.execute(sql.insert(_envs).values(values))
            except IntegrityError as error:
                raise DuplicateName(f"{row.registration.name!r} is registered already") from error

    def remove_env(self, env_id: str) -> None:
        with self._talking("cannot be written") as connection:
            connection.execute(sql.delete(_envs).where(_envs.c.id == env_id))

    def all_keys(self) -> list[ApiKey]:
        with self._talking("cannot be read") as connection:
            rows = connection.execute(sql.select(_keys).order_by(_keys.c.created)).all()
        return [
            ApiKey(r.id, r.name, r.digest, frozenset(r.scopes.split()), r.created, r.expires, r.revoked) for r in rows
        ]

    def add_key(self, key: ApiKey) -> None:
        values = {**vars(key), "scopes": " ".join(sorted(key.scopes))}
        with self._talking("cannot be written") as connection:
            connection.execute(sql.insert(_keys).values(values))

    def revoke_key(self, key_id: str) -> bool:
        """Revoke a key. Return whether there was such a key, not yet revoked."""
        change = sql.update(_keys).where(_keys.c.id == key_id, _keys.c.revoked.is_(None)).values(revoked=time.time())
        with self._talking("cannot be written") as connection:
            return connection.execute(change).rowcount > 0

    def _own_id(self) -> str:
        with self._talking("cannot be written") as connection:
            found = connection.scalar(sql.select(_gateway.c.id))
            if found is None:
                found = secrets.token_hex(8)
                connection.execute(sql.insert(_gateway).values(id=found))
        return found

    @contextlib.contextmanager
    def _talking(self, failure: str) -> Iterator[Connection]:
        """A transaction."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            cause = " ".join(str(getattr(error, "orig", None) or error).split())
            where = self._url.render_as_string(hide_password=True)
            raise DatabaseUnavailable(f"the gateway's database {where} {failure}: {cause}") from error


def _record(row: Any) -> EnvironmentRecord:
    """Raises ValueError."""
    fields = json.loads(row.registration)
    image_id = fields.pop("image_id", None)
    return EnvironmentRecord(row.id, Registration.model_validate(fields), json.loads(row.spec), row.created, image_id)
