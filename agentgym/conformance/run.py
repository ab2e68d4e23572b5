"""The conformance suite: does an environment keep the contract of `agentgym.env` and of its own EnvSpec?

    for finding in check_env(lambda: agentgym.make("my-env")):
        print(finding)

The rules are in `agentgym.conformance.checks`; the same ones judge an environment in this process and one behind a URL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agentgym import registry
from agentgym.clients.client import EnvClient
from agentgym.clients.transports.http11 import Connect
from agentgym.conformance.checks import RULES
from agentgym.conformance.context import CheckContext, CheckFailed, Skip
from agentgym.env import Env
from agentgym.session import LocalSession, Session


@dataclass(frozen=True)
class CheckResult:
    """The result of one rule."""

    rule: str
    ok: bool
    message: str
    """The demand of the rule; when broken, what was observed and what the cause may be; when skipped, why."""
    skipped: bool = False

    def __str__(self) -> str:
        return f"{'skip' if self.skipped else 'ok  ' if self.ok else 'FAIL'} {self.rule}: {self.message}"


async def check_session(
    open_session: Callable[[], Awaitable[Session]], *, tasks: int = 20, seed: int = 0
) -> list[CheckResult]:
    """Every rule's finding on the environment that `open_session` opens anew each time. tasks: how many of a split to
    try."""
    session = await open_session()
    probe = CheckContext(open_session, session.spec, tasks, seed)
    await session.close()
    return [await _judge(rule, probe) for rule in RULES]


def check_env(make: Callable[[], Env], *, tasks: int = 20, seed: int = 0) -> list[CheckResult]:
    """Every rule's finding on the environments that `make` makes. tasks: how many of a split to try."""

    async def open_session() -> Session:
        return LocalSession(make())

    return asyncio.run(check_session(open_session, tasks=tasks, seed=seed))


async def _judge(rule: Callable[[CheckContext], Awaitable[None]], probe: CheckContext) -> CheckResult:
    name, demand = rule.__name__, (rule.__doc__ or "").strip()  # type: ignore[attr-defined]
    try:
        await rule(probe)
    except Skip as reason:
        return CheckResult(name, True, f"{demand} (skipped: {reason})", skipped=True)
    except CheckFailed as found:
        return CheckResult(name, False, f"{demand}; but {found}")
    except Exception as error:  # noqa: BLE001 - a broken environment may raise anything, and that is the finding
        return CheckResult(name, False, f"{demand}; but the environment raised {type(error).__name__}: {error}")
    return CheckResult(name, True, demand)


async def check_environment(name: str, *, tasks: int = 20, seed: int = 0) -> list[CheckResult]:
    """Every rule's finding on an environment of this process, by id or "package.module:Class"."""

    async def open_session() -> Session:
        return LocalSession(registry.make(name))

    return await check_session(open_session, tasks=tasks, seed=seed)


async def check_server(
    url: str, *, tasks: int = 20, seed: int = 0, connect: Connect | None = None
) -> list[CheckResult]:
    """Every rule's finding on the environment at `url`, over HTTP. Raises Unreachable when nobody answers.

    `connect` is `EnvClient`'s.
    """
    async with EnvClient(url, connect=connect) as client:

        async def open_session() -> Session:
            return client.session()

        return await check_session(open_session, tasks=tasks, seed=seed)
