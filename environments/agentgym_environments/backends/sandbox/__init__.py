"""A folder and a shell of one's own, for commands that nobody vouches for."""

from agentgym_environments.backends.sandbox.box import Ran, Sandbox, SandboxEnded, SandboxLost, WorkRefused
from agentgym_environments.backends.sandbox.limits import SandboxLimits

__all__ = ["Ran", "Sandbox", "SandboxEnded", "SandboxLimits", "SandboxLost", "WorkRefused"]
