"""An atlas with its documents and their index, made once for a process and shared by every environment in it."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from agentgym_environments.backends.retrieval.document import Document
from agentgym_environments.backends.retrieval.index import Bm25
from agentgym_environments.synthetic.search.atlas import Atlas, read_atlas
from agentgym_environments.synthetic.search.passages import documents


@dataclass(frozen=True)
class Library:
    atlas: Atlas
    documents: dict[str, Document]
    bm25: Bm25


_made: dict[int, Library] = {}
_making = threading.Lock()


def library(smallest: int = 15000) -> Library:
    """Cities of at least `smallest` people, all countries and airports. Takes seconds the first time, then nothing.

    Raises MissingDependency and ConfigError as `read_atlas` does.
    """
    with _making:  # sessions open in several threads at once: one of them builds
        if smallest not in _made:
            atlas = read_atlas(smallest)
            index = Bm25(documents(atlas))
            _made[smallest] = Library(atlas, {one.id: one for one in index.documents}, index)
        return _made[smallest]
