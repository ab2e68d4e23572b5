"""A document as retrievers hold and give it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    id: str
    title: str
    sentences: tuple[str, ...]
    facts: tuple[str, ...] = ()
    """Key of the fact that each sentence states; empty for documents of a remote index."""

    @property
    def text(self) -> str:
        return " ".join(self.sentences)

    @property
    def contents(self) -> str:
        """Return the text as Search-R1's corpora have it: the title, a line break, the text."""
        return f"{self.title}\n{self.text}"
