"""Get WebShop's files from the Google Drive of its authors, into ~/.cache/agentgym/webshop or a folder of yours:

    python -m agentgym_environments.benchmarks.webshop.fetch [--size all|small] [FOLDER]

What is there is not fetched again. Size "all" is 1.18 million products in more than 5 GB, "small" a thousand of them.
WebShop's files are for academic and research use only: its licence says so.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click
import httpx

from agentgym.errors import ConfigError
from agentgym_environments.benchmarks.webshop.catalogue import SIZES, files

DRIVE = "https://drive.usercontent.google.com/download"
VIEW = "https://drive.google.com/uc?id="
"""Page of a file, for a browser and for gdown."""
IDS = {
    "items_shuffle.json": "1A2whVgOO0euk5O13n2iYDM0bQRkkRduB",
    "items_ins_v2.json": "1s2j6NgHljiZzQNL3veZaAiyW_qDEgBNi",
    "items_shuffle_1000.json": "1EgHdxQ_YxqIQlvvq5iKlCrkEKR6-j0Ib",
    "items_ins_v2_1000.json": "1IduG0xl544V_A_jv3tHXC0kyFi7PnyBu",
    "items_human_ins.json": "14Kb5SPBk_jfdLZ_CDBNitW98QLDlKR5O",
}
"""Names of WebShop's `setup.sh`."""


def default_folder() -> Path:
    return Path("~/.cache/agentgym/webshop").expanduser()


def fetch_command(data: str = "", size: str = "all") -> str:
    """Return the command that gets the files."""
    options = ([] if size == "all" else ["--size", size]) + ([shlex.quote(data)] if data else [])
    return " ".join(["python -m agentgym_environments.benchmarks.webshop.fetch", *options])


def fetch(folder: Path, size: str, drive: str = DRIVE) -> list[Path]:
    """Get the files that are missing, and return all. Raises ConfigError with what to do by hand where that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be a folder: {error}") from error
    paths = [folder / name for name in files(size)]
    for path in paths:
        if not path.is_file():
            _fetch(path, drive)
    return paths


def _fetch(path: Path, drive: str) -> None:
    part = path.with_suffix(f".{os.getpid()}.part")
    query = {"id": IDS[path.name], "export": "download", "confirm": "t"}
    try:
        with (
            httpx.stream("GET", drive, params=query, follow_redirects=True, timeout=60.0) as response,
            part.open("wb") as file,
        ):
            response.raise_for_status()
            if "text/html" in response.headers.get("content-type", ""):
                raise ConfigError(_by_hand(path, "Google Drive answers with a page, as it does when too many ask"))
            for chunk in response.iter_bytes():
                file.write(chunk)
        part.replace(path)
    except (httpx.HTTPError, OSError) as error:
        raise ConfigError(_by_hand(path, f"{type(error).__name__}: {error}")) from error
    finally:
        part.unlink(missing_ok=True)


def _by_hand(path: Path, reason: str) -> str:
    return f"{path.name} cannot be fetched ({reason}): open {VIEW}{IDS[path.name]} in a browser and save it as {path}"


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option("--size", type=click.Choice(tuple(SIZES)), default="all", show_default=True)
def main(folder: Path | None, size: str) -> None:
    try:
        for path in fetch(folder or default_folder(), size):
            click.echo(f"{path}: {path.stat().st_size:,} bytes")
    except ConfigError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
