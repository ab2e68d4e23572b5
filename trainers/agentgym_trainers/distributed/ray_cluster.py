"""The places of a run in a Ray cluster: all of them or none, in one placement group."""

from __future__ import annotations

from typing import Any, Literal

from agentgym.errors import ConfigError, MissingDependency
from agentgym_trainers.distributed.options import RayOptions

Role = Literal["learner", "server", "worker"]


def require_ray() -> Any:
    """The package. Raises MissingDependency."""
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError:
        ray = None
    if not hasattr(ray, "init"):  # a folder called "ray" can be imported as well, and /tmp/ray is Ray's own
        raise MissingDependency("[scale] needs Ray: pip install 'turngym[ray]'")
    return ray


class Cluster:
    """Places in the cluster that RAY_ADDRESS names, or that this process is in, or else in one of this machine alone.

    Learners come first and close together, since every forward pass crosses between them.
    """

    def __init__(self, options: RayOptions) -> None:
        """Waits for room. Raises MissingDependency, and ConfigError where there is none within the deadline."""
        self.ray, self.options = require_ray(), options
        self._actors: list[Any] = []
        self._ours = not self.ray.is_initialized()
        if self._ours:
            self.ray.init(include_dashboard=False, log_to_driver=False)
        needs: dict[Role, tuple[int, dict[str, float]]] = {
            "learner": (options.learners, {"CPU": options.learner_cpus, "GPU": options.learner_gpus}),
            "server": (options.servers, {"CPU": options.server_cpus, "GPU": options.server_gpus}),
            "worker": (options.workers, {"CPU": options.worker_cpus}),
        }
        places = [(role, need) for role, (count, need) in needs.items() for _ in range(count)]
        self._needs = [{name: amount for name, amount in need.items() if amount} for _, need in places]
        self._free = {role: [i for i, (name, _) in enumerate(places) if name == role] for role in needs}
        self._group = self.ray.util.placement_group(self._needs, strategy="PACK")
        if not self._group.wait(options.deadline_s):
            has = {name: amount for name, amount in self.ray.cluster_resources().items() if name in ("CPU", "GPU")}
            self.close()
            load = ", ".join(f"{count} {role}s of {need}" for role, (count, need) in needs.items() if count)
            raise ConfigError(
                f"the Ray cluster had no room for {load} within {options.deadline_s:g} s: it has {has} in all; ask for "
                "less in [scale], or add machines"
            )

    def place(self, role: Role, kind: type, *given: Any, restarts: int = 0) -> Any:
        """An actor of `kind` in the next place of `role`. Ray starts it again, elsewhere if need be, `restarts` times
        (-1: always)."""
        index = self._free[role].pop(0)
        need = self._needs[index]
        strategy = self.ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=index
        )
        options = {"num_cpus": need["CPU"], "num_gpus": need.get("GPU", 0), "scheduling_strategy": strategy}
        actor = self.ray.remote(kind).options(**options, max_restarts=restarts).remote(*given)
        self._actors.append(actor)
        return actor

    def close(self) -> None:
        """End what was placed, give the places back, and leave the cluster if it was entered here."""
        actors, self._actors = self._actors, []
        if self.ray.is_initialized():
            for actor in actors:
                self.ray.kill(actor)
            self.ray.util.remove_placement_group(self._group)
            if self._ours:
                self.ray.shutdown()
