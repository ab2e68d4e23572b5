"""What cannot be spread over machines is refused at the start. Ray is not needed here; tests/scale has the rest."""

from __future__ import annotations

from dataclasses import replace
from importlib import util
from typing import Any

import pytest

from agentgym.errors import ConfigError, MissingDependency
from agentgym_trainers.distributed.options import RayOptions
from agentgym_trainers.distributed.ray_cluster import Cluster
from agentgym_trainers.recipe import resolve
from agentgym_trainers.signals import SIGNALS


@pytest.mark.parametrize(
    ("recipe", "overrides", "why"),
    [
        ("gigpo", ["scale.learners=0"], "scale.learners"),
        ("gigpo", ["scale.learners=6", "scale.replicas=4"], "scale.replicas = 4 must divide scale.learners = 6"),
        ("gigpo", ["scale.learner=2"], r"unknown option 'scale.learner' \(did you mean 'learners'\?\)"),
        ("spiral", [], r'source.kind must be "online" or "external_agent", not \'selfplay\''),
        (
            "gigpo",
            ["source={kind='external_agent', command='true'}", "rollout.lockstep=false", "signals.branched_value={}"],
            r"\[signals.branched_value\] plays on from visited states, and .* workers have no environment",
        ),
        ("gigpo", ["scale.workers=500"], "rollout.concurrency must be at least scale.workers, 500"),
        ("gigpo", ["scale.servers=1"], "scale.servers are vLLM's"),
        ("gigpo", ["engine.kind=vllm"], "either placed .* or named"),
        ("gigpo", ["engine.kind=vllm", "engine.urls=['http://a']", "scale.servers=1"], "either placed .* or named"),
    ],
)
def test_what_cannot_be_spread_is_refused(recipe: str, overrides: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        resolve(recipe, ["scale.kind=ray", *overrides])


def test_what_can_be_spread_is_taken() -> None:
    assert resolve("gigpo", ["scale.kind=ray", "scale.learners=4"]).scale == RayOptions(kind="ray", learners=4)
    more: Any = ["scale.kind=ray", "engine.kind=vllm", "scale.servers=2", "rollout.lockstep=false"]
    assert resolve("gigpo", more).scale.servers == 2  # type: ignore[union-attr]


def test_signals_are_spread_unless_they_hide_their_models(monkeypatch) -> None:
    names = [name for name in SIGNALS if name not in ("judge", "digiq")]
    tables = [f"signals.{name}={{}}" for name in names]
    assert list(resolve("gigpo", ["scale.kind=ray", *tables, "signals.twin.actor=rollout"]).signals) == names
    greedy = ["signals.twin=", "signals.digiq={}", "credit.assigner=digiq"]
    assert list(resolve("archer", ["scale.kind=ray", *greedy]).signals) == ["digiq"]
    monkeypatch.setitem(SIGNALS, "own", replace(SIGNALS["uncertainty"], learned=None))
    with pytest.raises(ConfigError, match=r"\[signals.own\] reads the policy's weights, .* \(`learned`\)"):
        resolve("gigpo", ["scale.kind=ray", "signals.own={}"])


@pytest.mark.skipif(util.find_spec("ray") is not None, reason="Ray is installed here")
def test_without_ray_one_sentence_says_what_to_install() -> None:
    with pytest.raises(MissingDependency, match=r"\[scale\] needs Ray: pip install 'turngym\[ray\]'"):
        Cluster(RayOptions(kind="ray"))
