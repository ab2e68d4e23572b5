"""The tiny model: deterministic, round-trips any text, leaves global state alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from agentgym_trainers.nn.tiny import SPECIAL, TinyModel, make_model, make_tokenizer
from agentgym_trainers.rollout.tokens import ChatTemplate, check_template

TOKENIZER = make_tokenizer(["user\nSay: apple", "assistant\napple"] * 3, 280, 128)
SHAPE = TinyModel(hidden_size=32, layers=1, heads=1, intermediate_size=32, max_length=128)


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_any_text_round_trips(text: str) -> None:
    template = ChatTemplate(TOKENIZER)
    assert template.decode(template.encode(text)) == text


def test_every_byte_is_a_token() -> None:
    assert {len(TOKENIZER(chr(i), add_special_tokens=False)["input_ids"]) for i in range(128)} == {1}


def test_what_the_tokenizer_says_of_itself() -> None:
    assert TOKENIZER.eos_token == "<|im_end|>"
    assert TOKENIZER.pad_token == "<|endoftext|>"
    assert TOKENIZER.model_max_length == 128
    assert [TOKENIZER.convert_tokens_to_ids(token) for token in SPECIAL] == [0, 1, 2]
    assert check_template(ChatTemplate(TOKENIZER)) == []


def test_other_special_tokens_and_template() -> None:
    source = "{% for m in messages %}{{ '<a>' + m.content + '<b>' }}{% endfor %}"
    tokenizer = make_tokenizer(["x"], 270, 64, chat_template=source, special=("<p>", "<a>", "<b>"))
    assert tokenizer("<a>x<b><p>")["input_ids"] == [1, *tokenizer("x")["input_ids"], 2, 0]
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<p>", "<b>")
    assert ChatTemplate(tokenizer).stop_ids() == {2}


def test_the_same_corpus_makes_the_same_tokenizer() -> None:
    corpus = ["north south east west", "go north"] * 2
    one, two = (make_tokenizer(corpus, 290, 128).get_vocab() for _ in range(2))
    assert one == two


def test_the_seed_makes_the_weights_and_nothing_else() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, two, other = (make_model(SHAPE, TOKENIZER, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    same = [torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True)]
    assert all(same)
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert one.config.vocab_size == len(TOKENIZER)
    assert one.config.eos_token_id == TOKENIZER.eos_token_id


@pytest.mark.parametrize("wrong", [{"layers": 0}, {"vocab_size": 261}, {"width": 3}])
def test_shapes_that_cannot_be(wrong: dict) -> None:
    with pytest.raises(ValidationError):
        TinyModel(**wrong)
