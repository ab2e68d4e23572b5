"""A retriever behind a URL that answers as Search-R1's does: POST /retrieve."""

from __future__ import annotations

import time
from typing import Any

import httpx

from agentgym.errors import EnvironmentFailure, Unreachable
from agentgym_environments.backends.retrieval.document import Document
from agentgym_environments.backends.retrieval.index import Hit

PAUSE_S = 0.2
"""Seconds before the second attempt; they double."""


class Remote:
    """Asks `url` (as `http://127.0.0.1:8000/retrieve`). Asking twice does no harm, so a failed attempt is repeated."""

    def __init__(self, url: str, *, timeout_s: float = 10.0, attempts: int = 3) -> None:
        self.url, self.attempts = url, attempts
        self._client = httpx.Client(timeout=timeout_s)

    def search(self, query: str, count: int) -> list[Hit]:
        """Raises Unreachable when no attempt was answered, EnvironmentFailure when the answer is none."""
        answer = self._ask({"queries": [query], "topk": count, "return_scores": True})
        try:
            (found,) = answer["result"]
            return [_hit(one) for one in found][:count]
        except (KeyError, TypeError, ValueError) as error:
            raise EnvironmentFailure(f"{self.url} does not answer as Search-R1's retriever does: {error!r}") from error

    def close(self) -> None:
        self._client.close()

    def _ask(self, body: dict[str, Any]) -> Any:
        why = ""
        for attempt in range(self.attempts):
            if attempt:
                time.sleep(PAUSE_S * 2 ** (attempt - 1))
            try:
                response = self._client.post(self.url, json=body)
            except httpx.TransportError as error:
                why = repr(error)
                continue
            if response.status_code >= 500:
                why = f"status {response.status_code}"
                continue
            if response.status_code != 200:
                raise EnvironmentFailure(f"{self.url} answered {response.status_code}: {response.text[:200]}")
            try:
                return response.json()
            except ValueError as error:
                raise EnvironmentFailure(f"{self.url} answered no JSON: {response.text[:200]}") from error
        raise Unreachable(f"{self.url} did not answer {self.attempts} times: {why}")


def _hit(one: dict[str, Any]) -> Hit:
    """Read an item: with scores it is {"document", "score"}, without them the document itself."""
    document = one.get("document", one)
    return Hit(parse(str(document["id"]), str(document["contents"])), float(one.get("score", 0.0)))


def parse(name: str, contents: str) -> Document:
    """A passage whose first line is its title, in quotation marks or not."""
    title, _, text = contents.partition("\n")
    ends = [part.strip() for part in text.replace("\n", " ").split(". ") if part.strip()]
    sentences = tuple(part if part.endswith(".") else f"{part}." for part in ends)
    return Document(name, title.strip().strip('"'), sentences)
