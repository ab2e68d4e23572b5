"""The web application on a loopback port, one for all the environments of a process, and customers who enter and leave
it."""

from __future__ import annotations

import importlib.util
import secrets
import socket
import threading
import time
from functools import cache

from agentgym.errors import EnvironmentFailure, MissingDependency
from agentgym_environments.synthetic.shop.app import Customer, application
from agentgym_environments.synthetic.shop.goals import ShoppingGoal

START_S = 20.0
"""Most seconds until the server answers."""


def require() -> None:
    """Raises MissingDependency without FastAPI or uvicorn."""
    if importlib.util.find_spec("fastapi") is None or importlib.util.find_spec("uvicorn") is None:
        raise MissingDependency("the shop in a browser needs FastAPI and uvicorn: pip install 'turngym[shop]'")


class ShopSite:
    """A server in a background thread that ends with the process."""

    def __init__(self) -> None:
        import uvicorn

        self._customers: dict[str, Customer] = {}
        app = application(self._customers)
        config = uvicorn.Config(app, log_config=None, access_log=False, ws="none", lifespan="off")
        self._server = uvicorn.Server(config)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/"
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="agentgym-shop", daemon=True
        )
        self._thread.start()
        until = time.monotonic() + START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > until:
                raise EnvironmentFailure("the shop's server did not start")
            time.sleep(0.005)

    def welcome(self, goal: ShoppingGoal) -> tuple[str, Customer]:
        """A new customer and his token, which is his alone."""
        token = secrets.token_urlsafe(16)
        self._customers[token] = Customer(goal)
        return token, self._customers[token]

    def forget(self, token: str) -> None:
        self._customers.pop(token, None)

    def close(self) -> None:
        """Stop the server and close its socket."""
        self._server.should_exit = True
        self._thread.join(START_S)


_starting = threading.Lock()


@cache
def _site() -> ShopSite:
    return ShopSite()


def site() -> ShopSite:
    """This process's server, started when it is first needed."""
    require()
    with _starting:
        return _site()


def close_site() -> None:
    """Close this process's server, if it runs. A later `site` starts another."""
    with _starting:
        if _site.cache_info().currsize:
            _site().close()
            _site.cache_clear()
