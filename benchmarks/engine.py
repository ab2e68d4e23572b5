"""Sampled tokens a second: our in-process engine against transformers' `generate`, on the same multi-turn episodes.

Both play the same episodes on the same tiny model in this process: one system prompt for all, a first observation, then
`--turns` replies with the same observation tokens after each. Reply lengths, 1 to 8, are fixed in advance for each
episode and turn, so that both sample equally many tokens. Temperature 1, log-probabilities of what was sampled.

`generate` is given whole conversations, left-padded, all episodes in lock step, with its own key-value cache; it stops
when the longest reply of the turn is done. The engine computes new tokens only.

    OMP_NUM_THREADS=1 python benchmarks/engine.py --episodes 16 64 128 --rounds 5

Rounds are interleaved. Seconds are of the CPU, of this process and of vLLM's, which other work on the machine does not
lengthen. vLLM plays too where it is installed (`.venv-scale/bin/python` after `make scale`): over HTTP, in its build
for CPUs, which is for tests rather than for speed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from agentgym_trainers.engines.base import Engine, Sampling
from agentgym_trainers.engines.inprocess import InProcessEngine
from agentgym_trainers.engines.options import Vllm
from agentgym_trainers.engines.vllm.engine import VllmEngine
from agentgym_trainers.nn import tiny

CLAIM = 3.0
SYSTEM, FIRST, OBSERVATION = 60, 20, (15, 25)
"""Tokens of the shared prompt, of the first observation, and (least, most) of later ones, as in `keydoor`."""


@dataclass(frozen=True)
class Episodes:
    """What is given: for each episode its prompt, and for each turn a reply's length and the tokens that follow it."""

    prompts: list[list[int]]
    lengths: np.ndarray
    """int64[episodes, turns]"""
    observations: list[list[list[int]]]

    @property
    def longest(self) -> int:
        observed = [sum(map(len, episode)) for episode in self.observations]
        return max(len(p) + int(n.sum()) + o for p, n, o in zip(self.prompts, self.lengths, observed, strict=True))


def make_episodes(count: int, turns: int, vocabulary: int, rng: np.random.Generator) -> Episodes:
    def text(least: int, most: int) -> list[int]:
        return rng.integers(3, vocabulary, rng.integers(least, most + 1)).tolist()

    system = text(SYSTEM, SYSTEM)
    return Episodes(
        [system + text(FIRST, FIRST) for _ in range(count)],
        rng.integers(1, 9, (count, turns)),
        [[text(*OBSERVATION) for _ in range(turns)] for _ in range(count)],
    )


def play_engine(model: Any, episodes: Episodes, lockstep: bool) -> int:
    """Tokens sampled."""
    count = len(episodes.prompts)
    engine = InProcessEngine(model, max_sequences=count, max_length=episodes.longest + 1, lockstep=lockstep)
    sampled = asyncio.run(play_all(engine, episodes))
    engine.shutdown()
    return sampled


async def play_all(engine: Engine, episodes: Episodes) -> int:
    """Tokens sampled, all episodes at once."""
    count, turns = episodes.lengths.shape

    async def play(e: int) -> int:
        conversation = engine.open(np.random.default_rng(e))
        ids, sampled = list(episodes.prompts[e]), 0
        for turn in range(turns):
            reply = await conversation.generate(ids, Sampling(1.0, int(episodes.lengths[e, turn])))
            assert len(reply.ids) == len(reply.logprobs) == episodes.lengths[e, turn]
            sampled += len(reply.ids)
            ids += reply.ids + episodes.observations[e][turn]
        conversation.close()
        return sampled

    return sum(await asyncio.gather(*(play(e) for e in range(count))))


@contextlib.contextmanager
def vllm_player(model: Any, tokenizer: Any, most: int) -> Iterator[Callable[[Episodes], int]]:
    """Plays with a vLLM server of its own, for `most` episodes at once."""
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        options, length = Vllm(kind="vllm"), model.config.max_position_embeddings
        engine = VllmEngine(options, model, tokenizer, Path(folder), max_sequences=most, max_length=length)
        try:
            runner.run(engine.refresh(model.state_dict(), 0))
            yield lambda episodes: runner.run(play_all(engine, episodes))
        finally:
            runner.run(engine.aclose())


def cpu_seconds() -> float:
    """Of this process, and of all that it started and still runs."""
    spent, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid], spent[pid] = int(fields[1]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return process_time() + sum(spent[pid] for pid in family - {os.getpid()})


class Scheduled(StoppingCriteria):
    """Each row stops at its own length."""

    def __init__(self, prompt: int, lengths: np.ndarray) -> None:
        self.ends = torch.from_numpy(lengths) + prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return input_ids.shape[1] >= self.ends


def play_generate(model: Any, episodes: Episodes, pad: int) -> int:
    """Tokens sampled."""
    count, turns = episodes.lengths.shape
    torch.manual_seed(0)
    rows, sampled = [list(prompt) for prompt in episodes.prompts], 0
    for turn in range(turns):
        width, lengths = max(map(len, rows)), episodes.lengths[:, turn]
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            use_cache=True,
            eos_token_id=None,
            pad_token_id=pad,
            max_new_tokens=int(lengths.max()),
            stopping_criteria=StoppingCriteriaList([Scheduled(width, lengths)]),
            return_dict_in_generate=True,
            output_logits=True,
        )
        replies = out.sequences[:, width:]
        logprobs = torch.stack(out.logits, dim=1).log_softmax(dim=-1).gather(2, replies[:, :, None])[:, :, 0]
        assert logprobs.shape == (count, lengths.max())
        for e, row in enumerate(rows):
            row += replies[e, : lengths[e]].tolist() + episodes.observations[e][turn]
        sampled += int(lengths.sum())
    return sampled


def rate(play: Callable[[], int]) -> tuple[float, float]:
    """Sampled tokens a second: of CPU, and of the clock."""
    cpu, wall = cpu_seconds(), perf_counter()
    sampled = play()
    return sampled / (cpu_seconds() - cpu), sampled / (perf_counter() - wall)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, nargs="+", default=[16, 64, 128])
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    shape = tiny.TinyModel()
    tokenizer = tiny.make_tokenizer(["go north", "go south", "take", "open"] * 10, shape.vocab_size, shape.max_length)
    # One model each: ours has packed attention, `generate` keeps its default (sdpa).
    ours, theirs = (tiny.make_model(shape, tokenizer, seed=0).eval() for _ in range(2))
    size = sum(parameter.numel() for parameter in ours.parameters()) / 1e6
    print(f"{size:.2f}M parameters, {arguments.turns} turns, {arguments.threads} thread(s), {arguments.rounds} rounds")
    print("sampled tokens a second of CPU, median; ratio to generate: median (least) [of the clock]")
    with contextlib.ExitStack() as stack:
        vllm = None
        if util.find_spec("vllm") is not None:
            vllm = stack.enter_context(vllm_player(ours, tokenizer, max(arguments.episodes)))
        measure(arguments, ours, theirs, tokenizer, vllm)


def measure(
    arguments: argparse.Namespace, ours: Any, theirs: Any, tokenizer: Any, vllm: Callable[[Episodes], int] | None
) -> None:
    """Play, and print a line for each way."""
    for count in arguments.episodes:
        rng = np.random.default_rng(count)
        episodes = make_episodes(count, arguments.turns, len(tokenizer), rng)
        ways: dict[str, Callable[[], int]] = {
            "generate": lambda e=episodes: play_generate(theirs, e, tokenizer.pad_token_id),
            "engine": lambda e=episodes: play_engine(ours, e, lockstep=False),
            "engine, lockstep": lambda e=episodes: play_engine(ours, e, lockstep=True),
        }
        if vllm is not None:
            ways["vLLM over HTTP"] = lambda e=episodes: vllm(e)
        rates: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(arguments.rounds + 1):
            for name, play in ways.items():
                rates[name].append(rate(play))
        for name in ways:
            taken = rates[name][1:]  # the first warms up
            cpu, wall = ([a[i] / b[i] for a, b in zip(taken, rates["generate"][1:], strict=True)] for i in (0, 1))
            verdict = "" if name != "engine" else f"  at least {CLAIM:g}: {'yes' if min(cpu) >= CLAIM else 'NO'}"
            print(
                f"{count:4} episodes  {name:17} {statistics.median(r[0] for r in taken):7.0f}   "
                f"{statistics.median(cpu):.2f} ({min(cpu):.2f}) [{statistics.median(wall):.2f}]{verdict}"
            )


if __name__ == "__main__":
    main()
