"""A policy as the command line names it: human, random, solver, a checkpoint's folder or a URL."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym.errors import CheckpointError, UsageError
from agentgym.rollouts.prompt_format import PromptFormat

if TYPE_CHECKING:
    from agentgym.rollouts.policy import Policy

GRAMMARS = ("auto", "last_line", "tagged", "tool_call")


def named_policy(
    what: str,
    grammar: Any = None,
    *,
    model: str | None = None,
    temperature: float | None = None,
    max_new_tokens: int | None = None,
    concurrency: int = 1,
) -> tuple[Policy, str, PromptFormat]:
    """(policy, what identifies it, its prompt format) of a name, a URL or a checkpoint. A checkpoint's prompt format is
    the one that it was trained with; `grammar`, when given, overrides it."""
    from agentgym.rollouts import policy as policies

    change = {} if grammar is None else {"grammar": grammar}
    named = {"human": policies.HumanPolicy, "random": policies.RandomPolicy, "solver": policies.SolverPolicy}
    if what in named:
        if temperature is not None or max_new_tokens is not None:
            raise UsageError(f"{what} is no model: --temperature and --max-new-tokens go with a checkpoint or a URL")
        return named[what](), what, PromptFormat(**change)
    if "://" in what:
        from agentgym.rollouts.openai_policy import OpenAIPolicy

        if model is None:
            raise UsageError(f"name the model that {what} should run: --model NAME")
        key = os.environ.get("OPENAI_API_KEY")
        remote = OpenAIPolicy(what, model, api_key=key, temperature=temperature, max_tokens=max_new_tokens)
        options = {"temperature": temperature, "max_new_tokens": max_new_tokens}
        given = "".join(f" {name}={value}" for name, value in options.items() if value is not None)
        return remote, f"{model} at {what}{given}", PromptFormat(**change)
    require_checkpoint(Path(what), list(named))
    from agentgym_trainers.load import checkpoint_policy

    loaded = checkpoint_policy(
        Path(what), temperature=temperature, max_new_tokens=max_new_tokens, max_sequences=concurrency
    )
    return loaded.policy, loaded.identity, loaded.prompt_format.model_copy(update=change)


async def close_policy(policy: Policy) -> None:
    """End the connections of a policy that has any."""
    from agentgym.rollouts.openai_policy import OpenAIPolicy

    if isinstance(policy, OpenAIPolicy):
        await policy.aclose()


def require_checkpoint(path: Path, names: Sequence[str] = ()) -> None:
    """Raises CheckpointError for what is no folder, and for a run's folder where one of its checkpoints is meant.

    `names` could have been said instead of a folder."""
    if not path.is_dir():
        instead = f", no URL and none of {', '.join(names)}" if names else ""
        there = sorted(other.name for other in path.parent.glob("step-*"))
        which = f": it does not exist; {path.parent} has {', '.join(there)}" if there else ""
        raise CheckpointError(f"{path} is no checkpoint's folder{instead}{which}")
    inside = sorted((path / "checkpoints").glob("step-*"))
    if inside:
        raise CheckpointError(f"{path} is a whole run; name one of its checkpoints, the newest is {inside[-1]}")
