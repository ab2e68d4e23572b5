"""The database of a session: SQLite in memory, compared row by row, kept in snapshots, named by a hash.

Every table has an integer `id`. Ids are never used twice, so that a row deleted and written again is told apart.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from base64 import b85decode, b85encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

Row = dict[str, Any]
Dump = dict[str, dict[int, Row]]
"""Every row of every table, by id."""


class Change(NamedTuple):
    """One row that is not as it was."""

    table: str
    kind: Literal["insert", "update", "delete"]
    id: int
    values: Row
    """Of an insert the new row, of a delete the old one, of an update the columns that differ, as they are now."""


class Database:
    """Tables in memory. `schema` is SQL; a database takes from 50 to 200 KB."""

    def __init__(self, schema: str = "", image: bytes | None = None) -> None:
        """`image` is another database's `image()`: a copy of it, made a hundred times faster than the original."""
        # No two threads use it at once, but a server may step an episode from one thread and close it from another.
        self.connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self.connection.row_factory = sqlite3.Row
        if image is None:
            self.connection.executescript(schema)
        else:
            self.connection.deserialize(image)
        self.tables = self._names()

    def rows(self, sql: str, *values: Any) -> list[Row]:
        return [dict(row) for row in self.connection.execute(sql, values)]

    def add(self, table: str, **values: Any) -> int:
        """Insert a row and return its id."""
        columns, marks = ", ".join(f'"{name}"' for name in values), ", ".join("?" * len(values))
        sql = f"INSERT INTO {table} ({columns}) VALUES ({marks})"
        return int(self.connection.execute(sql, tuple(values.values())).lastrowid or 0)

    def change(self, table: str, id: int, **values: Any) -> None:
        columns = ", ".join(f'"{name}" = ?' for name in values)
        self.connection.execute(f"UPDATE {table} SET {columns} WHERE id = ?", (*values.values(), id))

    def delete(self, table: str, id: int) -> None:
        self.connection.execute(f"DELETE FROM {table} WHERE id = ?", (id,))

    @contextmanager
    def whole(self) -> Iterator[None]:
        """What happens inside happens wholly or not at all."""
        self.connection.execute("BEGIN")
        try:
            yield
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    def dump(self) -> Dump:
        return {table: {row["id"]: row for row in self.rows(f"SELECT * FROM {table}")} for table in self.tables}

    @property
    def written(self) -> int:
        """Grows with every row that is written: while it stays, so does the dump."""
        return self.connection.total_changes

    def image(self) -> bytes:
        return self.connection.serialize()

    def save(self) -> str:
        return b85encode(zlib.compress(self.image(), 1)).decode()

    def load(self, saved: str) -> None:
        """Raises ValueError for what `save` did not give."""
        try:
            self.connection.deserialize(zlib.decompress(b85decode(saved)))
            if self._names() != self.tables:
                raise ValueError("the database has other tables")
        except (zlib.error, sqlite3.Error) as error:
            raise ValueError(f"the database is damaged: {error}") from error

    def close(self) -> None:
        self.connection.close()

    def _names(self) -> list[str]:
        found = self.rows("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY 1")
        return [row["name"] for row in found]


def changes(before: Dump, after: Dump) -> list[Change]:
    """Every row that differs, in the order of tables and ids."""
    found: list[Change] = []
    for table, old in before.items():
        new = after[table]
        for id in sorted(old.keys() | new.keys()):
            if id not in new:
                found.append(Change(table, "delete", id, old[id]))
            elif id not in old:
                found.append(Change(table, "insert", id, new[id]))
            elif old[id] != new[id]:
                changed = {name: value for name, value in new[id].items() if value != old[id][name]}
                found.append(Change(table, "update", id, changed))
    return found


def digest(*parts: Any) -> str:
    """A short name of JSON values."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
