"""A container's check: `python -m agentgym_servers.web.healthcheck [URL]` ends with status 0 for a healthy server."""

from __future__ import annotations

import json
import sys
from urllib.error import URLError
from urllib.request import urlopen

URL = "http://127.0.0.1:8000/health"


def check(url: str = URL, *, timeout_s: float = 4.0) -> str:
    """Return what is wrong with the server, or nothing."""
    try:
        with urlopen(url, timeout=timeout_s) as reply:
            status = json.load(reply)["status"]
    except (URLError, OSError, ValueError, LookupError, TypeError) as error:
        return f"{url}: {error}"
    return "" if status == "healthy" else f"{url} says {status}"


if __name__ == "__main__":
    sys.exit(check(sys.argv[1] if sys.argv[1:] else URL) or 0)
