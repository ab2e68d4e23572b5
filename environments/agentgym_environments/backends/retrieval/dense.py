"""Dense retrieval: passages and queries as vectors of a transformers encoder, compared by cosine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from agentgym.errors import MissingDependency
from agentgym_environments.backends.retrieval.document import Document
from agentgym_environments.backends.retrieval.index import Hit


class Dense:
    """`model` is a folder (or a name) that transformers' AutoModel and AutoTokenizer load: an encoder whose last layer,
    averaged over tokens, means something. Every document is encoded at once: minutes for a real model on a CPU.

    Some encoders want to be told what they read: `query_prefix="query: "`, `passage_prefix="passage: "`.
    """

    def __init__(
        self,
        documents: Iterable[Document],
        model: str,
        *,
        batch: int = 64,
        longest: int = 256,
        query_prefix: str = "",
        passage_prefix: str = "",
    ) -> None:
        try:
            import torch
            from transformers import AutoModel, AutoTokenizer
        except ModuleNotFoundError as error:
            raise MissingDependency(f"a dense retriever needs {error.name}: pip install 'turngym[train]'") from error
        self._torch, self.batch, self.longest, self.query_prefix = torch, batch, longest, query_prefix
        self._tokenizer = AutoTokenizer.from_pretrained(model)
        self._model = AutoModel.from_pretrained(model).eval()
        self.documents = list(documents)
        self._vectors = self.encode([passage_prefix + one.contents for one in self.documents])  # [documents, width]

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """float32[texts, width], each row of length 1."""
        rows = []
        for start in range(0, len(texts), self.batch):
            tokens = self._tokenizer(
                list(texts[start : start + self.batch]),
                padding=True,
                truncation=True,
                max_length=self.longest,
                return_tensors="pt",
            )
            with self._torch.inference_mode():
                hidden = self._model(**tokens).last_hidden_state  # [batch, tokens, width]
            mask = tokens["attention_mask"][..., None]
            rows.append(((hidden * mask).sum(1) / mask.sum(1).clamp(min=1)).float().numpy())
        vectors = np.concatenate(rows)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)

    def search(self, query: str, count: int) -> list[Hit]:
        scores = self._vectors @ self.encode([self.query_prefix + query])[0]
        best = np.argsort(-scores, kind="stable")[: max(0, count)]
        return [Hit(self.documents[i], float(scores[i])) for i in best]
