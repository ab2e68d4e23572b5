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
Table = dict[int, tuple[Any, ...]]
"""Every row of a table, by id."""
Dump = dict[str, Table]


class Change(NamedTuple):
    """One row that is not as it was."""

    table: str
    kind: Literal["insert", "update", "delete"]
    id: int
    values: Row
    """New row of an insert, old row of a delete, or columns that an update changed, as they are now."""


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
        self.columns = self._columns()
        """Columns of every table, the first being `id`."""
        self.touched = set(self.columns)
        """Tables in which something may have been written; the reader clears it."""

    def rows(self, sql: str, *values: Any) -> list[Row]:
        return [dict(row) for row in self.connection.execute(sql, values)]

    def add(self, table: str, **values: Any) -> int:
        """Insert a row and return its id."""
        columns, marks = ", ".join(f'"{name}"' for name in values), ", ".join("?" * len(values))
        sql = f"INSERT INTO {table} ({columns}) VALUES ({marks})"
        self.touched.add(table)
        return int(self.connection.execute(sql, tuple(values.values())).lastrowid or 0)

    def change(self, table: str, id: int, **values: Any) -> None:
        columns = ", ".join(f'"{name}" = ?' for name in values)
        self.touched.add(table)
        self.connection.execute(f"UPDATE {table} SET {columns} WHERE id = ?", (*values.values(), id))

    def delete(self, table: str, id: int) -> None:
        self.touched.add(table)
        self.connection.execute(f"DELETE FROM {table} WHERE id = ?", (id,))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes inside, or none."""
        self.connection.execute("BEGIN")
        try:
            yield
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    def table(self, name: str) -> Table:
        cursor = self.connection.cursor()
        cursor.row_factory = None
        return {row[0]: row for row in cursor.execute(f"SELECT * FROM {name}")}

    def dump(self) -> Dump:
        return {name: self.table(name) for name in self.columns}

    def row(self, table: str, values: tuple[Any, ...]) -> Row:
        """A row of a dump with its columns' names."""
        return dict(zip(self.columns[table], values))

    def image(self) -> bytes:
        return self.connection.serialize()

    def save(self) -> str:
        return b85encode(zlib.compress(self.image(), 1)).decode()

    def load(self, saved: str) -> None:
        """Raises ValueError for what `save` did not give."""
        try:
            self.connection.deserialize(zlib.decompress(b85decode(saved)))
            if self._columns() != self.columns:
                raise ValueError("the database has other tables")
            self.touched = set(self.columns)
        except (zlib.error, sqlite3.Error) as error:
            raise ValueError(f"the database is damaged: {error}") from error

    def close(self) -> None:
        self.connection.close()

    def _columns(self) -> dict[str, list[str]]:
        sql = (
            "SELECT m.name AS t, c.name AS c FROM sqlite_master AS m, pragma_table_info(m.name) AS c "
            "WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%' ORDER BY m.name, c.cid"
        )
        found: dict[str, list[str]] = {}
        for row in self.rows(sql):
            found.setdefault(row["t"], []).append(row["c"])
        return found


def changes(columns: list[str], table: str, old: Table, new: Table) -> list[Change]:
    """Every row of a table that differs, in the order of ids."""
    found: list[Change] = []
    for id in sorted(old.keys() | new.keys()):
        if id not in new:
            found.append(Change(table, "delete", id, dict(zip(columns, old[id]))))
        elif id not in old:
            found.append(Change(table, "insert", id, dict(zip(columns, new[id]))))
        elif old[id] != new[id]:
            pairs = zip(columns, old[id], new[id])
            found.append(Change(table, "update", id, {name: now for name, was, now in pairs if was != now}))
    return found


def digest(*parts: Any) -> str:
    """A short name of JSON values."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
