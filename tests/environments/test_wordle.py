"""Wordle: the marks, the lists, the solver."""

from __future__ import annotations

import time

import numpy as np
import pytest

from agentgym import registry
from agentgym.errors import ConfigError
from agentgym_environments.diagnostics.wordle.feedback import feedback, patterns
from agentgym_environments.diagnostics.wordle.solver import letters
from agentgym_environments.diagnostics.wordle.tasks import shuffled, words


@pytest.mark.parametrize(
    ("guess", "answer", "marks"),
    [
        ("crane", "crane", "GGGGG"),
        ("speed", "abide", "--Y-Y"),  # one e in the answer: the second of the guess is not marked
        ("speed", "erase", "Y-YY-"),
        ("eerie", "where", "Y-Y-G"),  # the e in its place is marked first, one e is left
        ("allow", "llama", "YGY--"),
        ("lolly", "hello", "-YGG-"),
        ("aaaaa", "banal", "-G-G-"),
        ("xylyl", "pizza", "-----"),
    ],
)
def test_marks_count_repeated_letters(guess, answer, marks):
    assert feedback(guess, answer) == marks


def test_the_solvers_patterns_are_the_same_marks():
    random = np.random.default_rng(0)
    some = (*random.choice(words("guesses5"), 60), "eerie", "mamma", "llama", "allow", "geese")
    table = patterns(letters(some), letters(some))
    for g, guess in enumerate(some):
        for a, answer in enumerate(some):
            assert table[g, a] == int(feedback(guess, answer).translate(str.maketrans("-YG", "012")), 3)


@pytest.mark.parametrize(
    ("name", "length", "count"), [("answers5", 5, 2157), ("guesses5", 5, 4633), ("answers4", 4, 269)]
)
def test_the_lists(name, length, count):
    some = words(name)
    assert len(some) == len(set(some)) == count
    assert list(some) == sorted(some)
    assert all(len(word) == length and word.isascii() and word.islower() for word in some)
    assert name != "guesses5" or set(words("answers5")) <= set(some)


def test_a_game():
    env = registry.make("wordle")
    task = shuffled("answers5").index("moody") - 1900
    observation, _ = env.reset(options={"split": "test", "task": task})
    assert observation == "a word of 5 letters, 6 guesses left"
    observation, reward, *_, info = env.step("bumpy")
    assert observation == "bumpy --Y-G\na word of 5 letters, 5 guesses left"
    assert (reward, info["progress"], info["state_key"]) == (0.0, 0.2, "moody bumpy")
    observation, reward, *_, info = env.step("qqqqq")
    assert observation.startswith("not in the list of words of 5 letters\nbumpy --Y-G")
    assert not info["valid_action"]
    observation, reward, terminated, truncated, info = env.step("moody")
    assert observation == "bumpy --Y-G\nmoody GGGGG\nsolved"
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)


def test_the_last_guess_is_a_loss_and_shows_the_word():
    env = registry.make("wordle-mini")
    env.reset(seed=0)
    wrong = next(word for word in words("answers4") if word != env.answer)
    steps = [env.step(wrong) for _ in range(6)]
    assert steps[-1][1:4] == (0.0, True, False)
    assert steps[-1][0].endswith(f"the word was {env.answer}")


def test_the_solver_wins_nearly_always_and_is_quick():
    env = registry.make("wordle")
    won, slowest = 0, 0.0
    tasks = range(0, 1700, 40)
    for task in tasks:
        env.reset(options={"task": task})
        over = False
        while not over:
            began = time.process_time()
            guess = env.solver()
            slowest = max(slowest, time.process_time() - began)
            *_, terminated, truncated, info = env.step(guess)
            over = terminated or truncated
        won += info["success"]
    assert won / len(tasks) >= 0.95
    assert slowest < 0.25  # measured 0.04; a busy machine is allowed more


def test_more_tasks_than_words_are_refused():
    spec = registry.get_spec("wordle-mini")
    with pytest.raises(ConfigError, match="more tasks than the 269 words"):
        type(registry.make("wordle-mini"))(spec.model_copy(update={"splits": {"train": 300}}), answers="answers4")


def test_a_list_of_words_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="no list of words 'answers9'; there are answers4, answers5, guesses5"):
        registry.make("wordle:answers=answers9")


def test_the_instructions_say_which_words_there_are():
    for name in ("wordle", "wordle-mini"):
        assert "A word that is not in the list costs a turn." in registry.get_spec(name).instructions
    letters_in_use = " ".join(sorted(set("".join(words("answers4")))))
    assert f"each is one of {letters_in_use}." in registry.get_spec("wordle-mini").instructions
