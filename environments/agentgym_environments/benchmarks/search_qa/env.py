"""Questions over a corpus that can be searched: several turns, the questions of any data file."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentgym.env import Action
from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.backends.retrieval.document import Document
from agentgym_environments.backends.retrieval.index import Bm25, Hit, Retriever
from agentgym_environments.backends.retrieval.remote import Remote
from agentgym_environments.backends.wording import bare
from agentgym_environments.base.question_env import QuestionEnv, stamps
from agentgym_environments.base.text_env import Outcome
from agentgym_environments.benchmarks.search_qa.lazy import LAZY_POLICIES
from agentgym_environments.tasks.passages import passages
from agentgym_environments.tasks.records import read_records

OWN = Path(__file__).with_name("data")


class SearchQuestions(QuestionEnv):
    """The only reward is for the answer.

    train, validation, test: files of questions, or files of the hub as `hf:OWNER/NAME/FILES`; a file that is given
    replaces all of the environment's own. corpus: a file of passages (`contents`, or `title` and `text`, a record);
    without one, the paragraphs that come with the questions, those of all splits together. retriever: "bm25", or the
    URL of a /retrieve like Search-R1's. results: passages that a search shows.
    """

    lazy_policies = LAZY_POLICIES

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        train: str = "",
        validation: str = "",
        test: str = "",
        corpus: str = "",
        retriever: str = "bm25",
        results: int = 3,
    ) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        remote = retriever.startswith(("http://", "https://"))
        if not (remote or retriever == "bm25"):
            raise ConfigError(f'{spec.id}: retriever is "bm25" or the URL of a /retrieve, not {retriever!r}')
        if remote and corpus:
            raise ConfigError(f"{spec.id}: {retriever} has a corpus of its own; leave out corpus or retriever")
        if isinstance(results, bool) or results < 1:
            raise ConfigError(f"{spec.id}: results is a number from 1 on, not {results!r}")
        super().__init__(spec, OWN, {"train": train, "validation": validation, "test": test})
        if remote:
            notes = f"{spec.notes} Searches are answered by {retriever}, which may change.".strip()
            self.env_spec = self.env_spec.model_copy(update={"deterministic": False, "notes": notes})
        self.results = results
        self._retriever = Remote(retriever) if remote else self._index(corpus)
        self.shown: list[Hit] = []
        """Passages that the last search found."""
        self.query = ""
        """Last query; "" before the first."""
        self.titles: set[str] = set()
        """Titles of the passages that were shown in this episode."""

    def _index(self, corpus: str) -> Retriever:
        if corpus:
            return _of_file(corpus, stamps({"corpus": corpus}))
        places = [(split, task) for split, size in self.tasks.splits.items() for task in range(size)]
        paragraphs = [tuple(pair) for place in places for pair in self.tasks[place].setup.get("paragraphs", ())]
        if not paragraphs:
            raise ConfigError(
                f"{self.env_spec.id}: these questions come without paragraphs: name a corpus, as in corpus=wiki.jsonl, "
                "or a retriever, as in retriever=http://127.0.0.1:8000/retrieve"
            )
        return _of_paragraphs(tuple(dict.fromkeys(paragraphs)))

    def close(self) -> None:
        if isinstance(self._retriever, Remote):
            self._retriever.close()

    def begin(self, split: str, task: int) -> None:
        super().begin(split, task)
        self.shown, self.query, self.titles = [], "", set()

    def readings(self, action: Action) -> tuple[str, ...]:
        """The action as it came, and without a label or marks around it: queries and answers keep their characters."""
        return self.text, bare(self.text)

    def act(self, action: str) -> Outcome | None:
        verb, *words = action.split(maxsplit=1) or [""]
        rest = "".join(words)
        if verb.lower() == "search" and any(map(str.isalnum, rest)):
            self._search(rest)
            return Outcome()
        if verb.lower() == "answer" and rest:
            return self.answered(rest)
        return None

    def _search(self, query: str) -> None:
        self.query = " ".join(query.split())[:200]
        self.shown = self._retriever.search(query, self.results)
        self.titles |= {hit.document.title for hit in self.shown}

    def observe(self) -> str:
        if self.answer:
            return "The answer is right." if self.success else "The answer is wrong."
        if not self.query:
            return f"Question: {self.task.prompt}"
        found = [f"({place}) {hit.document.title}: {hit.document.text}" for place, hit in enumerate(self.shown, 1)]
        return "\n".join([f"{len(found)} found for: {self.query}", *found])

    def refuse(self, action: str) -> str:
        return "not an action; say search QUERY or answer TEXT"

    def key(self) -> str:
        """Name the question, the last search and the titles that were shown, in no order."""
        state = repr((self.place[0], self.task.id, self.query, sorted(self.titles)))
        return hashlib.sha1(state.encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        """`progress` is the share of the documents on which the answer rests that were shown, where the data names
        them."""
        gold = self.task.grader.get("titles", ())
        progress = sum(title in self.titles for title in gold) / len(gold) if gold else self.score
        titles = list(dict.fromkeys(hit.document.title for hit in self.shown if hit.document.title.strip()))
        actions = [f"{verb} {title}" for title in titles or [self.task.prompt] for verb in ("search", "answer")]
        return {"progress": progress, "available_actions": [] if self.over else actions}

    def solver(self) -> str:
        """Search the documents on which the answer rests, one after another, then answer."""
        self.require_episode("solver")
        unread = [title for title in self.task.grader.get("titles", ()) if title not in self.titles]
        turns_left = self.env_spec.max_turns - self.turn
        if unread and turns_left > 1:
            return f"search {unread[0]}"
        return f"answer {self.task.grader['answers'][0]}"

    def save(self) -> Any:
        return super().save() | {"query": self.query, "titles": sorted(self.titles), "shown": self._contents()}

    def load(self, state: Any) -> None:
        super().load(state)
        self.query, self.titles = str(state["query"]), set(state["titles"])
        self.shown = [Hit(Document(name, title, (text,)), 0.0) for name, title, text in state["shown"]]

    def _contents(self) -> list[list[str]]:
        return [[hit.document.id, hit.document.title, hit.document.text] for hit in self.shown]


@lru_cache(maxsize=4)
def _of_file(corpus: str, changed: tuple[float, ...]) -> Bm25:
    return Bm25(passages(read_records(corpus), corpus))


@lru_cache(maxsize=4)
def _of_paragraphs(paragraphs: tuple[tuple[str, str], ...]) -> Bm25:
    return Bm25(Document(str(number), title, (text,)) for number, (title, text) in enumerate(paragraphs))
