"""Learners on several machines: what a `Learner` does, done by one process for each slice of the weights.

    call     the controller gives every process the same batch, rows and credit, once, through Ray's object store
    compute  each forwards its rows; gradients are summed between the processes (FSDP2 over NCCL, or gloo on CPUs)
    answer   the process of rank 0 answers for all

Models of signals are there too (`remote_signals`), sliced like the policy.

Plain actors, and not Ray Train's TorchTrainer: that runs a loop of its own in every process and starts all of them
again when one is lost, where here the loop is the controller's and a lost process is a matter of its checkpoint.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.utils._pytree import tree_map_only

from agentgym.errors import AgentGymError, LearnerLost
from agentgym_credit.batch import Batch, Credit
from agentgym_trainers.config.sections import Config, LossOptions
from agentgym_trainers.data.sequences import Row
from agentgym_trainers.distributed.ray_cluster import Cluster
from agentgym_trainers.engines.build import sampling_params
from agentgym_trainers.learner import fsdp
from agentgym_trainers.learner.build import build_learner
from agentgym_trainers.learner.train_step import TrainStep
from agentgym_trainers.nn import slices
from agentgym_trainers.nn.device import device_of
from agentgym_trainers.nn.lora import MergedWeights, adapter_of, base_of
from agentgym_trainers.nn.process_group import SINGLE_PROCESS, DataParallel
from agentgym_trainers.rollout.tokens import ChatTemplate
from agentgym_trainers.signals import SIGNALS
from agentgym_trainers.signals.base import ModelDependencies, SignalContext, unsharded

CAUSE_S = 10.0
"""Seconds after a failure in which the others may report that one of them was lost, which caused it."""


def _on_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu()


class LearnerWorker:
    """One of the processes: a Ray actor."""

    def __init__(self, config: Config, rank: int, size: int) -> None:
        self.config, self.rank, self.size = config, rank, size
        if config.run.threads is not None:
            torch.set_num_threads(config.run.threads)

    def address(self) -> tuple[str, int]:
        """(host, port) at which the others can meet this process. It listens there from now on: a port that is only
        looked up can be another's by the time it is used."""
        from ray.util import get_node_ip_address  # pyright: ignore[reportMissingImports]

        host = get_node_ip_address()
        self.store = TCPStore(host, 0, self.size, is_master=True, wait_for_workers=False)
        return host, self.store.port

    def join(self, address: tuple[str, int], models: tuple[Any, Any, Any]) -> None:
        """Meet the others, and make the learner and the signals' models of (policy, policy as RL began, tokenizer).
        Every process is given the same."""
        processes = SINGLE_PROCESS
        device = device_of(self.config.model.device)
        if self.size > 1:
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"  # columns are summed on the CPU
            deadline = timedelta(seconds=self.config.scale.deadline_s) if self.config.scale is not None else None
            if self.rank:
                self.store = TCPStore(*address, self.size, is_master=False, wait_for_workers=False)
            dist.init_process_group(backend, store=self.store, rank=self.rank, world_size=self.size, timeout=deadline)
            processes = DataParallel.of(replicas=self.config.scale.replicas if self.config.scale is not None else 1)
        self.processes = processes
        model, reference = copy.deepcopy(models[:2])
        model, reference = model.to(device), reference.to(device)
        self.parts = self._signal_parts(model, reference, models[2])  # before the model is sliced or given adapters
        self.learner = build_learner(self.config, model, reference, processes)

    def _signal_parts(self, model: Any, reference: Any, tokenizer: Any) -> dict[str, Any]:
        """Models of the signals that have some."""
        config, processes = self.config, self.processes
        template = ChatTemplate(tokenizer, config.model.template)
        given = ModelDependencies(
            model=model, reference=reference, template=template, sampling=sampling_params(config, template),
            seed=config.run.seed, tokens_per_micro_batch=config.optim.tokens_per_micro_batch, processes=processes,
            shard=partial(fsdp.shard_module, processes) if processes.size > 1 else unsharded,
        )  # fmt: skip
        kinds = {name: SIGNALS[name] for name in config.signals}
        return {name: kind.learned(config.signals[name], given) for name, kind in kinds.items() if kind.learned}

    def call_part(self, name: str, method: str, given: tuple[Any, ...]) -> tuple[Any, list[Mapping[str, Any]]] | None:
        """Call a method of a signal's models; rank 0 returns (its result, as `call` does, and the states of the random
        generators among the arguments)."""
        arguments = copy.deepcopy(given)
        result = getattr(self.parts[name], method)(*arguments)
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        if method == "state_dict":
            result = fsdp.full_state_dict(result, self.processes)
        if self.rank:
            return None
        result = tree_map_only(Tensor, lambda tensor: tensor.detach().cpu(), result)
        return result, [rng.bit_generator.state for rng in generators_of(arguments)]

    def save_state(self, checkpoint: Path) -> dict[str, Any] | None:
        """Rank 0 returns the learner's state, but for the slices that every process writes into the checkpoint; whole
        where not all of them see its folder."""
        if self.processes.size == 1 or not slices.is_shared(checkpoint, self.processes):
            state = self.learner.state_dict()
        else:
            state = slices.save_slices(self.learner.state_dict(gather=False), checkpoint, self.processes)
        return tree_map_only(Tensor, lambda tensor: tensor.detach().cpu(), state) if self.rank == 0 else None

    def attributes(self, name: str, *attributes: str) -> list[Any]:
        """Some of a signal's own."""
        return [getattr(self.parts[name], attribute) for attribute in attributes]

    def call(self, method: str, given: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        """Call a method of the learner; rank 0 returns its result, on the CPU, the others nothing."""
        arguments, named = copy.deepcopy(given)  # what lies in the object store cannot be written to
        result = getattr(self.learner, method)(*arguments, **named)
        if self.rank:
            return None
        if isinstance(result, MergedWeights):  # they are merged by whoever reads them
            return result.map(_on_cpu)
        return tree_map_only(Tensor, _on_cpu, result)

    def not_finite(self) -> list[str]:
        return self.learner.not_finite


class LearnerGroup(TrainStep):
    """Learner processes that the loop uses as one `Learner`. `model` is the controller's own: it has the names and
    shapes of what is learned."""

    def __init__(self, cluster: Cluster, config: Config, model: Any, reference: Any, tokenizer: Any) -> None:
        self._ray, self._deadline_s = cluster.ray, cluster.options.deadline_s
        self.model, self.not_finite = model, []
        size = cluster.options.learners
        self._ranks = [cluster.place("learner", LearnerWorker, config, rank, size) for rank in range(size)]
        address = self._answers([self._ranks[0].address.remote()])[0]
        models = self._ray.put((model, reference, tokenizer))
        self._answers([rank.join.remote(address, models) for rank in self._ranks])

    def weights(self) -> Mapping[str, Tensor]:
        """See `Learner`. Weights that are tied in the model are one tensor here too."""
        weights, tensors = self._all("weights"), {}
        own, adapter = self.model.state_dict(), adapter_of(weights)
        tied = {
            name: tensors.setdefault((own[name].data_ptr(), own[name].shape), tensor)
            for name, tensor in base_of(weights).items()
        }
        return tied if adapter is None else MergedWeights(tied, adapter)

    def state_dict(self) -> dict[str, Any]:
        return self._all("state_dict")

    def save_state(self, checkpoint: Path) -> dict[str, Any]:
        """See `LearnerWorker`."""
        return self._answers([rank.save_state.remote(checkpoint.resolve()) for rank in self._ranks])[0]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        parts = ("optimizer", "value", "adapters", "regularizers")
        self._all("load_state_dict", {name: state[name] for name in parts if name in state})

    def annotate(self, batch: Batch, rows: Sequence[Row], *, prox: bool = False) -> Batch:
        return self._all("annotate", batch, rows, prox=prox)

    def update(self, batch: Batch, rows: Sequence[Row], credit: Credit, options: LossOptions) -> dict[str, float]:
        metrics = self._all("update", batch, rows, credit, options)
        if metrics.get("optim/skipped"):
            answers = self._answers([rank.not_finite.remote() for rank in self._ranks])
            self.not_finite = sorted({name for names in answers for name in names})
        return metrics

    def fit_value(self, batch: Batch, rows: Sequence[Row], credit: Credit) -> dict[str, float]:
        return self._all("fit_value", batch, rows, credit)

    def set_lr(self, lr: float) -> None:
        self._all("set_lr", lr)

    def end_step(self, options: LossOptions, metrics: Mapping[str, float]) -> None:
        self._all("end_step", options, metrics)

    def call_part(self, name: str, method: str, *arguments: Any) -> tuple[Any, list[Mapping[str, Any]]]:
        """Call a method of a signal's models in every process; see `LearnerWorker.call_part`."""
        given = self._ray.put(arguments)
        return self._answers([rank.call_part.remote(name, method, given) for rank in self._ranks])[0]

    def attributes(self, name: str, *attributes: str) -> list[Any]:
        """Some of a signal's own, which never change."""
        return self._answers([self._ranks[0].attributes.remote(name, *attributes)])[0]

    def _all(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call it in every process; the answer of rank 0."""
        given = self._ray.put((arguments, named))
        return self._answers([rank.call.remote(method, given) for rank in self._ranks])[0]

    def _answers(self, calls: list[Any]) -> list[Any]:
        """Answers of every process. Raises LearnerLost where one is gone or silent, and what failed where one
        failed."""
        from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError  # pyright: ignore[reportMissingImports]

        try:
            return self._ray.get(calls, timeout=self._deadline_s)
        except GetTimeoutError as error:
            raise LearnerLost(
                f"a learner did not answer within {self._deadline_s:g} s (scale.deadline_s): resume the run, which "
                "goes on from its newest checkpoint"
            ) from error
        except (RayActorError, RayTaskError) as error:
            if any(isinstance(other, RayActorError) for other in [error, *self._failures(calls)]):
                raise LearnerLost(
                    "a learner's process is gone (killed, out of memory, or its machine was lost): resume the run, "
                    "which goes on from its newest checkpoint"
                ) from error
            cause = getattr(error, "cause", None)
            raise cause if isinstance(cause, AgentGymError) else error from None

    def _failures(self, calls: list[Any]) -> list[Exception]:
        """Errors of the other processes that fail within `CAUSE_S`."""
        done, _ = self._ray.wait(calls, num_returns=len(calls), timeout=CAUSE_S)
        failed = []
        for call in done:
            try:
                self._ray.get(call)
            except self._ray.exceptions.RayError as error:
                failed.append(error)
        return failed


def generators_of(arguments: Sequence[Any]) -> list[np.random.Generator]:
    """The random generators among arguments, and in contexts among them, in order."""
    found = [each.rng if isinstance(each, SignalContext) else each for each in arguments]
    return [each for each in found if isinstance(each, np.random.Generator)]
