"""Records of a data file: JSON lines, JSON, Parquet, Arrow, on this machine or in a data set of the Hugging Face hub.

Files of the hub are read from its cache, where `fetch` puts them: reading a task set asks no network.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from agentgym.errors import ConfigError
from agentgym_environments.base.engine_env import package

Record = dict[str, Any]

HUB = "hf:"
"""Prefix of files of a data set of the Hugging Face hub."""
EXAMPLE = "hf:openai/gsm8k/main/test-*.parquet"
SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".json", ".parquet", ".arrow")


def read_records(source: str) -> list[Record]:
    """Return the records of a file, by its suffix, or of files of the hub that were fetched.

    Raises ConfigError for what is not there or cannot be read, with the line where there is one; MissingDependency
    where a package is missing.
    """
    if source.startswith(HUB):
        records = _of_hub(source)
    else:
        path = Path(source).expanduser()
        if not path.is_file():
            raise ConfigError(f"there is no file {source}: name one that ends in {', '.join(SUFFIXES)}, or {EXAMPLE}")
        records = _of_file(path)
    if not records:
        raise ConfigError(f"{source} has no records")
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise ConfigError(f"{source}, record {number}: an object is expected, not {type(record).__name__}")
    return records


def _of_file(path: Path) -> list[Record]:
    suffix = path.suffix.lower()
    if suffix in (".jsonl", ".ndjson") or path.name.lower().endswith(".jsonl.gz"):
        return list(_lines(path))
    if suffix == ".json":
        return _json(path)
    if suffix == ".parquet":
        return _table(path, lambda: package("pyarrow.parquet", "data").read_table(path))
    if suffix == ".arrow":
        return _table(path, lambda: _arrow(path))
    raise ConfigError(f"{path} is none of {', '.join(SUFFIXES)}")


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix.lower() == ".gz" else content).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path} cannot be unpacked: {error}") from error


def _lines(path: Path) -> Iterator[Record]:
    for number, line in enumerate(_text(path).split("\n"), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{path}, line {number} is not JSON: {error}") from error


def _json(path: Path) -> list[Record]:
    """An array of records, or an object with one such array, as SQuAD-like files have under "data"."""
    try:
        content = json.loads(_text(path))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}; one object a line is a .jsonl file") from error
    if isinstance(content, dict):
        arrays = [value for value in content.values() if isinstance(value, list)]
        if len(arrays) != 1:
            raise ConfigError(f"{path} is an object with {len(arrays)} arrays: it should be an array, or have one")
        content = arrays[0]
    if not isinstance(content, list):
        raise ConfigError(f"{path} should be an array of objects, it is {type(content).__name__}")
    return content


def _arrow(path: Path) -> Any:
    """Return the table of a file of the streaming format, as `datasets` writes it, or of the file format."""
    ipc = package("pyarrow.ipc", "data")
    with path.open("rb") as file:
        head = file.read(6)
        file.seek(0)
        opened = ipc.open_file(file) if head == b"ARROW1" else ipc.open_stream(file)
        return opened.read_all()


def _table(path: Path, read: Any) -> list[Record]:
    invalid = package("pyarrow", "data").ArrowInvalid
    try:
        return read().to_pylist()
    except (invalid, OSError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def fetch(source: str) -> list[Path]:
    """Get the files of a data set of the hub into the hub's own cache, and return their paths. What is there stays.

    Raises ConfigError where the hub cannot be reached or has no such files; MissingDependency without huggingface_hub.
    """
    return _snapshot(HubFiles.parse(source), source, fetching=True)


def is_here(source: str) -> bool:
    """Return whether files of the hub were fetched."""
    try:
        return bool(_snapshot(HubFiles.parse(source), source, fetching=False))
    except ConfigError:
        return False


class HubFiles(NamedTuple):
    """Files of a data set of the hub: `hf:OWNER/NAME/PATTERN`, or `hf:OWNER/NAME@REVISION/PATTERN`."""

    repository: str
    revision: str
    pattern: str

    @classmethod
    def parse(cls, source: str) -> HubFiles:
        """Raises ConfigError for what is no such name."""
        owner, _, rest = source.removeprefix(HUB).partition("/")
        name, _, pattern = rest.partition("/")
        name, _, revision = name.partition("@")
        if not (owner and name and pattern):
            raise ConfigError(f"{source} names no files: write {HUB}OWNER/NAME/FILE, as in {EXAMPLE}")
        return cls(f"{owner}/{name}", revision or "main", pattern)


def _of_hub(source: str) -> list[Record]:
    return [record for path in _snapshot(HubFiles.parse(source), source, fetching=False) for record in _of_file(path)]


def _snapshot(files: HubFiles, source: str, *, fetching: bool) -> list[Path]:
    """Return the files' paths in the hub's cache, in the order of their names. Only `fetching` asks the network."""
    hub = package("huggingface_hub", "data")
    try:
        folder = hub.snapshot_download(
            files.repository,
            repo_type="dataset",
            revision=files.revision,
            allow_patterns=files.pattern,
            local_files_only=not fetching,
        )
    except (OSError, ValueError, hub.errors.HfHubHTTPError) as error:
        if not fetching:
            raise ConfigError(_not_here(source)) from error
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"{source} cannot be fetched: {reason}") from error
    paths = sorted(path for path in Path(folder).glob(files.pattern) if path.is_file())
    if not paths:
        raise ConfigError(f"{files.repository} has no files {files.pattern}" if fetching else _not_here(source))
    return paths


def _not_here(source: str) -> str:
    return f"{source} is not on this machine: agentgym data fetch '{source}'"


def plain(value: Any) -> Any:
    """Return a value of a Parquet or TOML file as JSON has it."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)
