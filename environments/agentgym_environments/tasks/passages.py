"""Passages of a corpus, out of the records that public corpora publish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentgym.errors import ConfigError
from agentgym_environments.backends.retrieval.document import Document
from agentgym_environments.tasks.records import Record


def passages(records: Sequence[Record], source: str) -> Iterator[Document]:
    """Return a document for each record. Raises ConfigError naming the record that is none.

    A record has `contents`, whose first line is the title (Search-R1's `wiki-18.jsonl`), or `title` and `text`
    (DPR's and BEIR's), beside an `id` or `_id`.
    """
    for number, record in enumerate(records):
        identity = record.get("id", record.get("_id", number))
        if isinstance(contents := record.get("contents"), str):
            title, _, text = contents.partition("\n")
        else:
            title, text = record.get("title"), record.get("text")
        if not (isinstance(title, str) and isinstance(text, str)):
            raise ConfigError(f"{source}, record {number + 1}: a passage has contents, or title and text")
        yield Document(str(identity), title.strip().strip('"'), (text.strip(),))
