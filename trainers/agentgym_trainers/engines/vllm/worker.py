"""Extension of vLLM's workers, added to their class: `--worker-extension-cls`."""

from __future__ import annotations

from typing import Any


class WeightReader:
    """A base of vLLM's worker; `self` has all that the worker has."""

    reload_weights: Any
    model_runner: Any

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
