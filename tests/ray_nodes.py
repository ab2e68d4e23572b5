"""Ray clusters whose nodes are processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

QUICK = {
    "object_store_memory": 200 * 1024**2, "include_dashboard": False, "include_log_monitor": False, "no_monitor": True
}  # fmt: skip
"""Of Ray's own processes as few as it does with: each takes seconds to start."""


@contextmanager
def started(*cpus: int) -> Iterator[Any]:
    """A cluster of a node for each of `cpus`, with room for so many processes."""
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    head, *others = ({"num_cpus": count, **QUICK} for count in cpus)
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for node in others:
            cluster.add_node(**node)
        yield cluster
    finally:
        cluster.shutdown()


@contextmanager
def connected(*cpus: int, modules: Path | None = None) -> Iterator[None]:
    """This process as the driver of such a cluster. It and the workers import from the folder `modules` too."""
    import ray  # pyright: ignore[reportMissingImports]
    import torch

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patched:
        if modules:  # workers have the environment of whoever started their node
            patched.setenv("PYTHONPATH", str(modules), prepend=os.pathsep)
            patched.syspath_prepend(str(modules))
        with started(*cpus) as cluster:
            try:
                ray.init(address=cluster.address, log_to_driver=False)
                yield
            finally:
                ray.shutdown()
