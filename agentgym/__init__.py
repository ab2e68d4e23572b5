"""AgentGym's contract: environments that speak messages, the wire, sessions, policies, rollouts, statistics."""

from agentgym.client import EnvClient, connect
from agentgym.env import Env
from agentgym.gymnasium_env import GymnasiumEnv
from agentgym.harness import Harness
from agentgym.load import make, register, spec
from agentgym.policy import Episode
from agentgym.rollout import Limits, Runner, rollout
from agentgym.session import LocalSession, Session, Step
from agentgym.spec import EnvSpec, ToolSpec
from agentgym.trajectory import Group, StopReason, Trajectory, Turn

__version__ = "0.1.0"

__all__ = [
    "Env",
    "EnvClient",
    "EnvSpec",
    "Episode",
    "Group",
    "GymnasiumEnv",
    "Harness",
    "Limits",
    "LocalSession",
    "Runner",
    "Session",
    "Step",
    "StopReason",
    "ToolSpec",
    "Trajectory",
    "Turn",
    "connect",
    "make",
    "register",
    "rollout",
    "spec",
]
