"""Learner tokens a second: tree-packed against a row a turn, on the same groups of multi-turn episodes.

A row a turn is what trainers compute that store each turn with its whole context: `turns` sequences an episode, here
laid end to end without padding, each attending to itself. Tree-packed is what `forward.pack` makes of the very same
rows. Both are whole updates of the same `Learner` (forward, loss, backward) on the same model; a token counts when it
was sampled, so the ratio is that of the seconds.

    OMP_NUM_THREADS=1 python benchmarks/tree.py --turns 4 8 16 --rounds 3

The limit is the ratio of floating-point operations that the two need: of matrices for each token of a sequence, and of
attention for each token that it sees. Rounds are interleaved; seconds are of this process's CPU, on CUDA of the clock.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable
from functools import partial
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

from agentgym_credit.batch import Batch, Credit
from agentgym_trainers.config.sections import LossOptions, OptimOptions
from agentgym_trainers.data.sequences import Row
from agentgym_trainers.learner.critic import Critic, ValueOptions
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.nn import forward, tiny
from agentgym_trainers.nn.prefix_tree import Chunk, PrefixTree, tree_of

CLAIM = 0.5
"""Of the limit."""
GROUP, PROMPT, OBSERVATION, REPLY = 8, 160, 40, 12
"""Attempts at a task, and tokens: of what they share, of an observation, of a reply."""


def make_rows(turns: int, groups: int, vocabulary: int, rng: np.random.Generator) -> tuple[Batch, list[Row]]:
    """A row a turn of every attempt."""
    rows, n = [], groups * GROUP * turns
    for group in range(groups):
        prompt = rng.integers(3, vocabulary, PROMPT)
        for attempt in range(GROUP):
            m, ids = group * GROUP + attempt, prompt
            for turn in range(turns):
                ids = np.concatenate([ids, rng.integers(3, vocabulary, OBSERVATION + REPLY)])
                at = np.arange(len(ids) - REPLY, len(ids))
                rows.append(Row(ids, at, (m * turns + turn) * REPLY + np.arange(REPLY), m, False))
    batch = Batch(
        group_M=np.repeat(np.arange(groups), GROUP),
        traj_N=np.repeat(np.arange(groups * GROUP), turns),
        reward_N=rng.normal(size=n),
        turn_A=np.repeat(np.arange(n), REPLY),
        truncated_M=np.zeros(groups * GROUP, bool),
        anchor_N=np.full(n, -1),
        logprob_A=np.full(n * REPLY, -6.0, np.float32),
    )
    return batch, rows


def end_to_end(sequences: list[np.ndarray]) -> PrefixTree:
    """What `tree_of` makes of sequences that share nothing."""
    lengths = [len(ids) for ids in sequences]
    ends = np.cumsum(lengths)
    places = [np.arange(end - length, end) for end, length in zip(ends.tolist(), lengths, strict=True)]
    positions = np.concatenate([np.arange(length) for length in lengths])
    chunks = [Chunk(int(place[0]), int(place[-1]) + 1, ()) for place in places]
    return PrefixTree(np.concatenate(sequences), positions, np.repeat(ends, lengths), chunks, places)


def operations(model: Any, tree: PrefixTree) -> float:
    """Of a forward, up to a factor: matrices for each token, attention for each pair of tokens that see each other."""
    config = model.config
    matrices = sum(p.numel() for name, p in model.model.layers.named_parameters() if p.ndim == 2)
    pairs = float((tree.position_T + 1).sum())
    return (
        matrices * len(tree.keys_T)
        + 2 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * pairs
    )


def timed(call: Callable[[], Any], device: str) -> tuple[float, Any]:
    """(seconds, what the call returned)"""
    if device == "cpu":
        began = process_time()
        result = call()
        return process_time() - began, result
    torch.cuda.synchronize()
    began = perf_counter()
    result = call()
    torch.cuda.synchronize()
    return perf_counter() - began, result


class Packs:
    """How `forward.pack` lays out rows, as one side wants it."""

    def __init__(self, function: Callable[[list[np.ndarray]], PrefixTree]) -> None:
        self.function = function

    def __enter__(self) -> None:
        self.before, forward.tree_of = forward.tree_of, self.function

    def __exit__(self, *error: object) -> None:
        forward.tree_of = self.before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--groups", type=int, default=1, help=f"of {GROUP} attempts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument(
        "--budgets", type=int, nargs="+", default=[1, 2048, 16384],
        help="tokens of a micro-batch (1: row by row); each side is timed with the best of them",
    )  # fmt: skip
    parser.add_argument("--critic", action="store_true", help="with a value head on the policy's hidden states")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    shape = tiny.TinyModel(
        hidden_size=args.hidden, layers=args.layers, heads=args.hidden // 64, head_dim=64,
        intermediate_size=3 * args.hidden, max_length=8192,
    )  # fmt: skip
    tokenizer = tiny.make_tokenizer(["go north"], shape.vocab_size, shape.max_length)
    model = tiny.make_model(shape, tokenizer, 0).to(args.device)
    head = Critic(model, ValueOptions(trunk="shared")).to(args.device) if args.critic else None
    count = sum(p.numel() for p in model.parameters())
    print(f"{count / 1e6:.1f} million parameters, groups of {GROUP}, {torch.get_num_threads()} threads, {args.device}")
    met = True
    for turns in args.turns:
        batch, rows = make_rows(turns, args.groups, len(tokenizer), np.random.default_rng(0))
        credit = Credit(np.random.default_rng(1).normal(size=len(batch.turn_A)))
        sides = {"a row a turn": end_to_end, "tree": tree_of}
        tried = [(name, budget) for name in sides for budget in args.budgets]
        times: dict[tuple[str, int], list[float]] = {one: [] for one in tried}
        learners = {
            one: Learner(copy.deepcopy(model), OptimOptions(tokens_per_micro_batch=one[1]), value=copy.deepcopy(head))
            for one in tried
        }
        norms = {}
        for n in range(args.rounds + 1):  # the first is not counted: it warms caches and compiles
            for one in tried[:: 1 if n % 2 else -1]:
                with Packs(sides[one[0]]):
                    taken, metrics = timed(
                        partial(learners[one].update, batch, rows, credit, LossOptions()), args.device
                    )
                if n:
                    times[one].append(taken)
                else:
                    norms[one] = metrics["optim/grad_norm"]
        assert max(norms.values()) < 1.001 * min(norms.values()), f"the gradients differ: {norms}"
        best = {
            name: min((one for one in tried if one[0] == name), key=lambda one: statistics.median(times[one]))
            for name in sides
        }
        slow, fast = (times[one] for one in best.values())
        ratios = [a / b for a, b in zip(slow, fast, strict=True)]
        ratio, sequences = statistics.median(ratios), [row.ids for row in rows]
        limit = operations(model, end_to_end(sequences)) / operations(model, tree_of(sequences))
        met = met and ratio >= CLAIM * limit
        speeds = [
            f"{name} {len(batch.turn_A) / statistics.median(times[one]):.0f} (micro-batches of {one[1]})"
            for name, one in best.items()
        ]
        print(
            f"{turns:3d} turns, sampled tokens a second: {', '.join(speeds)}: {ratio:.2f} times ({min(ratios):.2f} to "
            f"{max(ratios):.2f}); limit {limit:.2f}, {100 * ratio / limit:.0f} % of it"
        )
    print(f"claim: at least {100 * CLAIM:.0f} % of the limit: {'holds' if met else 'DOES NOT HOLD'}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
