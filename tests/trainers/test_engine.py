"""The in-process engine: its log-probabilities are those of what it sampled, whatever shares its batch or its cache."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

from agentgym.errors import CheckpointError, PolicyFailure
from agentgym.rollouts.policy import ContextFull
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.trajectory import StopReason
from agentgym_trainers.config.sections import LossOptions, OptimOptions
from agentgym_trainers.credit import ASSIGNERS
from agentgym_trainers.data.sequences import Row, collate
from agentgym_trainers.engines import kv_cache
from agentgym_trainers.engines.base import Completion, Sampling
from agentgym_trainers.engines.inprocess import InProcessEngine
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.nn.attention import use_packed_attention

SLACK = 1e-4
BOTH = pytest.mark.parametrize("lockstep", [False, True], ids=["continuous", "lockstep"])
NAMES = ("qwen3", "qwen2-gqa", "llama-gqa", "mistral")


def engine_of(model: Any, slots: int = 4, length: int = 256, lockstep: bool = False) -> InProcessEngine:
    return InProcessEngine(model, max_sequences=slots, max_length=length, lockstep=lockstep)


def tokens(seed: int, count: int, vocabulary: int = 64) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocabulary, count).tolist()


def assert_true(kit: Any, model: Any, prompt: list[int], got: Completion, temperature: float = 1.0) -> None:
    """The completion's log-probabilities are those of transformers' own forward."""
    expected = kit.plain_logprobs(model, [*prompt, *got.ids], temperature)[len(prompt) - 1 :]
    expected = expected.gather(1, torch.tensor(got.ids)[:, None])[:, 0]
    np.testing.assert_allclose(got.logprobs, expected.numpy(), atol=SLACK)


# Whole episodes


@pytest.mark.parametrize(("temperature", "lockstep"), [(0.7, False), (1.0, True), (1.5, False), (1.5, True)])
@pytest.mark.parametrize("name", NAMES)
def test_engine_learner_and_plain_forward_agree(kit, chatty, tokenizer, name, temperature, lockstep) -> None:
    model = chatty(name)
    trajectories = kit.play(model, tokenizer, episodes=4, temperature=temperature, lockstep=lockstep)
    assert max(len(t.turns) for t in trajectories) == 10
    if name == "qwen3":
        assert {turn.finish for t in trajectories for turn in t.turns} == {"stop", "length"}
    for trajectory in trajectories:
        for branch in trajectory.branches:
            at = np.flatnonzero(branch.turn >= 0)
            plain = kit.plain_logprobs(model, branch.ids.tolist(), temperature)
            expected = plain[torch.from_numpy(at - 1), torch.from_numpy(branch.ids[at]).long()]
            np.testing.assert_allclose(branch.logprobs[at], expected.numpy(), atol=SLACK)
    batch, rows, _ = collate(kit.in_pairs(trajectories))
    learner = Learner(model, OptimOptions(tokens_per_micro_batch=700), temperature=temperature)
    np.testing.assert_allclose(learner.logprobs(batch, rows), batch.logprob_A, atol=SLACK)


def test_before_the_first_step_ratios_are_one_and_kl_is_zero(kit, chatty, tokenizer) -> None:
    model = chatty()
    batch, rows, _ = collate(kit.in_pairs(kit.play(model, tokenizer, temperature=1.5)))
    learner = Learner(model, OptimOptions(), temperature=1.5, reference=copy.deepcopy(model))
    batch = learner.annotate(batch, rows)
    credit = ASSIGNERS["reinforce"].function(batch)
    metrics = learner.update(batch, rows, credit, LossOptions(kl=0.1))
    assert metrics["policy/logprob_gap"] < SLACK
    assert metrics["policy/ratio_mean"] == pytest.approx(1, abs=SLACK)
    assert metrics["policy/ratio_max"] == pytest.approx(1, abs=SLACK)
    assert metrics["policy/kl_old"] == pytest.approx(0, abs=SLACK)
    assert metrics["loss/kl"] == pytest.approx(0, abs=SLACK)
    assert metrics["policy/clip_low"] == metrics["policy/clip_high"] == 0


@dataclass
class Recorder:
    """An engine that writes down what crosses its boundary."""

    engine: InProcessEngine
    crossed: dict[int, list[list[int]]] = field(default_factory=dict)
    version: int = 0

    @property
    def max_length(self) -> int:
        return self.engine.max_length

    def open(self, rng: np.random.Generator) -> Any:
        inner, key = self.engine.open(rng), len(self.crossed)
        self.crossed[key] = []
        recorder = self

        class Conversation:
            async def generate(self, prompt: Any, sampling: Sampling, images: Any = ()) -> Completion:
                completion = await inner.generate(prompt, sampling, images)
                recorder.crossed[key].append(list(completion.ids))
                return completion

            def close(self) -> None:
                inner.close()

        return Conversation()


@pytest.mark.parametrize("window", [None, 1], ids=["one branch", "forks"])
def test_trained_tokens_are_the_sampled_ones(kit, chatty, tokenizer, window) -> None:
    recorder = Recorder(engine_of(chatty(), 6, 640))
    prompt_format = PromptFormat(window=window)
    trajectories = kit.play(recorder.engine.model, tokenizer, engine=recorder, prompt_format=prompt_format)
    assert any(t.forks for t in trajectories) == (window is not None)
    batch, rows, _ = collate(kit.in_pairs(trajectories))
    trained = np.full(len(batch.turn_A), -1)
    for row in rows:
        assert (trained[row.action_index] == -1).all()  # each once
        trained[row.action_index] = row.ids[row.action_at]
    sampled = [token for episode in recorder.crossed.values() for reply in episode for token in reply]
    assert trained.tolist() == sampled
    learner = Learner(recorder.engine.model, OptimOptions())
    np.testing.assert_allclose(learner.logprobs(batch, rows), batch.logprob_A, atol=SLACK)


def test_an_episode_that_outgrows_the_context_is_cut(kit, chatty, tokenizer) -> None:
    trajectories = kit.play(chatty(), tokenizer, max_length=200)
    assert {t.stop for t in trajectories} == {StopReason.CONTEXT_FULL}
    for trajectory in trajectories:
        assert all(turn.span.stop <= 200 for turn in trajectory.turns)


# The cache


@pytest.mark.parametrize("worth", [1, 2048], ids=["prefix by itself", "in one"])
@BOTH
def test_any_walk_through_prompts(kit, lockstep, worth, monkeypatch) -> None:
    """Prompts that extend, repeat, shorten, diverge from or have nothing of what is cached, and often begin alike; and
    now and then new weights, which are the old ones."""
    monkeypatch.setattr(kv_cache, "PREFIX_ATTENTION_MIN", worth)
    model = kit.build()
    engine = engine_of(model, 3, 128, lockstep)

    async def walk(seed: int) -> None:
        rng = np.random.default_rng(seed)
        conversation, prompt = engine.open(np.random.default_rng([seed, 1])), [*tokens(9, 20), *tokens(seed, 6)]
        for _ in range(12):
            if rng.random() < 0.2:
                await engine.refresh(model.state_dict(), engine.version + 1)
            got = await conversation.generate(prompt, Sampling(1.0, int(rng.integers(1, 5))))
            assert_true(kit, model, prompt, got)
            full, cut = [*prompt, *got.ids], int(rng.integers(1, max(2, len(prompt))))
            prompt = [
                [*full, *tokens(cut, 3)],
                full,
                prompt,
                prompt[:cut],
                [*prompt[:cut], *tokens(cut, 9)],
                tokens(cut, 7),
            ][rng.integers(6)][:100]
        conversation.close()

    async def main() -> None:
        await asyncio.gather(*(walk(seed) for seed in range(3)))

    asyncio.run(main())


def test_only_what_is_new_is_computed(kit) -> None:
    engine = engine_of(kit.build())

    async def main() -> None:
        conversation, prompt = engine.open(np.random.default_rng(0)), tokens(0, 50)
        first = await conversation.generate(prompt, Sampling(1.0, 4))
        assert engine.computed_tokens == 50 + 3
        prompt = [*prompt, *first.ids, *tokens(1, 10)]
        await conversation.generate(prompt, Sampling(1.0, 4))
        assert engine.computed_tokens == 53 + 1 + 10 + 3
        await conversation.generate([*prompt[:40], *tokens(2, 10)], Sampling(1.0, 1))
        assert engine.computed_tokens == 67 + 10

    asyncio.run(main())


SYSTEM = tokens(9, 30)


@BOTH
@pytest.mark.parametrize(
    ("prompts", "computed"),
    [
        ([SYSTEM, SYSTEM, SYSTEM], 30 + 1 + 1),
        ([SYSTEM, SYSTEM[:20], [*SYSTEM, 1, 2]], 30 + 1 + 2),
        ([SYSTEM[:20], SYSTEM, SYSTEM[:1]], 20 + 10 + 1),
        ([[*SYSTEM, 1], [*SYSTEM, 2], [*SYSTEM, 3, 4]], 31 + 1 + 2),
        ([tokens(1, 9), [60, *tokens(2, 9)], [61, *tokens(3, 9)]], 9 + 10 + 10),
    ],
    ids=["equal", "first is longer", "first is shorter", "same beginning", "nothing shared"],
)
def test_first_prompts_share_their_beginning(kit, lockstep, prompts, computed, monkeypatch) -> None:
    monkeypatch.setattr(kv_cache, "PREFIX_ATTENTION_MIN", 1)
    model = kit.build()
    engine = engine_of(model, lockstep=lockstep)

    async def main() -> list[Completion]:
        conversations = [engine.open(np.random.default_rng(i)) for i in range(3)]
        pairs = zip(conversations, prompts, strict=True)
        got = await asyncio.gather(*(c.generate(prompt, Sampling(1.0, 1)) for c, prompt in pairs))
        assert engine.computed_tokens == computed
        longer = [[*prompt, *g.ids, 5, 6] for prompt, g in zip(prompts, got, strict=True)]
        pairs = zip(conversations, longer, strict=True)
        again = await asyncio.gather(*(c.generate(prompt, Sampling(1.0, 3)) for c, prompt in pairs))
        for prompt, completion in zip([*prompts, *longer], [*got, *again], strict=True):
            assert_true(kit, model, prompt, completion)
        return got

    asyncio.run(main())


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_attention_to_a_shared_prefix_is_that_to_all_keys(dtype: torch.dtype, near: float) -> None:
    """In bfloat16 as well, where torch's sums come in float32."""
    rng = torch.Generator().manual_seed(0)
    query, keys, values = (torch.randn(3, 2, count, 32, generator=rng).to(dtype) for count in (4, 6, 6))
    first_keys, first_values = (torch.randn(2, 5, 32, generator=rng).to(dtype) for _ in range(2))
    mask = torch.zeros(3, 1, 4, 6, dtype=dtype)
    mask[1, :, :, 4:] = -torch.inf
    out = kv_cache._with_prefix(query, first_keys, first_values, keys, values, mask, 0.2)
    every_key, every_value = (
        torch.cat([first[None].expand(3, -1, -1, -1), own], dim=2).float()
        for first, own in ((first_keys, keys), (first_values, values))
    )
    mask_of_all = torch.cat([torch.zeros(3, 1, 4, 5), mask.float()], dim=3)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.float(), every_key, every_value, attn_mask=mask_of_all, scale=0.2
    )
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), expected, rtol=near, atol=near)


def test_a_slot_that_was_used_before_leaks_nothing(kit) -> None:
    model = kit.build()
    engine = engine_of(model, slots=1)

    async def one(prompt: list[int]) -> Completion:
        conversation = engine.open(np.random.default_rng(5))
        got = await conversation.generate(prompt, Sampling(1.0, 6))
        conversation.close()
        conversation.close()  # twice does no harm
        return got

    long, short = tokens(0, 100), tokens(1, 10)
    asyncio.run(one(long))
    used = asyncio.run(one(short))
    engine = engine_of(model, slots=1)
    assert asyncio.run(one(short)) == used
    assert_true(kit, model, short, used)


def test_more_conversations_than_slots(kit) -> None:
    engine = engine_of(kit.build(), slots=2)
    kept = [engine.open(np.random.default_rng(0)) for _ in range(2)]
    with pytest.raises(PolicyFailure, match=r"all 2 sequences .* max_sequences"):
        engine.open(np.random.default_rng(0))
    kept[0].close()
    engine.open(np.random.default_rng(0))


@BOTH
@pytest.mark.parametrize("optimize", [True, False])
def test_new_weights_are_sampled_from_at_once(kit, lockstep, optimize) -> None:
    """Also in a conversation that was open before, and where a prefix was kept."""
    model = kit.build()
    engine = engine_of(model, lockstep=lockstep)
    learner = Learner(model, OptimOptions(lr=0.05))
    prompt = tokens(3, 20)

    async def main() -> None:
        old = engine.open(np.random.default_rng(0))
        before = await old.generate(prompt, Sampling(1.0, 4))
        assert before.version == 0
        if optimize:
            row = Row(np.array(prompt), np.arange(1, 20), np.arange(19), 0, False)
            learner.imitate([row], np.full(19, 1 / 19))
        else:
            with torch.no_grad():
                model.model.embed_tokens.weight.mul_(-1)
        engine.version = 7
        new = engine.open(np.random.default_rng(0))
        longer = [*prompt, *before.ids, 1]
        ours, theirs = await asyncio.gather(
            old.generate(longer, Sampling(1.0, 4)), new.generate([*prompt, 2], Sampling(1.0, 4))
        )
        assert ours.version == theirs.version == 7
        assert_true(kit, model, longer, ours)
        assert_true(kit, model, [*prompt, 2], theirs)

    asyncio.run(main())


@BOTH
def test_a_reply_under_way_goes_on_with_the_new_weights(kit, lockstep) -> None:
    """Each token is what the weights that it names say of it, after all tokens before it: no cache of old ones."""
    first, second = kit.build(seed=0), kit.build(seed=1)
    models = [first, copy.deepcopy(first), second]
    engine = engine_of(first, lockstep=lockstep)
    prompts = [tokens(number, 12 + number) for number in range(3)]

    async def main() -> list[Completion]:
        sixth_token = asyncio.Event()

        def on_token(token: int, logprob: float) -> bool:
            count[0] += 1
            if count[0] == 6:
                sixth_token.set()
            return False

        count = [0]
        talks = [engine.open(np.random.default_rng(number)) for number in range(3)]
        futures = [
            asyncio.ensure_future(talk.generate(prompt, Sampling(1.0, 40), on_token=on_token))
            for talk, prompt in zip(talks, prompts, strict=True)
        ]
        await sixth_token.wait()
        await engine.refresh(second.state_dict(), 5)
        completions = await asyncio.gather(*futures)
        talks[1].close()
        talks[2].close()
        longer = [*prompts[0], *completions[0].ids, 1]
        then = await talks[0].generate(longer, Sampling(1.0, 4))
        assert set(then.versions) == {5}
        assert_true(kit, models[2], longer, then)
        return completions

    completions = asyncio.run(main())
    assert {version for completion in completions for version in completion.versions} == {0, 5}
    for prompt, completion in zip(prompts, completions, strict=True):
        assert completion.versions == sorted(completion.versions)
        assert completion.version == completion.versions[0]
        ids = [*prompt, *completion.ids]
        for version, model in ((0, models[1]), (5, models[2])):
            own = np.flatnonzero(np.array(completion.versions) == version)
            truth = kit.plain_logprobs(model, ids)[len(prompt) - 1 :]
            for i in own.tolist():
                assert completion.logprobs[i] == pytest.approx(truth[i, completion.ids[i]].item(), abs=SLACK)


def test_weights_of_another_model_are_refused(kit) -> None:
    engine = engine_of(kit.build())
    with pytest.raises(PolicyFailure, match="another model"):
        asyncio.run(engine.refresh({"lm_head.weight": torch.zeros(2, 2)}, 1))


# Sampling


def test_limits(kit) -> None:
    engine = engine_of(kit.build(), length=32)

    async def main() -> None:
        conversation = engine.open(np.random.default_rng(0))
        got = await conversation.generate(tokens(0, 4), Sampling(1.0, 7))
        assert (len(got.ids), got.finish) == (7, "length")
        got = await conversation.generate(tokens(0, 30), Sampling(1.0, 7))
        assert (len(got.ids), got.finish) == (2, "length")  # 32 in all
        got = await conversation.generate(tokens(0, 31), Sampling(1.0, 7))
        assert (len(got.ids), got.finish) == (1, "length")
        with pytest.raises(ContextFull, match="32 tokens"):
            await conversation.generate(tokens(0, 32), Sampling(1.0, 7))
        with pytest.raises(ValueError, match="empty"):
            await conversation.generate([], Sampling(1.0, 7))
        got = await conversation.generate(tokens(0, 4), Sampling(1.0, 7, frozenset(range(64))))
        assert (len(got.ids), got.finish) == (1, "stop")

    asyncio.run(main())


def test_temperature_zero_is_greedy(kit) -> None:
    model = kit.build()
    engine = engine_of(model)

    async def main() -> None:
        greedy, warm = engine.open(np.random.default_rng(0)), engine.open(np.random.default_rng(1))
        prompt = tokens(0, 10)
        got, other = await asyncio.gather(
            greedy.generate(prompt, Sampling(0.0, 8)), warm.generate(prompt, Sampling(1.5, 8))
        )
        best = kit.plain_logprobs(model, [*prompt, *got.ids])[len(prompt) - 1 :].argmax(dim=-1)
        assert got.ids == best.tolist()
        assert_true(kit, model, prompt, got)
        assert_true(kit, model, prompt, other, 1.5)

    asyncio.run(main())


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_samples_follow_the_softmax(kit, temperature) -> None:
    model, draws, prompt = kit.build(vocabulary=16, initializer_range=0.1), 4000, tokens(0, 6, 16)
    engine = engine_of(model, slots=400, length=8)

    async def one(seed: int) -> int:
        conversation = engine.open(np.random.default_rng([3, seed]))
        got = await conversation.generate(prompt, Sampling(temperature, 1))
        conversation.close()
        return got.ids[0]

    async def main() -> list[int]:
        found = []
        for start in range(0, draws, 400):
            found += await asyncio.gather(*(one(seed) for seed in range(start, start + 400)))
        return found

    counts = np.bincount(asyncio.run(main()), minlength=16)
    expected = kit.plain_logprobs(model, [*prompt, 0], temperature)[-1].double().exp().numpy()
    assert expected.min() * draws > 5
    assert chisquare(counts, expected / expected.sum() * draws).pvalue > 0.01


@BOTH
def test_the_order_of_arrival_changes_no_token(kit, lockstep) -> None:
    """Bit for bit in lock step. Otherwise batches differ, and with them the last bits of log-probabilities."""
    model = kit.build()

    async def episode(engine: InProcessEngine, seed: int, shuffle: np.random.Generator) -> list[Completion]:
        conversation, prompt, got = engine.open(np.random.default_rng(seed)), [*SYSTEM, *tokens(seed, 5)], []
        for turn in range(4):
            for _ in range(shuffle.integers(0, 12)):
                await asyncio.sleep(0)
            got.append(await conversation.generate(prompt, Sampling(1.0, 1 + (seed + turn) % 5)))
            prompt = [*prompt, *got[-1].ids, *tokens(turn, 3)]
        conversation.close()
        return got

    async def main(order: int) -> list[list[Completion]]:
        engine, shuffle = engine_of(model, 8, lockstep=lockstep), np.random.default_rng(order)
        return await asyncio.gather(*(episode(engine, seed, shuffle) for seed in range(8)))

    first, *others = [asyncio.run(main(order)) for order in range(3)]
    for other in others:
        if lockstep:
            assert other == first
        for ours, theirs in zip(first, other, strict=True):
            assert [c.ids for c in ours] == [c.ids for c in theirs]
            for a, b in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(a.logprobs, b.logprobs, atol=SLACK)


# Trouble


@BOTH
@pytest.mark.parametrize("close", [True, False], ids=["closed", "asked again"])
@pytest.mark.parametrize("after", range(0, 14, 2))
def test_a_cancelled_reply_leaves_nothing_behind(kit, lockstep, close, after) -> None:
    """At any moment: waiting, waiting for the shared prefix, or in the middle of a reply."""
    model = kit.build()
    engine = engine_of(model, 3, lockstep=lockstep)

    async def main() -> None:
        conversations = [engine.open(np.random.default_rng(i)) for i in range(3)]
        prompts = [[*SYSTEM, *tokens(i, 4)] for i in range(3)]
        if after >= 6:  # then it is a second reply, which diverges from what is cached
            pairs = zip(conversations, prompts, strict=True)
            await asyncio.gather(*(c.generate(prompt, Sampling(1.0, 2)) for c, prompt in pairs))
        victim = asyncio.ensure_future(conversations[0].generate([*SYSTEM[:8], *tokens(7, 20)], Sampling(1.0, 50)))
        for _ in range(after % 6):
            await asyncio.sleep(0.002)

        async def last_reply(i: int) -> Completion:
            got = await conversations[i].generate(prompts[i], Sampling(1.0, 5))
            conversations[i].close()
            return got

        others = [asyncio.ensure_future(last_reply(i)) for i in (1, 2)]
        await asyncio.sleep(0.002)
        victim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await victim
        if close:
            conversations[0].close()
            conversations[0] = engine.open(np.random.default_rng(9))
        async with asyncio.timeout(20):
            replies = await asyncio.gather(last_reply(0), *others)
        for prompt, got in zip(prompts, replies, strict=True):
            assert_true(kit, model, prompt, got)
        computed = engine.computed_tokens
        await asyncio.sleep(0.02)
        assert engine.computed_tokens == computed  # nothing runs on for nobody
        assert len({engine.open(np.random.default_rng(0))._slot for _ in range(3)}) == 3

    asyncio.run(main())


def test_in_lock_step_nobody_waits_for_a_caller_that_is_gone(kit) -> None:
    engine = engine_of(kit.build(), 3, lockstep=True)

    async def main() -> None:
        gone, here, late = (engine.open(np.random.default_rng(i)) for i in range(3))
        dead = asyncio.ensure_future(gone.generate(tokens(0, 5), Sampling(1.0, 2)))
        waiting = asyncio.ensure_future(here.generate(tokens(1, 5), Sampling(1.0, 2)))
        await asyncio.sleep(0.01)
        dead.cancel()
        gone.close()
        async with asyncio.timeout(5):
            await asyncio.gather(waiting, late.generate(tokens(2, 5), Sampling(1.0, 2)))
        last = asyncio.ensure_future(here.generate(tokens(1, 6), Sampling(1.0, 2)))
        await asyncio.sleep(0.01)
        assert not last.done()  # `late` is open and has not asked
        late.close()
        async with asyncio.timeout(5):
            await last

    asyncio.run(main())


def test_closing_ends_a_reply_in_flight(kit) -> None:
    engine = engine_of(kit.build())

    async def main() -> None:
        conversation = engine.open(np.random.default_rng(0))
        reply = asyncio.ensure_future(conversation.generate(tokens(0, 5), Sampling(1.0, 200)))
        await asyncio.sleep(0.01)
        conversation.close()
        with pytest.raises(asyncio.CancelledError):
            await reply

    asyncio.run(main())


@BOTH
def test_diverged_weights_fail_every_caller_and_nothing_after(kit, lockstep) -> None:
    model = kit.build()
    engine = engine_of(model, 4, lockstep=lockstep)
    weight = model.model.embed_tokens.weight
    good = weight.detach().clone()

    async def main() -> None:
        conversations = [engine.open(np.random.default_rng(i)) for i in range(4)]
        prompts = [[*SYSTEM, *tokens(i, 6)] for i in range(4)]

        async def ask() -> list[Any]:
            calls = (c.generate(p, Sampling(1.0, 5)) for c, p in zip(conversations, prompts, strict=True))
            async with asyncio.timeout(20):
                return await asyncio.gather(*calls, return_exceptions=True)

        await ask()
        with torch.no_grad():
            weight.fill_(float("nan"))
        prompts = [[*prompt, *tokens(8, 40)] for prompt in prompts]
        failures = await ask()
        assert all(isinstance(failure, PolicyFailure) and "not finite" in str(failure) for failure in failures)
        with torch.no_grad():
            weight.copy_(good)
        prompts = [prompt[:36] + tokens(5, 3) for prompt in prompts]  # what is beyond was NaN in the cache
        for prompt, got in zip(prompts, await ask(), strict=True):
            assert_true(kit, model, prompt, got)

    asyncio.run(main())


@pytest.mark.parametrize("where", ["_step", "_advance", "_admit", "_share_prefix"])
def test_a_bug_in_the_engine_reaches_every_caller(kit, monkeypatch, where) -> None:
    engine = engine_of(kit.build())

    def broken(*args: Any) -> Any:
        raise RuntimeError("a bug")

    async def main() -> None:
        conversations = [engine.open(np.random.default_rng(i)) for i in range(3)]
        with monkeypatch.context() as patch:
            patch.setattr(engine, where, broken)
            calls = (c.generate(tokens(0, 9), Sampling(1.0, 3)) for c in conversations)
            async with asyncio.timeout(5):
                found = await asyncio.gather(*calls, return_exceptions=True)
        assert [str(error) for error in found] == ["a bug"] * 3
        async with asyncio.timeout(5):
            await asyncio.gather(*(c.generate(tokens(0, 9), Sampling(1.0, 3)) for c in conversations))

    asyncio.run(main())


# Architectures


def test_what_packed_attention_cannot_do_is_refused(kit) -> None:
    windows = [
        kit.build("mistral", sliding_window=8),
        kit.build("qwen2-gqa", use_sliding_window=True, sliding_window=8, max_window_layers=1),
        kit.build("qwen3", use_sliding_window=True, sliding_window=8, max_window_layers=0),
    ]
    for model in windows:
        with pytest.raises(CheckpointError, match=r"ForCausalLM .*sliding_attention.* use a model of full attention"):
            engine_of(model)
        with pytest.raises(CheckpointError, match="sliding_attention"):
            Learner(model, OptimOptions())
    bloom = BloomForCausalLM(BloomConfig(vocab_size=16, n_layer=1, hidden_size=16, n_head=2))
    with pytest.raises(CheckpointError, match="BloomForCausalLM does not take a custom attention function"):
        use_packed_attention(bloom)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(
            lambda: GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=128, n_embd=32, n_layer=2, n_head=2)),
            id="gpt2",
        ),
        pytest.param(
            lambda: GPTNeoXForCausalLM(
                GPTNeoXConfig(
                    vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48
                )
            ),
            id="gpt-neox",
        ),
    ],
)
def test_architectures_that_name_no_key_heads(kit, model) -> None:
    torch.manual_seed(0)
    model = model().eval()
    engine = engine_of(model, length=64)

    async def main() -> None:
        conversation, prompt = engine.open(np.random.default_rng(0)), tokens(0, 9)
        for _ in range(3):
            got = await conversation.generate(prompt, Sampling(1.0, 3))
            assert_true(kit, model, prompt, got)
            prompt = [*prompt, *got.ids, 1, 2]

    asyncio.run(main())
