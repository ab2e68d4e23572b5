"""Features of states and actions: hidden states of a trunk at chosen positions of token sequences.

A causal trunk's hidden state at the last prompt token has read the state and nothing of the action; at the last action
token it has read both. One forward over a branch gives the features of all its turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agentgym_trainers.data.sequences import Row
from agentgym_trainers.learner.fsdp import own_micro_batches
from agentgym_trainers.nn.attention import use_packed_attention
from agentgym_trainers.nn.forward import pack
from agentgym_trainers.nn.process_group import SINGLE_PROCESS, DataParallel

Read = tuple[np.ndarray, int]
"""(int64 ids of a sequence, position): what is read there depends on ids[: position + 1] alone."""


class Encoder(nn.Module):
    """A trunk, and the width of its features."""

    def __init__(self, trunk: Any) -> None:
        super().__init__()
        use_packed_attention(trunk)
        self.trunk, self.width = trunk, trunk.config.get_text_config().hidden_size

    def forward(self, rows: Sequence[Row]) -> Tensor:
        """[k, width]: at the position before each of the rows' `action_at`, row by row."""
        packed = pack(rows, self.trunk)
        return self.trunk(**packed.inputs).last_hidden_state[0][packed.at]


def reading_rows(reads: Sequence[Read]) -> list[Row]:
    """Rows to read from; `action_index` are the places of the reads, in order.

    One row a sequence, as far as it is read; a sequence that another begins with is read there. Replayed states and the
    replies to them repeat and begin alike, so in small environments this is most of them.
    """
    members: dict[int, list[int]] = {}
    for i, (ids, _) in enumerate(reads):
        members.setdefault(id(ids), []).append(i)
    longest = [(reads[index[0]][0][: max(reads[i][1] for i in index) + 1], index) for index in members.values()]
    # Sorted downwards, what begins a sequence comes right after it.
    longest = sorted(((ids.tobytes(), ids, index) for ids, index in longest), key=lambda entry: entry[0], reverse=True)
    kept: list[tuple[bytes, np.ndarray, list[int]]] = []
    for content, ids, index in longest:
        if kept and kept[-1][0].startswith(content):
            kept[-1][2].extend(index)
        else:
            kept.append((content, ids, [*index]))
    rows = []
    for _, ids, index in kept:
        index.sort()
        rows.append(Row(ids, np.array([reads[i][1] + 1 for i in index]), np.array(index), 0, False))
    return rows


def row_index(rows: Sequence[Row]) -> np.ndarray:
    """Index of the read that each row's features are of."""
    return np.concatenate([row.action_index for row in rows])


@torch.no_grad()
def features(encoder: Any, reads: Sequence[Read], budget: int, processes: DataParallel = SINGLE_PROCESS) -> Tensor:
    """[len(reads), width] without gradient, `budget` tokens a forward. Each of `processes` reads its share of the
    rows."""
    like = next(encoder.parameters(), torch.zeros(0))
    found = torch.zeros(len(reads), encoder.width, dtype=like.dtype, device=like.device)
    for part in own_micro_batches(reading_rows(reads), budget, processes, encoder):
        index = torch.from_numpy(row_index(part)).to(found.device)
        found[index] = encoder(part).to(found.dtype)
    processes.sum(found)
    return found
