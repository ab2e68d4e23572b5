"""An assigner of one's own: the example's numbers, and how a recipe finds, checks and refuses one.

The first half is what a test file of a new assigner looks like.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np
import pytest

from agentgym import registry
from agentgym.errors import ConfigError
from agentgym.session import LocalSession
from agentgym_credit.batch import Batch, Credit
from agentgym_trainers import testing
from agentgym_trainers.build import build
from agentgym_trainers.config.sections import CreditOptions
from agentgym_trainers.credit import ASSIGNERS, Assigner, needs
from agentgym_trainers.credit.assign import assign_credit
from agentgym_trainers.data.filters import SELECTORS
from agentgym_trainers.losses import OBJECTIVES
from agentgym_trainers.monitoring.metrics import MetricsLog
from agentgym_trainers.recipe import resolve, to_toml
from agentgym_trainers.testing import ORACLE_GRADIENT, random_batch, reorder, t4, toy_batch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def elsewhere(monkeypatch) -> Assigner:
    monkeypatch.syspath_prepend(EXAMPLES)
    yield ASSIGNERS["own_assigner:elsewhere"]
    sys.modules.pop("own_assigner")


def test_own_assigner_compares_with_others_at_the_same_state(elsewhere) -> None:
    """Who came through a place is compared with the others who did: the dead end sC is nobody's fault."""
    expected = [2 / 3, 1, 0, -2 / 3, -1 / 2, 0, 2 / 3, 0, -2 / 3, -1 / 2, 0]
    assert elsewhere.function(t4()).advantage_A == pytest.approx(np.array(expected))


def test_it_is_unbiased(elsewhere) -> None:
    """All pairs of the oracle environment's trajectories, each with its probability: the mean gradient is the exact
    one."""
    every = testing.oracle_trajectories()
    pairs = [(a, b) for a in every for b in every]
    batch = testing.oracle_batch([t for pair in pairs for t in pair], groups=np.repeat(np.arange(len(pairs)), 2))
    chance = np.repeat([a.probability * b.probability for a, b in pairs], 2) / 2
    gradient = chance @ testing.oracle_gradient_M(batch, elsewhere.function(batch))
    assert gradient == pytest.approx(ORACLE_GRADIENT)


def test_what_every_assigner_owes(elsewhere) -> None:
    batch = random_batch(rng := np.random.default_rng(0), group_size=3)
    permuted, _, old_A = reorder(batch, rng.permutation(len(batch.group_M)))
    assert elsewhere.function(permuted).advantage_A == pytest.approx(elsewhere.function(batch).advantage_A[old_A])
    alone = toy_batch([[0, 1]], anchors=[0, 1])
    assert elsewhere.function(alone).advantage_A.tolist() == [1, 1]  # K = 1: nobody to compare with
    equal = toy_batch([[0, 1], [1], [0, 0, 1]], anchors=[0, 1, 0, 0, 1, 2])
    assert elsewhere.function(equal).advantage_A.tolist() == [0] * 6


def test_a_recipe_names_it_and_its_needs_are_known(elsewhere) -> None:
    assert elsewhere.needs == {"groups", "anchors"}
    assert elsewhere.description.startswith("What is still to come, less what came for the other attempts")
    assert ASSIGNERS["gigpo"] is ASSIGNERS["gigpo"]


MODULE = """
from agentgym_trainers.credit import needs
Number = 3
def plain(batch): ...
def typed(batch, *, gamma: float = 1.0): ...
def untyped(batch, *, gamma=1.0): ...
def positional(batch, gamma: float = 1.0): ...
def required(batch, *, gamma: float): ...
def two(batch, other): ...
def no_input(*, gamma: float = 1.0): ...
"""


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("gigop", r"there is no assigner 'gigop' \(did you mean 'gigpo'\?\); there are .*package.module:name"),
        ("no_such_module:f", r"there is no module 'no_such_module' to import; install it, or put"),
        ("mine:absent", r"mine has no 'absent'"),
        ("mine:Number", r"'mine:Number' names something of type int; for the axis 'assigner' name a function"),
        ("mine:f()", r'is named "package.module:name"'),
        ("http://mine", r'is named "package.module:name"'),
        ("mine:untyped", r"keyword-only, with a type and a default, .* not so for gamma"),
        ("mine:positional", r"not so for gamma"),
        ("mine:required", r"not so for gamma"),
        ("mine:two", r"a function of the axis 'assigner' is called with batch, and this one takes batch, other: make"),
        ("mine:no_input", r"is called with batch, and this one takes nothing"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(name, sentence, tmp_path, monkeypatch) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    with pytest.raises(ValueError, match=sentence):
        ASSIGNERS[name]


OWN = """
import numpy as np
from agentgym_credit import Credit
def nothing(batch): ...
def array(batch): return np.zeros(len(batch.turn_A))
def numbers(batch): return Credit([0.0] * len(batch.turn_A))
def turns(batch): return Credit(batch.reward_N)
def weights(batch): return Credit(batch.reward_N[batch.turn_A], weight_A=np.ones(len(batch.turn_A)))
"""


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nothing", "returned None"),
        ("array", "returned something of type ndarray"),
        ("numbers", "returned an advantage_A of type list"),
        ("turns", r"returned an advantage_A of shape \(3,\)"),
        ("weights", "returned a weight_A, which is for importance weights and filters"),
    ],
)
def test_a_credit_of_another_shape_is_refused(name, problem, tmp_path, monkeypatch) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    batch = toy_batch([[0, 1], [1]], tokens=2)
    for options in ({"assigner": f"mine:{name}"}, {"terms": {"it": {"assigner": f"mine:{name}"}}}):
        with pytest.raises(ConfigError, match=rf"assigner = 'mine:{name}' {problem}: .* of shape \(6,\), one for each"):
            assign_credit(batch, CreditOptions.model_validate(options))


def test_selectors_and_objectives_have_inputs_of_their_own(tmp_path, monkeypatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from agentgym_trainers.config.registry import needs\n"
        "def loss(logprob_A, old_logprob_A, advantage_A): ...\n"
        "@needs('past')\ndef select(batch, past): ...\n"
        "def blind(batch, past): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    assert len(OBJECTIVES["mine:loss"].inputs) == 3
    assert SELECTORS["mine:select"].inputs == ("batch", "past")
    for axis, name in ((SELECTORS, "mine:blind"), (OBJECTIVES, "mine:blind"), (ASSIGNERS, "mine:loss")):
        with pytest.raises(ValueError, match=r"is called with .*, and this one takes"):
            axis[name]


def test_a_module_that_lacks_a_package_tells_its_own_error(tmp_path, monkeypatch) -> None:
    (tmp_path / "lacking.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        ASSIGNERS["lacking:f"]


def test_a_function_that_says_nothing_needs_nothing(tmp_path, monkeypatch) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    assert ASSIGNERS["mine:plain"].needs == ASSIGNERS["mine:typed"].needs == frozenset()

    @needs("value_N")
    def mine(batch: Batch) -> Credit:
        return Credit(batch.x["value_N"][batch.turn_A])

    assert Assigner(mine, mine.needs).needs == {"value_N"}


@pytest.mark.parametrize(
    "changes",
    [
        ["signals.own_signal:task_mean.initial=0.3", "select.kind=instruction"],
        ["credit.assigner=", "credit.terms.'per turn'.assigner=rloo", "credit.terms.größe.assigner=gigpo"],
        ['schedules."optim.lr"={kind="linear",start=1e-3,end=1e-4,steps=5}'],
    ],
)
def test_a_file_of_the_configuration_reads_back(changes, tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    config = resolve("grpo", changes)
    (tmp_path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    assert resolve(tmp_path / "config.toml") == config


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ("credit.omega=nan", "credit.omega: nan"),
        ("optim.lr=inf", "optim.lr: inf"),
        ('schedules."optim.lr"={kind="stages",values=[1,nan]}', "schedules.optim.lr.values.1: nan"),
    ],
)
def test_numbers_that_are_not_finite_are_refused(change, where) -> None:
    with pytest.raises(ConfigError, match=f"{where} is not a finite number"):
        resolve("gigpo", [change])


def test_values_and_their_assigner_are_discounted_alike() -> None:
    """Values that were measured with another discount are no baseline of these returns: the gradient is biased."""
    for change in ("credit.gamma=0.5", "signals.branched_value.gamma=0.5"):
        with pytest.raises(ConfigError, match=r"credit.gamma is .* and signals.branched_value.gamma .* set them alike"):
            resolve("vineppo", [change])
    resolve("vineppo", ["credit.gamma=0.5", "signals.branched_value.gamma=0.5"])


def test_a_potential_is_discounted_as_the_credit_is() -> None:
    """γ Φ(s') − Φ(s) telescopes in returns of the same γ only; in others it is a reward of its own."""
    for recipe, change in (
        ("state-score", "credit.gamma=0.9"),
        ("state-score", "shaping.potential.gamma=0.9"),
        ("ppo-turn", "shaping.potential.weight=1"),
        ("grpo", "shaping.potential.gamma=0.9"),
    ):
        with pytest.raises(
            ConfigError, match=r"shaping.potential.gamma is .* and credit(.gamma| does not) .* set them alike"
        ):
            resolve(recipe, [change])
    resolve("state-score", ["credit.gamma=0.9", "shaping.potential.gamma=0.9"])
    resolve("grpo", ["shaping.potential.weight=1"])


SMALL = [
    "credit.assigner=own_assigner:elsewhere", "env.name=oracle", "env.serve=false", "run.steps=2",
    "rollout.groups=2", "rollout.group_size=2", "rollout.max_new_tokens=4", "rollout.max_length=640",
]  # fmt: skip


def test_a_run_uses_it_without_an_edit_of_the_package(elsewhere, chatty, tokenizer, tmp_path) -> None:
    config = resolve("grpo", [*SMALL, "credit.gamma=0.5"])
    (tmp_path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    assert resolve(tmp_path / "config.toml") == config  # so a run can be resumed
    assert assign_credit(t4(), config.credit)[0].advantage_A == pytest.approx(
        elsewhere.function(t4(), gamma=0.5).advantage_A
    )

    async def open_session() -> LocalSession:
        return LocalSession(registry.make("oracle"))

    model = chatty()
    trainer = build(config, tmp_path, registry.get_spec("oracle"), open_session, model, model, tokenizer)
    asyncio.run(trainer.run(log := MetricsLog(tmp_path)))
    log.close()
    assert trainer.step == 2


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("rollout.group_size=1", r"credit.assigner = 'own_assigner:elsewhere' compares attempts at one task"),
        ("credit.gama=1", r"unknown option 'gama' \(did you mean 'gamma'\?\)"),
        ("credit.gamma=much", r"credit: gamma should be a valid number"),
        ("credit.assigner=own_assigner:elswhere", r"credit: 'own_assigner:elswhere': own_assigner has no"),
    ],
)
def test_a_recipe_that_does_not_fit_it_is_refused(elsewhere, override, sentence) -> None:
    with pytest.raises(ConfigError, match=sentence):
        resolve("grpo", [*SMALL, override])
