"""The signal protocol: what a signal is given, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentgym.rollouts.trajectory import Trajectory
from agentgym.spec import EnvSpec
from agentgym_credit.batch import Batch
from agentgym_trainers.config.registry import ClassPart
from agentgym_trainers.data.sequences import Row
from agentgym_trainers.engines.base import Sampling
from agentgym_trainers.nn.process_group import SINGLE_PROCESS, DataParallel
from agentgym_trainers.rollout.player import PolicyPlayer
from agentgym_trainers.rollout.tokens import ChatTemplate


@dataclass(frozen=True)
class SignalContext:
    """One step's episodes, as a signal sees them."""

    batch: Batch
    rows: Sequence[Row]
    trajectories: Sequence[Trajectory]
    """Trajectories in the batch's order."""
    step: int
    """Steps done before this one."""
    rng: np.random.Generator
    """This step's, the signal's own."""


def unsharded(module: Any) -> None:
    """Leave a module as it is: every process has all of its weights (`ModelDependencies.shard`)."""


@dataclass(frozen=True, kw_only=True)
class ModelDependencies:
    """Objects that the models of a signal may be built from, in every process that learns."""

    model: Any
    """The policy, live."""
    reference: Any
    """The policy as RL began; copy what is to be kept or trained."""
    template: ChatTemplate
    sampling: Sampling
    seed: int
    tokens_per_micro_batch: int
    processes: DataParallel = SINGLE_PROCESS
    """Each is given the same contexts, and forwards its share of the rows."""
    shard: Callable[[Any], None] = unsharded
    """Slices a module of the signal's own between the processes (FSDP2), in place. A sliced module must be forwarded
    equally often in all of them (`fsdp.own_micro_batches`)."""


@dataclass(frozen=True, kw_only=True)
class SignalDependencies(ModelDependencies):
    """Objects that a signal may be built from."""

    player: PolicyPlayer
    """The policy, for what is to be sampled or played."""
    spec: EnvSpec
    folder: Path
    """The run's."""


class Signal:
    """Columns that a model adds to a batch, and its training. Override `annotate`, and the rest where there is more to
    do."""

    fit_first: bool = False
    """True where a step's batch is learned from before it is annotated."""
    warmup: int = 0
    """Steps at the start of RL in which it learns and the policy waits."""

    async def annotate(self, context: SignalContext) -> dict[str, np.ndarray]:
        """Columns for `Batch.x`."""
        raise NotImplementedError

    async def fit(self, context: SignalContext) -> dict[str, float]:
        """Learn from the batch. Metrics by their own names ("loss", "grad_norm", how well calibrated)."""
        return {}

    async def training_batch(self, context: SignalContext) -> tuple[Batch, list[Row]] | None:
        """A batch that replaces what the policy is trained on, with its rows: actions resampled at present or replayed
        states. None: the policy learns from the episodes themselves."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """State that a checkpoint keeps."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""


@dataclass(frozen=True)
class SignalKind(ClassPart):
    """A kind of signal: a table [signals.KIND] of a recipe. build: (options, SignalDependencies) -> Signal."""

    provides: frozenset[str]
    """Columns."""
    needs: frozenset[str] = frozenset()
    """See `FunctionPart.needs`."""
    plays: bool = False
    """Asks the player, which needs room beside episodes that are played meanwhile (`rollout.staleness`)."""
    reads_policy: bool = True
    """Has models, or reads the policy's weights, which with [scale] are in the learner processes."""
    learned: Callable[[Any, ModelDependencies], Any] | None = None
    """(options, ModelDependencies) -> what of it has models: with [scale] there is one in every learner process.
    Without it a signal that `reads_policy` is refused there."""
    around: Callable[[Any, SignalDependencies, Any], Signal] | None = None
    """(options, SignalDependencies, what is used as what `learned` gives) -> the signal, where that is a part of it.
    Unset, `learned` gives the whole signal."""
    images: bool = True
    """False where it makes sequences of its own from a row's ids, which would lose the images among them."""
