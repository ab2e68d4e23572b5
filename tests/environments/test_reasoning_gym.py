"""Answers that use a verifier of reasoning-gym: they run no code and earn nothing."""

from __future__ import annotations

import pytest

from agentgym import registry
from agentgym_environments.benchmarks.reasoning_gym.checks import EVALUATED, FORMULAS


def begin(dataset, task=0):
    env = registry.make(f"reasoning-gym:dataset={dataset}")
    env.reset(options={"task": task})
    return env


@pytest.mark.parametrize("dataset", sorted([*EVALUATED, *FORMULAS]))
def test_an_answer_is_not_run_as_code(dataset, tmp_path):
    """Eight verifiers give an answer to `eval` or to sympy's parser."""
    mark = tmp_path / "ran"
    _, reward, *_ = begin(dataset).step(f"__import__('os').mkdir({str(mark)!r})")
    assert (reward, mark.exists()) == (0.0, False)


@pytest.mark.parametrize("dataset", sorted([*EVALUATED, *FORMULAS]))
def test_stored_answers_pass_the_checks(dataset):
    for task in range(3):
        env = begin(dataset, task)
        assert env.step(env.solver())[1] == 1.0


@pytest.mark.parametrize("dataset", ["countdown", "polynomial_multiplication", "simple_integration"])
@pytest.mark.parametrize(
    "answer", ["9**9**9", "2**'x'", "2**None", "((9**99)**99)**99", "-" * 50_000 + "1", "9" * 300 + "!"]
)
def test_what_is_no_number_or_too_large_is_wrong(dataset, answer):
    assert begin(dataset).step(answer)[1] == 0.0


@pytest.mark.parametrize("dataset", ["simple_integration", "intermediate_integration"])
def test_an_integral_that_repeats_the_question_is_wrong(dataset):
    for task in range(4):
        env = begin(dataset, task)
        facts = env._entry["metadata"]
        assert "Integral" not in env.solver()
        assert env.step(f"Integral({facts['integrand']}, {facts['variable']})")[1] == 0.0


@pytest.mark.parametrize(
    ("dataset", "answer"), [("coin_flip", "0"), ("complex_arithmetic", "nan"), ("complex_arithmetic", "nan+nanj")]
)
def test_one_answer_does_not_fit_every_question(dataset, answer):
    assert sum(begin(dataset, task).step(answer)[1] for task in range(20)) == 0.0


def test_a_word_spelled_backward_has_nothing_after_it():
    for task in range(10):  # of some lengths the verifier's sum of shares is 0.9999, of others 1
        right = begin("spell_backward", task).solver()
        for answer, reward in ((right.upper(), 1.0), (right + "x", 0.0), (f"{right} {right}", 0.0), (right[:-1], 0.0)):
            assert begin("spell_backward", task).step(answer)[1] == reward, answer


def test_a_probability_may_be_a_fraction_or_rounded():
    env = begin("coin_flip", 1)
    right = float(env.solver())
    for answer in (f"{right + 5e-5}", f"{int(right * 2**20)}/{2**20}"):
        assert begin("coin_flip", 1).step(answer)[1] == 1.0
