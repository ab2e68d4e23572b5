"""Weights from memory to memory, against the classes of the installed vLLM: its own trainer side sends what we give it,
its own worker side takes what we pass on. Only the GPU between them is not there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import fields
from importlib import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from vllm_models import RecordingClient

from agentgym.errors import PolicyFailure
from agentgym_trainers.engines.vllm import ipc_handles
from agentgym_trainers.engines.vllm.client import WorkerDevice
from agentgym_trainers.engines.vllm.device_sync import DeviceSync, ServerOrders
from agentgym_trainers.engines.vllm.server import LORA_RANKS, NO_LORA, ServerFlags
from agentgym_trainers.engines.vllm.weight_sync import DiskSync
from agentgym_trainers.engines.vllm.worker import WeightReader

pytestmark = [
    pytest.mark.skipif(util.find_spec("vllm") is None, reason="vLLM is not installed here: run `make scale`"),
    pytest.mark.filterwarnings("default"),  # vLLM's own, and its torch's
]
HANDLE = (torch.Tensor, torch.Size([8]), (1,), 0, torch.UntypedStorage, torch.uint8, 0, b"handle", 8, 0, False, b"c", 0)


@pytest.fixture
def device_sync(make, tokenizer, tmp_path, monkeypatch) -> Any:
    """device_sync(backend) -> a sync of a model that is not on a GPU, for all that CUDA is received."""
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())

    def build(backend: str) -> DeviceSync:
        sync = DeviceSync(backend, DiskSync(tmp_path, make(0, tied=True), tokenizer), "bfloat16", 60.0, own=True)
        sync.prepare(sync.disk.model.state_dict(), 1)
        return sync

    return build


def sent(sync: DeviceSync) -> list[tuple[str, Any]]:
    client = RecordingClient(WorkerDevice(gpu="GPU-1", backend=sync.backend))
    asyncio.run(sync.give([client]))
    return client.orders


def names_of(sync: DeviceSync) -> list[str]:
    return [name for name in sync.disk.model.state_dict() if name != "lm_head.weight"]  # which is tied


def test_vllm_has_what_servers_are_started_with() -> None:
    from vllm.config.lora import MaxLoRARanks  # pyright: ignore[reportMissingImports]
    from vllm.engine.arg_utils import EngineArgs  # pyright: ignore[reportMissingImports]
    from vllm.v1.worker import lora_model_runner_mixin  # pyright: ignore[reportMissingImports]

    assert get_args(MaxLoRARanks) == LORA_RANKS
    assert NO_LORA in Path(lora_model_runner_mixin.__file__).read_text(encoding="utf-8")
    flags = ServerFlags(Path("m"), 64, 2, "float32", 0, 0.5, None, gpus=2, lora_rank=4, transfer="ipc")
    assert flags.engine().keys() <= {field.name for field in fields(EngineArgs)} | {"use_tqdm_on_load"}


def test_vllm_has_the_orders_and_workers_the_methods() -> None:
    from vllm.distributed.weight_transfer import VLLMWeightSyncClient  # pyright: ignore[reportMissingImports]
    from vllm.entrypoints.rl.online.api_router import router  # pyright: ignore[reportMissingImports]
    from vllm.v1.worker.gpu_worker import Worker  # pyright: ignore[reportMissingImports]

    paths = {route.path for route in router.routes}
    orders = ("init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update")
    assert {f"/{order}" for order in orders} <= paths
    assert all(hasattr(Worker, name) for name in (*orders, "reload_weights"))
    assert not any(hasattr(Worker, name) for name in vars(WeightReader) if "agentgym" in name)

    async def main() -> None:
        assert isinstance(ServerOrders([], []), VLLMWeightSyncClient)

    asyncio.run(main())


def test_cuda_ipc_sends_through_vllms_own_classes(device_sync, monkeypatch) -> None:
    from vllm.distributed.weight_transfer import ipc_engine  # pyright: ignore[reportMissingImports]
    from vllm.distributed.weight_transfer.packed_tensor import PackedIpcChunk  # pyright: ignore[reportMissingImports]

    def producer(iterator: Iterator[Any], gpu_uuid: str, post_iter_func: Any, buffer_size_bytes: int) -> Iterator[Any]:
        pairs = list(iterator)
        assert max(post_iter_func(pair).nbytes for pair in pairs) <= buffer_size_bytes
        for part in (pairs[:3], pairs[3:]):
            yield PackedIpcChunk(
                names=[name for name, _ in part],
                shapes=[list(tensor.shape) for _, tensor in part],
                dtype_names=["bfloat16" for _ in part],
                tensor_sizes=[tensor.nbytes for _, tensor in part],
                ipc_handle={gpu_uuid: HANDLE},
            )

    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="GPU-1"))
    monkeypatch.setattr(torch.cuda, "ipc_collect", lambda: None)
    monkeypatch.setattr(ipc_engine, "packed_ipc_producer", producer)
    sync = device_sync("ipc")
    received = sent(sync)
    assert [path for path, _ in received] == [
        "/init_weight_transfer_engine", "/start_weight_update", "ipc", "ipc", "/finish_weight_update",
    ]  # fmt: skip
    assert received[0][1] == {"init_info": {"packed": True}}
    taken: list[dict[str, Any]] = []
    worker = WeightReader()
    worker.update_weights = taken.append
    for _, text in received[2:4]:
        worker.update_agentgym_weights(text)
        assert ipc_handles.from_json(text) == taken[-1]
    infos = [ipc_engine.IPCWeightTransferUpdateInfo(**update) for update in taken]
    assert [name for info in infos for name in info.names] == names_of(sync)
    assert infos[0].ipc_handles == {"GPU-1": HANDLE}


def test_nccl_sends_through_vllms_own_classes(device_sync, monkeypatch) -> None:
    from vllm.distributed.weight_transfer import nccl_engine  # pyright: ignore[reportMissingImports]

    broadcast: list[tuple[str, torch.Tensor]] = []

    def producer(iterator: Iterator[Any], **_: Any) -> None:
        broadcast.extend(iterator)

    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", lambda info: object())
    monkeypatch.setattr(nccl_engine, "packed_nccl_broadcast_producer", producer)
    sync = device_sync("nccl")
    received = dict(sent(sync))
    assert list(received) == [
        "/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update",
    ]  # fmt: skip
    start = nccl_engine.NCCLWeightTransferInitInfo(**received["/init_weight_transfer_engine"]["init_info"])
    assert (start.rank_offset, start.world_size, start.master_address, start.packed) == (1, 2, "127.0.0.1", True)
    info = nccl_engine.NCCLWeightTransferUpdateInfo(**received["/update_weights"]["update_info"])
    assert info.names == [name for name, _ in broadcast] == names_of(sync)
    assert set(info.dtype_names) == {"bfloat16"}
    assert info.shapes == [list(tensor.shape) for _, tensor in broadcast]
    own = sync.disk.model.state_dict()
    assert all(torch.equal(tensor, own[name].to(torch.bfloat16)) for name, tensor in broadcast)


def test_what_fails_on_the_way_is_one_sentence(device_sync, monkeypatch) -> None:
    from vllm.distributed.weight_transfer import nccl_engine  # pyright: ignore[reportMissingImports]

    def fail(info: Any) -> None:
        raise RuntimeError("NCCL error: unhandled system error\nand more")

    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", fail)
    with pytest.raises(
        PolicyFailure, match=r"^weights did not reach vLLM by nccl: NCCL error: unhandled system error$"
    ):
        sent(device_sync("nccl"))


def test_a_dead_server_starts_from_the_copy_in_memory(device_sync) -> None:
    sync = device_sync("ipc")
    weights = sync.disk.model.state_dict()
    sync.keep(weights)
    expected = {name: tensor.clone() for name, tensor in weights.items()}
    for tensor in weights.values():
        tensor.zero_()  # the learner's next step
    from safetensors.torch import load_file

    saved = load_file(sync.start_folder() / "model.safetensors")
    assert all(torch.equal(tensor, expected[name].to(torch.bfloat16)) for name, tensor in saved.items())
    assert saved.keys() <= expected.keys()
