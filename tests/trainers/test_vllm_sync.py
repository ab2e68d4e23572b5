"""Weight sync with vLLM as far as it can be known without vLLM: which way is taken, what is sent, what the probe finds.
tests/scale has the rest."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from vllm_models import RecordingClient

from agentgym.errors import PolicyFailure
from agentgym_trainers.engines.base import Sampling
from agentgym_trainers.engines.options import Vllm
from agentgym_trainers.engines.vllm import ipc_handles
from agentgym_trainers.engines.vllm.client import PartialCompletion, ServerUnavailable, VllmClient, WorkerDevice
from agentgym_trainers.engines.vllm.device_sync import (
    DeviceSync,
    ServerOrders,
    TransferSource,
    address_towards,
    backend_of,
    backend_to_start,
)
from agentgym_trainers.engines.vllm.engine import VllmEngine
from agentgym_trainers.engines.vllm.probe import Probe
from agentgym_trainers.engines.vllm.server import ServerFlags, environment
from agentgym_trainers.engines.vllm.weight_sync import DiskSync
from agentgym_trainers.nn import checkpoint, lora

# How a server is started


def test_a_server_with_room_for_adapters_or_for_transfers() -> None:
    def flags(**more: Any) -> ServerFlags:
        return ServerFlags(Path("m"), 128, 4, "float32", 0, 0.5, None, **more)

    line = " ".join(flags(lora_rank=20).command(8000, "it"))
    assert "--enable-lora --max-loras 1 --max-lora-rank 32" in line
    assert environment(flags(lora_rank=20))["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    plain = flags(transfer="ipc")
    assert '--weight-transfer-config {"backend": "ipc"}' in " ".join(plain.command(8000, "it"))
    assert "lora" not in " ".join(plain.command(8000, "it"))
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in environment(plain)


# Which way full weights take


@pytest.mark.parametrize(
    ("servers", "gpu", "backend"),
    [
        ([("A", "ipc")], "A", "ipc"),
        ([("B", "ipc")], "A", None),  # another GPU cannot map this one's memory
        ([("B", "nccl"), ("C", "nccl")], "A", "nccl"),
        ([("A", "nccl"), ("B", "nccl")], "A", None),  # NCCL takes a GPU once
        ([("B", "nccl"), ("C", None)], "A", None),
        ([("B", None)], "A", None),
        ([(None, "nccl")], "A", None),
        ([("B", "nccl")], None, None),
        ([], "A", None),
    ],
)
def test_memory_to_memory_only_where_all_can(servers, gpu, backend) -> None:
    assert backend_of([WorkerDevice(gpu=gpu, backend=name) for gpu, name in servers], gpu) == backend


def test_an_own_server_is_started_for_the_learners_device() -> None:
    found = [backend_to_start(torch.device(name)) for name in ("cpu", "cuda", "cuda:0", "cuda:1")]
    assert found == [None, "ipc", "ipc", "nccl"]


def test_what_is_sent_has_tied_weights_once_in_the_servers_dtype(kit) -> None:
    model, source = kit.build("qwen3", tie_word_embeddings=True), TransferSource(torch.bfloat16)
    source.weights = model.state_dict()
    names = [name for name, _ in source]
    assert names == [name for name in model.state_dict() if name != "lm_head.weight"]
    assert {tensor.dtype for _, tensor in source} == {torch.bfloat16}
    assert source.largest() == 2 * max(p.numel() for p in model.parameters())
    assert [tensor.shape for _, tensor in source] == [model.state_dict()[name].shape for name in names]


def test_ipc_handles_survive_json() -> None:
    handle = (
        torch.Tensor, torch.Size([4]), (1,), 0, torch.UntypedStorage, torch.uint8, 0, b"\x00\xff handle", 4, 0, False,
        b"counter", 8, b"event", True,
    )  # fmt: skip
    update = {"names": ["a"], "shapes": [[4]], "ipc_handles": {"GPU-1": handle}, "ipc_handles_pickled": None}
    assert ipc_handles.from_json(ipc_handles.to_json(update)) == {
        "names": ["a"], "shapes": [[4]], "ipc_handles": {"GPU-1": handle},
    }  # fmt: skip
    with pytest.raises(KeyError):
        ipc_handles.from_json(json.dumps({"ipc_handles": {"GPU-1": [{"type": "Popen"}]}}))


def test_every_server_has_ranks_of_its_own() -> None:
    clients = [RecordingClient(WorkerDevice(gpu="B", backend="nccl")) for _ in range(2)]

    async def main() -> None:
        orders = ServerOrders(clients, [2, 3])

        def send() -> None:
            orders.init_weight_transfer_engine({"rank_offset": 1, "world_size": 6})
            orders.start_weight_update()
            orders.update_weights({"names": ["a"]})
            orders.update_weights({"names": ["a"], "ipc_handles": {"GPU-1": (b"x",)}})
            orders.finish_weight_update()

        await asyncio.to_thread(send)

    asyncio.run(main())
    first, second = (client.orders for client in clients)
    path = "/init_weight_transfer_engine"
    assert (first[0], second[0]) == (
        (path, {"init_info": {"rank_offset": 1, "world_size": 6}}),
        (path, {"init_info": {"rank_offset": 3, "world_size": 6}}),
    )
    assert (
        first[1:]
        == second[1:]
        == [
            ("/start_weight_update", {}),
            ("/update_weights", {"update_info": {"names": ["a"]}}),
            ("ipc", '{"names": ["a"], "ipc_handles": {"GPU-1": [{"bytes": "eA=="}]}}'),
            ("/finish_weight_update", {}),
        ]
    )


def test_servers_of_this_machine_get_the_loopback() -> None:
    assert address_towards(["http://127.0.0.1:8000", "http://localhost:8001"]) == "127.0.0.1"


# Adapters of a server


class Adapters(VllmClient):
    """The client of a server with adapters, whose answers to what changes them are lost."""

    def __init__(self, loaded: Sequence[str]) -> None:
        super().__init__("http://127.0.0.1:9", 5.0)
        self.base, self.loaded = "m", dict.fromkeys(loaded, "old")

    async def _answer(self, method: str, path: str, request: dict[str, Any]) -> bytes:
        if path == "/v1/models":
            entries = [{"id": "m", "max_model_len": 9}, *({"id": name, "max_model_len": None} for name in self.loaded)]
            return json.dumps({"data": entries}).encode()
        body = request["json"]
        if "no room" in str(body):
            raise PolicyFailure("no room")
        if path == "/v1/load_lora_adapter":
            self.loaded[body["lora_name"]] = body["lora_path"]
        else:
            del self.loaded[body["lora_name"]]
        raise PolicyFailure("the answer is lost")


def test_one_adapter_of_ours_is_loaded_whose_answer_is_lost() -> None:
    async def main() -> None:
        client = Adapters(["step-3", "trial", "somebody-elses"])
        await client.load_adapter("step-4", "folder")
        assert client.loaded == {"somebody-elses": "old", "step-4": "folder"}
        assert client.model == "step-4"
        await client.use_version(5)
        assert client.model == "m"
        await client.use_version(4)
        assert client.model == "step-4"
        with pytest.raises(PolicyFailure, match="no room"):
            await client.load_adapter("step-5", "no room")
        assert (client.model, set(client.loaded)) == ("m", {"somebody-elses"})

    asyncio.run(main())


# The probe


class Answering(VllmClient):
    """A server that samples from `model`, with an error of its own."""

    def __init__(self, model: Any, error: float = 0.0) -> None:
        self.url, self.model_there, self.error = "http://there", model, error

    async def complete(self, prompt: Sequence[int], *_: Any, **__: Any) -> PartialCompletion:
        own = Probe(self.model_there, "float32", len(prompt) + 8)
        assert own.text == list(prompt)
        ids = list(range(8))
        text, sampled = own.expected(self.model_there.state_dict(), ids)
        entries = [None, *({i: {"logprob": x + self.error}} for i, x in zip(prompt[1:], text.tolist(), strict=True))]
        return PartialCompletion.model_validate({
            "token_ids": ids, "logprobs": {"token_logprobs": (sampled + self.error).tolist()},
            "finish_reason": "length", "prompt_logprobs": entries,
        })  # fmt: skip


def nudged(model: Any, size: float) -> Any:
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.layers[0].mlp.up_proj.weight.mul_(1 + size)
    return other


def check(probe: Probe, there: Any, weights: Mapping[str, Tensor], error: float = 0.0) -> None:
    asyncio.run(probe.check([Answering(there, error)], weights, "salt"))


def test_the_probe_finds_other_weights_and_those_that_stayed(kit) -> None:
    first = kit.build("qwen3")
    small, large = nudged(first, 0.02), nudged(first, 1.0)
    probe = Probe(first, "bfloat16", 64)
    moved = np.abs(probe.expected(small.state_dict(), [])[0] - probe.expected(first.state_dict(), [])[0]).max()
    assert 1e-4 < moved < probe.slack / 10  # far below what bfloat16's rounding explains
    check(probe, first, first.state_dict(), error=0.1)
    with pytest.raises(PolicyFailure, match="answers as before, where the new weights change log-probabilities by"):
        check(probe, first, small.state_dict(), error=0.1)
    check(probe, small, small.state_dict(), error=0.1)
    with pytest.raises(PolicyFailure, match="away from those of the weights it was given"):
        check(Probe(first, "float32", 64), first, large.state_dict())


def test_changes_too_small_to_see_add_up_for_the_probe(kit) -> None:
    first = kit.build("qwen3")
    probe = Probe(first, "bfloat16", 64)
    before, after = (probe.expected(model.state_dict(), [])[0] for model in (first, nudged(first, 0.02)))
    half = 0.02 * 0.6e-4 / float(np.abs(after - before).max())
    for size in (0.0, half):
        check(probe, first, nudged(first, size).state_dict())
    with pytest.raises(PolicyFailure, match="answers as before"):
        check(probe, first, nudged(first, 2 * half).state_dict())


def test_an_adapter_applied_in_part_is_found_in_bfloat16(kit) -> None:
    plain = kit.build("qwen3")
    model = copy.deepcopy(plain)
    lora.add_lora(model, lora.LoraOptions(rank=4), seed=0)
    weights = lora.merge_lora(model.state_dict(), model)
    assert isinstance(weights, lora.MergedWeights)
    strong, there, probe = lora.strong(weights), copy.deepcopy(plain), Probe(plain, "bfloat16", 64)
    there.load_state_dict(dict(strong))
    asyncio.run(probe.check_served([Answering(there, 0.05)], strong, "salt"))
    for left_out in ("mlp", "self_attn", "layers"):
        state = {name: strong.base[name] if left_out in name else tensor for name, tensor in strong.items()}
        there.load_state_dict(state)
        with pytest.raises(PolicyFailure, match="took an adapter, but a text's log-probabilities are"):
            asyncio.run(probe.check_served([Answering(there)], strong, "salt"))


def test_an_answer_without_the_prompts_logprobs_is_an_error(kit) -> None:
    model = kit.build("qwen3")

    class Silent(Answering):
        async def complete(self, *given: Any, **named: Any) -> PartialCompletion:
            return (await super().complete(*given, **named)).model_copy(update={"prompt_logprobs": None})

    with pytest.raises(PolicyFailure, match="no log-probabilities of a prompt"):
        asyncio.run(Probe(model, "float32", 64).check([Silent(model)], model.state_dict(), "salt"))


# The engine's choice


class Serving(Answering):
    """A server that can be given weights, by files."""

    async def pause(self) -> None: ...

    async def abort(self) -> None: ...

    async def forget(self) -> None: ...

    async def resume(self) -> None: ...

    async def read_weights(self, folder: str) -> None:
        self.model_there = checkpoint.load_model(folder)[0]


@pytest.mark.parametrize("works", [True, False, None], ids=["it works", "it fails", "nothing arrives"])
def test_memory_to_memory_is_tried_and_files_are_next(kit, tokenizer, tmp_path, monkeypatch, caplog, works) -> None:
    model, there, tries = kit.build("qwen3"), nudged(kit.build("qwen3"), 2.0), []
    engine = VllmEngine(
        Vllm(kind="vllm", urls=("http://a",)), model, tokenizer, tmp_path, max_sequences=2, max_length=64
    )

    async def start(*_: Any) -> None:
        engine.clients = [Serving(there)]

    async def backend() -> str:
        return "ipc"

    async def give(self: DeviceSync, clients: Sequence[Any]) -> None:
        tries.append(self.backend)
        if works is False:
            raise PolicyFailure("weights did not reach vLLM by ipc: no such device")
        if works:
            clients[0].model_there = copy.deepcopy(model)
            clients[0].model_there.load_state_dict(self.source.weights)

    monkeypatch.setattr(engine, "_start", start)
    monkeypatch.setattr(engine, "_backend", backend)
    monkeypatch.setattr(DeviceSync, "give", give)

    async def main() -> None:
        for version, weights in enumerate([model.state_dict(), nudged(model, 0.1).state_dict()]):
            await engine.refresh(weights, version)

    asyncio.run(main())
    assert isinstance(engine.sync, DeviceSync if works else DiskSync)
    assert (len(tries), engine.version) == (3 if works else 1, 1)
    lines = [record.getMessage() for record in caplog.records if "through files" in record.getMessage()]
    reason = {True: None, False: "no such device", None: "away from those of the weights it was given"}[works]
    assert len(lines) == (0 if works else 1)
    assert works or str(reason) in lines[0]
    assert {path.name for path in tmp_path.iterdir()} == ({"weights-1"} if works else {"weights-0", "weights-1"})


class AdapterServing(Serving):
    """A server with adapters, which may die."""

    async def aclose(self) -> None: ...

    def __init__(self, base: Any, dead: bool = False) -> None:
        super().__init__(base)
        self.base_there, self.dead, self.loaded = base, dead, []

    async def complete(self, *given: Any, **named: Any) -> PartialCompletion:
        if self.dead:
            raise ServerUnavailable("it is gone")
        return await super().complete(*given, **named)

    async def load_adapter(self, name: str, folder: str) -> None:
        from peft import PeftModel

        self.loaded.append(name)
        self.model_there = PeftModel.from_pretrained(copy.deepcopy(self.base_there), folder).merge_and_unload()


class DeadServer:
    """An own server's process that has ended."""

    flags = ServerFlags(Path("m"), 64, 2, "float32", 0, 0.5, None, lora_rank=4)

    def died(self) -> bool:
        return True

    def stop(self) -> None: ...


def test_a_server_that_died_gets_the_adapter_it_had(kit, tokenizer, tmp_path, monkeypatch) -> None:
    pytest.importorskip("peft", reason="peft is not installed: pip install 'turngym[train]'")
    base = kit.build("qwen3")
    model = copy.deepcopy(base)
    lora.add_lora(model, lora.LoraOptions(rank=4), seed=0)
    weights = lora.merge_lora(model.state_dict(), model)
    assert isinstance(weights, lora.MergedWeights)
    engine = VllmEngine(Vllm(kind="vllm"), base, tokenizer, tmp_path, max_sequences=2, max_length=64)
    servers = [AdapterServing(base), AdapterServing(base)]
    ranks = []

    async def start(sync: Any, rank: int | None) -> None:
        ranks.append(rank)
        engine.clients, engine._own = [servers[len(ranks) - 1]], DeadServer()  # type: ignore[assignment]

    monkeypatch.setattr(engine, "_start", start)

    async def main() -> None:
        await engine.refresh(lora.strong(weights, 0.2), 7)
        servers[0].dead = True
        part, version = await engine.sample(0, Probe(base, "float32", 64).text, Sampling(2.0, 8), 0)
        expected = Probe(base, "float32", 64).expected(lora.strong(weights, 0.2), part.token_ids)[1]
        np.testing.assert_allclose(part.logprobs.token_logprobs, expected, atol=1e-4)
        assert version == 7

    asyncio.run(main())
    assert (ranks, [server.loaded for server in servers]) == ([4, 4], [["trial", "step-7"], ["step-7"]])
