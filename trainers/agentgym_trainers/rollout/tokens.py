"""Prompt tokens: append-only, and never re-tokenized once sampled.

The next prompt is the last prompt, the sampled tokens, and whatever the chat template writes after them:

    rendered before   <|im_start|>user\\nA<|im_end|>\\n<|im_start|>assistant\\n
    sampled           go north <|im_end|>                                   (tokens kept as they are)
    rendered now      ...the above... \\n<|im_start|>user\\nB<|im_end|>\\n<|im_start|>assistant\\n
                                      ^ only this suffix is encoded: boundary and observation, never trained

A vision-language model's template writes one placeholder an image. It becomes as many placeholder tokens as the image
processor makes of the image, and the record keeps the image beside them. Only images of the suffix are added.

Where the new rendering does not begin with the old one and the reply (a template that strips earlier thinking, or trims
a reply that has space to trim; a history window; a tool call that is written otherwise; a stop token that is not the
template's own; another image), the transcript forks: a new branch begins whose prompt is the new rendering, encoded
whole. Forks are counted and say why.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from jinja2 import TemplateError

from agentgym.errors import CheckpointError, PolicyFailure
from agentgym.rollouts.policy import ContextFull, Tokens
from agentgym.rollouts.prompt_format import Message, PromptFormat
from agentgym.rollouts.trajectory import Branch, ImageSpan, Span, StopReason, Trajectory
from agentgym.spec import EnvSpec, ToolSpec
from agentgym_trainers.nn.vision import reader_of
from agentgym_trainers.rollout.images import for_template, images_of, observation_of, refuse_images

CACHED = 2048
"""Characters of the longest text whose tokens are kept: boundaries and observations repeat, whole prompts do not."""


class ChatTemplate:
    """A Hugging Face tokenizer's chat template as three functions: render, encode, decode."""

    def __init__(self, tokenizer: Any, options: dict[str, Any] | None = None) -> None:
        """`options` are variables of the template (`enable_thinking`, for instance).

        Raises CheckpointError for a name that `apply_chat_template` interprets itself.
        """
        if not getattr(tokenizer, "chat_template", None):
            raise CheckpointError(
                f"the tokenizer of {tokenizer.name_or_path or 'this model'} has no chat template; save one with it "
                "(tokenizer.chat_template = ...) or choose a chat model"
            )
        reserved = inspect.signature(tokenizer.apply_chat_template).parameters.keys() & {*(options or {})}
        if reserved:
            raise CheckpointError(f"{', '.join(sorted(reserved))}: no variable of a chat template; leave it out")
        self.tokenizer = tokenizer
        self.options = options or {}
        self.reader = reader_of(tokenizer)
        """A vision-language model's; None for a text model."""
        self._encode_cached = lru_cache(maxsize=16384)(self._encode_uncached)

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), generation: bool = True) -> str:
        """The conversation as text; with `generation`, up to where the reply begins.

        Raises CheckpointError where the template refuses it (a system message, for instance) or cannot read it, and
        where a text model is shown an image.
        """
        if self.reader is None:
            refuse_images(
                messages, "the model reads text alone; take a vision-language model, or the environment without images"
            )
            return self._render(messages, tools, generation)
        token, count = self.reader.token, len(images_of(messages))
        rendered = self._render(for_template(messages, token), tools, generation)
        if rendered.count(token) != count:
            raise CheckpointError(
                f"the model's chat template writes {rendered.count(token)} placeholders ({token}) for {count} images"
            )
        return rendered

    def _render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], generation: bool) -> str:
        offered = [{"type": "function", "function": tool.model_dump()} for tool in tools] or None
        try:
            return self.tokenizer.apply_chat_template(
                list(messages), tools=offered, tokenize=False, add_generation_prompt=generation, **self.options
            )
        except TemplateError as error:
            raise CheckpointError(f"the model's chat template refuses the conversation: {error}") from error
        except Exception as error:  # a template is a program: it may raise anything about a message of another shape
            raise CheckpointError(
                f"the model's chat template cannot read the conversation: {type(error).__name__}: {error}"
            ) from error

    def encode(self, text: str, after: int | None = None) -> tuple[int, ...]:
        """Token ids of rendered text: special tokens are recognized, none are added.

        `after` is the token before: where a text begins, or follows a special token, some tokenizers write or swallow
        a space.
        """
        if after is not None:
            joined = self._encode(self.decode([after]) + text)
            if joined[:1] == (after,):
                return joined[1:]
        return self._encode(text)

    def _encode(self, text: str) -> tuple[int, ...]:
        return self._encode_cached(text) if len(text) <= CACHED else self._encode_uncached(text)

    def _encode_uncached(self, text: str) -> tuple[int, ...]:
        if not text.isascii():  # half a surrogate pair in an environment's text has no bytes: it becomes "?"
            text = text.encode(errors="replace").decode()
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int], after: Sequence[int] = ()) -> str:
        """The text of `ids`; `after` are tokens before them: some tokenizers drop the space that begins a text."""
        before = self._decode(after) if after else ""
        return self._decode([*after, *ids])[len(before) :]

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    @cached_property
    def end_id(self) -> int | None:
        """The token that ends a reply: the first special one that the template writes after it, else the EOS."""
        marker = "\u2063reply\u2063"
        reply = [{"role": "user", "content": "x"}, {"role": "assistant", "content": marker}]
        added = self.tokenizer.added_tokens_decoder.items()
        special = {token for token, kind in added if kind.special} | set(self.tokenizer.all_special_ids)
        for then in ([], [{"role": "user", "content": "x"}]):  # GLM ends a reply by who speaks next
            _, found, tail = self.render([*reply, *then], generation=False).rpartition(marker)
            for token in self.encode(tail) if found else ():
                if token in special:
                    return token
        return self.tokenizer.eos_token_id

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token: a text has at least its length divided by it, in tokens."""
        return max(map(len, self.tokenizer.get_vocab()))

    def stop_ids(self) -> frozenset[int]:
        """Tokens at which a reply stops: the one that the template ends it with, and the tokenizer's EOS."""
        return frozenset(token for token in (self.end_id, self.tokenizer.eos_token_id) if token is not None)

    def write(self, messages: Sequence[Message], reply: str, tools: Sequence[ToolSpec] = ()) -> tuple[int, ...]:
        """`reply` to `messages` as a model that keeps to the template would sample it, its end token included."""
        prompt = self.render(messages, tools)
        conversation = self.render([*messages, {"role": "assistant", "content": reply}], tools, generation=False)
        text = conversation[len(prompt) :] if conversation.startswith(prompt) else reply
        end = () if self.end_id is None else (self.end_id,)
        content, ended, rest = text.rpartition(self.decode(end)) if end else (text, "", "")
        text = content if ended and not rest.strip() else text
        return (*self.encode(text, *self.encode(prompt)[-1:]), *end)


class Transcript:
    """The token record of one episode, built turn by turn:

    transcript.prompt(messages) -> ids so far; sample from them; transcript.sampled(turn, ids, ...); and again.
    """

    _template: Any
    """A ChatTemplate; None while it is sent to another process."""

    def __init__(self, template: ChatTemplate, stop_ids: frozenset[int], tools: Sequence[ToolSpec] = ()) -> None:
        self._template, self._stop_ids, self._tools = template, stop_ids, tools
        self._covered = ""
        """The text that `ids` stand for: rendered prompt, then reply text (its stop token included)."""
        self._done: list[Branch] = []
        self._forks: list[str] = []
        self._images: list[ImageSpan] = []
        self._ids: list[int] = []
        self._turn: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []

    def copy(self) -> Transcript:
        """The same record so far, to be continued apart from this one."""
        twin = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, list):
                setattr(twin, name, value.copy())
        return twin

    def over(self, template: ChatTemplate | None) -> Transcript:
        """A copy that goes on with this template, which must be an equal one: None to send it to another process."""
        twin = self.copy()
        twin._template = template
        return twin

    def prompt(self, messages: Sequence[Message], max_length: int | None = None) -> list[int]:
        """The prompt for the next reply to `messages`, extending what was sampled wherever that is exact.

        Raises ContextFull where its text is too long for `max_length` tokens, whatever they are: megabytes are not
        encoded to find that out, only as much as a branch may hold.
        """
        rendered = self._template.render(messages, self._tools)
        longest = len(rendered) if max_length is None else max_length * self._template.longest_token
        ids = self._extend(rendered[: max(longest, len(self._covered))], messages)
        if len(rendered) > longest:
            raise ContextFull(f"the prompt has {len(rendered)} characters; the engine takes {max_length} tokens")
        return ids

    @property
    def images(self) -> tuple[ImageSpan, ...]:
        """Images among the tokens of the last prompt."""
        return tuple(self._images)

    def _extend(self, rendered: str, messages: Sequence[Message]) -> list[int]:
        pngs = images_of(messages) if self._template.reader is not None else []
        same = [image.png for image in self._images] == pngs[: len(self._images)]
        if same and rendered.startswith(self._covered):
            self._append_text(rendered[len(self._covered) :], pngs[len(self._images) :])
        else:
            why = difference(self._covered, rendered) if same else "the next prompt has another image"
            self._forks.append(why)
            self._close_branch()
            self._append_text(rendered, pngs)
        self._covered = rendered
        return list(self._ids)

    def _append_text(self, text: str, pngs: Sequence[bytes]) -> None:
        """Rendered text, unsampled, with an image at each placeholder."""
        reader = self._template.reader
        first, *rest = text.split(reader.token) if reader is not None else [text]
        self._append(self._template.encode(first, *self._ids[-1:]))
        for png, segment in zip(pngs, rest, strict=False):  # text that was cut to a length shows fewer
            assert reader is not None
            count, start = reader.count(png), len(self._ids)
            self._images.append(ImageSpan(png, start, start + count))
            self._append([reader.token_id] * count)
            self._append(self._template.encode(segment, reader.token_id))

    def sampled(
        self, turn: int, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]
    ) -> tuple[Span, str]:
        """Record a reply exactly as it left the engine; returns where it lies and its text without the stop token.

        Raises PolicyFailure for what no engine may answer.
        """
        if not ids or not len(ids) == len(logprobs) == len(versions) or not all(map(math.isfinite, logprobs)):
            raise PolicyFailure(
                f"the engine answered {len(ids)} tokens, {len(logprobs)} log-probabilities and {len(versions)} "
                "versions; a reply has at least one token, and each token a finite log-probability and a version"
            )
        start, before = len(self._ids), self._ids[-1:]
        self._ids.extend(ids)
        self._turn.extend([turn] * len(ids))
        self._logprobs.extend(logprobs)
        self._versions.extend(versions)
        # After a stop token the template's own closing text begins with that very token; after a reply that was cut by
        # length it must be written whole, unsampled.
        length = len(ids) - (ids[-1] in self._stop_ids)
        text = self._template.decode(ids[:length], before)
        self._covered += text + self._template.decode(ids[length:])
        return Span(len(self._done), start, len(self._ids)), text

    def finish(self, messages: Sequence[Message] | None, max_length: int | None = None) -> Tokens:
        """All branches. `messages` of an episode that was cut are appended, unsampled, so that their value is read.

        No branch is longer than `max_length`: what an engine refused to answer, or was never asked, is cut there.
        """
        if messages is not None:
            rendered = self._template.render(messages, self._tools)
            longest = len(rendered) if max_length is None else max_length * self._template.longest_token
            self._extend(rendered[: max(longest, len(self._covered))], messages)
        sampled_until = next((i + 1 for i in reversed(range(len(self._turn))) if self._turn[i] >= 0), 1)
        length = max(max_length or len(self._ids), sampled_until)
        length = min([length, *(image.start for image in self._images if image.stop > length)])  # no part of an image
        self._images = [image for image in self._images if image.stop <= length]
        for column in (self._ids, self._turn, self._logprobs, self._versions):
            del column[length:]
        self._close_branch()
        return Tokens(tuple(self._done), tuple(self._forks))

    def _append(self, ids: Sequence[int]) -> None:
        """Tokens that nobody sampled."""
        self._ids.extend(ids)
        self._turn.extend([-1] * len(ids))
        self._logprobs.extend([0.0] * len(ids))
        self._versions.extend([-1] * len(ids))

    def _close_branch(self) -> None:
        if self._ids:
            columns = (self._ids, self._turn, self._logprobs, self._versions)
            dtypes = (np.int32, np.int32, np.float32, np.int32)
            ids, turn, logprobs, versions = (
                np.array(column, dtype) for column, dtype in zip(columns, dtypes, strict=True)
            )
            self._done.append(Branch(ids, turn, logprobs, versions, self.images))
        self._images, self._ids, self._turn, self._logprobs, self._versions = [], [], [], [], []


def difference(covered: str, rendered: str) -> str:
    """First difference of a prompt from the tokens so far."""
    at = next(
        (i for i, (a, b) in enumerate(zip(covered, rendered, strict=False)) if a != b),
        min(len(covered), len(rendered)),
    )
    was, now = covered[max(0, at - 20) : at + 30], rendered[max(0, at - 20) : at + 30]
    return f"the next prompt says {now!r} where the tokens say {was!r}"


REPLIES = {
    "a plain reply": "two",
    "a reply that thinks": "<think>\nhm\n</think>\n\ntwo",
    "a tool call": '<tool_call>{"name": "act", "arguments": {"action": "two", "sure": false}}</tool_call>',
}
"""Conversations that `check_template` tries."""


def check_template(template: ChatTemplate) -> list[str]:
    """Warnings about a template: after which responses the next turn forks, and why; empty when none."""
    notes = [] if template.stop_ids() else ["nothing ends a reply: neither template nor tokenizer has a token for it"]
    first = [{"role": "user", "content": "one"}]
    for kind, reply in REPLIES.items():
        transcript = Transcript(template, template.stop_ids())
        transcript.prompt(first)
        ids = template.write(first, reply)
        _, text = transcript.sampled(0, ids, [0.0] * len(ids), [0] * len(ids))
        then = [{"role": "assistant", "content": text}, {"role": "user", "content": "three"}]
        notes += [f"after {kind}, {why}" for why in transcript.finish([*first, *then]).forks]
    return notes


def corpus(spec: EnvSpec, prompt_format: PromptFormat, demonstrations: Iterable[Trajectory]) -> list[str]:
    """The text that a tiny model's tokenizer is learned from: what stands between the template's special tokens."""
    texts = [f"system\n{prompt_format.instructions(spec)}"]
    for trajectory in demonstrations:
        for turn in trajectory.turns:
            texts += [f"user\n{turn.observation}", f"assistant\n{turn.reply}", "\n"]
    return texts


def tokenize(
    trajectory: Trajectory,
    spec: EnvSpec,
    prompt_format: PromptFormat,
    template: ChatTemplate,
    max_length: int | None = None,
) -> Trajectory:
    """The same episode with token branches, as if its replies had been sampled and stopped. One that was cut ends with
    the prompt that it had next, as far as `max_length` goes, so that the value there is read.

    Raises CheckpointError where a vision-language model is to read images that were not kept.
    """
    seeing = template.reader is not None and "image" in spec.observations
    if seeing and not any(turn.image for turn in trajectory.turns):
        raise CheckpointError(
            f"the episodes of {spec.id} were recorded without their images: record them with "
            "Runner(..., keep_images=True)"
        )
    tools = prompt_format.tools(spec)
    transcript = Transcript(template, template.stop_ids(), tools)
    histories: dict[int, list[tuple[Any, str]]] = {}
    turns = []
    for turn in trajectory.turns:
        history = histories.setdefault(turn.role, [])
        observation = turn.observation if template.reader is None else observation_of(turn)
        messages = prompt_format.messages(spec, history, observation)
        transcript.prompt(messages)
        ids = template.write(messages, turn.reply, tools)
        span, text = transcript.sampled(turn.index, ids, [0.0] * len(ids), [0] * len(ids))
        turns.append(replace(turn, reply=text, span=span))
        history.append((observation, text))
    ahead = None
    if turns and trajectory.stop.is_truncated and trajectory.stop is not StopReason.CONTEXT_FULL:
        history = histories.get(turns[-1].info.get("role", 0), [])
        ahead = prompt_format.messages(spec, history, trajectory.final_observation)
    tokens = transcript.finish(ahead, max_length)
    return replace(trajectory, turns=tuple(turns), branches=tokens.branches, forks=tokens.forks)
