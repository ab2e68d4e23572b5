"""A toy environment for vision: the text says nothing, the image's color is the right answer."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from agentgym.env import Action, Env, Observation
from agentgym.protocol import encode_image
from agentgym.rollouts.policy import EpisodeSpec
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, Runner
from agentgym.rollouts.trajectory import Trajectory
from agentgym.session import LocalSession
from agentgym.spec import EnvSpec
from agentgym_trainers.engines.base import Sampling
from agentgym_trainers.engines.inprocess import InProcessEngine
from agentgym_trainers.nn import tiny, vision
from agentgym_trainers.rollout.policy import TokenPolicy
from agentgym_trainers.rollout.tokens import ChatTemplate

ANSWERS = {"red": (220, 30, 30), "blue": (30, 30, 220)}
SPEC = EnvSpec(
    id="colors",
    version="1",
    description="Name the color of the picture.",
    instructions="Color?",
    actions=tuple(ANSWERS),
    splits={"train": 64, "test": 64},
    max_turns=2,
    observations=("text", "image"),
    capabilities=("image", "solver"),
)


class Colors(Env):
    """Two pictures, each of a color with some noise; each is worth half, and no color at all costs a quarter."""

    env_spec = SPEC

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        split, task = self.select_task(options)
        self.rng, self.turn, self.right = np.random.default_rng([task, len(split)]), 0, 0
        return self._picture(), {}

    def _picture(self) -> Observation:
        self.answer = str(self.rng.choice(list(ANSWERS)))
        noise = self.rng.integers(-25, 26, (28, 28 + 28 * int(self.rng.integers(2)), 3))
        return {"text": "?", "image": (np.array(ANSWERS[self.answer]) + noise).astype(np.uint8)}

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        right = action == self.answer
        reward = right / 2 if action in ANSWERS else -0.25
        self.turn, self.right = self.turn + 1, self.right + right
        return self._picture(), reward, self.turn == 2, False, {"success": self.right == 2}

    def solver(self) -> Action:
        return self.answer


def png(width: int, seed: int) -> bytes:
    """Noise, 28 pixels high."""
    return encode_image(np.random.default_rng(seed).integers(0, 256, (28, width, 3), dtype=np.uint8))


PNGS = [png(28, 0), png(28, 1), png(56, 2)]
"""Two of one size, and a wider one."""


def build(name: str = "qwen2_5_vl", seed: int = 0) -> tuple[Any, Any]:
    """(model, tokenizer). Weights are drawn wide, so that predictions depend strongly on every token and pixel."""
    shape = tiny.TinyModel(
        hidden_size=32, layers=2, heads=2, head_dim=16, intermediate_size=48, max_length=512, vocab_size=300,
        vision=tiny.TinyVision(hidden_size=32, intermediate_size=48),
    )  # fmt: skip
    texts = [PromptFormat().instructions(SPEC), *SPEC.actions, "user\n", "assistant\n", "?"] * 3
    model, tokenizer = tiny.make(shape, texts, seed)
    if name == "qwen3_vl":
        model, processor = _qwen3_vl(model.config, seed), vision.reader_of(tokenizer).processor
        processor.patch_size = 16
        vision.attach(processor, model, tokenizer)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.25)
        model.lm_head.weight[tokenizer.eos_token_id] *= 3  # so that some replies end
    return model.eval(), tokenizer


def _qwen3_vl(config: Any, seed: int) -> Any:
    text = config.text_config.to_dict() | {"head_dim": 16}
    text = {name: text[name] for name in text if name not in ("model_type", "layer_types", "sliding_window")}
    image = {
        "hidden_size": 32, "depth": 2, "num_heads": 2, "intermediate_size": 48, "patch_size": 16, "out_hidden_size": 32,
        "deepstack_visual_indexes": [0], "num_position_embeddings": 16,
    }  # fmt: skip
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    ids = {name: getattr(config, name) for name in names}
    return Qwen3VLForConditionalGeneration(
        Qwen3VLConfig(text_config=text, vision_config=image, tie_word_embeddings=False, **ids)
    )


async def open_session() -> LocalSession:
    return LocalSession(Colors())


def play(
    model: Any, tokenizer: Any, *, episodes: int = 6, window: int | None = None, keep_images: bool = False
) -> list[Trajectory]:
    """Episodes, two attempts at each task."""
    template = ChatTemplate(tokenizer)
    engine = InProcessEngine(model, max_sequences=episodes, max_length=256)
    policy = TokenPolicy(engine, template, Sampling(1.0, 5, template.stop_ids()))
    runner = Runner(open_session, PromptFormat(window=window), Limits(), episodes, keep_images=keep_images)
    tasks = [EpisodeSpec("colors", "train", i // 2, 0, i % 2) for i in range(episodes)]
    return asyncio.run(runner.run(policy, tasks))


def plain_logprobs(model: Any, branch: Any) -> torch.Tensor:
    """float32[T - 1, V] of positions 1 .. T - 1, by transformers' own forward on this one sequence."""
    reader = vision.reader_of(model)
    model.set_attn_implementation("sdpa")
    ids = torch.from_numpy(branch.ids).long()[None]
    inputs = reader.pixels([image.png for image in branch.images], "cpu") if branch.images else {}
    kinds = (ids == reader.token_id).int()
    with torch.inference_mode():
        logits = model(input_ids=ids, mm_token_type_ids=kinds, use_cache=False, **inputs).logits[0, :-1]
        logits[:, reader.token_id] = -1e9
    return torch.log_softmax(logits, dim=-1)
