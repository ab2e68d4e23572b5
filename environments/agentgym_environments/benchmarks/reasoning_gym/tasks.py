"""Data sets of reasoning-gym that are environments, and the question of a task."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from agentgym.errors import ConfigError
from agentgym_environments.base.engine_env import package, require_int
from agentgym_environments.base.text_env import split_of, task_random
from agentgym_environments.benchmarks.reasoning_gym.checks import only_literals

LEFT_OUT = {
    "arc_agi": "a question takes seconds to make",
    "composite": "it mixes others: name one of them",
    "futoshiki": "a question may take a minute to make",
    "game_of_life_halting": "its verifier accepts any answer",
    "puzzle24": "its verifier accepts the solution of any other question",
}

NO_SOLVER = frozenset({"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"})
"""Their verifiers do not accept the answer that is stored (most store none)."""

UNSTEADY = frozenset(
    {"isomorphic_strings", "knight_swap", "list_functions", "polynomial_multiplication", "ransom_note"}
)
"""Their questions follow the order of Python's sets, which is another in every process (PYTHONHASHSEED)."""

UNSOLVED = "Integral("
"""Mark of a stored answer that solves nothing: one in ten of intermediate_integration repeats the question."""

TRIES = 400
"""Questions drawn until one belongs to a split that has a tenth of them: 0.9 ** 400 is 5e-19."""


def names() -> list[str]:
    """Every data set that is an environment."""
    return sorted(set(package("reasoning_gym.factory", "reasoning-gym").DATASETS) - set(LEFT_OUT))


def require(dataset: str, level: int | None) -> None:
    """Raises ConfigError when there is no such data set, or it has no such level."""
    if dataset in LEFT_OUT:
        raise ConfigError(f"reasoning-gym: {dataset} is no environment here: {LEFT_OUT[dataset]}")
    if dataset not in names():
        raise ConfigError(f"reasoning-gym has no data set {dataset!r}; it has {', '.join(names())}")
    if dataset == "bf":  # its compiler prints a dot a question
        package("reasoning_gym.code.contrib.bfit.Compiler.Optimizer", "reasoning-gym").print = lambda *text, **how: None
    only_literals(dataset)
    if level is None:
        return
    factory = package("reasoning_gym.factory", "reasoning-gym")
    if not factory.has_curriculum(dataset):
        raise ConfigError(f"reasoning-gym: {dataset} has no levels; leave `level` out")
    highest = max(len(settings.levels) for settings in factory.create_curriculum(dataset).attributes.values()) - 1
    require_int("reasoning-gym", f"level of {dataset}", level, 0, highest)
    try:
        make(dataset, level, 0)
    except Exception as error:  # a curriculum may go further than its own data set allows
        raise ConfigError(f"reasoning-gym: {dataset} cannot be made at level {level}: {error}") from error


def make(dataset: str, level: int | None, seed: int) -> Any:
    """The data set of one question that this seed gives."""
    factory = package("reasoning_gym.factory", "reasoning-gym")
    if level is None:
        return factory.create_dataset(dataset, seed=seed, size=1)
    curriculum = factory.create_curriculum(dataset)
    curriculum.set_global_level(level)
    settings = curriculum.generate_configuration({"seed": seed, "size": 1})
    return factory.DATASETS[dataset][0](config=settings)


@lru_cache(maxsize=64)
def question(dataset: str, level: int | None, split: str, task: int) -> tuple[Any, dict[str, Any]]:
    """(the data set, which scores; the entry with "question", "answer" and "metadata") of a task."""
    random = task_random("reasoning-gym", dataset, level if level is not None else "default", split, task)
    for _ in range(TRIES):
        made = make(dataset, level, random.randrange(2**31))
        entry = made[0]
        if split_of(entry["question"]) == split and UNSOLVED not in str(entry["answer"]):
            return made, entry
    raise ConfigError(f"reasoning-gym: {dataset} has too few questions for a {split} split")
