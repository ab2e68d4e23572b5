"""A folder and a shell of one's own, for commands that nobody vouches for."""

from agentgym_environments.sandbox.box import Ran, Sandbox, SandboxLost
from agentgym_environments.sandbox.limits import Limits

__all__ = ["Limits", "Ran", "Sandbox", "SandboxLost"]
