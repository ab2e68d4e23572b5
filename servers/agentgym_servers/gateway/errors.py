"""Errors of registering, listing or removing an environment. They travel as `WireError`s."""

from __future__ import annotations

from agentgym.errors import EnvironmentFailure


class EnvNotRegistered(EnvironmentFailure):
    """No environment of that name is registered."""

    code, scope, retryable, status = "UNKNOWN_ENVIRONMENT", "server", False, 404


class DuplicateName(EnvironmentFailure):
    """The name is taken: registered, being registered or being removed."""

    code, scope, retryable, status = "DUPLICATE_NAME", "server", False, 409


class ConformanceFailed(EnvironmentFailure):
    """The environment breaks rules of the conformance check."""

    code, scope, retryable, status = "CHECK_FAILED", "env", False, 422


class NotStarted(EnvironmentFailure):
    """A replica could not be started, or ended before it answered."""

    code, scope, retryable, status = "NOT_STARTED", "env", False, 422


class BadImage(EnvironmentFailure):
    """The container image cannot be had, or does not run."""

    code, scope, retryable, status = "BAD_IMAGE", "env", False, 422


class NoEngine(EnvironmentFailure):
    """The Docker engine, or the package that speaks to it, is not there."""

    code, scope, retryable, status = "NO_ENGINE", "server", True, 503


class EnvUnreachable(EnvironmentFailure):
    """Nobody answers at the URL to be registered, or something that is no environment server."""

    code, scope, retryable, status = "ENVIRONMENT_UNREACHABLE", "server", False, 502


class AddressRefused(EnvironmentFailure):
    """The URL leads to an address that the gateway does not ask."""

    code, scope, retryable, status = "ADDRESS_REFUSED", "server", False, 422


class DatabaseUnavailable(EnvironmentFailure):
    """The database cannot be read or written; what it holds is untouched."""

    code, scope, retryable, status = "DATABASE_UNAVAILABLE", "server", True, 503
