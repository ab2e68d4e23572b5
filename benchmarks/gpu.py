"""What only a GPU can show, in parts: on a machine with CUDA at full size, elsewhere in miniature on the CPU.

    python benchmarks/gpu.py --out DIR                     # every part that DIR has no result of, then the table
    python benchmarks/gpu.py --out DIR --part quickstart   # some parts; each takes less than 8 minutes on a GPU

    quickstart   a tiny model is trained on the GPU: success before and after
    logprobs     engine against learner, and against vLLM where it is installed, in float32 and bfloat16
    attention    FlexAttention against a dense mask, outputs and gradients
    vllm         the same training with vLLM as its engine
    tree         benchmarks/tree.py: learner tokens a second, tree-packed against a row a turn
    learner, rollouts, sync    benchmarks/gpu_speed.py: speed at the shapes of Qwen3

A part's result is DIR/PART.json, and a part that has one is not run again. The checkout need not be installed: its
packages are found beside this file. What a part needs and is missing is skipped, and the table says so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import tomllib
import traceback
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = [ROOT, *(ROOT / name for name in ("trainers", "servers", "environments"))]
sys.path[:0] = [str(path) for path in PACKAGES]
os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])])
SECONDS = 480
"""A part that takes longer is stopped."""
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.25}
"""Greatest difference of two log-probabilities."""
VLLM_TOLERANCE = {"float32": 1e-2, "bfloat16": 0.25}
"""The same where one is vLLM's: on an H200 its float32 was .0018 off, where engine and learner were 3e-6 apart."""


def register() -> None:
    """Register the checkout's environments where it is not installed."""
    from agentgym import registry

    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][registry.GROUP]
    points = importlib.metadata.EntryPoints(
        importlib.metadata.EntryPoint(name, value, registry.GROUP) for name, value in group.items()
    )
    if not importlib.metadata.entry_points(group=registry.GROUP):
        registry.entry_points = lambda group: points
        registry._installed.cache_clear()


def device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def tiny_model(hidden: int, layers: int, length: int) -> tuple[Any, Any]:
    from agentgym_trainers.nn import tiny

    shape = tiny.TinyModel(
        hidden_size=hidden, layers=layers, heads=hidden // 32, intermediate_size=3 * hidden, max_length=length
    )
    tokenizer = tiny.make_tokenizer(["go north", "open the door"], shape.vocab_size, length)
    return tiny.make_model(shape, tokenizer, 0).eval().to(device()), tokenizer


def quickstart(small: bool, *given: str) -> list[dict[str, Any]]:
    """The recipe `quickstart`, its environment within this process."""
    from agentgym_trainers.recipe import resolve
    from agentgym_trainers.run import run

    changes = ["env.serve=false", *given]
    if small:
        changes += [
            "run.steps=1", "rollout.groups=2", "rollout.group_size=2", "rollout.concurrency=4", "eval.tasks=2",
            "rollout.max_length=640", "model.tiny.max_length=640", "eval.attempts=1",
            "sft.demonstrations=8", "sft.max_steps=2", "sft.batch=4", "sft.stop_at_success=",
        ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        outcome = asyncio.run(run(resolve("quickstart", changes), Path(folder) / "run"))
        summary = json.loads((outcome.folder / "eval" / "summary.json").read_text())
        steps = [json.loads(line) for line in (outcome.folder / "metrics.jsonl").read_text().splitlines()]
    before, after = (summary[when]["success"] for when in ("before", "after"))
    found = [{"what": "success before", "value": before}, {"what": "success after", "value": after}]
    for what, name in (("playing", "time/rollout_s"), ("learning", "time/learn_s")):
        found.append({"what": f"seconds of {what}", "value": sum(step.get(name, 0.0) for step in steps)})
    return [*found, {"what": "seconds", "value": outcome.seconds, "holds": small or after > before}]


def vllm(small: bool) -> list[dict[str, Any]]:
    """Lockstep is the in-process engine's, so that the run is not the same to the token."""
    import vllm  # noqa: F401  # pyright: ignore[reportMissingImports]

    memory = "engine.gpu_memory_utilization=0.3"
    return quickstart(small, "engine.kind=vllm", "engine.dtype=float32", memory, "rollout.lockstep=false")


def logprobs(small: bool) -> list[dict[str, Any]]:
    """Replies are sampled by the in-process engine; the learner, and vLLM, then say how likely their tokens are."""
    found = []
    for dtype in ("float32", "bfloat16"):
        model, tokenizer = tiny_model(*((64, 2, 256) if small else (512, 8, 2048)))
        prompts, replies = sampled(model, tokenizer, dtype, 4 if small else 32, 16 if small else 256)
        there = learned(model, dtype, prompts, replies)
        found.append(compared(f"engine and learner, {dtype}", replies, there, TOLERANCE[dtype]))
        if importlib.util.find_spec("vllm") is None:
            found.append({"what": f"engine and vLLM, {dtype}", "skipped": "not installed: vllm"})
        else:
            there = by_vllm(model, tokenizer, dtype, prompts, replies)
            found.append(compared(f"engine and vLLM, {dtype}", replies, there, VLLM_TOLERANCE[dtype]))
    return found


def sampled(model: Any, tokenizer: Any, dtype: Any, count: int, tokens: int) -> tuple[list[list[int]], list[Any]]:
    """(prompts, completions)"""
    import numpy as np

    from agentgym_trainers.engines.base import Sampling
    from agentgym_trainers.engines.inprocess import InProcessEngine
    from agentgym_trainers.nn.precision import cast

    rng = np.random.default_rng(0)
    shared = rng.integers(3, len(tokenizer), 24).tolist()
    prompts = [[*shared, *rng.integers(3, len(tokenizer), 8 + i % 8).tolist()] for i in range(count)]
    length = model.config.max_position_embeddings
    engine = InProcessEngine(cast(copy.deepcopy(model), dtype), max_sequences=count, max_length=length)

    async def play() -> list[Any]:
        talks = [engine.open(np.random.default_rng(i)) for i in range(count)]
        completions = await asyncio.gather(
            *(talk.generate(prompt, Sampling(1.0, tokens, ())) for talk, prompt in zip(talks, prompts, strict=True))
        )
        for talk in talks:
            talk.close()
        return completions

    try:
        return prompts, asyncio.run(play())
    finally:
        engine.shutdown()


def learned(model: Any, dtype: Any, prompts: list[list[int]], replies: list[Any]) -> list[float]:
    """What the learner says of the tokens, all replies packed as a tree."""
    import numpy as np
    import torch

    from agentgym_trainers.data.sequences import Row
    from agentgym_trainers.nn.attention import use_packed_attention
    from agentgym_trainers.nn.forward import pack, token_logprobs
    from agentgym_trainers.nn.precision import autocast

    rows, done = [], 0
    for m, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
        at = np.arange(len(prompt), len(prompt) + len(reply.ids))
        rows.append(Row(np.array([*prompt, *reply.ids]), at, done + np.arange(len(at)), m, False))
        done += len(at)
    use_packed_attention(model)
    with torch.no_grad(), autocast(model, dtype):
        packed = pack(rows, model)
        found = np.zeros(done)
        found[packed.index] = token_logprobs(model, packed).logprob.cpu().numpy()
    return found.tolist()


def by_vllm(model: Any, tokenizer: Any, dtype: str, prompts: list[list[int]], replies: list[Any]) -> list[float]:
    """What vLLM says of the tokens when they are its prompt."""
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        llm = LLM(folder, dtype=dtype, gpu_memory_utilization=0.3, max_model_len=model.config.max_position_embeddings)
        prompts_with_replies: Any = [{"prompt_token_ids": [*p, *r.ids]} for p, r in zip(prompts, replies, strict=True)]
        outputs = llm.generate(prompts_with_replies, SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False)
    found = []
    for prompt, reply, one in zip(prompts, replies, outputs, strict=True):
        rest = one.prompt_logprobs[len(prompt) :]
        found += [entry[token].logprob for entry, token in zip(rest, reply.ids, strict=True)]
    return found


def compared(what: str, replies: list[Any], there: list[float], tolerance: float) -> dict[str, Any]:
    here = [number for reply in replies for number in reply.logprobs]
    gap = max(abs(a - b) for a, b in zip(here, there, strict=True))
    return {"what": f"{what}: greatest difference of {len(here)}", "value": gap, "holds": gap <= tolerance}


def attention(small: bool) -> list[dict[str, Any]]:
    """One layer's attention over a tree, and its gradients on CUDA."""
    import numpy as np
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from agentgym_trainers.nn.attention import Blocks
    from agentgym_trainers.nn.prefix_tree import tree_of

    rng, where = np.random.default_rng(0), device()
    trunk = rng.integers(0, 99, 20 if small else 700)
    tree = tree_of([np.concatenate([trunk, rng.integers(0, 99, len(trunk) // 2 + i)]) for i in range(4)])
    until, size, found = torch.from_numpy(tree.until_T).to(where), len(tree.keys_T), []
    place = torch.arange(size, device=where)
    mask = (place[None] <= place[:, None]) & (place[:, None] < until[None])
    learns = where == "cuda"  # on a CPU FlexAttention has no gradients
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        query = torch.randn(4, size, 64, device=where, dtype=dtype, requires_grad=learns)
        key, value = (torch.randn(2, size, 64, device=where, dtype=dtype, requires_grad=learns) for _ in range(2))
        out = Blocks(until, compiled=learns).attend(0, query, key, value, 0.125)
        dense = scaled_dot_product_attention(
            query[None], key[None], value[None], attn_mask=mask, scale=0.125, enable_gqa=True
        )[0]
        both = [(out, dense)]
        if learns:
            sides = (torch.autograd.grad(side.float().square().sum(), (query, key, value)) for side in (out, dense))
            both += zip(*sides, strict=True)
        gap = max(((a - b).abs().max() / b.abs().max()).item() for a, b in both)
        name, limit = str(dtype).removeprefix("torch."), 1e-3 if dtype is torch.float32 else 0.03
        what = f"FlexAttention and dense mask, {size} tokens, {name}: greatest relative difference"
        found.append({"what": what, "value": gap, "holds": gap <= limit})
    return found


def tree(small: bool) -> list[dict[str, Any]]:
    """benchmarks/tree.py as a command; its last lines are the result."""
    size = ["--turns", "2", "--rounds", "1", "--hidden", "64", "--layers", "1", "--budgets", "2048"]
    given = size if small else ["--hidden", "512", "--groups", "4", "--budgets", "4096", "16384"]
    command = [sys.executable, str(ROOT / "benchmarks" / "tree.py"), "--device", device(), *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    if "claim:" not in done.stdout:
        raise RuntimeError(done.stderr[-2000:])
    return [{"what": line.strip()} for line in done.stdout.splitlines()] + [
        {"what": "claim", "holds": small or done.returncode == 0}
    ]


def learner(small: bool) -> list[dict[str, Any]]:
    import gpu_speed

    return gpu_speed.learner(small)


def rollouts(small: bool) -> list[dict[str, Any]]:
    import gpu_speed

    return gpu_speed.rollouts(small)


def sync(small: bool) -> list[dict[str, Any]]:
    import gpu_speed

    return gpu_speed.sync(small)


PARTS = {f.__name__: f for f in (quickstart, vllm, logprobs, attention, tree, learner, rollouts, sync)}


def carry_out(name: str, out: Path) -> None:
    """Run a part and keep its result. A part that a package was missing for is tried again next time."""
    began = perf_counter()
    result: dict[str, Any] = {"part": name, "device": "unknown", "finished": False}
    try:
        import torch

        small = device() == "cpu"
        result["device"] = "CPU, miniature" if small else torch.cuda.get_device_name()
        register()
        result |= {"rows": PARTS[name](small), "finished": True}
    except ModuleNotFoundError as error:
        result["rows"] = [{"what": name, "skipped": f"needs {error.name}"}]
    except Exception as error:  # noqa: BLE001 - the table shows it, and the other parts still run
        traceback.print_exc()
        last = f"{type(error).__name__}: {error}".strip().splitlines()[-1]
        result["rows"] = [{"what": f"{name}: {last}", "holds": False}]
    result["seconds"] = perf_counter() - began
    partial = out / f".{name}.json"
    partial.write_text(json.dumps(result, indent=1))
    partial.replace(out / f"{name}.json")


def finished(path: Path) -> bool:
    return path.is_file() and json.loads(path.read_text())["finished"]


def table(out: Path) -> bool:
    """Print every result; whether all of them hold."""
    good = True
    for name in PARTS:
        path = out / f"{name}.json"
        if not path.is_file():
            print(f"{name}: no result")
            good = False
            continue
        result = json.loads(path.read_text())
        print(f"{name} ({result['device']}, {result['seconds']:.0f} s)")
        for row in result["rows"]:
            value = f"{row['value']:.3g}" if "value" in row else ""
            holds = {True: "holds", False: "DOES NOT HOLD"}.get(row.get("holds"), "")
            good = good and row.get("holds") is not False
            line = "  ".join(filter(None, [row["what"], value, holds]))
            print(f"  {line}" + (f"  skipped: {row['skipped']}" if "skipped" in row else ""))
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=list(PARTS), nargs="+", help="these alone, in this process")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.part is not None:
        for name in args.part:
            if not finished(args.out / f"{name}.json"):
                carry_out(name, args.out)
            print((args.out / f"{name}.json").read_text())
        return 0
    for name in (name for name in PARTS if not finished(args.out / f"{name}.json")):
        command = [sys.executable, __file__, "--part", name, "--out", str(args.out)]
        with contextlib.suppress(subprocess.TimeoutExpired):  # the table says that there is no result
            subprocess.run(command, stdout=subprocess.DEVNULL, timeout=SECONDS)
    return 0 if table(args.out) else 1


if __name__ == "__main__":
    raise SystemExit(main())
