"""Packed attention: sequences laid end to end give what each gives alone."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from agentgym_trainers.attention import Segments, at_least_float32, positions, use_packed_attention

LENGTHS = (7, 1, 12, 3)


@pytest.mark.parametrize("name", ["qwen3", "qwen2-gqa", "llama-gqa", "mistral"])
def test_packed_equals_one_by_one(kit, name) -> None:
    model = kit.build(name).double()
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("sdpa")
    use_packed_attention(model)
    rng = np.random.default_rng(0)
    parts = [torch.from_numpy(rng.integers(0, 64, (1, length))) for length in LENGTHS]
    packed = model(
        input_ids=torch.cat(parts, dim=1), position_ids=positions(LENGTHS), use_cache=False, layout=Segments(LENGTHS)
    ).logits[0]
    alone = torch.cat([plain(input_ids=part, use_cache=False).logits[0] for part in parts])
    torch.testing.assert_close(packed, alone, atol=1e-10, rtol=1e-10)
    weights = torch.from_numpy(rng.normal(size=alone.shape))
    (packed * weights).sum().backward()
    (alone * weights).sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-8, rtol=1e-8)


def test_a_model_with_packed_attention_still_takes_ordinary_calls(kit) -> None:
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


def test_positions_begin_anew_in_each_sequence() -> None:
    assert positions([3, 1, 2]).tolist() == [[0, 1, 2, 0, 0, 1]]


@pytest.mark.parametrize(
    ("given", "wide"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_logits_are_widened_never_narrowed(given, wide) -> None:
    assert at_least_float32(torch.zeros(2, dtype=given)).dtype == wide
