"""Learners on several machines: what a `Learner` does, done by one process for each slice of the weights.

    call     the controller gives every process the same batch, rows and credit, once, through Ray's object store
    compute  each forwards its rows; gradients are summed between the processes (FSDP2 over NCCL, or gloo on CPUs)
    answer   the process of rank 0 answers for all

Plain actors, and not Ray Train's TorchTrainer: that runs a loop of its own in every process and starts all of them
again when one is lost, where here the loop is the controller's and a lost process is a matter of its checkpoint.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

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
from agentgym_trainers.learner.build import build_learner
from agentgym_trainers.learner.train_step import TrainStep
from agentgym_trainers.nn.device import device_of
from agentgym_trainers.nn.lora import MergedWeights, adapter_of, base_of
from agentgym_trainers.nn.process_group import SINGLE_PROCESS, DataParallel

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

    def join(self, address: tuple[str, int], models: tuple[Any, Any]) -> None:
        """Meet the others, and make the learner of (policy, policy as RL began). Every process is given the same."""
        processes = SINGLE_PROCESS
        device = device_of(self.config.model.device)
        if self.size > 1:
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"  # columns are summed on the CPU
            deadline = timedelta(seconds=self.config.scale.deadline_s) if self.config.scale is not None else None
            if self.rank:
                self.store = TCPStore(*address, self.size, is_master=False, wait_for_workers=False)
            dist.init_process_group(backend, store=self.store, rank=self.rank, world_size=self.size, timeout=deadline)
            processes = DataParallel.of()
        model, reference = copy.deepcopy(models)
        reference = reference.to(device)
        self.learner = build_learner(self.config, model.to(device), reference, processes)

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

    def __init__(self, cluster: Cluster, config: Config, model: Any, reference: Any) -> None:
        self._ray, self._deadline_s = cluster.ray, cluster.options.deadline_s
        self.model, self.not_finite = model, []
        size = cluster.options.learners
        self._ranks = [cluster.place("learner", LearnerWorker, config, rank, size) for rank in range(size)]
        address = self._answers([self._ranks[0].address.remote()])[0]
        models = self._ray.put((model, reference))
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
