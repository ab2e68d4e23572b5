"""Questions with answers, out of the records that public data sets publish.

A record's fields say which data set it is of; `FORMATS` has them in the order in which they are tried.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from agentgym.errors import ConfigError
from agentgym.tasks import Task
from agentgym_environments.tasks.records import Record, plain

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Format(NamedTuple):
    """A data set's way to write a question."""

    name: str
    fields: frozenset[str]
    """The fields by which it is known; others may be there."""
    read: Callable[[Record], dict[str, Any]]
    """Makes a task's fields of a record, all but a missing `id`. Raises KeyError, TypeError or ValueError."""


def questions(records: Sequence[Record], source: str) -> list[Task]:
    """Return a task for each record. Raises ConfigError naming the record and what it lacks."""
    tasks = []
    for number, record in enumerate(records):
        found = _format(record)
        if found is None:
            raise ConfigError(
                f"{source}, record {number + 1}: its fields ({', '.join(record)}) are of no known format; "
                'the simplest is {"question": "...", "answer": "..."}'
            )
        try:
            fields = found.read(record)
            identity = fields.pop("id", None)
            tasks.append(Task(id=str(number if identity is None else identity), **fields))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ConfigError(f"{source}, record {number + 1} is no question of {found.name}: {error!r}") from error
    return tasks


def _format(record: Record) -> Format | None:
    present = {name for name, value in record.items() if value is not None}
    return next((one for one in FORMATS if one.fields <= present), None)


def _task(prompt: Any, grader: dict[str, Any], record: Record, *, without: Sequence[str], id: Any = None) -> Any:
    """Return the fields of a task; what neither prompt nor grader is made of is metadata."""
    if not isinstance(prompt, str) or not prompt.strip():
        raise ValueError("its question is empty")
    metadata = {name: value for name, value in record.items() if name not in without and name not in ("id", "_id")}
    return {"id": id, "prompt": prompt.strip(), "grader": grader, "metadata": plain(metadata)}


def _texts(value: Any) -> list[str]:
    texts = [str(one) for one in value] if isinstance(value, list | tuple) else [str(value)]
    if not any(text.strip() for text in texts):
        raise ValueError("it has no answer")
    return texts


def _unique(titles: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(map(str, titles)))


def _identity(record: Record) -> Any:
    return record.get("id", record.get("_id"))


def _gsm8k(record: Record) -> dict[str, Any]:
    worked, mark, final = record["answer"].rpartition("####")
    if not mark:
        raise ValueError('its answer has no "####"')
    fields = _task(
        record["question"], {"kind": "number", "answers": [final.strip()]}, record, without=("question", "answer")
    )
    fields["metadata"]["solution"] = worked.strip()
    return fields


def boxed(solution: str) -> str:
    r"""Return what the last \boxed of a solution holds. Raises ValueError."""
    start = max(solution.rfind(r"\boxed{"), solution.rfind(r"\fbox{"))
    depth = 0
    for place in range(start, len(solution) if start >= 0 else start):
        depth += {"{": 1, "}": -1}.get(solution[place], 0)
        if solution[place] == "}" and depth == 0:
            return solution[solution.index("{", start) + 1 : place]
    if found := re.findall(r"\\boxed\s+(\S)", solution):  # \boxed 3
        return found[-1]
    raise ValueError(r"its solution has no \boxed answer")


def _math(record: Record) -> dict[str, Any]:
    answer = record["answer"] if record.get("answer") is not None else boxed(record["solution"])
    identity = next((record[name] for name in ("unique_id", "id", "ID") if record.get(name) is not None), None)
    return _task(
        record["problem"],
        {"kind": "math", "answers": _texts(answer)},
        record,
        without=("problem", "answer"),
        id=identity,
    )


def _aime(record: Record) -> dict[str, Any]:
    lower = {name.lower(): value for name, value in record.items()}
    return _math({**lower, "problem": lower["problem"]})


def _choice(record: Record) -> dict[str, Any]:
    choices = record["choices"]
    labels = choices["label"] if isinstance(choices, dict) else LETTERS[: len(choices)]
    texts = choices["text"] if isinstance(choices, dict) else choices
    right = record["answerKey"] if "answerKey" in record else record["answer"]
    if isinstance(right, int):
        right = labels[right]
    letters = LETTERS[: len(texts)]
    prompt = "\n".join((record["question"].strip(), *(f"{a}. {text}" for a, text in zip(letters, texts, strict=True))))
    place = list(labels).index(str(right))
    grader = {"kind": "choice", "answers": [letters[place]], "text": str(texts[place]), "choices": len(texts)}
    return _task(prompt, grader, record, without=("question", "choices", "answer", "answerKey"), id=_identity(record))


def _musique(record: Record) -> dict[str, Any]:
    answers = [record["answer"], *record.get("answer_aliases", ())]
    fields = _text_question(record, record["question"], answers)
    paragraphs = record["paragraphs"]
    fields["setup"] = {"paragraphs": [[one["title"], one["paragraph_text"]] for one in paragraphs]}
    steps = [step.get("paragraph_support_idx") for step in record.get("question_decomposition") or ()]
    in_order = [paragraphs[place] for place in steps if place is not None]
    fields["grader"]["titles"] = _unique(
        one["title"] for one in in_order or paragraphs if in_order or one.get("is_supporting")
    )
    return fields


def _hotpotqa(record: Record) -> dict[str, Any]:
    """`context` is a list of [title, sentences], or in Parquet two lists; 2WikiMultihopQA's is too."""
    context, facts = record["context"], record["supporting_facts"]
    pairs = zip(context["title"], context["sentences"], strict=True) if isinstance(context, dict) else context
    fields = _text_question(record, record["question"], record["answer"])
    fields["setup"] = {"paragraphs": [[title, " ".join(map(str.strip, sentences))] for title, sentences in pairs]}
    titles = facts["title"] if isinstance(facts, dict) else [title for title, _ in facts]
    fields["grader"]["titles"] = _unique(titles)
    return fields


def _text_question(record: Record, question: str, answers: Any) -> dict[str, Any]:
    without = ("question", "answer", "answers", "golden_answers", "answer_aliases", "paragraphs", "context")
    grader = {"kind": "text", "answers": _texts(answers)}
    return _task(question, grader, record, without=without, id=_identity(record))


def _plainest(record: Record) -> dict[str, Any]:
    answers = next(record[name] for name in ("golden_answers", "answers", "answer") if record.get(name) is not None)
    if isinstance(answers, dict):  # SQuAD
        answers = answers["text"]
    fields = _text_question(record, record["question"], answers)
    if isinstance(record.get("context"), str):
        fields["setup"] = {"paragraphs": [["", record["context"]]]}
    if "grader" in record:
        fields["grader"]["kind"] = record["grader"]
        fields["metadata"].pop("grader")
    return fields


def _is_gsm8k(record: Record) -> bool:
    return isinstance(record.get("answer"), str) and "####" in record["answer"]


def _form(name: str, fields: str, read: Callable[[Record], dict[str, Any]]) -> Format:
    return Format(name, frozenset(fields.split()), read)


def _question(record: Record) -> dict[str, Any]:
    return _gsm8k(record) if _is_gsm8k(record) else _plainest(record)


FORMATS = (
    _form("MuSiQue", "question answer paragraphs", _musique),
    _form("HotpotQA and 2WikiMultihopQA", "question answer context supporting_facts", _hotpotqa),
    _form("ARC", "question choices answerKey", _choice),
    _form("MMLU", "question choices answer", _choice),
    _form("MATH", "problem solution", _math),
    _form("AIME", "problem answer", _math),
    _form("AIME", "Problem Answer", _aime),
    _form("FlashRAG", "question golden_answers", _plainest),
    _form("NQ and TriviaQA", "question answers", _plainest),
    _form("GSM8K, or a question with its answer", "question answer", _question),
)
