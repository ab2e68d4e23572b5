"""TRL's GRPOTrainer trains on an environment of ours: run by an interpreter that has the `trl` and `openenv` packages.

    python trl_script.py URL FOLDER

URL serves EchoEnv. A tiny model is taught one episode by heart, so that it calls the tool at all; then TRL's own
rollouts play the environment through OpenEnv's own client. Prints what TRL logged, and how the episodes went.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from openenv.core import GenericEnvClient
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import get_json_schema

URL, FOLDER = sys.argv[1], sys.argv[2]
TEMPLATE = (Path(trl.__file__).parent / "chat_templates" / "qwen3_instruct_2507.jinja").read_text(encoding="utf-8")
ASK = "Repeat each word that is shown. "
EPISODES: list[dict[str, Any]] = []
"""Words said and reward of every finished episode."""


class Env:
    """One episode after another, over one socket."""

    def __init__(self) -> None:
        self._client = GenericEnvClient(base_url=URL).sync()
        self._client.connect()
        self._actions: list[str] = []
        self._reward, self._done = 0.0, False

    def reset(self, **task: Any) -> str:
        result = self._client.reset(split="train", index=0)
        self._actions, self._reward, self._done = [], 0.0, False
        return result.observation["text"]

    def act(self, action: str) -> str:
        """Say a word.

        Args:
            action: the word

        Returns:
            what is shown next
        """
        if self._done:
            return "the episode is over"
        result = self._client.step({"text": action})
        self._actions.append(action)
        self._reward, self._done = self._reward + (result.reward or 0.0), result.done
        return result.observation["text"]

    def get_reward(self) -> float:
        EPISODES.append({"said": self._actions, "reward": self._reward})
        return self._reward


def demonstration() -> list[dict[str, Any]]:
    """The episode of task 0 as a conversation with tool calls, played by who can read."""
    env = Env()
    observation = env.reset()
    messages: list[dict[str, Any]] = [{"role": "user", "content": ASK + observation}]
    while not env._done:
        word = observation.rsplit(" ", 1)[-1]
        call = {"type": "function", "function": {"name": "act", "arguments": {"action": word}}}
        observation = env.act(word)
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "act", "content": observation},
        ]
    env._client.close()
    return [*messages, {"role": "assistant", "content": "done"}]


def make_tokenizer(corpus: str) -> Any:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learn = trainers.BpeTrainer(vocab_size=512, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator([corpus] * 3, learn)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=special[2], pad_token=special[0], chat_template=TEMPLATE
    )


def learn_by_heart(model: Any, ids: torch.Tensor) -> float:
    """The last loss, in nats a token."""
    optimizer, loss = torch.optim.AdamW(model.parameters(), lr=3e-3), torch.tensor(9.0)
    for _ in range(400):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss < 0.01:
            break
    return float(loss.detach())


def main() -> None:
    torch.manual_seed(0)
    messages, tools = demonstration(), [get_json_schema(Env.act)]
    text = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), chat_template=TEMPLATE
    ).apply_chat_template(messages, tools=tools, tokenize=False)
    tokenizer = make_tokenizer(text)
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=128,
        max_position_embeddings=1024,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    loss = learn_by_heart(model, ids)
    options = trl.GRPOConfig(
        output_dir=FOLDER,
        use_cpu=True,
        bf16=False,
        max_steps=2,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=256,
        learning_rate=1e-5,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": ASK}]}] * 8)
    trainer = trl.GRPOTrainer(
        model=model, args=options, train_dataset=data, processing_class=tokenizer, environment_factory=Env
    )
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    print("RESULT " + json.dumps({"heart": loss, "episodes": EPISODES, "steps": len(logged), "log": logged[-1:]}))


main()
