"""Models, signals and engines on a device that is not the CPU.

The device is a fake: its tensors are on the CPU and marked, and an operation on a marked tensor and one that is not
raises, as CUDA does it. Copies, indices and numbers (tensors without dimensions) are excepted, as there.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from agentgym.errors import ConfigError
from agentgym.session import LocalSession
from agentgym.testing import EchoEnv
from agentgym_trainers.build import build
from agentgym_trainers.engines import inprocess
from agentgym_trainers.learner import build as learner_build
from agentgym_trainers.nn.device import device_of
from agentgym_trainers.recipe import resolve

DEVICE = torch.device("cpu", 1)
"""Not equal to the CPU; PyTorch would compute there as on the CPU."""
ops = torch.ops.aten
MIXED = {
    ops.copy_.default,
    ops.index.Tensor,
    ops.index_put_.default,
    ops.index_put.default,
    ops._index_put_impl_.default,
}
"""Between devices these are allowed; indices may lie on the CPU."""
SMALL = [
    "env.serve=false", "env.max_turns=3", "sft=", "rollout.groups=4", "rollout.group_size=2",
    "rollout.concurrency=8", "rollout.max_new_tokens=4", "rollout.max_length=640", "eval.tasks=0",
]  # fmt: skip
CRITIC = ["warmup=0", "pool=24", "updates=3", "batch=16", "actor_states=10", "hidden=[16]"]
RECIPES = {
    "quickstart": ["loss.kl=0.1", "loss.entropy=0.01"],
    "ppo-turn": ["optim.epochs=2", "value.warmup=0"],
    "ppo-token": ["correct.kind=tis", "value.warmup=0"],
    "archer": [f"signals.twin.{option}" for option in [*CRITIC, "encoder=trained"]],
    "digiq": [f"signals.digiq.{option}" for option in [*CRITIC, "candidates=4"]] + ["source.groups=4"],
    "digirl": ["value.warmup=0"],
    "prime": [],
    "istar": [],
    "spa-rl": ["value.warmup=0"],
    "epo": [],
    "dapo": [],
    "gspo": [],
    "eto": [],
    "spear": [],
}


class Marks:
    """Storages that are on the device. They are kept, so that no address is used again."""

    def __init__(self) -> None:
        self.storages: dict[int, torch.UntypedStorage] = {}

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self.storages

    def add(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self.storages[storage._cdata] = storage
        return tensor


class Operations(TorchDispatchMode):
    """What an operation makes of tensors on the device is there, too; it does not mix them with those of the CPU."""

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self.marks, self.on = marks, True

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.on = False
        yield
        self.on = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.on:
            return func(*args, **(kwargs or {}))
        given = [leaf for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, Tensor)]
        there = [leaf for leaf in given if leaf in self.marks]
        here = [leaf for leaf in given if leaf.dim() and leaf not in self.marks]
        mixed = there and here
        if mixed and (func not in MIXED or (func is not ops.copy_.default and args[0] not in self.marks)):
            raise RuntimeError(f"{func}: tensors on the device and on the CPU, at least two devices")
        out = func(*args, **(kwargs or {}))
        if there and not (mixed and func is ops.copy_.default):
            tree_map_only(Tensor, self.marks.add, out)
        return out


class Crossing(torch.autograd.Function):
    """A copy on the other side; its gradient crosses back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, operations: Operations, onto: bool) -> Tensor:
        ctx.operations, ctx.onto = operations, onto
        with operations.paused():
            copied = tensor.clone()
        return operations.marks.add(copied) if onto else copied

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return Crossing.forward(ctx, gradient, ctx.operations, not ctx.onto), None, None


class FakeDevice(TorchFunctionMode):
    """Within it tensors are made on the device and copied to it and from it, and say where they are."""

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self.marks, self.operations = marks, Operations(marks)

    def __enter__(self) -> Any:
        self.operations.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.operations.__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == torch._C._nn._parse_to:  # Module.to asks it for the device
            return func(*args, **kwargs)
        if func == Tensor.device.__get__:
            return DEVICE if args[0] in self.marks else func(*args)
        if func in (Tensor.numpy, Tensor.__array__) and args[0] in self.marks:
            raise TypeError("a tensor of the device has no NumPy array: copy it to the CPU first")
        if func == Tensor.to and args[1:] and isinstance(args[1], Tensor):
            place = DEVICE if args[1] in self.marks else torch.device("cpu")
            args = (args[0], place, args[1].dtype, *args[2:])
        named = [leaf for leaf in tree_leaves((args[1:], kwargs)) if isinstance(leaf, torch.device | str)]
        onto = next((torch.device(leaf) for leaf in named if str(leaf).startswith("cpu")), None)
        if func is Tensor.cpu:
            onto = torch.device("cpu")
        args, kwargs = tree_map_only(torch.device, lambda _: torch.device("cpu"), (args, kwargs))
        if onto is None:
            return func(*args, **kwargs)
        if func in (Tensor.to, Tensor.cpu) and (args[0] in self.marks) != (onto == DEVICE):
            return Crossing.apply(func(*args, **kwargs), self.operations, onto == DEVICE)
        out = func(*args, **kwargs)
        if onto == DEVICE and func is not Tensor.to:
            tree_map_only(Tensor, self.marks.add, out)
        return out


class OddReplies(EchoEnv):
    """Pays for every reply of an odd number of characters: attempts of an untrained policy differ."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, 0.3 * (len(action) % 2), terminated, truncated, info | {"success": len(action) % 2 == 1}


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Marks]:
    """The device, in this thread and in the engine's; recipes place their models there."""
    marks = Marks()
    entered = partial(ThreadPoolExecutor, initializer=lambda: FakeDevice(marks).__enter__())
    monkeypatch.setattr(inprocess, "ThreadPoolExecutor", entered)
    monkeypatch.setattr(learner_build, "device_of", lambda name: DEVICE)
    with FakeDevice(marks):
        yield marks


def tensors_of(part: Any) -> list[tuple[str, Tensor]]:
    """What a part's modules hold, by name."""
    modules = [(name, value) for name, value in vars(part).items() if isinstance(value, torch.nn.Module)]
    return [
        (f"{type(part).__name__}.{name}.{key}", tensor)
        for name, module in modules
        for key, tensor in (*module.named_parameters(), *module.named_buffers())
    ]


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_step_runs_on_the_device(recipe, marks, chatty, tokenizer, tmp_path) -> None:
    config = resolve(recipe, [*SMALL, *RECIPES[recipe]])
    model = learner_build.placed(config, chatty())

    async def open_session() -> LocalSession:
        return LocalSession(OddReplies())

    reference = copy.deepcopy(model)
    trainer = build(config, tmp_path, OddReplies.env_spec, open_session, model, reference, tokenizer)

    async def step() -> dict[str, float]:
        await trainer.publish()
        return (await trainer.learn((await trainer.collect_until_full())[1])).metrics

    metrics = asyncio.run(step())
    trainer.engine.shutdown()
    assert metrics["policy/engine_gap"] < 1e-4
    assert metrics["optim/skipped"] == 0
    parts = [trainer.learner, trainer.engine, *trainer.signals.values()]
    tensors = {name: tensor for part in parts for name, tensor in tensors_of(part)}
    assert [name for name, tensor in tensors.items() if tensor not in marks] == []
    assert len(tensors) > 10


def test_forgotten_placement_raises(marks) -> None:
    there = torch.ones(2).to(DEVICE)
    assert (there.device, (there * 2).device, there.cpu().device) == (DEVICE, DEVICE, torch.device("cpu"))
    with pytest.raises(RuntimeError, match="at least two devices"):
        there + torch.ones(2)
    with pytest.raises(TypeError, match="copy it to the CPU"):
        there.numpy()


@pytest.mark.parametrize(("cuda", "device"), [(True, "cuda"), (False, "cpu")])
def test_auto_is_cuda_where_there_is_a_gpu(cuda, device, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(cuda))
    assert device_of("auto") == torch.device(device)
    assert device_of("cpu") == torch.device("cpu")


def test_missing_gpu_is_named(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert device_of("cuda:0") == torch.device("cuda", 0)
    with pytest.raises(ConfigError, match=r'"cuda:1".*sees 1 CUDA devices'):
        device_of("cuda:1")


def test_unknown_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown device 'gpu'"):
        resolve("quickstart", ["model.device=gpu"])
