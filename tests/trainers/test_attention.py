"""Packed attention: sequences laid over each other give what each gives alone."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from agentgym_trainers.nn.attention import Blocks, Chunks, at_least_float32, layout_of, use_packed_attention
from agentgym_trainers.nn.prefix_tree import PrefixTree, tree_of

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")  # once a process

LENGTHS = (7, 1, 12, 3)


def apart() -> list[np.ndarray]:
    """Sequences that share nothing."""
    rng = np.random.default_rng(0)
    return [np.append(i, rng.integers(0, 64, length - 1)) for i, length in enumerate(LENGTHS)]


def alike() -> list[np.ndarray]:
    """A prompt for all, forks in two depths, a sequence that begins another, and one twice."""
    rng = np.random.default_rng(1)
    prompt, left, right = (rng.integers(0, 64, length) for length in (9, 6, 5))
    ends = [np.append(i, rng.integers(0, 64, 3 + i)) for i in range(5)]
    first = np.concatenate([prompt, left, ends[0]])
    return [
        first, np.concatenate([prompt, right, ends[1]]), np.concatenate([prompt, left, ends[2]]),
        np.concatenate([prompt, left]), first.copy(), np.concatenate([prompt[:4], ends[3]]), ends[4],
    ]  # fmt: skip


def chunks(tree: PrefixTree) -> Chunks:
    layout = layout_of(tree, "cpu")
    assert isinstance(layout, Chunks)
    return layout


def blocks(tree: PrefixTree) -> Blocks:
    """What CUDA runs compiled, here as PyTorch evaluates it without a compiler."""
    return Blocks(torch.from_numpy(tree.until_T), compiled=False)


@pytest.mark.parametrize("layout", [chunks, blocks])
@pytest.mark.parametrize("sequences", [apart, alike])
@pytest.mark.parametrize("name", ["qwen3", "qwen2-gqa", "llama-gqa", "mistral"])
def test_packed_equals_one_by_one(kit, name, sequences, layout) -> None:
    model = kit.exact(kit.build(name))
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("sdpa")
    use_packed_attention(model)
    if layout is blocks:  # PyTorch has no gradient of it on a CPU
        model.requires_grad_(False)
    rng, parts = np.random.default_rng(0), sequences()
    tree = tree_of(parts)
    ids, positions = (torch.from_numpy(column)[None] for column in (tree.keys_T, tree.position_T))
    logits = model(input_ids=ids, position_ids=positions, use_cache=False, layout=layout(tree)).logits[0]
    packed = torch.cat([logits[torch.from_numpy(place)] for place in tree.places])
    alone = torch.cat([plain(input_ids=torch.from_numpy(part)[None], use_cache=False).logits[0] for part in parts])
    torch.testing.assert_close(packed, alone, atol=1e-10, rtol=1e-10)
    if layout is blocks:
        return
    weights = torch.from_numpy(rng.normal(size=alone.shape))
    (packed * weights).sum().backward()
    (alone * weights).sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-8, rtol=1e-8)


def test_a_model_with_packed_attention_takes_plain_calls(kit) -> None:
    """Without a layout: one causal sequence a row."""
    for name in ("qwen3", "llama-gqa"):
        model = kit.build(name)
        plain = copy.deepcopy(model)
        plain.set_attn_implementation("sdpa")
        use_packed_attention(model)
        ids = torch.from_numpy(np.random.default_rng(0).integers(0, 64, (3, 9)))
        with torch.inference_mode():
            torch.testing.assert_close(model(input_ids=ids).logits, plain(input_ids=ids).logits, atol=1e-5, rtol=1e-5)


def test_calls_that_packed_attention_would_get_wrong_are_refused(kit) -> None:
    model = kit.build()
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 64, (2, 6)))
    expected = model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0)
    use_packed_attention(model)
    with pytest.raises(RuntimeError, match=r"set_attn_implementation\('sdpa'\)"):
        model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0)
    with pytest.raises(RuntimeError, match="padding"):
        model(input_ids=ids, attention_mask=torch.tensor([[0, 1, 1, 1, 1, 1], [1] * 6]))
    model.set_attn_implementation("sdpa")
    assert torch.equal(model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0), expected)


@pytest.mark.parametrize(
    ("given", "wide"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_logits_are_widened_never_narrowed(given, wide) -> None:
    assert at_least_float32(torch.zeros(2, dtype=given)).dtype == wide


def test_flex_attention_takes_what_autocast_leaves() -> None:
    """Norms leave queries and keys in float32, where values are bfloat16."""
    until = torch.tensor([4, 2, 4, 4])
    query, key = torch.randn(2, 4, 8), torch.randn(2, 4, 8)
    value = torch.randn(2, 4, 8, dtype=torch.bfloat16)
    out = Blocks(until, compiled=False).attend(0, query, key, value, 0.35)
    assert out.dtype == torch.bfloat16
