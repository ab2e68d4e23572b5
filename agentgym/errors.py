"""Every error AgentGym raises on purpose.

AgentGymError
├── UsageError                 the user's mistake: the sentence says what to do; the command line exits with 2
│   ├── ConfigError            a recipe, suite or flag that cannot be used as written
│   ├── UnknownEnvironment     no environment of that name
│   ├── MissingDependency      an optional package or program is not installed
│   ├── CheckpointError        a checkpoint or run folder that is missing, incomplete or corrupt
│   └── EpisodeRefused         what an external agent asks of its recorded episode, which that cannot give
├── EnvironmentFailure         an environment, its server or the way to it failed: recorded, never scored
│   ├── BadRequest             the request itself is wrong (422)
│   ├── UnknownSession         the server never had this session (404)
│   ├── SessionBusy            another call of this session is running (409)
│   ├── OutOfOrder             a step index that is neither the next nor one already answered (409)
│   ├── EpisodeLost            the session existed and is gone: lease ran out, environment died (410)
│   ├── AtCapacity             no room for another session now (503)
│   │   ├── RateLimited        a key asked more often than it may (429)
│   │   └── QuotaExceeded      a key or address has all the sessions that it may have (429)
│   ├── WrongKey               no API key, or one that the gateway does not know (401)
│   ├── MissingScope           the API key may not do this (403)
│   ├── DeadlineExceeded       the environment did not answer in time (504)
│   ├── EnvironmentCrashed     the environment raised, or answered what its contract forbids (500)
│   │   └── EnvironmentNotOpened    its constructor failed (500)
│   └── Unreachable            no answer from the server at all
├── PolicyFailure              a policy (an engine, a remote model) failed: recorded, never scored
├── LearnerLost                a process that learns is gone: the run stops, and resumes from its checkpoint
└── GuardTripped               a guard stopped the run: its numbers could no longer be trusted; it says why

A bug in our own code is none of these and stops the run with its traceback.
"""

from __future__ import annotations

import copy
from typing import ClassVar, Literal

Scope = Literal["task", "env", "session", "server"]


class AgentGymError(Exception):
    """Root of the tree."""


class UsageError(AgentGymError):
    """The caller asked for something that cannot be; the message says what to do instead."""


class ConfigError(UsageError):
    """A recipe, suite or option that cannot be used as written."""


class UnknownEnvironment(UsageError):
    """No environment of that name is installed, importable or reachable."""


class MissingDependency(UsageError):
    """An optional package, a program or a benchmark's data is needed and absent."""


class CheckpointError(UsageError):
    """A checkpoint or run folder is missing, incomplete or corrupt."""


class EpisodeRefused(UsageError):
    """An external agent's episode is over, unknown, or cannot be continued so. `status` is HTTP's."""

    def __init__(self, message: str, status: int = 409) -> None:
        super().__init__(message)
        self.status = status


class EnvironmentFailure(AgentGymError):
    """An environment, its server or the network failed. `code`, `scope`, `retryable` and `status` travel on the
    wire."""

    code: ClassVar[str] = "ENVIRONMENT_FAILURE"
    scope: ClassVar[Scope] = "env"
    retryable: ClassVar[bool] = False
    status: ClassVar[int] = 500


class BadRequest(EnvironmentFailure):
    """A request is wrong: an unknown task, a step before reset, a missing capability."""

    code, scope, retryable, status = "BAD_REQUEST", "task", False, 422


class UnknownSession(EnvironmentFailure):
    """The server has never had this session."""

    code, scope, retryable, status = "UNKNOWN_SESSION", "session", False, 404


class SessionBusy(EnvironmentFailure):
    """The session is still running another call."""

    code, scope, retryable, status = "SESSION_BUSY", "session", True, 409


class OutOfOrder(EnvironmentFailure):
    """A step or reset does not follow from the session's present state."""

    code, scope, retryable, status = "OUT_OF_ORDER", "session", False, 409


class EpisodeLost(EnvironmentFailure):
    """The session or its episode is gone."""

    code, scope, retryable, status = "EPISODE_LOST", "session", False, 410


class AtCapacity(EnvironmentFailure):
    """The server has no room for another session."""

    code, scope, retryable, status = "CAPACITY_REACHED", "server", True, 503

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """Seconds after which a retry is worth while."""


class RateLimited(AtCapacity):
    """The key sends more requests than its rate allows."""

    code, scope, retryable, status = "RATE_LIMITED", "server", True, 429


class QuotaExceeded(AtCapacity):
    """A key or an address has as many sessions as it may have."""

    code, scope, retryable, status = "QUOTA_EXCEEDED", "server", True, 429


class WrongKey(EnvironmentFailure):
    """The API key is missing, unknown, expired or revoked."""

    code, scope, retryable, status = "WRONG_KEY", "server", False, 401


class MissingScope(EnvironmentFailure):
    """The API key lacks the scope for this request."""

    code, scope, retryable, status = "MISSING_SCOPE", "server", False, 403


class DeadlineExceeded(EnvironmentFailure):
    """The environment did not answer within its deadline."""

    code, scope, retryable, status = "DEADLINE_EXCEEDED", "session", False, 504


class EnvironmentCrashed(EnvironmentFailure):
    """The environment raised an error or broke its contract."""

    code, scope, retryable, status = "ENVIRONMENT_CRASHED", "env", False, 500


class EnvironmentNotOpened(EnvironmentCrashed):
    """The environment's constructor failed."""

    code = "FACTORY_ERROR"


class Unreachable(EnvironmentFailure):
    """The server cannot be reached."""

    code, scope, retryable, status = "UNREACHABLE", "server", True, 503


class PolicyFailure(AgentGymError):
    """An engine or a remote model failed to give an action."""


class LearnerLost(AgentGymError):
    """One of a run's learning processes is gone or silent."""


class GuardTripped(AgentGymError):
    """A guard stopped the run."""


def copy_of(error: Exception) -> Exception:
    """Return a copy to raise in another task; the error itself where its class cannot be copied."""
    try:
        return copy.copy(error)
    except Exception:  # noqa: BLE001  (a constructor of any signature; who waits must get an error in any case)
        return error


# How a wire error's code becomes an exception again on the client's side.
FAILURES: dict[str, type[EnvironmentFailure]] = {
    kind.code: kind
    for kind in (
        BadRequest,
        UnknownSession,
        SessionBusy,
        OutOfOrder,
        EpisodeLost,
        AtCapacity,
        RateLimited,
        QuotaExceeded,
        WrongKey,
        MissingScope,
        DeadlineExceeded,
        EnvironmentCrashed,
        EnvironmentNotOpened,
        Unreachable,
    )
}
