"""Trajectories a second of whole multi-turn training, sampling and learning: ours against TRL's GRPOTrainer.

Both train the same checkpoint with GRPO on the same `keydoor` tasks: 8 groups of 8 attempts and one optimizer step an
update, at temperature 1, on one thread. The conversations are the same to the token (TRL's own Qwen3 template, one tool
`act`, observations as the tool's answers); TRL's side says what its prompt is, and this side checks that it is its own.
The tiny model was taught on the solver's episodes before, so that it calls the tool. TRL (environment_factory) is tuned
as its documentation has it: all 64 attempts in one generation batch, no reference model, no activation checkpointing,
no logging, turns bounded as ours are.

    python benchmarks/against_trl.py --python .venv-interop/bin/python --updates 5   (make interop sets it up)

Seconds are of each process's own CPU; updates are interleaved, the first of each is not counted. TRL's episodes have
one reply more, since its loop ends when the model calls no tool: the turns that the environment saw are printed, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import process_time
from typing import Any

CLAIM = 3.0
GROUPS, SIZE, TURNS, REPLY, LENGTH = 8, 8, 10, 40, 1024
ASK = (
    "You are in a maze. Find the key, take it, then open the door. The tool `act` takes one action: go north, go "
    "south, go east, go west, take, open. When it is over, say done.\n"
)


class Env:
    """TRL's environment: one attempt after another."""

    played: list[tuple[int, bool]]

    def __init__(self) -> None:
        from agentgym_environments.diagnostics.keydoor.env import KeyDoor

        self._env = KeyDoor()

    def reset(self, task: int = 0, seed: int = 0, **_: Any) -> str:
        observation, _ = self._env.reset(seed=seed, options={"split": "train", "task": task})
        self._turns, self._over, self._reward = 0, False, 0.0
        return str(observation)

    def act(self, action: str) -> str:
        """Take one action in the maze.

        Args:
            action: the action

        Returns:
            what is seen next
        """
        if self._over:
            return "it is over"
        observation, reward, terminated, truncated, _ = self._env.step(action)
        self._turns, self._reward, self._over = self._turns + 1, self._reward + float(reward), terminated or truncated
        return str(observation)

    def get_reward(self) -> float:
        Env.played.append((self._turns, self._reward > 0))
        return self._reward


def peer(model: str, updates: int) -> None:
    """TRL's side. Says its first prompt, then what each update took; waits for a line before each."""
    import torch
    import trl
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from transformers.utils import get_json_schema

    torch.set_num_threads(1)
    torch.manual_seed(0)
    Env.played = []
    tokenizer = AutoTokenizer.from_pretrained(model)
    first = [{"role": "user", "content": ASK + Env().reset(task=0, seed=0)}]
    prompt = tokenizer.apply_chat_template(
        first, tools=[get_json_schema(Env.act)], tokenize=False, add_generation_prompt=True
    )
    print(json.dumps({"prompt": prompt, "trl": trl.__version__}), flush=True)

    class Turns(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            sys.stdin.readline()
            Env.played.clear()
            self.began = process_time()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            figures = {"seconds": process_time() - self.began, "played": Env.played}
            print(json.dumps(figures), flush=True)

    options = trl.GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, max_steps=updates, learning_rate=1e-5,
        per_device_train_batch_size=GROUPS * SIZE, num_generations=SIZE, steps_per_generation=1, num_iterations=1,
        beta=0.0, temperature=1.0, max_completion_length=LENGTH, max_tool_calling_iterations=TURNS,
        gradient_checkpointing=False, logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True,
    )  # fmt: skip
    data = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": ASK}], "task": i % 200, "seed": i} for i in range(GROUPS * updates)]
    )
    trainer = trl.GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), args=options, train_dataset=data,
        processing_class=tokenizer, environment_factory=Env, callbacks=[Turns()],
    )  # fmt: skip
    trainer.train()


class Peer:
    def __init__(self, python: str, model: Path, updates: int) -> None:
        import agentgym
        import agentgym_environments

        paths = ":".join(str(Path(package.__path__[0]).parent) for package in (agentgym, agentgym_environments))
        self.process = subprocess.Popen(
            [python, __file__, "--peer-of", str(model), "--updates", str(updates)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        )  # fmt: skip

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit("TRL's side ended; run it by hand to see why: --peer-of MODEL --updates 2")

    def go(self) -> None:
        assert self.process.stdin is not None
        print("go", file=self.process.stdin, flush=True)


def prompt_format() -> Any:
    """Ours, as TRL tells a conversation: the first observation in the prompt, the others as answers of the tool."""
    from agentgym.rollouts.prompt_format import PromptFormat, text_of
    from agentgym.spec import ToolSpec

    field = {"type": "string", "description": "the action"}
    parameters = {"type": "object", "properties": {"action": field}, "required": ["action"]}

    class Act(ToolSpec):
        def model_dump(self, **_: Any) -> dict[str, Any]:
            """As transformers' `get_json_schema` describes `Env.act`."""
            described = {"name": self.name, "description": self.description, "parameters": self.parameters}
            return {**described, "return": {"type": "string", "description": "what is seen next"}}

    class Chat(PromptFormat):
        def tools(self, spec: Any) -> tuple[ToolSpec, ...]:
            return (Act(name="act", description="Take one action in the maze.", parameters=parameters),)

        def messages(self, spec: Any, history: Any, observation: Any) -> list[dict[str, Any]]:
            observations = [*(text_of(before) for before, _ in history), text_of(observation)]
            messages = [{"role": "user", "content": ASK + observations[0]}]
            for (_, reply), after in zip(history, observations[1:], strict=True):
                messages += [{"role": "assistant", "content": reply}, {"role": "tool", "name": "act", "content": after}]
            return messages

        def render(self, action: Any, spec: Any) -> str:
            call = json.dumps({"name": "act", "arguments": {"action": action}})
            return f"<tool_call>\n{call}\n</tool_call>"

    return Chat(grammar="tool_call", on_invalid="end")  # as TRL ends where the model calls no tool


def teach(folder: Path, template: str, steps: int) -> None:
    """A tiny model that imitates a noisy solver, in `folder` as transformers loads it."""
    import asyncio

    import numpy as np

    from agentgym import registry
    from agentgym.rollouts.policy import EpisodeSpec, SolverPolicy
    from agentgym.rollouts.runner import Limits, Runner
    from agentgym.session import LocalSession
    from agentgym_trainers.config.sections import OptimOptions
    from agentgym_trainers.data.sequences import Row
    from agentgym_trainers.learner.learner import Learner
    from agentgym_trainers.nn import checkpoint, tiny
    from agentgym_trainers.rollout.tokens import ChatTemplate, Transcript

    spec, chat = registry.get_spec("keydoor"), prompt_format()

    async def open_session() -> LocalSession:
        return LocalSession(registry.make("keydoor"))

    runner = Runner(open_session, chat, Limits(TURNS), 32)
    episodes = [EpisodeSpec("keydoor", "train", i % spec.splits["train"], i) for i in range(400)]
    played = asyncio.run(runner.run(SolverPolicy(0.2, 0), episodes))
    tools = chat.tools(spec)
    shape = tiny.TinyModel(vocab_size=512, max_length=LENGTH)
    bare = tiny.make_tokenizer(["done"], 262, LENGTH, chat_template=template)
    ends = [chat.messages(spec, [(t.observation, t.reply) for t in p.turns], p.final_observation) for p in played]
    corpus = [ChatTemplate(bare).render(messages, tools) for messages in ends[:50]]
    tokenizer = tiny.make_tokenizer(corpus, shape.vocab_size, LENGTH, chat_template=template)
    model, chat_template = tiny.make_model(shape, tokenizer, 0), ChatTemplate(tokenizer)
    sequences = []
    for trajectory, complete in zip(played, ends, strict=True):
        transcript = Transcript(chat_template, chat_template.stop_ids(), tools)
        replies = [*(turn.reply for turn in trajectory.turns), "done"]
        for n, reply in enumerate(replies):
            messages = complete[: 1 + 2 * n]
            transcript.prompt(messages)
            ids = chat_template.write(messages, reply, tools)
            transcript.sampled(n, ids, [0.0] * len(ids), [0] * len(ids))
        tokens = transcript.finish(None)
        assert not tokens.forks, tokens.forks
        sequences.append(tokens.branches[0])
    learner, rng = Learner(model, OptimOptions(lr=2e-3, tokens_per_micro_batch=8192)), np.random.default_rng(0)
    for step in range(steps):
        rows, at = [], 0
        for m in rng.choice(len(sequences), 16, replace=False).tolist():
            where = np.flatnonzero(sequences[m].turn >= 0)
            rows.append(Row(sequences[m].ids.astype(np.int64), where, at + np.arange(len(where)), m, False))
            at += len(where)
        loss = learner.imitate(rows, np.full(at, 1 / at))["loss/cross_entropy"]
        if (step + 1) % 50 == 0 or step + 1 == steps:
            print(f"teaching: step {step + 1} of {steps}, loss {loss:.3f}", flush=True)
    checkpoint.save(folder, model.eval(), tokenizer, {})


def race(model: Path, python: str, updates: int) -> tuple[list[tuple[float, int, int]], list[tuple[float, int, int]]]:
    """(seconds, turns, successes) of each counted update: ours, TRL's."""
    import asyncio

    import torch

    from agentgym import registry
    from agentgym.session import LocalSession
    from agentgym_trainers.build import build
    from agentgym_trainers.config.sections import Config
    from agentgym_trainers.monitoring.metrics import MetricsLog
    from agentgym_trainers.nn import checkpoint
    from agentgym_trainers.rollout.tokens import ChatTemplate

    torch.set_num_threads(1)
    spec, chat = registry.get_spec("keydoor"), prompt_format()
    theirs = Peer(python, model, updates + 1)
    trl_prompt = theirs.answer()
    learned, tokenizer = checkpoint.load_model(model)
    observation, _ = registry.make("keydoor").reset(seed=0, options={"split": "train", "task": 0})
    prompt = ChatTemplate(tokenizer).render(chat.messages(spec, [], observation), chat.tools(spec))
    assert prompt == trl_prompt["prompt"], f"the prompts differ:\n{prompt}\n--- TRL:\n{trl_prompt['prompt']}"
    print(f"TRL {trl_prompt['trl']}; the prompt has {len(ChatTemplate(tokenizer).encode(prompt))} tokens")
    tree = {
        "name": "trl", "run": {"steps": updates + 1, "checkpoint_every": 10**6, "trajectories_every": 10**6},
        "env": {"name": "keydoor", "serve": False, "max_turns": TURNS},
        "rollout": {
            "groups": GROUPS, "group_size": SIZE, "max_new_tokens": REPLY, "max_length": LENGTH,
            "concurrency": GROUPS * SIZE,
        },
        "model": {"path": str(model)}, "credit": {"assigner": "grpo"}, "optim": {"lr": 1e-5, "minibatches": 1},
    }  # fmt: skip

    async def open_session() -> LocalSession:
        return LocalSession(registry.make("keydoor"))

    folder = Path(tempfile.mkdtemp())
    trainer = build(Config.model_validate(tree), folder, spec, open_session, learned, learned, tokenizer)
    trainer.runner = type(trainer.runner)(open_session, chat, trainer.runner.limits, GROUPS * SIZE)
    trainer.save = lambda log: folder  # type: ignore[method-assign]
    found: tuple[list, list] = ([], [])
    began = process_time()

    def on_step(step: int, metrics: dict[str, float]) -> None:
        nonlocal began
        mine = process_time() - began
        theirs.go()
        trl = theirs.answer()
        if step > 1:
            episodes = GROUPS * SIZE
            turns, won = metrics["rollout/turns"] * episodes, metrics["rollout/success"] * episodes
            found[0].append((mine, round(turns), round(won)))
            found[1].append((trl["seconds"], sum(n for n, _ in trl["played"]), sum(w for _, w in trl["played"])))
        began = process_time()

    log = MetricsLog(folder)
    asyncio.run(trainer.run(log, on_step))
    log.close()
    asyncio.run(trainer.engine.aclose())
    theirs.process.wait(60)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=".venv-interop/bin/python", help="an interpreter that has TRL")
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--teaching", type=int, default=150, help="steps of imitation before")
    parser.add_argument("--model", type=Path, help="a folder that keeps the taught model")
    parser.add_argument("--peer-of", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer_of:
        peer(args.peer_of, args.updates)
        return 0
    templates = subprocess.run(
        [args.python, "-c", "import trl, pathlib; print(pathlib.Path(trl.__file__).parent / 'chat_templates')"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    model = args.model or Path(tempfile.mkdtemp()) / "model"
    if not model.is_dir():
        teach(model, (Path(templates) / "qwen3_instruct_2507.jinja").read_text(encoding="utf-8"), args.teaching)
    ours, theirs = race(model, args.python, args.updates)
    for name, found in (("ours", ours), ("TRL", theirs)):
        seconds, turns, won = (statistics.mean(column) for column in zip(*found, strict=True))
        episodes = GROUPS * SIZE
        print(
            f"{name:5} {episodes / seconds:6.2f} trajectories a second, {turns / seconds:7.1f} turns a second; "
            f"{turns / episodes:.1f} turns, {100 * won / episodes:.0f} % success"
        )
    ratios = [b / a for (a, _, _), (b, _, _) in zip(ours, theirs, strict=True)]
    ratio = statistics.median(ratios)
    print(
        f"{ratio:.1f} times TRL ({min(ratios):.1f} to {max(ratios):.1f}); claim: at least {CLAIM:g} times: "
        f"{'holds' if ratio >= CLAIM else 'DOES NOT HOLD'}"
    )
    return 0 if ratio >= CLAIM else 1


if __name__ == "__main__":
    raise SystemExit(main())
