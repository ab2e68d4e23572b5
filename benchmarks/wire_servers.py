"""The trivial environment of `benchmarks/wire.py` as ours, and the bare echo that nothing in this language outruns.

python wire_servers.py    prints "serving at tcp://HOST:PORT" and echoes what is sent there
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any


class Echo(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0, backlog=2048)
    print(f"serving at tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(main())
else:
    from agentgym.env import Env
    from agentgym.spec import EnvSpec

    class Parrot(Env):
        """What the OpenEnv server of tests/interop does: it repeats what is said."""

        env_spec = EnvSpec(id="parrot", description="Repeats.", instructions="Speak.", max_turns=2**31, inline=True)

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return f"ready {seed}", {}

        def step(self, action: Any) -> Any:
            return f"you said {action}", 0.0, False, False, {}
