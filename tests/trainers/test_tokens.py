"""The token record: what the model saw and said is what is trained on, for every family of chat templates.

A family is a file in templates/ and a tokenizer made from a seed, with that family's special tokens. Replies are chosen
token by token and come from a ScriptedEngine, through the real rollout.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import agentgym_trainers.rollout.policy
from agentgym.errors import CheckpointError, PolicyFailure
from agentgym.rollouts.policy import EpisodeSpec
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, rollout
from agentgym.rollouts.trajectory import Group, Trajectory
from agentgym.session import LocalSession
from agentgym.spec import ToolSpec
from agentgym.testing import EchoEnv
from agentgym_trainers.data.sequences import collate
from agentgym_trainers.engines.base import Sampling
from agentgym_trainers.nn.tiny import make_tokenizer
from agentgym_trainers.rollout.policy import TokenPolicy
from agentgym_trainers.rollout.tokens import CACHED, ChatTemplate, Transcript, check_template
from agentgym_trainers.testing import ScriptedEngine

TEMPLATES = Path(__file__).with_name("templates")
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
HARMONY = ("<|endoftext|>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>")
THINKS = "<think>\nhm\n</think>\n\ntwo"


@dataclass(frozen=True)
class Family:
    template: str
    special: tuple[str, ...]
    eos: str
    end: str
    reply: str = "two"
    """As a model of the family begins it."""
    options: dict[str, Any] = field(default_factory=dict)


FAMILIES = {
    "chatml": Family("chatml", CHATML, "<|im_end|>", "<|im_end|>"),
    "chatml, base model's eos": Family("chatml", CHATML, "<|endoftext|>", "<|im_end|>"),
    "qwen3": Family("qwen3", CHATML, "<|im_end|>", "<|im_end|>"),
    "qwen3, no thinking": Family("qwen3", CHATML, "<|im_end|>", "<|im_end|>", options={"enable_thinking": False}),
    "llama3": Family(
        "llama3",
        ("<|end_of_text|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|end_of_text|>",
        "<|eot_id|>",
    ),
    "gemma": Family("gemma", ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"), "<eos>", "<end_of_turn>"),
    "glm": Family(
        "glm",
        ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|assistant|>", "<|observation|>", "<|user|>"),
        "<|endoftext|>",
        "<|user|>",
        "\ntwo",
    ),
    "harmony": Family("harmony", HARMONY, "<|return|>", "<|return|>", "<|channel|>final<|message|>two"),
    "mistral": Family("mistral", ("<unk>", "<s>", "</s>"), "</s>", "</s>", " two"),
    "toolcalls": Family("toolcalls", CHATML, "<|im_end|>", "<|im_end|>"),
}
TEXT = [
    "Say:",
    "apple",
    "You",
    "said:",
    "brook",
    "two",
    "one",
    "three",
    "north",
    "act",
    "action",
    "false",
    "true",
    "hm",
    "Well",
    "said.",
    "user",
    "assistant",
    "🍎🌧",
    "",
]


class Recorder(ChatTemplate):
    """Remembers what it rendered for the model."""

    def __init__(self, tokenizer: Any, options: dict[str, Any] | None = None) -> None:
        super().__init__(tokenizer, options)
        self.rendered: list[str] = []

    def render(self, messages, tools=(), generation=True) -> str:
        text = super().render(messages, tools, generation)
        if generation:
            self.rendered.append(text)
        return text


@cache
def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    family = FAMILIES[name]
    source = (TEMPLATES / f"{family.template}.jinja").read_text()
    corpus = [" ".join(TEXT[i:] + TEXT[:i]) for i in range(len(TEXT))] * 2
    tokenizer = make_tokenizer(corpus, 330, 4096, chat_template=source, special=family.special)
    tokenizer.eos_token = family.eos
    return tokenizer


def template_of(name: str) -> Recorder:
    return Recorder(tokenizer_of(name), FAMILIES[name].options)


class StructuredPromptFormat(PromptFormat):
    """Tells a reply that is a tool call as the parsed call, as servers that parse replies do."""

    def messages(self, spec, history, observation):
        messages = super().messages(spec, history, observation)
        for message in messages:
            if message["role"] == "assistant":
                call = self.parse(message["content"], EchoEnv.env_spec.model_copy(update={"tools": self.tools(spec)}))
                if isinstance(call.action, dict):
                    message |= {"content": "", "tool_calls": [{"type": "function", "function": call.action}]}
        return messages


def play(
    template: ChatTemplate, replies: Sequence, prompt_format: PromptFormat | None = None, max_length: int = 1 << 20
) -> tuple[Trajectory, ScriptedEngine]:
    """One episode of EchoEnv with these replies, checked."""
    engine = ScriptedEngine(replies, max_length)
    prompt_format = prompt_format or PromptFormat()
    policy = TokenPolicy(engine, template, Sampling(stop_ids=template.stop_ids()))
    episode = EpisodeSpec("echo", "train", 0)
    limits = Limits(max_turns=min(len(replies), 8))
    session = LocalSession(EchoEnv())
    trajectory = asyncio.run(rollout(session, policy.actor(episode), prompt_format, episode, limits))
    check_record(trajectory, engine, template)
    return trajectory, engine


def check_record(trajectory: Trajectory, engine: ScriptedEngine, template: ChatTemplate) -> None:
    """Each call's prompt and output are the branch up to the span's end, and nothing else is
    sampled; what the model was shown is what the template wrote."""
    assert len(trajectory.turns) == len(engine.calls)
    assert len(trajectory.forks) == max(0, len(trajectory.branches) - 1)
    sampled = [np.zeros(len(branch.ids), bool) for branch in trajectory.branches]
    for i, (turn, (_, prompt, completion)) in enumerate(zip(trajectory.turns, engine.calls, strict=True)):
        span = turn.span
        assert span is not None
        branch = trajectory.branches[span.branch]
        assert branch.ids[: span.start].tolist() == list(prompt)
        assert branch.ids[span.start : span.stop].tolist() == completion.ids
        own = slice(span.start, span.stop)
        assert branch.logprobs[own].tolist() == completion.logprobs
        assert set(branch.turn[own].tolist()) == {i}
        assert set(branch.versions[own].tolist()) == {completion.version}
        assert not sampled[span.branch][own].any()
        sampled[span.branch][own] = True
    for branch, own in zip(trajectory.branches, sampled, strict=True):
        assert branch.ids.dtype == branch.turn.dtype == branch.versions.dtype == np.int32
        assert len(branch.ids) == len(branch.turn) == len(branch.logprobs) == len(branch.versions)
        assert (branch.turn[~own] == -1).all()
        assert (branch.logprobs[~own] == 0).all()
        assert (branch.versions[~own] == -1).all()
    if isinstance(template, Recorder):
        shown = [template.decode(prompt) for _, prompt, _ in engine.calls]
        assert shown == template.rendered[: len(shown)]
        if len(template.rendered) > len(shown):  # the final observation, as far as it fits
            last, final = trajectory.branches[-1], template.rendered[-1]
            if len(last.ids) < engine.max_length:
                assert template.decode(last.ids) == final
            else:
                assert len(last.ids) == max(engine.max_length, np.flatnonzero(last.turn >= 0).max(initial=-1) + 1)
                assert final.startswith(template.decode(last.ids).rstrip("\ufffd"))  # half a character, at the cut
            template.rendered.clear()
    if trajectory.turns:
        batch, rows, _ = collate([Group((trajectory,))])
        trained = sorted(index for row in rows for index in row.action_index.tolist())
        outputs = [token for _, _, completion in engine.calls for token in completion.ids]
        assert trained == list(range(len(outputs)))
        token_of = {i: row.ids[at] for row in rows for at, i in zip(row.action_at, row.action_index, strict=True)}
        assert [token_of[i] for i in range(len(outputs))] == outputs
        assert batch.logprob_A.tolist() == [x for _, _, completion in engine.calls for x in completion.logprobs]


# Records are what crossed the boundary

PIECES = (
    "two", "apple", " ", "\n", "\t", "🍎", "é", "e\u0301", "日本", "\ufffd", "<|im_end|>", "<|im_start|>user\n", "</s>",
    "<|user|>", "<|eot_id|>", "<end_of_turn>", "<think>", "</think>", "\n\n", "<|channel|>final<|message|>", "{{ x }}",
    '<tool_call>{"name": "act", "arguments": {"action": "apple"}}</tool_call>',
)  # fmt: skip
texts = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=6).map("".join)
styles = st.sampled_from(["special tokens", "text only", "unmerged"])
raw_ids = st.lists(st.integers(0, 329), max_size=8)
replies = st.lists(
    st.tuples(texts | raw_ids, styles, st.integers(0, 3), st.sampled_from(["end", "end", "eos", "cut"])),
    min_size=1,
    max_size=6,
)
prompt_formats = st.builds(
    PromptFormat,
    grammar=st.sampled_from(["last_line", "tagged", "tool_call"]),
    window=st.sampled_from([None, None, 0, 1, 3]),
    on_invalid=st.sampled_from(["tell", "tell", "end"]),
    system=st.sampled_from([None, "", "Say it."]),
) | st.just(StructuredPromptFormat(grammar="tool_call"))


def spell(template: ChatTemplate, family: Family, text: str | list[int], style: str, cut: int, end: str) -> list[int]:
    """A reply's tokens, cut short anywhere (within a character too), and how it ends."""
    stop = template.stop_ids()
    if isinstance(text, list):
        ids = text
    elif style == "special tokens":
        ids = list(template.encode(text))
    elif style == "text only":
        ids = template.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    else:
        ids = [token for letter in text for token in template.encode(letter)]
    ids = [token for token in ids[: len(ids) - cut if cut else None] if token not in stop]
    last = {"end": [template.end_id], "eos": [template.tokenizer.eos_token_id], "cut": []}[end]
    return [*ids, *last] or [template.end_id]


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=40, deadline=None)
@given(replies=replies, prompt_format=prompt_formats, max_length=st.sampled_from([1 << 20, 300]))
def test_what_is_recorded_is_what_crossed_the_boundary(name: str, replies, prompt_format, max_length: int) -> None:
    template = template_of(name)
    play(template, [spell(template, FAMILIES[name], *reply) for reply in replies], prompt_format, max_length)


def test_a_prompt_is_not_changed_after_it_was_given() -> None:
    template = template_of("chatml")
    transcript = Transcript(template, template.stop_ids())
    prompt = transcript.prompt([{"role": "user", "content": "one"}])
    kept = list(prompt)
    transcript.sampled(0, [template.end_id], [-1.0], [0])
    assert prompt == kept


# Tokens are never rendered again

CLEAN_OR_FORK = [
    # family, reply, whether the next turn forks
    ("chatml", "two", False),
    ("chatml", THINKS, False),
    ("chatml", " two \n", False),
    ("chatml, base model's eos", "two", False),
    ("qwen3", "two", False),
    ("qwen3", THINKS, True),
    ("qwen3, no thinking", "two", True),
    ("llama3", "two", False),
    ("llama3", THINKS, False),
    ("llama3", "two\n", True),
    ("llama3", " two", True),
    ("gemma", "two", False),
    ("gemma", "two ", True),
    ("glm", "\ntwo", False),
    ("glm", "two", True),
    ("harmony", "<|channel|>final<|message|>two", True),
    ("harmony", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>two", True),
    ("mistral", " two", False),
    ("mistral", "two", True),
    ("toolcalls", "two", False),
]


@pytest.mark.parametrize(("name", "reply", "forks"), CLEAN_OR_FORK)
def test_which_families_fork(name: str, reply: str, forks: bool) -> None:
    template = template_of(name)
    turns = 7
    trajectory, _ = play(template, [[*template.encode(reply), template.end_id]] * turns)
    assert len(trajectory.turns) == turns
    assert len(trajectory.forks) == (turns if forks else 0)
    assert all("the next prompt says" in fork and "where the tokens say" in fork for fork in trajectory.forks)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_ends_a_reply(name: str) -> None:
    family, template = FAMILIES[name], template_of(name)
    assert template.decode([template.end_id]) == family.end
    assert {template.decode([token]) for token in template.stop_ids()} == {family.end, family.eos}


def test_the_end_of_a_reply_need_not_be_a_named_special_token() -> None:
    template = template_of("gemma")
    named = template.tokenizer
    template.tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=named.backend_tokenizer, eos_token="<eos>", chat_template=named.chat_template
    )
    assert template.tokenizer.convert_tokens_to_ids("<end_of_turn>") not in template.tokenizer.all_special_ids
    assert template.decode([template.end_id]) == "<end_of_turn>"


def test_a_template_that_hides_the_reply_leaves_the_eos() -> None:
    tokenizer = make_tokenizer(["a"], 262, 99, chat_template="{{ '<|im_start|>' }}{{ messages | length }}")
    assert ChatTemplate(tokenizer).stop_ids() == {tokenizer.eos_token_id}


@pytest.mark.parametrize("name", FAMILIES)
def test_check_template(name: str) -> None:
    notes = check_template(template_of(name))
    kinds = [note.split(",")[0] for note in notes]
    every = ["after a plain reply", "after a reply that thinks", "after a tool call"]
    expected = every if name in ("qwen3", "qwen3, no thinking", "harmony") else []
    assert kinds == expected


def test_check_template_says_when_nothing_ends_a_reply() -> None:
    tokenizer = make_tokenizer(["a"], 262, 99, chat_template="{% for m in messages %}{{ m.content }}|{% endfor %}")
    tokenizer.eos_token = None
    (note,) = check_template(ChatTemplate(tokenizer))
    assert "nothing ends a reply" in note


@pytest.mark.parametrize("name", FAMILIES)
def test_write_is_how_the_template_tells_a_reply(name: str) -> None:
    family, template = FAMILIES[name], template_of(name)
    ids = template.write([{"role": "user", "content": "one"}], "two")
    text = "<think>\n\n</think>\n\ntwo" if name == "qwen3" else family.reply
    assert template.decode(ids) == text + family.end
    assert ids[:-1] == template.encode(text)


def test_write_keeps_what_a_reply_says() -> None:
    template = template_of("chatml")
    for reply in ("", "two\n", "two<|im_end|>three", " two"):
        ids = template.write([{"role": "user", "content": "one"}], reply)
        assert template.decode(ids) == reply + "<|im_end|>"


@pytest.mark.parametrize(("python", "arguments", "forks"), [
    (False, '{"action": "two", "sure": false, "n": 1.0}', False),
    (True, '{"action": "two", "sure": false, "n": 1.0}', True),     # {'action': 'two', 'sure': False, 'n': 1.0}
    (False, '{"action":"two"}', True),                              # written with spaces
    (False, '{"action": "two", "n": 1e0}', True),                   # written 1.0
    (False, '{"action": "\\u00e9"}', True),                         # written é
])  # fmt: skip
def test_a_tool_call_that_is_written_otherwise_forks(python: bool, arguments: str, forks: bool) -> None:
    template = Recorder(tokenizer_of("toolcalls"), {"python": python})
    reply = template.encode(f'<tool_call>{{"name": "act", "arguments": {arguments}}}</tool_call>')
    trajectory, _ = play(template, [[*reply, template.end_id]] * 3, StructuredPromptFormat(grammar="tool_call"))
    assert len(trajectory.forks) == (3 if forks else 0)
    assert all(turn.action is not None for turn in trajectory.turns)


CALL, OTHER = ({"name": "act", "arguments": {"action": word, "sure": True, "n": 1.5}} for word in ("two", "é"))
QWEN = '<tool_call>\n{"name": "act", "arguments": {"action": "%s", "sure": true, "n": 1.5}}\n</tool_call>'
LLAMA = '{"name": "act", "parameters": {"action": "two", "sure": true, "n": 1.5}}'


def arguments_of(call, as_text: bool) -> Any:
    return json.dumps(call["arguments"], ensure_ascii=False) if as_text else call["arguments"]


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize(
    ("name", "reply", "content", "calls"),
    [
        ("qwen3", QWEN % "two", "", [CALL]),
        ("qwen3", f"{QWEN % 'two'}\n{QWEN % 'é'}", "", [CALL, OTHER]),
        ("qwen3", f"<think>\nhm\n</think>\n\nWell\n{QWEN % 'two'}", "<think>\nhm\n</think>\n\nWell", [CALL]),
        ("llama3", LLAMA, "", [CALL]),
    ],
)
def test_calls_as_messages_are_the_tokens_that_were_sampled(name, reply, content, calls, as_text) -> None:
    """An assistant's message with `tool_calls`, answered by role "tool", continues what the model said as text."""
    template = template_of(name)
    spec = EchoEnv.env_spec.model_copy(update={"tools": (ToolSpec(name="act"),)})
    action = PromptFormat(grammar="tool_call").parse(reply, spec).action
    assert (action if isinstance(action, list) else [action]) == calls
    transcript = Transcript(template, template.stop_ids())
    messages: list[dict[str, Any]] = [{"role": "user", "content": "one"}]
    for turn in range(3):
        transcript.prompt(messages)
        ids = [*template.encode(reply), template.end_id]
        transcript.sampled(turn, ids, [-1.0] * len(ids), [turn] * len(ids))
        entries = [
            {"id": f"c{turn}{i}", "type": "function", "function": {**call, "arguments": arguments_of(call, as_text)}}
            for i, call in enumerate(calls)
        ]
        messages += [
            {"role": "assistant", "content": content, "tool_calls": entries},
            *({"role": "tool", "tool_call_id": entry["id"], "content": "three"} for entry in entries),
        ]
    tokens = transcript.finish(messages)
    assert (len(tokens.branches), tokens.forks) == (1, ())
    results = template.decode(tokens.branches[0].ids).count("three")
    assert results == 3 * len(calls)


def test_results_of_tools_fork_once_the_question_is_past() -> None:
    """Qwen3 keeps thoughts while only tools have answered, and drops them at the next question."""
    template = template_of("qwen3")
    transcript = Transcript(template, template.stop_ids())
    messages = [{"role": "user", "content": "one"}]
    for turn, after in enumerate(["tool", "tool", "user"]):
        transcript.prompt(messages)
        ids = [*template.encode(THINKS), template.end_id]
        _, text = transcript.sampled(turn, ids, [-1.0] * len(ids), [turn] * len(ids))
        messages += [{"role": "assistant", "content": text}, {"role": after, "content": "three"}]
    tokens = transcript.finish(messages)
    assert len(tokens.branches) == 2
    assert [turn for turn in np.unique(tokens.branches[0].turn)] == [-1, 0, 1, 2]


@pytest.mark.parametrize("name", ["chatml", "llama3", "gemma", "mistral", "toolcalls"])
def test_a_reply_cut_by_length_is_closed_unsampled(name: str) -> None:
    template = template_of(name)
    cut = list(template.encode(FAMILIES[name].reply))
    trajectory, _ = play(template, [cut, cut])
    (branch,), span = trajectory.branches, trajectory.turns[0].span
    assert trajectory.turns[0].finish == "length"
    assert branch.ids[span.stop] == template.end_id
    assert branch.turn[span.stop] == -1
    assert trajectory.turns[0].reply.strip() == "two"


def test_glm_cut_by_length_goes_on_with_who_speaks_next() -> None:
    template = template_of("glm")
    trajectory, _ = play(template, [list(template.encode("\ntwo"))] * 2)
    (branch,), span = trajectory.branches, trajectory.turns[0].span
    assert template.decode(branch.ids[span.stop : span.stop + 1]) == "<|user|>"


def test_an_emoji_that_was_cut_is_not_completed() -> None:
    template = template_of("chatml")
    rain = template.tokenizer("☔", add_special_tokens=False)["input_ids"]
    assert len(rain) == 3
    trajectory, engine = play(template, [rain[:2], [*rain, template.end_id]])
    assert trajectory.turns[0].reply == "\ufffd"
    assert trajectory.turns[1].reply == "☔"
    assert not trajectory.forks
    assert list(engine.calls[1][1])[len(engine.calls[0][1]) :][:2] == rain[:2]


def test_tokens_that_would_merge_are_left_as_they_are() -> None:
    template = template_of("chatml")
    merged = template.encode(" apple")
    assert len(merged) == 1
    apart = [token for letter in " apple" for token in template.encode(letter)]
    trajectory, _ = play(template, [[*apart, template.end_id]] * 2)
    (branch,) = trajectory.branches
    assert branch.ids[branch.turn == 0].tolist() == [*apart, template.end_id]
    assert template.encode(template.decode(branch.ids)) != tuple(branch.ids.tolist())


def test_tokens_are_not_merged_across_the_boundary() -> None:
    """No special token stands between a reply that was cut and what follows."""
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    template = ChatTemplate(make_tokenizer(["north " * 9], 270, 99, chat_template=source))
    assert len(template.encode("north")) == 1
    transcript = Transcript(template, template.stop_ids())
    user = {"role": "user", "content": "one"}
    transcript.prompt([user])
    no = list(template.encode("n")) + list(template.encode("o"))
    transcript.sampled(0, no, [-1.0, -1.0], [0, 0])
    tokens = transcript.finish([user, {"role": "assistant", "content": "no"}, {"role": "user", "content": "rth"}])
    (branch,) = tokens.branches
    assert branch.ids[branch.turn == 0].tolist() == no
    assert template.decode(branch.ids) == "onenorth"
    assert branch.ids.tolist() != list(template.encode("onenorth"))


def test_a_stop_token_that_is_not_the_templates_own_forks() -> None:
    template = template_of("chatml, base model's eos")
    two = template.encode("two")
    trajectory, _ = play(template, [[*two, template.tokenizer.eos_token_id], [*two, template.end_id]])
    assert len(trajectory.forks) == 1
    assert "<|endoftext|>" in trajectory.forks[0]
    assert [turn.reply for turn in trajectory.turns] == ["two", "two"]
    assert [turn.finish for turn in trajectory.turns] == ["stop", "stop"]


@pytest.mark.parametrize("stopped", [True, False])
def test_the_stop_token_spelt_in_text_is_text(stopped: bool) -> None:
    template = template_of("chatml")
    spelt = template.tokenizer("two<|im_end|>", add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert template.end_id not in spelt
    trajectory, _ = play(template, [[*spelt, template.end_id] if stopped else spelt] * 2)
    (branch,), span = trajectory.branches, trajectory.turns[0].span
    assert trajectory.turns[0].reply == "two<|im_end|>"
    assert template.end_id in (branch.ids[span.stop - 1], branch.ids[span.stop])
    assert branch.turn.tolist().count(0) == len(spelt) + stopped


def test_ids_the_tokenizer_does_not_know() -> None:
    """Models have more rows than tokenizers have tokens."""
    template = template_of("chatml")
    trajectory, _ = play(template, [[5000, *template.encode("two"), 5001, template.end_id]] * 3)
    assert trajectory.turns[0].reply == "two"
    assert not trajectory.forks


def test_a_window_forks_once_it_forgets() -> None:
    template = template_of("chatml")
    trajectory, _ = play(template, [[*template.encode("two"), template.end_id]] * 4, PromptFormat(window=1))
    assert [turn.span.branch for turn in trajectory.turns] == [0, 0, 1, 2]
    assert len(trajectory.branches) == 4  # the last one holds the final observation alone


# --------------------------------------------------------------------------------------- boundaries as they are written


def sentencepiece(scheme: str) -> PreTrainedTokenizerFast:
    """In the manner of Llama 2 and Mistral: spaces are letters, and one is written before a text."""
    bpe = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    bpe.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=True)
    bpe.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>"]
    kinds = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=kinds, show_progress=False)
    bpe.train_from_iterator([" ".join(TEXT) + " [INST] [/INST] \n ."], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="</s>", bos_token="<s>", unk_token="<unk>",
        chat_template=(TEMPLATES / "mistral.jinja").read_text(), clean_up_tokenization_spaces=False,
    )  # fmt: skip


def phi() -> PreTrainedTokenizerFast:
    """In the manner of Phi-3: special tokens swallow the space after them."""
    tokenizer = make_tokenizer(TEXT, 300, 4096, chat_template=(TEMPLATES / "chatml.jinja").read_text(), special=CHATML)
    tokenizer.add_tokens([AddedToken(token, rstrip=True, special=True) for token in CHATML], special_tokens=True)
    return tokenizer


TOKENIZERS = {
    **{name: lambda name=name: tokenizer_of(name) for name in ("chatml", "llama3", "gemma", "glm", "mistral")},
    "sentencepiece, a space at the beginning": lambda: sentencepiece("first"),
    "sentencepiece, a space after each special token": lambda: sentencepiece("always"),
    "phi": phi,
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_boundaries_are_written_as_in_one_piece(name: str) -> None:
    """Replies written as the template writes them make the very tokens of the whole conversation, encoded at once."""
    template = ChatTemplate(TOKENIZERS[name]())
    transcript = Transcript(template, template.stop_ids())
    messages = [{"role": "user", "content": "one"}]
    for turn, reply in enumerate(["two", "apple north", "hm"]):
        transcript.prompt(messages)
        ids = template.write(messages, reply)
        _, text = transcript.sampled(turn, ids, [-1.0] * len(ids), [0] * len(ids))
        assert text.strip() == reply
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"Say: {reply}"}]
    (branch,) = transcript.finish(messages).branches
    assert branch.ids.tolist() == list(template.encode(template.render(messages)))


# ------------------------------------------------------------------------------------------------------------ mutations


def mutate(monkeypatch: pytest.MonkeyPatch, mutant: type[Transcript]) -> None:
    monkeypatch.setattr(agentgym_trainers.rollout.policy, "Transcript", mutant)


class RereadsReplies(Transcript):
    """Decodes a reply and encodes it again, as several trainers do."""

    def sampled(self, turn, ids, logprobs, versions):
        new_ids = list(self._template.encode(self._template.decode(ids)))
        return super().sampled(
            turn, new_ids, [*logprobs, *logprobs][: len(new_ids)], [*versions, *versions][: len(new_ids)]
        )


class RereadsPrompts(Transcript):
    """Encodes the whole conversation anew for each prompt."""

    def prompt(self, messages, max_length=None):
        super().prompt(messages, max_length)
        return list(self._template.encode(self._covered))


class NeverForks(Transcript):
    """Takes whatever lies behind the old length for what was added."""

    def _extend(self, rendered, messages):
        self._append(self._template.encode(rendered[len(self._covered) :]))
        self._covered = rendered
        return list(self._ids)


@pytest.mark.parametrize("mutant", [RereadsReplies, RereadsPrompts])
@pytest.mark.parametrize("canonical", [True, False])
def test_reading_again_is_detected(mutant: type[Transcript], canonical: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    template = template_of("chatml")
    text = "apple two"
    ids = template.encode(text) if canonical else [token for letter in text for token in template.encode(letter)]
    reply = [[*ids, template.end_id]] * 3
    mutate(monkeypatch, mutant)
    if canonical:  # the mutation does no harm where the model spells as the tokenizer does, and so stays hidden
        play(template, reply)
    else:
        with pytest.raises(AssertionError):
            play(template, reply)


def test_a_missed_fork_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, NeverForks)
    template = template_of("qwen3")
    play(template, [[*template.encode("two"), template.end_id]] * 3)
    template.rendered.clear()
    with pytest.raises(AssertionError):
        play(template, [[*template.encode(THINKS), template.end_id]] * 3)


# ---------------------------------------------------------------------------------------------------------------- edges


@pytest.mark.parametrize(("ids", "logprobs"), [([], []), ([5], []), ([5], [float("nan")]), ([5, 6], [-1.0])])
def test_what_no_engine_may_answer(ids: list[int], logprobs: list[float]) -> None:
    template = template_of("chatml")
    transcript = Transcript(template, template.stop_ids())
    transcript.prompt([{"role": "user", "content": "one"}])
    with pytest.raises(PolicyFailure, match="the engine answered"):
        transcript.sampled(0, ids, logprobs, [0] * len(ids))


def test_half_a_surrogate_pair_in_an_observation() -> None:
    template = ChatTemplate(tokenizer_of("chatml"))
    assert template.decode(template.encode("a\ud83cb 🍎")) == "a?b 🍎"


def test_a_template_that_refuses_is_the_users_to_know() -> None:
    source = "{{ raise_exception('System role not supported') }}"
    template = ChatTemplate(make_tokenizer(["a"], 262, 99, chat_template=source))
    with pytest.raises(CheckpointError, match="refuses the conversation: System role not supported"):
        template.render([{"role": "system", "content": "x"}])


def test_no_template() -> None:
    with pytest.raises(CheckpointError, match="has no chat template"):
        ChatTemplate(make_tokenizer(["a"], 262, 99, chat_template=""))


def test_full_prompts_are_not_kept() -> None:
    template = ChatTemplate(tokenizer_of("chatml"))
    template.encode("x" * (CACHED + 1))
    assert template._encode_cached.cache_info().currsize == 0
    assert template.encode("x") is template.encode("x")


def test_tools_are_offered() -> None:
    template = template_of("chatml")
    play(template, [[*template.encode("two"), template.end_id]], PromptFormat(grammar="tool_call"))
    prompt = template.render(
        [{"role": "user", "content": "x"}], PromptFormat(grammar="tool_call").tools(EchoEnv.env_spec)
    )
    assert '"name": "act"' in prompt
