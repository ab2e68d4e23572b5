"""`agentgym gateway` and its keys; `agentgym register | unregister | registered`."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from agentgym.cli.terminal import console
from agentgym.clients.client import key_in_use
from agentgym.errors import AgentGymError, UsageError

DATABASE = f"sqlite:///{Path(click.get_app_dir('agentgym')) / 'gateway.db'}"
URL = "http://127.0.0.1:8080"

database_option = click.option(
    "--database", default=DATABASE, help="URL of the registrations' database, SQLite or PostgreSQL.  [default: yours]"
)


@click.group(invoke_without_command=True, short_help="Serve many environments behind one address.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 takes a free one.")
@database_option
@click.option("--rate", help="How often one API key may ask.  [default: 2000/second]")
@click.option("--sessions-per-key", type=click.IntRange(min=1), help="Of each environment.  [default: 512]")
@click.option("--sessions-per-address", type=click.IntRange(min=1), help="Of each environment.  [default: 768]")
@click.option(
    "--allow-private-urls/--no-private-urls",
    "private_urls",
    default=None,
    help="Register by URL on this machine or a private network.  [default: if it listens to this machine alone]",
)
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A name of the gateway; may be repeated.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--die-with-stdin", is_flag=True, hidden=True)
@click.pass_context
def gateway(context: click.Context, database: str, **options: Any) -> None:
    """Serve registered environments behind one address, until interrupted; a page at / shows them.

    Without API keys it listens to this machine alone. `agentgym register` adds an environment.
    """
    context.obj = database
    if context.invoked_subcommand is not None:
        return
    from agentgym_servers.gateway.app import run_gateway

    _make_folder(database)
    with contextlib.suppress(KeyboardInterrupt):  # that is how one stops it
        run_gateway(database, **{name: value for name, value in options.items() if value is not None})


@gateway.group()
def keys() -> None:
    """The API keys of a gateway, running or not."""


@keys.command("create")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(("register", "run", "read")),
    help="register: add and remove environments; run: play in them; read: see what there is. May be repeated.  "
    "[default: run and read]",
)
@click.option("--days", type=click.FloatRange(min=0, min_open=True), help="How long it is valid.  [default: for ever]")
@click.pass_context
def keys_create(context: click.Context, name: str, scopes: tuple[str, ...], days: float | None) -> None:
    """Make a key and print it: this once, for only its hash is kept."""
    from agentgym_servers.gateway.auth import new_key

    key, secret = new_key(name, scopes or ("run", "read"), None if days is None else days * 86_400)
    with _registry(context.obj) as registry:
        registry.add_key(key)
    click.echo(f"key {key.id} ({', '.join(sorted(key.scopes))}), shown this once:", err=True)
    click.echo(secret)


@keys.command("list")
@click.pass_context
def keys_list(context: click.Context) -> None:
    """Every key that was ever made."""
    table = Table()
    for column in ("id", "name", "scopes", "made", "state"):
        table.add_column(column)
    with _registry(context.obj) as registry:
        for key in registry.all_keys():
            made = time.strftime("%Y-%m-%d %H:%M", time.localtime(key.created))
            state = "revoked" if key.revoked else "valid" if key.valid(time.time()) else "expired"
            table.add_row(key.id, escape(key.name), ", ".join(sorted(key.scopes)), made, state)
    console.print(table)


@keys.command("revoke")
@click.argument("key_id", metavar="ID")
@click.pass_context
def keys_revoke(context: click.Context, key_id: str) -> None:
    """Make a key worthless; a running gateway knows within two seconds."""
    with _registry(context.obj) as registry:
        if not registry.revoke_key(key_id):
            raise UsageError(f"there is no valid key {key_id!r}; `agentgym gateway keys list` shows them")
    click.echo(f"revoked {key_id}")


def _registry(database: str) -> Any:
    from agentgym_servers.gateway.database import RegistrationStore

    _make_folder(database)
    return contextlib.closing(RegistrationStore(database))


def _make_folder(database: str) -> None:
    if database == DATABASE:
        Path(database.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)


def _or_global(_: click.Context, __: click.Parameter, key: str | None) -> str | None:
    """Return the verb's own key, else that of `agentgym --key` or AGENTGYM_KEY."""
    return key_in_use() if key is None else key


def of_a_gateway(command: Any) -> Any:
    """The options of a verb that asks a running gateway."""
    key = click.option("--key", callback=_or_global, help="An API key.  [default: that of `agentgym --key`]")
    url = click.option("--gateway", "url", default=URL, envvar="AGENTGYM_GATEWAY", show_default=True)
    return url(key(command))


@click.command(short_help="Add an environment to a gateway.")
@click.argument("name")
@click.option("--url", "env_url", help="Of a server that runs already.")
@click.option("--image", help="A container image.")
@click.option("--entry-point", help='An installed environment\'s id, or "package.module:Class".')
@click.option(
    "--tasks", help="A file of tasks on the gateway's machine, or hf:OWNER/NAME/FILES; with --engine or --mcp."
)
@click.option(
    "--engine",
    type=click.Choice(("qa", "search", "code")),
    help="Plays the file: an answer, a search before it, or a function that passes tests.",
)
@click.option("--mcp", metavar="COMMAND", help="Command line or URL of the MCP server whose tools the file is for.")
@click.option("--harbor", metavar="DIR", help="A folder of Harbor tasks on the gateway's machine.")
@click.option("--min", "least", type=click.IntRange(min=0), help="Replicas kept running.  [default: 1]")
@click.option("--max", "most", type=click.IntRange(min=1), help="Replicas at most.  [default: 1]")
@click.option("--memory-mb", type=click.IntRange(min=16), help="Of one container.  [default: 1024]")
@click.option("--cpus", type=click.FloatRange(min=0, min_open=True), help="Of one container.  [default: 1]")
@click.option("--pids", type=click.IntRange(min=8), help="Processes in one container.  [default: 256]")
@click.option("--network", is_flag=True, default=None, help="Let the container reach the network.")
@click.option("--writable", is_flag=True, default=None, help="Let the container write to its own files.")
@of_a_gateway
def register(
    name: str,
    url: str,
    key: str | None,
    env_url: str | None,
    image: str | None,
    entry_point: str | None,
    tasks: str | None,
    engine: str | None,
    mcp: str | None,
    harbor: str | None,
    least: int | None,
    most: int | None,
    writable: bool | None,
    **limits: Any,
) -> None:
    """Add an environment to a gateway as NAME: by URL, image, entry point, file of tasks or folder of Harbor tasks.

    The gateway starts it and runs the conformance check before it is live; if that fails, nothing is left of it.
    """
    body = {
        "name": name,
        "url": env_url,
        "image": image,
        "entry_point": entry_point,
        "tasks": tasks,
        "engine": engine,
        "mcp": mcp,
        "harbor": harbor,
        "replicas": _given(min=least, max=most if most is not None or least is None else max(least, 1)),
        "limits": _given(**limits),
        "read_only": None if writable is None else not writable,
    }
    env = _ask("POST", f"{url}/environments", key, "path", _given(**body))
    click.echo(f"{name} is live at {url.rstrip('/')}{env['path']}")


@click.command(short_help="Remove an environment from a gateway.")
@click.argument("name")
@click.option("--drain", default=30.0, show_default=True, help="Seconds its sessions may still go on.")
@of_a_gateway
def unregister(name: str, drain: float, url: str, key: str | None) -> None:
    """Remove an environment from a gateway once its sessions have ended, or after so long."""
    gone = _ask("DELETE", f"{url}/environments/{name}?drain_s={drain:g}", key, "sessions_lost")
    click.echo(f"{name} is removed; {gone['sessions_lost']} sessions were lost")


@click.command(short_help="The environments of a gateway.")
@of_a_gateway
def registered(url: str, key: str | None) -> None:
    """The environments of a gateway."""
    table = Table()
    for column in ("name", "from", "state", "replicas", "sessions"):
        table.add_column(column)
    for env in _ask("GET", f"{url}/environments", key, "environments")["environments"]:
        source = f"{env['kind']} {env[env['kind']]}"
        sessions = sum(replica["sessions"] for replica in env["running"])
        table.add_row(env["name"], escape(source), env["state"], str(len(env["running"])), str(sessions))
    console.print(table)


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, {})}


def _ask(method: str, url: str, key: str | None, field: str, body: dict[str, Any] | None = None) -> Any:
    """A gateway's answer, which has `field`. Raises AgentGymError with what it says is wrong."""
    import httpx

    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        reply = httpx.request(method, url, json=body, headers=headers, timeout=httpx.Timeout(10, read=None))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise AgentGymError(f"no gateway answers at {url}: {error}; start one by `agentgym gateway`") from error
    try:
        answer = reply.json()
    except ValueError:  # a page of another server
        answer = None
    if reply.is_error and isinstance(answer, dict):
        raise AgentGymError(answer.get("message", answer))
    if not isinstance(answer, dict) or field not in answer:
        raise AgentGymError(
            f"{url} answered {reply.status_code}, and not as a gateway does; name the gateway by --gateway URL, "
            "or start one by `agentgym gateway`"
        )
    return answer
