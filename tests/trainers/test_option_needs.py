"""Every value of every option: a part runs on a batch that has just what the part says it needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import UnionType
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
import torch

from agentgym.errors import ConfigError
from agentgym_credit.batch import Batch
from agentgym_trainers.credit import ASSIGNERS
from agentgym_trainers.data.filters import SELECTORS
from agentgym_trainers.data.reward_shaping import SHAPERS
from agentgym_trainers.losses import OBJECTIVES
from agentgym_trainers.recipe import resolve
from agentgym_trainers.testing import random_batch
from agentgym_trainers.validate import ALWAYS


def choices(annotation: Any) -> list[Any]:
    """The values that an annotation lists; numbers are left at their default."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if get_origin(annotation) is UnionType:
        return [value for part in get_args(annotation) for value in choices(part)]
    return {bool: [False, True], type(None): [None]}.get(annotation, [])


def cases(parts: dict[str, Any]) -> list[Any]:
    """(name, options) of each part: the defaults, and each listed value of each option beside the others' defaults."""
    found = []
    for name, part in parts.items():
        parameters = inspect.signature(part.function, eval_str=True).parameters.values()
        own = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        defaults = {p.name: p.default for p in own if p.default is not p.empty}
        found.append(pytest.param(name, defaults, id=name))
        for p in own:
            for value in choices(p.annotation):
                if value != p.default:
                    found.append(pytest.param(name, {**defaults, p.name: value}, id=f"{name}-{p.name}={value}"))
    return found


def batch_with(needs: frozenset[str]) -> Batch:
    """A batch with no column but those that are needed or always there."""
    batch = random_batch(np.random.default_rng(3), group_size=3)
    known = {name: column for name, column in batch.x.items() if name in needs | ALWAYS}
    known |= {"reply_M": np.arange(len(batch.group_M))}  # the selection adds it for every selector
    return Batch(
        batch.group_M, batch.traj_N, batch.reward_N, batch.turn_A, batch.truncated_M, batch.anchor_N,
        batch.logprob_A, known,
    )  # fmt: skip


def required(function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """The options, and 8 for those that have no default."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: 8 for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty} | options


@pytest.mark.parametrize(("name", "options"), cases(ASSIGNERS))
def test_each_assigner_option_reads_only_declared_needs(name, options) -> None:
    batch = batch_with(ASSIGNERS[name].needs_with(options))
    credit = ASSIGNERS[name].function(batch, **required(ASSIGNERS[name].function, options))
    assert len(credit.advantage_A) == len(batch.turn_A)


@pytest.mark.parametrize(("name", "options"), cases(SHAPERS))
def test_each_shaper_option_reads_only_declared_needs(name, options) -> None:
    batch = batch_with(SHAPERS[name].needs)
    assert len(SHAPERS[name].function(batch, **required(SHAPERS[name].function, options))) == len(batch.traj_N)


@pytest.mark.parametrize(("name", "options"), cases(SELECTORS))
def test_each_selector_option_reads_only_declared_needs(name, options) -> None:
    selector = SELECTORS[name]
    batch = batch_with(selector.needs)
    past = (batch.return_M,) if "past" in selector.needs else ()
    assert len(selector.function(batch, *past, **required(selector.function, options))) == len(batch.group_M)


@pytest.mark.parametrize(("name", "options"), cases(OBJECTIVES))
def test_each_objective_option_reads_only_declared_needs(name, options) -> None:
    objective = OBJECTIVES[name]
    batch = batch_with(objective.needs_with(options))
    old = torch.from_numpy(batch.logprob_A.astype(np.float32))
    new = (old + 0.1).requires_grad_()
    advantage, weights = torch.ones(len(old)), torch.full((len(old),), 1 / len(old))
    given = (new, old, advantage) if objective.unit == "token" else (new, old, batch, advantage, weights)
    loss, _ = objective.function(*given, **required(objective.function, options))
    loss.sum().backward()
    assert new.grad is not None


JUDGE = ("signals.judge.url=http://127.0.0.1:9/v1", "signals.judge.model=m")


def test_weights_by_judged_steps_are_refused_without_a_judge() -> None:
    with pytest.raises(ConfigError, match=r"loss\.objective = 'dpo' reads judge_N.*add \[signals\.judge\]"):
        resolve("eto", ["loss.weigh=steps"])
    assert resolve("eto", ["loss.weigh=steps", *JUDGE]).loss.options["weigh"] == "steps"


@pytest.mark.parametrize("name", ["spea", "recalibrated"])
def test_an_assigner_that_no_recipe_can_feed_is_refused(name) -> None:
    with pytest.raises(ConfigError, match=f"there is no assigner '{name}'"):
        resolve("grpo", [f"credit.assigner={name}"])
