"""Extension of vLLM's workers, added to their class: `--worker-extension-cls`."""

from __future__ import annotations

from typing import Any

import torch

from agentgym_trainers.engines.vllm import ipc_handles


class WeightReader:
    """A base of vLLM's worker; `self` has all that the worker has."""

    reload_weights: Any
    update_weights: Any
    model_runner: Any
    vllm_config: Any
    device: torch.device

    def agentgym_device(self) -> dict[str, str | None]:
        """Fields of the client's `WorkerDevice`."""
        config = self.vllm_config.weight_transfer_config
        cuda = self.device.type == "cuda"
        gpu = str(torch.cuda.get_device_properties(self.device).uuid) if cuda else None
        return {"gpu": gpu, "backend": config.backend if config is not None else None}

    def update_agentgym_weights(self, update: str) -> None:
        """Take weights from another process's memory on this GPU, as vLLM's own order of this name does."""
        self.update_weights(ipc_handles.from_json(update))

    def read_agentgym_weights(self, folder: str) -> None:
        """Sample from the checkpoint in `folder` from now on."""
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm  # pyright: ignore
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead  # pyright: ignore

        self.reload_weights(weights_path=folder)
        for layer in self.model_runner.get_model().modules():
            # With tied embeddings nothing is loaded into the head itself, so vLLM 0.32 goes on with the copy that its
            # CPU build had packed of the old weights.
            if isinstance(layer, ParallelLMHead) and hasattr(layer, "cpu_linear"):
                dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
