"""BM25 over documents, by tantivy, in memory: accents folded, words stemmed, equal scores in the documents' order.

`Retriever` is what an environment asks; `bm25`, a dense model and a remote server all are one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from agentgym.errors import MissingDependency
from agentgym_environments.backends.retrieval.document import Document

FIELDS = ("title", "text")

LONGEST_QUERY = 48
"""Words of a query that are looked at."""

SPARE = 16
"""Hits fetched beyond those asked for, so that a tie at the cut is broken by the documents' order alone."""


class Hit(NamedTuple):
    document: Document
    score: float


class Retriever(Protocol):
    def search(self, query: str, count: int) -> list[Hit]:
        """Return at most `count` hits, best first."""
        ...


class Bm25:
    """An index over `documents`. Searching is safe from several threads."""

    def __init__(self, documents: Iterable[Document]) -> None:
        try:
            import tantivy
        except ModuleNotFoundError as error:
            raise MissingDependency("search environments need tantivy: pip install 'turngym[search]'") from error
        self._tantivy = tantivy
        self.documents: list[Document] = list(documents)
        fields = tantivy.SchemaBuilder()
        for name in FIELDS:
            fields = fields.add_text_field(name, tokenizer_name="folded", index_option="freq")
        self._schema = fields.add_unsigned_field("number", fast=True).build()
        self._analyzer = _analyzer(tantivy)
        index = tantivy.Index(self._schema)
        index.register_tokenizer("folded", self._analyzer)
        writer = index.writer(heap_size=256_000_000, num_threads=1)  # one thread: always the same segments
        for number, document in enumerate(self.documents):
            one = tantivy.Document()
            one.add_text("title", document.title)
            one.add_text("text", document.text)
            one.add_unsigned("number", number)
            writer.add_document(one)
        writer.commit()
        writer.wait_merging_threads()
        index.reload()
        self._searcher = index.searcher()

    def search(self, query: str, count: int) -> list[Hit]:
        words = list(dict.fromkeys(self._analyzer.analyze(query)))[:LONGEST_QUERY]
        if not words or count < 1:
            return []
        found = self._searcher.search(self._query(words), count + SPARE, count=False).hits
        numbers: list[Any] = self._searcher.fast_field_values("number", [address for _, address in found])
        ranked = sorted((-round(score, 4), number) for (score, _), number in zip(found, numbers))
        return [Hit(self.documents[number], -score) for score, number in ranked[:count]]

    def _query(self, words: Iterable[str]) -> Any:
        """Each word counts where it tells most: in the title or in the text, not twice."""
        kind, should = self._tantivy.Query, self._tantivy.Occur.Should
        each = [[kind.term_query(self._schema, name, word, "freq") for name in FIELDS] for word in words]
        return kind.boolean_query([(should, kind.disjunction_max_query(both)) for both in each])


def _analyzer(tantivy: Any) -> Any:
    kind = tantivy.Filter
    return (
        tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
        .filter(kind.remove_long(40))
        .filter(kind.ascii_fold())
        .filter(kind.lowercase())
        .filter(kind.stemmer("english"))
        .build()
    )
