"""Sessions of one environment that a key or an address may have at once."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict

from agentgym.errors import QuotaExceeded
from agentgym_servers.web.caller import RequestCaller

SESSIONS_PER_KEY = 512
SESSIONS_PER_ADDRESS = 768
IDLE_S = 600.0
"""A session that was not used for so long is not counted: its lease has run out, unless its server's is longer."""

Owner = tuple[str, str]
"""("key", its id) or ("address", the address)."""


class Quotas:
    """The sessions of one environment, by the keys and addresses that opened them."""

    def __init__(self, per_key: int = SESSIONS_PER_KEY, per_address: int = SESSIONS_PER_ADDRESS) -> None:
        self._most = {"key": per_key, "address": per_address}
        self._sessions: dict[Owner, OrderedDict[str, float]] = {}
        """Sessions by owner, the one that was not used for the longest time first."""
        self._owners: dict[str, list[Owner]] = {}
        self._opening: Counter[Owner] = Counter()

    def begin(self, caller: RequestCaller, known: str = "") -> list[Owner]:
        """Take a place for a session that is about to be opened. Raises QuotaExceeded.

        `known` is the session that the same request opened before: while it is counted, it has its place already.
        """
        if known in self._owners:
            return []
        owners = _owners_of(caller)
        for owner in owners:
            if self._count(owner) >= self._most[owner[0]] and self._count(owner, fresh=True) >= self._most[owner[0]]:
                kind = f"the key {owner[1]}" if owner[0] == "key" else "your address"
                raise QuotaExceeded(
                    f"{kind} has {self._most[owner[0]]} sessions of this environment, and may not have more: "
                    "close some, wait for a lease to run out, or start the gateway with a larger "
                    f"`--sessions-per-{owner[0]}`"
                )
        self._opening.update(owners)
        return owners

    def opened(self, caller: RequestCaller, owners: list[Owner], session_id: str) -> None:
        """The session was opened: it takes the place. One that is not `begin`'s `known` is counted all the same."""
        self._opening.subtract(owners)
        if session_id not in self._owners:
            self._owners[session_id] = _owners_of(caller)
            for owner in self._owners[session_id]:
                self._sessions.setdefault(owner, OrderedDict())[session_id] = time.monotonic()

    def failed(self, owners: list[Owner]) -> None:
        """No session was opened."""
        self._opening.subtract(owners)

    def used(self, session_id: str) -> None:
        """The session was asked for something."""
        for owner in self._owners.get(session_id, ()):
            sessions = self._sessions[owner]
            sessions[session_id] = time.monotonic()
            sessions.move_to_end(session_id)

    def ended(self, session_id: str) -> None:
        """The session is no more."""
        for owner in self._owners.pop(session_id, ()):
            sessions = self._sessions[owner]
            del sessions[session_id]
            if not sessions:
                del self._sessions[owner]
                self._opening += Counter()  # forget the zeros

    def _count(self, owner: Owner, *, fresh: bool = False) -> int:
        """Return an owner's sessions; `fresh`: after those that have long been idle are forgotten."""
        sessions = self._sessions.get(owner)
        while fresh and sessions:
            oldest, used = next(iter(sessions.items()))
            if time.monotonic() - used <= IDLE_S:
                break
            self.ended(oldest)
        return len(sessions or ()) + self._opening[owner]


def _owners_of(caller: RequestCaller) -> list[Owner]:
    return [("address", caller.address)] + ([] if caller.key is None else [("key", caller.key)])
