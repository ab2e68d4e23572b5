"""What is refused before a run starts, what stops it, and what it prints where there is no terminal."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from agentgym import registry
from agentgym.cli.main import main
from agentgym.errors import CheckpointError, ConfigError, GuardTripped, MissingDependency, UsageError
from agentgym.rollouts.trajectory import StopReason
from agentgym_trainers.monitoring.guards import check_context
from agentgym_trainers.monitoring.progress import Phases
from agentgym_trainers.preflight import check_start
from agentgym_trainers.recipe import NamedEnv, resolve
from agentgym_trainers.rollout.environment import check_spec
from agentgym_trainers.run import locked

MICRO = ["env.name=oracle", "env.serve=false", "eval.split=train", "eval.tasks=1", "sft.demonstrations=4"]
Refused = Callable[..., str]


@pytest.fixture
def refused(capsys, tmp_path, monkeypatch) -> Refused:
    """refused("train", ...) -> the sentence, of a command that must end with status 2."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> str:
        status: object = 0
        try:
            main(arguments)
        except SystemExit as end:
            status = end.code
        error_text = capsys.readouterr().err
        assert status == 2, error_text
        assert "Traceback" not in error_text
        return error_text

    return command


@pytest.mark.parametrize(
    ("override", "error", "message"),
    [
        ("env.name=keydor", UsageError, "no environment is called 'keydor'. Did you mean keydoor"),
        ("eval.tasks=99", ConfigError, "eval.tasks is 99; keydoor has 74 tasks in 'test': set eval.tasks=74"),
        ("model.path=/nope", CheckpointError, "model.path: there is no folder /nope"),
        ("env.name=wordle", ConfigError, "wordle lists no actions to draw from: set sft.noise=0"),
    ],
)
def test_certain_failures_are_refused_at_start(override, error, message) -> None:
    with pytest.raises(error, match=re.escape(message)):
        check_start(resolve("gigpo", [override]))


def test_a_missing_offline_file_is_refused_at_start() -> None:
    overrides = ["source.kind=offline", "source.path=nowhere.jsonl", "rollout.lockstep=false"]
    with pytest.raises(ConfigError, match=r"source\.path: there is no file nowhere\.jsonl"):
        check_start(resolve("gigpo", overrides))


def test_missing_ray_is_refused_at_start(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependency, match="needs Ray: pip install"):
        check_start(resolve("gigpo", ["scale.kind=ray"]))


def test_warm_up_without_a_solver_is_refused() -> None:
    chosen = resolve("quickstart", ["env.name=oracle", "eval.split=train", "eval.tasks=1"])
    spec = registry.get_spec("oracle")
    bare = spec.model_copy(update={"capabilities": tuple(c for c in spec.capabilities if c != "solver")})
    with pytest.raises(ConfigError, match=r"oracle has no scripted solver .* sft= to train without a warm-up"):
        check_spec(chosen, bare)
    check_spec(chosen.model_copy(update={"sft": None}), bare)


def test_a_warm_up_on_a_file_needs_the_file_and_no_solver(tmp_path) -> None:
    spec = registry.get_spec("oracle")
    bare = spec.model_copy(update={"capabilities": tuple(c for c in spec.capabilities if c != "solver")})
    base = ["env.name=oracle", "eval.split=train", "eval.tasks=1", f"sft.path={tmp_path / 'shown.jsonl'}"]
    with pytest.raises(ConfigError, match=r"sft\.path: there is no file .*shown\.jsonl"):
        check_spec(resolve("quickstart", [*base, "sft.noise=0"]), bare)
    (tmp_path / "shown.jsonl").touch()
    with pytest.raises(ConfigError, match=r"sft\.path has no solver: set sft\.noise=0"):
        check_spec(resolve("quickstart", base), bare)
    check_spec(resolve("quickstart", [*base, "sft.noise=0"]), bare)


def test_a_refused_command_leaves_no_folder(refused, tmp_path) -> None:
    error_text = refused("train", "quickstart", "--out", "run", "model.path=/nope")
    assert "there is no folder /nope" in error_text
    assert not (tmp_path / "run").exists()


def test_a_first_prompt_that_does_not_fit_is_refused(refused, tmp_path) -> None:
    error_text = refused("train", "quickstart", "--out", "run", *MICRO, "rollout.max_length=20")
    assert "first prompt of oracle's task 0 (train) has more than 20 tokens, and with a response of 8" in error_text
    assert "raise rollout.max_length and model.tiny.max_length" in error_text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("out", ["/proc/x", "file/x"])
def test_a_folder_that_cannot_be_made_is_a_sentence(refused, tmp_path, out) -> None:
    (tmp_path / "file").write_text("")
    error_text = refused("train", "quickstart", "--out", out, *MICRO)
    assert error_text.startswith(f"error: {out} cannot be a run's folder (")


def test_a_second_trainer_in_a_folder_is_refused(tmp_path) -> None:
    with (
        locked(tmp_path / "run"),
        pytest.raises(UsageError, match=r"another process trains in .*run; wait"),
        locked(tmp_path / "run"),
    ):
        pass
    with locked(tmp_path / "run"):  # free again
        pass


def test_mostly_full_contexts_stop_the_run() -> None:
    chosen = resolve("quickstart")
    half = [StopReason.CONTEXT_FULL, StopReason.TERMINATED]
    check_context(half, "step 1", chosen)
    with pytest.raises(GuardTripped, match=r"2 of 3 episodes of step 1 .* rollout\.max_length is 320; raise"):
        check_context([*half, StopReason.CONTEXT_FULL], "step 1", chosen)


def test_without_a_terminal_each_phase_prints_lines() -> None:
    text = io.StringIO()
    with Phases(line_s=0.0, console=Console(file=text, width=120)) as progress:
        bar = progress.add_task("training", total=3)
        for _ in range(3):
            progress.update(bar, advance=1)
    lines = text.getvalue().splitlines()
    assert [line.partition(",")[0] for line in lines] == ["training: 1 of 3", "training: 2 of 3", "training: 3 of 3"]


def test_the_example_in_the_help_resolves(capsys) -> None:
    main(["train", "--help"])
    name = re.search(r"--env ([a-z][\w-]+)", capsys.readouterr().out)
    assert name is not None
    check_start(resolve("gigpo", env=NamedEnv(name[1], registry.get_spec(name[1]))))


def test_the_scaffold_s_train_line_resolves(tmp_path) -> None:
    from agentgym.cli.new_env import new_env
    from agentgym.spec import EnvSpec

    new_env("row-sort-two", tmp_path)
    (line,) = [x for x in Path(tmp_path / "README.md").read_text().splitlines() if x.startswith("agentgym train")]
    assert line == "agentgym train quickstart --env row-sort-two"
    spec = EnvSpec.load(tmp_path / "row_sort_two" / "spec.toml")
    check_spec(resolve("quickstart", env=NamedEnv(spec.id, spec)), spec)
