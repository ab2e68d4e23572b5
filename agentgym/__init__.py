"""AgentGym's contract: environments that speak messages, the wire, sessions, policies, rollouts, statistics."""

from agentgym.clients.client import EnvClient, connect
from agentgym.clients.gym import RemoteEnv, RemoteVectorEnv
from agentgym.clients.server_process import server_process
from agentgym.conformance.run import check_env
from agentgym.env import Env
from agentgym.errors import (
    AgentGymError,
    AtCapacity,
    BadRequest,
    CheckpointError,
    ConfigError,
    DeadlineExceeded,
    EnvironmentCrashed,
    EnvironmentFailure,
    EnvironmentNotOpened,
    EpisodeLost,
    EpisodeRefused,
    GuardTripped,
    LearnerLost,
    MissingDependency,
    MissingScope,
    OutOfOrder,
    PolicyFailure,
    QuotaExceeded,
    RateLimited,
    SessionBusy,
    UnknownEnvironment,
    UnknownSession,
    Unreachable,
    UsageError,
    WrongKey,
)
from agentgym.evaluation.evaluate import evaluate
from agentgym.evaluation.suite import load_suite
from agentgym.gymnasium_env import GymnasiumEnv
from agentgym.registry import get_spec, make, register, register_with_gymnasium
from agentgym.rollouts.openai_policy import OpenAIPolicy
from agentgym.rollouts.policy import Actor, EpisodeSpec, HumanPolicy, Policy, RandomPolicy, ScriptedPolicy, SolverPolicy
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, Runner, rollout
from agentgym.rollouts.trajectory import Group, StopReason, Trajectory, Turn
from agentgym.session import LocalSession, Session, Step
from agentgym.spec import EnvSpec, ToolSpec

__version__ = "0.1.0"

register_with_gymnasium()

__all__ = [
    "Actor",
    "AgentGymError",
    "AtCapacity",
    "BadRequest",
    "CheckpointError",
    "ConfigError",
    "DeadlineExceeded",
    "Env",
    "EnvClient",
    "EnvSpec",
    "EnvironmentCrashed",
    "EnvironmentFailure",
    "EnvironmentNotOpened",
    "EpisodeLost",
    "EpisodeRefused",
    "EpisodeSpec",
    "Group",
    "GuardTripped",
    "GymnasiumEnv",
    "HumanPolicy",
    "LearnerLost",
    "Limits",
    "LocalSession",
    "MissingDependency",
    "MissingScope",
    "OpenAIPolicy",
    "OutOfOrder",
    "Policy",
    "PolicyFailure",
    "PromptFormat",
    "QuotaExceeded",
    "RandomPolicy",
    "RateLimited",
    "RemoteEnv",
    "RemoteVectorEnv",
    "Runner",
    "ScriptedPolicy",
    "Session",
    "SessionBusy",
    "SolverPolicy",
    "Step",
    "StopReason",
    "ToolSpec",
    "Trajectory",
    "Turn",
    "UnknownEnvironment",
    "UnknownSession",
    "Unreachable",
    "UsageError",
    "WrongKey",
    "check_env",
    "connect",
    "evaluate",
    "get_spec",
    "load_suite",
    "make",
    "register",
    "register_with_gymnasium",
    "rollout",
    "server_process",
]
