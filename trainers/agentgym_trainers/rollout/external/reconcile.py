"""Matching of a new prompt: it is compared with every prompt and reply that the episode has recorded.

    CLEAN    it begins with an earlier prompt and the reply to it, letter by letter (token by token, where the client
             sends tokens); or it is an earlier prompt, asked again
    REALIGN  it says the same, spelled otherwise: other white space, a tool call's JSON written anew, other tokens for
             the same text. The recorded tokens stay, and only what comes after the reply is new.
    FORK     anything else: a template that strips thoughts, a window, an edited reply, another conversation. A new
             branch begins; what it has in common with a recorded path is told again, unsampled.

Whatever the kind, tokens that were sampled are never written anew inside the path that is trained: a prompt continues
them as they are, or not at all. The deepest match counts, so that sub-agents go on each from its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2b
from itertools import groupby

from agentgym_trainers.rollout.external.nodes import CallNode, PromptMark

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Kind(StrEnum):
    CLEAN = "clean"
    REALIGN = "realign"
    FORK = "fork"


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """A prompt as the client sent it."""

    text: str
    ids: list[int] | None = None
    """Tokens of a client that sent tokens; `text` is their text."""
    fresh: list[int] | None = None
    """The text's tokens where nothing of it is recorded, if they are not the chat template's own."""


@dataclass(frozen=True, slots=True)
class Place:
    """Position from which a prompt continues."""

    kind: Kind
    node: CallNode | None
    """The reply that it continues; None is the beginning."""
    text: str
    """Text to be encoded after that response."""
    ids: list[int] | None = None
    """The tokens after that reply, where the client sent them."""


def mark(text: str) -> PromptMark:
    return PromptMark(len(text), digest(text))


def digest(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def begins(text: str, known: PromptMark) -> bool:
    """True where `text` begins with the text that `known` stands for."""
    return len(text) >= known.length and digest(text[: known.length]) == known.digest


def plain(text: str) -> str:
    """A text in a normal form of white space and of the JSON of its tool calls."""
    *calls, rest = text.split(CLOSE)
    words = []
    for piece in calls:
        before, opened, call = piece.rpartition(OPEN)
        words += [before, opened, _spelled(call), CLOSE]
    return " ".join("".join([*words, rest]).split())


def _spelled(call: str) -> str:
    try:
        return json.dumps(json.loads(call), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return call


def same(covered: str, end: str, closed: bool) -> tuple[int, bytes]:
    """(`CallNode.ends`, `CallNode.same`) of a prompt and its reply. `end` is the text that ends a message."""
    if not end:
        return 0, b""
    pieces = covered.split(end)
    pieces = pieces[:-1] if closed else pieces
    return len(pieces), _digest_of(pieces)


def _digest_of(pieces: Sequence[str]) -> bytes:
    return digest("\0".join(plain(piece) for piece in pieces))


def reconcile(request: PromptRequest, nodes: Sequence[CallNode], end: str) -> Place:
    """The deepest reply that a prompt continues. `end` is the text that ends a message."""
    if not nodes:
        return Place(Kind.CLEAN, None, request.text, request.fresh)
    prompt_mark = mark(request.text)
    for node in nodes:
        # another reply to the same
        if node.prompt_mark == prompt_mark and (request.ids is None or request.ids == node.prompt):
            return Place(Kind.CLEAN, node.parent, "", node.boundary)
    place = _of_text(request.text, nodes, end)
    if request.ids is not None:
        return _of_tokens(request.text, request.ids, nodes, place)
    return replace(place, ids=request.fresh) if place.node is None else place


def _of_tokens(text: str, ids: list[int], nodes: Sequence[CallNode], place: Place) -> Place:
    """`place` is where the text alone would go on; deeper than what the tokens continue, it is only tokenized anew."""
    for alike in _deepest_first(nodes):
        if place.node is not None and alike[0].depth < place.node.depth:
            break
        for node in alike:
            tokens = node.tokens
            if ids[: len(tokens)] == tokens:
                return Place(_judge(text, node, nodes), node, "", ids[len(tokens) :])
    if place.node is None or place.kind is Kind.FORK:
        return Place(Kind.FORK, None, text, ids)
    return Place(Kind.REALIGN, place.node, place.text)


def _of_text(text: str, nodes: Sequence[CallNode], end: str) -> Place:
    pieces = text.split(end) if end else []
    plain_pieces: dict[int, bytes] = {}
    for alike in _deepest_first(nodes):
        for node in alike:
            if begins(text, node.covered):
                return Place(_judge(text, node, nodes), node, text[node.covered.length :])
        for node in alike:
            ends = node.ends
            if not ends < len(pieces):
                continue
            if ends not in plain_pieces:
                plain_pieces[ends] = _digest_of(pieces[:ends])
            if plain_pieces[ends] == node.same:
                rest = end.join(pieces[ends:])
                return Place(Kind.REALIGN, node, rest if node.closed else end + rest)
    return Place(Kind.FORK, None, text)


def _judge(text: str, node: CallNode, nodes: Sequence[CallNode]) -> Kind:
    """CLEAN, unless the prompt goes on from a later prompt too, whose reply it tells otherwise."""
    retold = any(later.parent is node and begins(text, later.prompt_mark) for later in nodes)
    return Kind.FORK if retold else Kind.CLEAN


def _deepest_first(nodes: Sequence[CallNode]) -> Iterator[list[CallNode]]:
    """Nodes of equal depth together, the newest first."""
    ordered = sorted(nodes, key=lambda node: (node.depth, node.turn), reverse=True)
    for _, alike in groupby(ordered, key=lambda node: node.depth):
        yield list(alike)
