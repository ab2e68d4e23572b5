"""The token record of prompts with images: only a new suffix is encoded, and every image is kept once."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from colors import PNGS, SPEC, build, play

from agentgym.env import Observation
from agentgym.errors import CheckpointError
from agentgym.protocol import decode_observation
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.trajectory import Trajectory
from agentgym_trainers.nn.tiny import make_tokenizer
from agentgym_trainers.rollout.served_model import ServedModel
from agentgym_trainers.rollout.tokens import ChatTemplate, Transcript, tokenize


@cache
def model_and_tokenizer() -> tuple[Any, Any]:
    return build()


@cache
def template() -> ChatTemplate:
    return ChatTemplate(model_and_tokenizer()[1])


def observed(index: int, text: str = "?") -> Observation:
    return decode_observation({"text": text, "image": base64.b64encode(PNGS[index]).decode()})


def messages(*observations: Observation, replies: tuple[str, ...] = (), window: int | None = None) -> list[dict]:
    history = list(zip(observations[:-1], replies, strict=True))
    return PromptFormat(window=window).messages(SPEC, history, observations[-1])


def reply(transcript: Transcript, turn: int, text: str) -> str:
    ids = template().encode(f"{text}<|im_end|>")
    return transcript.sampled(turn, ids, [-1.0] * len(ids), [0] * len(ids))[1]


def test_only_images_of_the_suffix_are_added() -> None:
    transcript, token = Transcript(template(), template().stop_ids()), template().reader.token_id
    first = transcript.prompt(messages(observed(0)))
    assert first.count(token) == 1
    text = reply(transcript, 0, "red  blue ")  # two spaces: other tokens than the template would write
    before = [*first, *template().encode("red  blue <|im_end|>")]
    second = transcript.prompt(messages(observed(0), observed(2), replies=(text,)))
    assert second[: len(before)] == before
    assert second.count(token) == 3  # the second image is two tokens wide
    (branch,) = (tokens := transcript.finish(None)).branches
    assert not tokens.forks
    assert [(image.png, image.stop - image.start) for image in branch.images] == [(PNGS[0], 1), (PNGS[2], 2)]
    for image in branch.images:
        assert set(branch.ids[image.start : image.stop]) == {token}
        assert set(branch.turn[image.start : image.stop]) == {-1}
        assert template().decode([branch.ids[image.start - 1]]) == "<|vision_start|>"


def test_the_same_text_with_another_image_forks() -> None:
    transcript = Transcript(template(), template().stop_ids())
    transcript.prompt(messages(observed(0)))
    transcript.prompt(messages(observed(1)))
    tokens = transcript.finish(None)
    assert tokens.forks == ("the next prompt has another image",)
    assert [[image.png for image in branch.images] for branch in tokens.branches] == [[PNGS[0]], [PNGS[1]]]
    assert tokens.branches[0].ids.tolist() == tokens.branches[1].ids.tolist()


def test_a_text_that_holds_the_placeholder_is_no_image() -> None:
    transcript = Transcript(template(), template().stop_ids())
    ids = transcript.prompt(messages(observed(0, "say <|image_pad|>"), "<|image_pad|>", replies=("<|image_pad|>",)))
    assert ids.count(template().reader.token_id) == 1
    assert template().decode(ids).count("<|image_pad| >") == 3


def test_a_cut_never_leaves_a_part_of_an_image() -> None:
    prompt = messages(observed(2))
    place = Transcript(template(), template().stop_ids()).prompt(prompt).index(template().reader.token_id)
    for length, images in ((place + 1, 0), (place + 2, 1)):
        transcript = Transcript(template(), template().stop_ids())
        branch = transcript.finish(prompt, length).branches[0]
        assert len(branch.images) == images
        assert len(branch.ids) == (length if images else place)


def test_a_record_keeps_every_image_once() -> None:
    (one, _) = play(*model_and_tokenizer(), episodes=2)
    forked = replace(one, branches=one.branches * 2)
    record = json.loads(json.dumps(forked.to_json()))
    assert len(record["images"]) == 2
    assert Trajectory.from_json(record).branches[1].images == one.branches[0].images


def test_a_record_without_images_is_as_it_was() -> None:
    (one, _) = play(*model_and_tokenizer(), episodes=2)
    bare = replace(one, branches=tuple(replace(branch, images=()) for branch in one.branches))
    record = bare.to_json()
    assert "images" not in record
    assert "images" not in record["branches"][0]
    assert Trajectory.from_json(record).branches[0].images == ()


def test_demonstrations_show_their_images() -> None:
    (played, _) = play(*model_and_tokenizer(), episodes=2, keep_images=True)
    branch = tokenize(played, SPEC, PromptFormat(), template()).branches[0]
    assert [image.png for image in branch.images] == [image.png for image in played.branches[0].images]
    bare = replace(played, turns=tuple(replace(turn, image="") for turn in played.turns))
    with pytest.raises(CheckpointError, match="recorded without their images"):
        tokenize(bare, SPEC, PromptFormat(), template())


def test_a_text_model_refuses_images() -> None:
    blind = ChatTemplate(make_tokenizer(["Color?"], 280, 256))
    with pytest.raises(CheckpointError, match="the model reads text alone"):
        Transcript(blind, blind.stop_ids()).prompt(messages(observed(0)))


def test_a_served_model_refuses_images() -> None:
    engine: Any = type("Engine", (), {"max_length": 64})()
    served = ServedModel(engine, template(), name="tiny", max_sequences=1)
    with pytest.raises(CheckpointError, match="a served model reads text alone"):
        served.render(messages(observed(0)), (), {})
