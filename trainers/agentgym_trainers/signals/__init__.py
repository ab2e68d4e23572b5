"""Signals: what models say of a batch between rollout and loss. The only place that may call one there.

A signal adds columns to `Batch.x`, and learns from the same batch. To add one, write its file and add it here.
"""

from __future__ import annotations

from agentgym_trainers.config.registry import Registry
from agentgym_trainers.signals.answer import Answer, AnswerOptions
from agentgym_trainers.signals.archer.digiq import DigiQOptions, DigiQSignal
from agentgym_trainers.signals.archer.signal import TwinOptions, TwinSignal, build_critic
from agentgym_trainers.signals.base import SignalKind
from agentgym_trainers.signals.hindsight import Hindsight, HindsightOptions
from agentgym_trainers.signals.implicit_prm import ImplicitPRM, PRMOptions
from agentgym_trainers.signals.judge import Judge, JudgeOptions
from agentgym_trainers.signals.mc_value import BranchedValue, BranchedValueOptions
from agentgym_trainers.signals.progress import ProgressHead, ProgressOptions
from agentgym_trainers.signals.role_baseline import RoleBaseline, RoleOptions
from agentgym_trainers.signals.task_value import InstructionOptions, InstructionValue
from agentgym_trainers.signals.uncertainty import Uncertainty, UncertaintyOptions

SIGNALS = Registry(
    "signal",
    SignalKind,
    {
        "answer": SignalKind(
            AnswerOptions, Answer, frozenset({"answer_prob_N", "answer_conf_N"}), learned=Answer, images=False
        ),
        "digiq": SignalKind(
            DigiQOptions,
            DigiQSignal.build,
            frozenset({"q_N", "v_N"}),
            plays=True,
            learned=build_critic,
            around=DigiQSignal.around,
            images=False,
        ),
        "branched_value": SignalKind(
            BranchedValueOptions,
            BranchedValue,
            frozenset({"mc_value_N", "mc_after_N", "mc_se_N"}),
            frozenset({"snapshots"}),
            plays=True,
            reads_policy=False,
        ),
        "hindsight": SignalKind(
            HindsightOptions, Hindsight, frozenset({"hindsight_N"}), learned=Hindsight, images=False
        ),
        "judge": SignalKind(JudgeOptions, Judge.build, frozenset({"judge_N", "judge_M"}), reads_policy=False),
        "progress": SignalKind(
            ProgressOptions, ProgressHead, frozenset({"progress_c_N", "progress_skill_M"}), learned=ProgressHead
        ),
        "prm": SignalKind(PRMOptions, ImplicitPRM, frozenset({"prm_A", "prm_logit_M"}), learned=ImplicitPRM),
        "instruction": SignalKind(
            InstructionOptions, InstructionValue, frozenset({"inst_value_M"}), learned=InstructionValue, images=False
        ),
        "role": SignalKind(RoleOptions, RoleBaseline, frozenset({"role_baseline_N"}), reads_policy=False),
        "uncertainty": SignalKind(UncertaintyOptions, Uncertainty, frozenset({"entropy_N"}), learned=Uncertainty),
        "twin": SignalKind(
            TwinOptions,
            TwinSignal.build,
            frozenset({"q_N", "v_N"}),
            plays=True,
            learned=build_critic,
            around=TwinSignal.around,
            images=False,
        ),
    },
)
