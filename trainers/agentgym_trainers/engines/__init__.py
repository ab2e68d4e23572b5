"""Engines: what samples. `base.py` has the protocol; to add one, write its file and add it here."""

from __future__ import annotations

from agentgym_trainers.config.registry import Registry
from agentgym_trainers.engines import inprocess
from agentgym_trainers.engines.base import EngineKind
from agentgym_trainers.engines.options import MAX_TEMPERATURE, InProcess, Vllm, check_engine
from agentgym_trainers.engines.vllm import engine as vllm

ENGINES = Registry(
    "engine",
    EngineKind,
    {
        "inprocess": EngineKind(InProcess, inprocess.build, repeatable=True, images=True),
        "vllm": EngineKind(Vllm, vllm.build, max_temperature=MAX_TEMPERATURE, servers=True, check=check_engine),
    },
)
