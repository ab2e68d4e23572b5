"""Vision-language models: what is sampled, recorded and learned is one distribution, images included."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from colors import PNGS, build, plain_logprobs, play

from agentgym.errors import CheckpointError, ConfigError, PolicyFailure
from agentgym.protocol import encode_image
from agentgym.rollouts.trajectory import Branch, ImageSpan
from agentgym_credit.batch import Batch
from agentgym_trainers.config.sections import LossOptions, OptimOptions
from agentgym_trainers.data.sequences import Row, collate
from agentgym_trainers.engines.base import Sampling
from agentgym_trainers.engines.inprocess import InProcessEngine
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.nn import checkpoint, lora, tiny, vision
from agentgym_trainers.nn.forward import pack, token_logprobs
from agentgym_trainers.nn.gradient_checkpointing import use_recompute
from agentgym_trainers.preflight import check_model
from agentgym_trainers.recipe import resolve

SLACK = 1e-5


def sequence(model: Any, pngs: list[bytes], tail: int = 9) -> tuple[list[int], tuple[ImageSpan, ...]]:
    """(ids, images): text, then every image with text behind it."""
    reader, ids, images = vision.reader_of(model), list(range(7, 17)), []
    assert reader is not None
    for png in pngs:
        images.append(ImageSpan(png, len(ids), len(ids) + reader.count(png)))
        ids += [reader.token_id] * reader.count(png) + list(range(20, 20 + tail))
    return ids, tuple(images)


@pytest.mark.parametrize(("name", "window"), [("qwen2_5_vl", None), ("qwen2_5_vl", 0), ("qwen3_vl", None)])
def test_engine_transformers_and_learner_agree_on_images(kit, name, window) -> None:
    model, tokenizer = build(name)
    trajectories = play(model, tokenizer, window=window)
    branches = [branch for t in trajectories for branch in t.branches]
    assert {len(branch.images) for branch in branches} == ({2} if window is None else {1})
    assert len({image.stop - image.start for branch in branches for image in branch.images}) == 2  # two sizes
    batch, rows, _ = collate(kit.in_pairs(trajectories))
    for tokens in (100, 5000):
        logprob_A = Learner(model, OptimOptions(tokens_per_micro_batch=tokens)).logprobs(batch, rows)
        np.testing.assert_allclose(logprob_A, batch.logprob_A, atol=SLACK)
    for branch in branches:
        at = np.flatnonzero(branch.turn >= 0)
        plain = plain_logprobs(model, branch)[torch.from_numpy(at - 1), torch.from_numpy(branch.ids[at]).long()]
        np.testing.assert_allclose(branch.logprobs[at], plain.numpy(), atol=SLACK)


def test_a_mixed_batch_and_new_weights_read_the_right_images() -> None:
    """Sequences of equal ids that show other images share nothing; with new weights, images are read again."""
    model, _ = build()
    other = {name: tensor + 0.01 for name, tensor in model.state_dict().items()}
    engine = InProcessEngine(model, max_sequences=8, max_length=128)
    shown = [PNGS[:1], PNGS[1:2], [], PNGS[:2]]
    assert sequence(model, shown[0])[0] == sequence(model, shown[1])[0]

    async def talk(index: int) -> list[Branch]:
        conversation, found = engine.open(np.random.default_rng(0)), []
        for pngs in (shown[index], [*shown[index], PNGS[2]]):
            ids, images = sequence(model, pngs)
            done = await conversation.generate(ids, Sampling(1.0, 4), images)
            logprobs = np.array([0.0] * len(ids) + done.logprobs)
            turn = np.array([-1] * len(ids) + [0] * 4)
            found.append(Branch(np.array([*ids, *done.ids]), turn, logprobs, turn, images))
        return found

    async def run() -> list[list[Branch]]:
        first = await asyncio.gather(*(talk(i) for i in range(4)))
        await engine.refresh(other, 1)
        return [*first, *await asyncio.gather(*(talk(i) for i in range(4)))]

    before = copy.deepcopy(model)
    found = asyncio.run(run())
    for index, branches in enumerate(found):
        for branch in branches:
            plain = plain_logprobs(before if index < 4 else model, branch)
            at = np.flatnonzero(branch.turn >= 0)
            expected = plain[torch.from_numpy(at - 1), torch.from_numpy(branch.ids[at])]
            np.testing.assert_allclose(branch.logprobs[at], expected.numpy(), atol=SLACK)


def test_two_images_of_one_size_are_not_one_forward() -> None:
    """Their ids are equal: without what they show, the packed tree would compute them once."""
    model, _ = build()
    rows = []
    for m, png in enumerate(PNGS[:2]):
        ids, images = sequence(model, [png])
        rows.append(Row(np.array(ids), np.array([18, 19]), np.arange(2 * m, 2 * m + 2), m, False, images))
    learner = Learner(model, OptimOptions())
    packed = pack(rows, model)
    assert len(packed.ids) == 2 * len(rows[0].ids) - rows[0].images[0].start  # the text before them is shared
    with torch.no_grad():
        together = token_logprobs(learner.model, packed).logprob.reshape(2, 2)
        for row, logprob in zip(rows, together, strict=True):
            torch.testing.assert_close(token_logprobs(model, pack([row], model)).logprob, logprob, atol=SLACK, rtol=0)
    assert (together[0] - together[1]).abs().min() > 1e-3


class Gradients(Learner):
    """Keeps the gradient of a step instead of taking it."""

    def _step(self, finite: bool = True) -> dict[str, float]:
        learned = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.gradient = {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in learned.items()}
        self.optimizer.zero_grad(set_to_none=True)
        return {}


def gradient(model: Any, batch: Batch, rows: list[Row], credit: Any, tokens: int) -> dict[str, torch.Tensor]:
    learner = Gradients(model, OptimOptions(tokens_per_micro_batch=tokens))
    learner.update(batch, rows, credit, LossOptions())
    return learner.gradient


@pytest.mark.parametrize("variant", ["plain", "recompute", "lora"])
def test_gradient_of_the_tree_is_that_of_row_by_row(kit, variant) -> None:
    model, tokenizer = build()
    batch, rows, _ = collate(kit.in_pairs(play(model, tokenizer)))
    credit = kit.credit_of(batch)
    reference = gradient(model, batch, rows, credit, 1)
    if variant == "recompute":
        use_recompute(model)
    if variant == "lora":
        lora.add_lora(model, lora.LoraOptions(rank=2), 0)
        for name, parameter in model.named_parameters():
            if ".lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        reference = gradient(model, batch, rows, credit, 1)
    ours = gradient(model, batch, rows, credit, 10**6)
    largest = max(g.abs().max() for g in reference.values())
    assert max(g.abs().max() for name, g in ours.items() if ".visual." in name) > largest / 1000
    for name, expected in reference.items():
        torch.testing.assert_close(ours[name], expected, atol=2e-5 * float(largest), rtol=1e-3)


def test_a_checkpoint_reads_images_as_before(tmp_path) -> None:
    model, tokenizer = build()
    weights = {name: tensor + 0.01 for name, tensor in model.state_dict().items()}
    checkpoint.save(tmp_path / "step-000001", model, tokenizer, {"step": 1}, weights)
    loaded, again = checkpoint.load_model(tmp_path / "step-000001")
    ids, images = sequence(model, PNGS)
    row = Row(np.array(ids), np.arange(20, len(ids)), np.arange(len(ids) - 20), 0, False, images)
    model.load_state_dict(weights)
    with torch.no_grad():
        expected, ours = (Learner(m, OptimOptions())._forward([row]).logprob for m in (model, loaded))
    torch.testing.assert_close(ours, expected, atol=SLACK, rtol=0)
    reader = vision.reader_of(again)
    assert reader is not None
    assert [reader.count(png) for png in PNGS] == [1, 1, 2]


def test_a_page_that_is_zero_stays_so_in_a_checkpoint(tmp_path) -> None:
    tower = tiny.TinyVision(hidden_size=32, image_mean=1.0, image_std=0.1)
    model, tokenizer = tiny.make(tiny.TinyModel(hidden_size=32, heads=1, layers=1, vision=tower), ["?"], seed=0)
    checkpoint.save(tmp_path / "step-000001", model, tokenizer, {"step": 1})
    page = np.full((28, 28, 3), 255, np.uint8)
    page[:, 14:] = 204  # a brightness of .8
    for part in (model, checkpoint.load_model(tmp_path / "step-000001")[0]):
        pixels = vision.reader_of(part).pixels([encode_image(page)], "cpu")["pixel_values"]
        torch.testing.assert_close(pixels.unique(), torch.tensor([-2.0, 0.0]))


def test_a_reply_never_holds_a_placeholder() -> None:
    model, _ = build()
    reader = vision.reader_of(model)
    assert reader is not None
    with torch.no_grad():
        model.lm_head.weight[reader.token_id] *= 100
    engine = InProcessEngine(model, max_sequences=1, max_length=128)
    ids, images = sequence(model, PNGS[:1])
    done = asyncio.run(engine.open(np.random.default_rng(0)).generate(ids, Sampling(2.0, 40), images))
    assert reader.token_id not in done.ids
    row = Row(np.array([*ids, *done.ids]), len(ids) + np.arange(40), np.arange(40), 0, False, images)
    with torch.no_grad():
        scores = token_logprobs(model, pack([row], model), 2.0)
    np.testing.assert_allclose(scores.logprob, done.logprobs, atol=SLACK)
    assert torch.isfinite(scores.entropy).all()


def test_placeholders_without_their_image_are_refused() -> None:
    model, _ = build()
    ids, images = sequence(model, PNGS[:1])
    engine = InProcessEngine(model, max_sequences=1, max_length=128)
    with pytest.raises(PolicyFailure, match="without their image"):
        asyncio.run(engine.open(np.random.default_rng(0)).generate(ids, Sampling(), ()))
    row = Row(np.array(ids), np.array([20]), np.arange(1), 0, False, images)
    with pytest.raises(CheckpointError, match="without their image"):
        pack([replace(row, images=())], model)


@pytest.mark.parametrize(
    ("recipe", "option", "message"),
    [
        ("grpo", "engine.kind=vllm", "engine.kind must be 'inprocess'"),
        ("archer", "model.tiny.hidden_size=64", r"\[signals.twin\] cannot be used"),
    ],
)
def test_parts_that_would_lose_images_are_refused(recipe, option, message) -> None:
    with pytest.raises(ConfigError, match=message):
        check_model(resolve(recipe, ["model.tiny.vision.layers=1", option]))
