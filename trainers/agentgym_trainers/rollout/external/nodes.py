"""The calls of an episode as a tree: a node is one reply, its path from the root what the model saw and said.

node 0   boundary [p p p]  sampled [a a]          branch 0: node 0, node 1      every token is trained once
node 1     boundary [o o]  sampled [b b b]        branch 1: node 0, node 2      node 0 is only told again here
node 2     boundary [x]    sampled [c]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentgym.rollouts.trajectory import Branch, Span


@dataclass(frozen=True, eq=False, slots=True)
class CallNode:
    """One reply as it left the engine."""

    turn: int
    parent: CallNode | None
    depth: int
    """Replies from the root to this one."""
    boundary: list[int]
    """Tokens since the parent's reply, that nobody sampled."""
    ids: list[int]
    logprobs: list[float]
    versions: list[int]
    prompt_mark: PromptMark
    """The prompt's text."""
    covered: PromptMark
    """The text of prompt and reply, as the client told the prompt."""
    ends: int
    """Number of ends of messages in `covered`, the response's own included, whether it was sampled or not."""
    same: bytes
    """Digest of what `covered` says, however it is spelled: `reconcile.plain`."""
    closed: bool
    """The reply's end was sampled."""
    why: str
    """Reason why a branch begins with this node, where one does."""

    @property
    def path(self) -> list[CallNode]:
        """Nodes from the root to this one."""
        nodes: list[CallNode] = []
        at: CallNode | None = self
        while at is not None:
            nodes.append(at)
            at = at.parent
        return nodes[::-1]

    @property
    def tokens(self) -> list[int]:
        """All tokens from the root on."""
        return [token for node in self.path for token in (*node.boundary, *node.ids)]

    @property
    def prompt(self) -> list[int]:
        """All tokens before the reply."""
        return self.tokens[: -len(self.ids)]


@dataclass(frozen=True, slots=True)
class PromptMark:
    """A text that is remembered by length and digest, so that a long episode is not kept once a turn."""

    length: int
    digest: bytes


def branches_of(nodes: Sequence[CallNode]) -> tuple[list[Branch], list[Span], list[str]]:
    """(branches, each node's span, why each branch after the first began). `nodes` are in the order of their turns.

    A branch is the path to a node that nothing continues. The last turn's is the last branch.
    """
    continued = {id(node.parent) for node in nodes if node.parent is not None}
    branches: list[Branch] = []
    spans: dict[int, Span] = {}
    forks: list[str] = []
    for leaf in nodes:
        if id(leaf) in continued:
            continue
        path = leaf.path
        fresh = [node for node in path if id(node) not in spans]
        if branches:
            forks.append(fresh[0].why)
        columns: list[list] = [[], [], [], []]
        for node in path:
            unsampled_count = len(node.boundary)
            start = len(columns[0]) + unsampled_count
            if new := id(node) not in spans:
                spans[id(node)] = Span(len(branches), start, start + len(node.ids))
            unsampled = ([-1], [0.0], [-1])
            node_columns = ([node.turn] * len(node.ids), node.logprobs, node.versions)
            columns[0] += [*node.boundary, *node.ids]
            for column, blank, own in zip(columns[1:], unsampled, node_columns, strict=True):
                column += blank * unsampled_count
                column += own if new else blank * len(node.ids)
        dtypes = (np.int32, np.int32, np.float32, np.int32)
        ids, turn, logprobs, versions = (np.array(column, dtype) for column, dtype in zip(columns, dtypes, strict=True))
        branches.append(Branch(ids, turn, logprobs, versions))
    return branches, [spans[id(node)] for node in nodes], forks
