"""The command line: every verb through `main`, as a person types it, and every mistake as one sentence."""

from __future__ import annotations

import functools
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from agentgym import registry
from agentgym.cli.main import main
from agentgym.cli.recipes import Recipe, measured_text
from agentgym.cli.terminal import note_if_open
from agentgym.clients.gym import RemoteEnv

VERBS = [
    "quickstart",
    "train",
    "sft",
    "eval",
    "report",
    "play",
    "serve",
    "infer",
    "infer serve",
    "envs",
    "envs list",
    "envs show",
    "envs new",
    "envs check",
    "envs baselines",
    "recipes",
    "recipes list",
    "recipes show",
    "credit",
    "credit bench",
]

MICRO = [
    "env.name=oracle",
    "env.serve=false",
    "run.steps=2",
    "run.trajectories_every=1",
    "rollout.groups=2",
    "rollout.group_size=4",
    "rollout.concurrency=8",
    "sft.demonstrations=16",
    "sft.max_steps=4",
    "sft.batch=8",
    "sft.check_every=2",
    "eval.split=train",
    "eval.tasks=1",
    "eval.attempts=2",
    "model.tiny.hidden_size=32",
    "model.tiny.layers=1",
]
"""The quickstart, made as small as it can be."""

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capsys, tmp_path, monkeypatch) -> Say:
    """say("train", "--help") -> (exit status, standard output, standard error), in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = 0
        try:
            main(arguments)
        except SystemExit as end:
            status = end.code
        captured = capsys.readouterr()
        return int(status or 0), captured.out, captured.err

    return command


@pytest.fixture
def mistake(say) -> Callable[..., str]:
    """mistake("train", "x") -> the sentence that refuses it."""

    def command(*arguments: str) -> str:
        status, out, err = say(*arguments)
        assert status == 2, (status, out, err)
        assert "Traceback" not in err
        assert not out.strip()
        (sentence,) = [line for line in err.splitlines() if line.lower().startswith("error: ")]
        return sentence.partition(": ")[2]

    return command


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help(say, verb):
    status, out, _ = say(*verb.split(), "--help")
    assert status == 0
    assert "Usage: agentgym" in out
    if not verb:
        assert all(f"\n  {name}  " in out for name in VERBS if " " not in name)


def test_help_lists_what_can_be_named(say):
    recipes = say("train", "--help")[1].partition("Recipes:")[2]
    assert {"quickstart", "grpo", "gigpo"} <= {line[2:].partition(" ")[0] for line in recipes.splitlines()}
    help_of_eval = say("eval", "--help")[1]
    assert "smoke" in help_of_eval.partition("Suites:")[2]
    assert "agentgym eval compare A B" in help_of_eval
    assert "agentgym eval CHECKPOINT --suite SUITE" in help_of_eval


# --- environments
# -------------------------------------------------------------------------------------------------------


def test_envs_list_and_show(say):
    status, out, _ = say("envs", "list")
    assert status == 0
    assert set(registry.list_envs()) <= set(out.split())
    assert len(out.splitlines()) < 24, "it fits a screen"
    described = say("envs", "list", "")[1]
    for name in ("blackjack", "keydoor", "oracle", "sokoban", "wordle"):
        assert re.search(rf"^{name}  +\w", described, re.MULTILINE)
    assert len(described.splitlines()) == len(registry.list_envs()), "one line an environment"
    for_two = say("envs", "list", "--capability", "two_player")[1].splitlines()
    assert {line.split()[0] for line in for_two} >= {"kuhn-poker-self", "tic-tac-toe-self"}
    assert [line.split()[0] for line in say("envs", "list", "MEADOW")[1].splitlines()] == ["keydoor-meadow"]
    specs = json.loads(say("envs", "list", "--family", "games", "--json")[1])
    assert {spec["family"] for spec in specs.values()} == {"games"}
    assert specs["tic-tac-toe"]["splits"]
    status, out, _ = say("envs", "show", "agentgym.testing:EchoEnv")
    assert status == 0
    assert "Answer with exactly that word" in out


BROKEN = """
from agentgym_environments.diagnostics.oracle.env import Oracle
class Broken(Oracle):
    def solver(self):
        return "nonsense"
"""


def test_envs_check_passes_and_fails(say, tmp_path, monkeypatch):
    status, out, _ = say("envs", "check", "oracle", "--tasks", "2")
    assert status == 0
    assert out.splitlines()[-1] == "oracle keeps all 20 rules"
    (tmp_path / "broken_env.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    status, out, err = say("envs", "check", "broken_env:Broken", "--tasks", "2")
    assert status == 1
    assert re.search(r"^FAIL solver_wins: .*won 0 of 1 tasks", out, re.MULTILINE)
    assert err.startswith("error: broken_env:Broken breaks 1 of 20 rules")


EXAMPLES = Path(__file__).parents[2] / "examples"


def in_examples(*arguments: str) -> list[str]:
    """A command that, like the console script, does not have the working directory on `sys.path`."""
    return [sys.executable, "-P", "-m", "agentgym", *arguments]


@pytest.mark.parametrize(
    "arguments",
    [
        ("envs", "check", "guess_number:GuessNumber", "--tasks", "2"),
        ("envs", "show", "poles:Pole"),
        ("train", "gigpo", "--dry-run", "credit.assigner=own_assigner:elsewhere"),
    ],
)
def test_a_class_is_found_in_the_working_directory(arguments):
    done = subprocess.run(in_examples(*arguments), cwd=EXAMPLES, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_serve_finds_a_class_of_the_working_directory():
    command = in_examples("serve", "poles:Pole", "--port", "0", "--workers", "1")
    with subprocess.Popen(command, cwd=EXAMPLES, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        with RemoteEnv(url) as env:
            assert (env.env_spec.actions, env.env_spec.action_format) == (("left", "right"), "last_line")
            assert env.reset(seed=0)[0].startswith("cart at ")
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=20)


def test_play_by_the_solver_and_at_random(say):
    status, out, _ = say("play", "keydoor", "--policy", "solver", "--split", "test", "--task", "2")
    assert status == 0
    assert "[turn 0] key north east door east\n> go north" in out
    assert out.endswith("door open\nsuccess: score 1 in 7 turns (terminated)\n")
    status, out, _ = say("play", "oracle", "--policy", "random", "--seed", "3", "--grammar", "tagged")
    assert status == 0
    assert "> <action>" in out


def test_play_by_hand(say, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("left\ngold\ngold\n"))
    status, out, _ = say("play", "oracle")
    assert status == 0
    assert "actions: left, right" in out
    assert "success: score 1 in 3 turns (terminated)" in out
    monkeypatch.setattr("sys.stdin", io.StringIO("left\n"))
    status, _, err = say("play", "oracle")
    assert (status, err.strip()) == (2, "error: standard input ended before the episode did")


def test_serve_answers_and_stops_at_an_interrupt(tmp_path):
    command = [sys.executable, "-m", "agentgym", "serve", "oracle", "keydoor", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        url = line.split()[-1]
        assert httpx.get(f"{url}/health").json()["status"] == "healthy"
        assert httpx.get(f"{url}/envs/keydoor/metadata").json()["name"] == "keydoor"
        server.send_signal(signal.SIGINT)
        _, err = server.communicate(timeout=20)
    assert (server.returncode, err) == (0, "")


# --- training -----------------------------------------------------------------------------------------------------


def test_recipes_list_names_each_with_its_paper(say):
    status, out, err = say("recipes", "list")
    assert (status, err) == (0, "")
    assert all(word in out for word in ("gigpo", "Two comparisons added", "arXiv:2505.10978", "quickstart"))
    assert "not measured" in out
    assert "Minutes on two CPU cores" not in out  # the first sentence alone


@pytest.mark.parametrize(
    ("ratio", "baseline", "text"),
    [
        ([2.0, 1.2, 3.1], "GRPO", "oracle: +78 [+75, +81]; 2.0x [1.2, 3.1]"),
        ([2.0, 1.2, 3.1], "REINFORCE", "oracle: +78 [+75, +81]; 2.0x [1.2, 3.1] beside REINFORCE"),
        ([0.5, 0.3, 0.9], "GRPO", "oracle: +78 [+75, +81]; 0.5x [0.3, 0.9]"),
        ([1.4, 0.8, 2.2], "GRPO", "oracle: +78 [+75, +81]; no effect shown beside GRPO, 1.4x [0.8, 2.2]"),
        (None, "GRPO", "oracle: +78 [+75, +81]"),
    ],
)
def test_an_effect_is_shown_where_the_interval_leaves_1_out(ratio, baseline, text):
    row = {"regime": "oracle", "baseline": baseline, "gain": [78.2, 75.4, 81.0], "ratio": ratio}
    assert measured_text(row | {"control": None}) == text


def test_what_a_method_adds_to_its_control():
    row = {"regime": "oracle", "baseline": "GRPO", "gain": [78.2, 75.4, 81.0], "ratio": None}
    texts = [measured_text(row | {"control": control}) for control in ([5.6, 1.1, 9.2], [-1.0, -2.9, 1.0])]
    assert texts == [
        "oracle: +78 [+75, +81]; its own part, +5.6 [+1.1, +9.2]",
        "oracle: +78 [+75, +81]; no effect of its own part shown, -1.0 [-2.9, +1.0]",
    ]


def test_recipes_show_tells_every_axis(say, tmp_path):
    status, out, err = say("recipes", "show", "ppo-turn")
    assert (status, err) == (0, "")
    for text in (
        "follows: Turn-PPO",
        "setup: keydoor",
        "one advantage for all tokens of a turn.",
        "│ source ",
        "│ guards ",
    ):
        assert text in out
    for text in (
        "online",
        "value",
        "turn_gae",
        "lam=0.95",
        "normalize turn",
        "ppo_clip",
        "token_mean",
        "extra_epochs=6",
    ):
        assert f" {text} " in out
    assert "dual_clip" not in out  # which has no value
    assert out.rstrip().endswith("ppo-turn.toml")
    own = tmp_path / "mine.toml"
    own.write_text('name = "m"\n[env]\nname = "oracle"\n[credit]\nassigner = "rloo"\n[guards]\nmax_kl = 20.0\n')
    status, out, _ = say("recipes", "show", str(own))
    assert status == 0
    assert all(text in out for text in ("follows: no paper", "rloo", "max_kl=20.0"))


def test_a_summary_is_the_first_sentence_and_no_abbreviation():
    def of(description):
        return Recipe("r", Path("r.toml"), {"description": description}).summary

    assert of("One. Two.") == "One."
    assert of("As in Dr. GRPO by Liu et al. Sums it. Then more.") == "As in Dr. GRPO by Liu et al. Sums it."
    assert of("With γ = .95 and no end") == "With γ = .95 and no end"


def test_dry_run_prints_a_recipe_and_who_reads_what(say, tmp_path):
    from agentgym_trainers import recipe

    status, out, err = say("train", "quickstart", "--dry-run", "optim.lr=1e-4", "rollout.groups=4")
    assert status == 0
    (tmp_path / "mine.toml").write_text(out)
    assert tomllib.loads(out)["optim"]["lr"] == 1e-4
    resolved = recipe.resolve("mine.toml")
    assert resolved == recipe.resolve("quickstart", ["optim.lr=1e-4", "rollout.groups=4"])
    options = [line.split("│")[1].strip() for line in err.splitlines() if line.startswith("│")]
    assert sorted(option for option in options if option) == sorted(option for _, option, _ in recipe.wiring(resolved))
    assert not (tmp_path / "runs").exists()


def test_a_run_from_end_to_end(say, tmp_path):
    """Train, resume what is finished, report, evaluate its checkpoints, play one, compare."""
    run = tmp_path / "run"
    status, out, _ = say("train", "quickstart", "--out", "run", *MICRO)
    assert status == 0
    assert "before RL" in out
    assert "after RL" in out
    assert out.splitlines()[-1].endswith("look at run/report.html")
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics if line["phase"] == "rl"] == [1, 2]
    assert {line["phase"] for line in metrics} == {"sft", "rl", "eval"}
    for made in (
        "config.toml",
        "checkpoints/step-000000/model.safetensors",
        "checkpoints/step-000002/manifest.json",
        "trajectories/step-000001.jsonl",
        "eval/before/attempts.jsonl",
        "eval/summary.json",
        "report.html",
    ):
        assert (run / made).stat().st_size > 0

    status, _, _ = say("train", "--resume", "run")
    assert status == 0
    again = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert again == metrics

    (run / "report.html").unlink()
    status, out, _ = say("report", "run")
    assert (status, out) == (0, "report: run/report.html\n")
    assert (run / "report.html").is_file()

    suite = 'name = "one"\n[[env]]\nname = "oracle"\nsplit = "train"\ntasks = 1\nseeds = [0, 1]\n'
    (tmp_path / "one.toml").write_text(suite)
    for step in ("step-000000", "step-000002"):
        checkpoint = f"run/checkpoints/{step}"
        status, out, _ = say("eval", checkpoint, "--suite", "one.toml", "--temperature", "0", "--out", step)
        assert status == 0
        assert f"every attempt is in {step}/attempts.jsonl" in out
    status, out, _ = say("eval", "compare", "step-000000", "step-000002")
    assert status == 0
    assert "b - a" in out
    status, out, _ = say("play", "oracle", "--policy", "run/checkpoints/step-000002")
    assert status == 0
    assert "success: score" in out


def test_the_warm_up_alone_and_a_run_that_starts_from_it(say, tmp_path):
    status, out, _ = say("sft", "quickstart", *MICRO)
    assert status == 0
    checkpoint = "runs/quickstart-sft/checkpoints/step-000000"
    assert out.splitlines()[-1] == f"checkpoint: {checkpoint}"
    before = (tmp_path / checkpoint / "model.safetensors").read_bytes()
    status, out, err = say("sft", "quickstart", *MICRO)  # again: it is there already
    assert status == 0
    assert (tmp_path / checkpoint / "model.safetensors").read_bytes() == before
    status, _, err = say("sft", "quickstart", *MICRO, "sft.max_steps=5")
    assert (status, err) == (
        2,
        "error: runs/quickstart-sft holds a run with other options; choose another --out, or delete that one\n",
    )
    start = [*MICRO, "sft=", f"model.path={checkpoint}", "run.steps=1"]
    status, out, _ = say("train", "quickstart", *start)
    assert status == 0
    assert (tmp_path / "runs/quickstart/checkpoints/step-000000/model.safetensors").read_bytes() == before


# --- evaluation ---------------------------------------------------------------------------------------------------


def test_eval_goes_on_and_compares(say, tmp_path):
    status, out, _ = say("eval", "solver", "--suite", "smoke")
    assert status == 0
    attempts = tmp_path / "runs/eval/smoke/solver/attempts.jsonl"
    lines = attempts.read_text().splitlines()
    assert len(lines) == 24
    assert re.search(r"overall +9 +24 +100\.0", out)
    attempts.write_text("\n".join(lines[:20]) + "\n")
    status, out, _ = say("eval", "solver", "--suite", "smoke")
    assert status == 0
    assert attempts.read_text().splitlines()[:20] == lines[:20]
    assert len(attempts.read_text().splitlines()) == 24
    status, out, _ = say("eval", "random", "--out", "chance")
    assert status == 0
    status, out, _ = say("eval", "compare", "chance", "runs/eval/smoke/solver")
    assert status == 0
    assert "a: random; b: solver" in out


def test_eval_of_one_environment_needs_no_suite(say, tmp_path):
    words = ("eval", "solver", "--env", "sokoban:size=6", "--tasks", "3", "--attempts", "2", "--seed", "1")
    status, out, err = say(*words, "--json")
    assert (status, err) == (0, "")
    summary = json.loads(out)
    (env,) = summary["suite"]["envs"]
    assert (env["name"], env["split"], env["tasks"]) == ("sokoban:size=6", "test", 3)
    assert (summary["overall"]["attempts"], summary["overall"]["success"]["estimate"]) == (6, 1.0)
    (folder,) = (tmp_path / "runs" / "eval").iterdir()
    assert len((folder / "solver" / "trajectories.jsonl").read_text().splitlines()) == 6
    assert say(*words)[0] == 0
    random = ("eval", "random", "--env", "sokoban:size=6", "--tasks", "3", "--seed", "1", "--no-trajectories")
    assert say(*random, "--out", "chance")[0] == 0
    assert not (tmp_path / "chance" / "trajectories.jsonl").exists()
    status, out, _ = say("eval", "compare", "chance", str(folder / "solver"), "--json")
    assert (status, json.loads(out)["overall"]["b"]) == (0, 1.0)
    assert say("eval", "random", "--env", "keydoor", "--tasks", "2", "--out", "keys")[0] == 0
    status, _, err = say("eval", "compare", "chance", "keys")
    assert status == 2
    assert "share no scored task" in err


def test_part_of_a_suite_is_exported_verified_and_viewed(say, tmp_path):
    part = ("eval", "random", "--suite", "smoke", "--env", "keydoor", "--shuffle", "5", "--out", "run")
    assert say(*part, "--limit", "2")[0] == 0
    status, out, _ = say(*part, "--limit", "3", "--json")
    summary = json.loads(out)
    assert (status, summary["overall"]["tasks"], summary["overall"]["attempts"]) == (0, 3, 6)
    assert summary["selection"] == {"envs": ["keydoor"], "limit": 3, "shuffle": 5}
    status, _, err = say(*part, "--limit", "1")
    assert status == 2
    assert "holds attempts at 3 tasks of keydoor, drawn with seed 5, which 1 tasks" in err
    for how in ("csv", "json", "openai", "atif"):
        assert say("eval", "export", "run", "--format", how, "--out", how)[:2] == (0, f"6 attempts are in {how}\n")
    assert say("eval", "verify", "run")[:2] == (0, "6 attempts gave the same rewards and success\n")
    attempts = tmp_path / "run" / "attempts.jsonl"
    attempts.write_text(attempts.read_text().replace('"success": false', '"success": true', 1))
    status, out, err = say("eval", "verify", "run")
    assert (status, err) == (1, "error: 1 of 6 attempts differ\n")
    assert "differs: keydoor validation task" in out
    assert say("eval", "view", "run")[0] == 0
    assert (tmp_path / "run" / "viewer.html").exists()


def test_eval_of_several_suites(say, tmp_path):
    suite = 'name = "{}"\n[[env]]\nname = "{}"\nsplit = "train"\ntasks = 2\n'
    for name, env in (("one", "oracle"), ("two", "keydoor")):
        (tmp_path / f"{name}.toml").write_text(suite.format(name, env))
    several = ("eval", "solver", "--suite", "one.toml", "--suite", "two.toml", "--limit", "1", "--out", "both")
    status, out, _ = say(*several)
    assert status == 0
    assert {line.split()[0] for line in out.splitlines() if line.strip()} >= {"suite", "one", "two"}
    assert (tmp_path / "both" / "two" / "attempts.jsonl").exists()
    status, out, err = say(*several, "--suite", "gsm8k", "--json")
    assert (status, {name: one["overall"]["attempts"] for name, one in json.loads(out).items()}) == (
        1,
        {"one": 1, "two": 1},
    )
    assert "gsm8k: gsm8k needs hf:openai/gsm8k" in err
    assert err.endswith("error: without a score, or with failed attempts: gsm8k\n")


def test_cost_of_an_evaluation_is_limited(say, tmp_path):
    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"data": [{"id": "tiny"}]})
        usage = {"prompt_tokens": 1_000_000, "completion_tokens": 0}
        return httpx.Response(200, json={"choices": [{"message": {"content": "echo"}}], "usage": usage})

    (tmp_path / "prices.toml").write_text("[tiny]\nprompt = 1.0\ncompletion = 1.0\n")
    with pytest.MonkeyPatch.context() as patch:
        client = functools.partial(httpx.AsyncClient, transport=httpx.MockTransport(answer))
        patch.setattr("agentgym.rollouts.openai_policy.httpx.AsyncClient", client)
        words = ("eval", "http://models.test/v1", "--env", "oracle", "--split", "train", "--tasks", "1", "--attempts")
        words = (*words, "3", "--concurrency", "1", "--prices", "prices.toml")
        status, _, err = say(*words, "--model", "other")
        assert (status, err) == (2, "error: prices.toml has no price of other; it has tiny\n")
        status, out, err = say(*words, "--model", "tiny", "--max-cost", "2")
        assert status == 1
        assert "2 of 3 attempts are left; ask again with a greater --max-cost" in err
        assert "cost: $" in out
        assert say(*words, "--model", "tiny")[0] == 0


def test_trajectories_of_an_evaluation_train_offline(say):
    assert say("eval", "solver", "--env", "oracle", "--split", "train", "--tasks", "1", "--attempts", "4",
               "--out", "shown")[0] == 0  # fmt: skip
    source = ["source.kind=offline", "source.path=shown/trajectories.jsonl"]
    status, out, err = say("train", "quickstart", "--out", "run", *MICRO, *source)
    assert status == 0, out + err


def test_evaluation_in_which_everything_failed_is_an_error(say, tmp_path):
    (tmp_path / "broken.py").write_text(FULL_DISK)
    command = [sys.executable, "-m", "agentgym", "eval", "random", "--env", "broken:Broken", "--tasks", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "failed: 2 of 2 (ENVIRONMENT_FAILED 2)" in done.stdout
    assert done.stderr.startswith("error: all 2 attempts failed; the most frequent reason: ")
    assert "the disk is full" in done.stderr


FULL_DISK = """
from agentgym.testing import EchoEnv
class Broken(EchoEnv):
    def reset(self, *, seed=None, options=None):
        raise OSError("the disk is full")
"""


def test_evaluation_in_which_nothing_can_be_played_is_an_error(say):
    status, _, err = say("eval", "random", "--env", "wordle")
    assert (status, err.partition(";")[0]) == (
        2,
        "error: nothing was played: wordle lists no actions, so none can be drawn at random",
    )


def test_eval_of_a_url_where_nobody_answers_says_so_at_once(say, tmp_path):
    started = time.monotonic()
    status, out, err = say("eval", "http://127.0.0.1:9/v1", "--model", "mine")
    assert (status, out) == (1, "")
    assert err.startswith("error: http://127.0.0.1:9/v1 cannot be reached (")
    assert time.monotonic() - started < 30
    assert not (tmp_path / "runs").exists()


def test_two_models_behind_one_url_have_folders_of_their_own(say, tmp_path):
    def answer(request: httpx.Request) -> httpx.Response:
        content = {"choices": [{"message": {"content": "echo"}}]}
        known = request.method == "GET" or json.loads(request.content)["model"] != "typo"
        return httpx.Response(200 if known else 404, json=content)

    with pytest.MonkeyPatch.context() as patch:
        client = functools.partial(httpx.AsyncClient, transport=httpx.MockTransport(answer))
        patch.setattr("agentgym.rollouts.openai_policy.httpx.AsyncClient", client)
        words = ("eval", "http://models.test/v1", "--env", "oracle", "--split", "train", "--tasks", "1", "--model")
        assert say(*words, "typo")[0] == 2
        assert [say(*words, name)[0] for name in ("one", "org/two")] == [0, 0]
    (folder,) = (tmp_path / "runs" / "eval").iterdir()
    written = {path.parent.name: json.loads(path.read_text())["policy"] for path in folder.glob("*/run.json")}
    assert written == {
        "one--http---models.test-v1": "one at http://models.test/v1",
        "org-two--http---models.test-v1": "org/two at http://models.test/v1",
    }


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("train", "name a recipe ("),
        ("train optim.lr=1", "name a recipe ("),
        ("train quickstrat", "there is no recipe 'quickstrat'. Did you mean 'quickstart'? The recipes are"),
        ("train mine.toml", "there is no file mine.toml"),
        ("train quickstart optim.lrr=1", "quickstart: unknown option 'optim.lrr' (did you mean 'lr'?)"),
        ("train quickstart optim.lr=fast", "quickstart: optim.lr should be a valid number"),
        ("train quickstart nokey", "'nokey' is not an override; write section.key=value"),
        ("train quickstart env.name=keydor env.serve=false", "no environment is called 'keydor'. Did you mean keydoor"),
        ("train quickstart env.split=night env.serve=false", "keydoor has no split 'night'; it has train"),
        ("train quickstart eval.tasks=99 env.serve=false", "eval.tasks is 99; keydoor has 74 tasks in 'test'"),
        ("train --resume nothing", "nothing holds no run (no config.toml)"),
        ("train quickstart --resume nothing", "--resume goes on with the run as it is in nothing: give no recipe"),
        ("train --resume nothing --dry-run", "--resume goes on with the run as it is in nothing: give no recipe"),
        ("train quickstart --plan --dry-run", "--dry-run and --plan each print something and stop: give one of them"),
        ("sft nowhere", "there is no recipe 'nowhere'."),
        ("recipes show gigop", "there is no recipe 'gigop'. Did you mean 'gigpo'? The recipes are"),
        ("recipes show nowhere.toml", "there is no file nowhere.toml"),
        ("eval runs/nothing", "runs/nothing is no checkpoint's folder, no URL and none of human, random, solver"),
        ("eval empty", "empty is not a model that transformers can load"),
        (
            "eval random --suite smokey",
            "no suite is called 'smokey'. Did you mean smoke? Shipped suites: 2wiki",
        ),
        ("eval random --suite mine.toml", "mine.toml cannot be read ("),
        ("eval random solver", "evaluate one policy at a time, not 2; to compare: agentgym eval compare A B"),
        ("eval compare one", "compare takes two evaluations' folders: agentgym eval compare A B"),
        ("eval compare one two", "one holds no evaluation: there is no attempts.jsonl"),
        ("eval human", "a person plays one episode at a time: agentgym play ENV"),
        ("eval http://127.0.0.1:9/v1", "name the model that http://127.0.0.1:9/v1 should run: --model NAME"),
        (
            "eval solver --temperature 0.3",
            "solver is no model: --temperature and --max-new-tokens go with a checkpoint or a URL",
        ),
        ("eval random --tasks 3", "--split, --tasks, --attempts and --seed go with --env"),
        ("eval random --suite smoke --env keydor", "smoke has no environment 'keydor'. Did you mean keydoor? It has"),
        ("eval random --suite smoke --split train", "--split, --tasks, --attempts and --seed go with --env"),
        (
            "eval random --suite smoke --suite text --env keydoor",
            "--env chooses among one suite's environments: give one",
        ),
        ("eval random --suite all --split train", "--split, --tasks, --attempts and --seed go with --env"),
        ("eval random --shuffle 1", "--shuffle draws the tasks of --limit: give both"),
        ("eval random --max-cost 1", "--max-cost needs to know what tokens cost: --prices FILE"),
        ("eval export nothing --format csv --out x.csv", "nothing holds no evaluation: there is no attempts.jsonl"),
        ("eval verify nothing", "nothing holds no evaluation: there is no attempts.jsonl"),
        ("eval random --env keydoor:size", "'keydoor:size'"),
        ("eval random --env keydoor:size=3,x", "'x' in 'keydoor:size=3,x' is not an argument"),
        ("eval random --env keydoor --env keydoor", "an environment is given twice"),
        ("eval random --env cliffwalking", "cliffwalking has 6 tasks in 'test', so there is no task 19"),
        ("eval random --out /dev/null/x", "/dev/null/x cannot be written (Not a directory); name another folder"),
        ("envs new my-env --out /dev/null/x", "/dev/null/x cannot be written (Not a directory)"),
        ("eval random --concurrency 0", "Invalid value for '--concurrency'"),
        ("report nothing", "There is no run folder nothing."),
        ("envs list zebra", "no installed environment has 'zebra' in its id, family or description"),
        ("envs list --capability flying", "no installed environment is of the capability 'flying'; there are hint"),
        ("envs list --family zoo", "no installed environment is of the family 'zoo'; there are games, gui"),
        ("envs show keydor", "no environment is called 'keydor'. Did you mean keydoor"),
        ("envs check nowhere:Environment", "'nowhere:Environment': there is no module 'nowhere' to import"),
        ("envs check ftp://x", "'ftp://x'"),
        ("serve keydor --port 0", "no environment is called 'keydor'. Did you mean keydoor"),
        ("serve keydoor --port 80000", "Invalid value for '--port': 80000 is not in the range 0<=x<=65535"),
        ("gateway --port 80000", "Invalid value for '--port'"),
        ("infer serve nothing --port 80000", "Invalid value for '--port'"),
        ("play keydoor --split night", "keydoor has no split 'night'; it has train, validation, test"),
        ("play keydoor --task 500", "keydoor has tasks 0 to 499 in 'train', not 500"),
        ("play wordle --policy random", "wordle lists no actions, so none can be drawn at random"),
        ("play wordle --policy nobody", "nobody is no checkpoint's folder"),
        ("bogus", "No such command 'bogus'"),
    ],
)
def test_a_mistake_is_one_sentence(mistake, tmp_path, command, sentence):
    (tmp_path / "empty").mkdir()
    assert mistake(*command.split()).startswith(sentence)


def test_folders_that_are_taken(mistake, tmp_path):
    (tmp_path / "run" / "checkpoints" / "step-000001").mkdir(parents=True)
    (tmp_path / "run" / "config.toml").write_text("")
    assert mistake("train", "quickstart", "--out", "run") == (
        "run already holds a run; resume it (--resume run), or choose another --out"
    )
    assert mistake("eval", "run") == (
        "run is a whole run; name one of its checkpoints, the newest is run/checkpoints/step-000001"
    )
    (tmp_path / "file").write_text("")
    assert mistake("eval", "run/checkpoints/step-000060").endswith(
        ": it does not exist; run/checkpoints has step-000001"
    )
    assert "'file' is a file" in mistake("train", "quickstart", "--out", "file")


def test_an_unreachable_server_is_not_a_usage_error(say):
    status, out, err = say("envs", "show", "http://127.0.0.1:9")
    assert (status, out) == (1, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1


BLOCKER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
from agentgym.cli.main import main
main(sys.argv[2:])
"""


@pytest.mark.parametrize(
    ("packages", "command", "message"),
    [
        ("torch,transformers", "train quickstart", "pip install 'turngym[serve,train]'"),
        ("torch,transformers", "train quickstart --dry-run", "pip install 'turngym[serve,train]'"),
        ("transformers", "sft quickstart", "pip install 'turngym[serve,train]'"),
        ("torch", "eval .", "pip install 'turngym[train]'"),
        ("fastapi,starlette", "serve oracle", "pip install 'turngym[serve]'"),
        ("fastapi,starlette,sqlalchemy", "gateway", "pip install 'turngym[gateway]'"),
        ("sqlalchemy", "gateway", "pip install 'turngym[gateway]'"),
        ("fastapi,starlette", "infer serve .", "pip install 'turngym[serve,train]'"),
        ("matplotlib", "credit bench", "pip install 'turngym[train]'"),
        ("uvicorn", "serve oracle", "pip install 'turngym[serve]'"),
    ],
)
def test_a_missing_extra_is_named(tmp_path, packages, command, message):
    words = [sys.executable, "-c", BLOCKER, packages, *command.split()]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: this verb needs ")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_needs_no_extra_runs_without_any(tmp_path):
    everything = "torch,transformers,tokenizers,fastapi,starlette,uvicorn,tensorboard,pygame,PIL"
    for command in (
        "train --help",
        "eval --help",
        "envs list",
        "play oracle --policy solver",
        "envs check wordle --tasks 2",
        "recipes list",
        "recipes show gigpo",
    ):
        words = [sys.executable, "-c", BLOCKER, everything, *command.split()]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr


def test_recipes_are_shown_without_the_train_extra(tmp_path):
    words = [sys.executable, "-c", BLOCKER, "torch,transformers", "recipes", "show", "gigpo"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "note: what each part does needs torch: pip install 'turngym[train]'\n"
    assert all(line in done.stdout for line in ("follows: GiGPO", "│ credit ", "│ gigpo ", "│ ppo_clip "))


def heed_interrupts():
    """A test run in the background of a shell ignores SIGINT, and its children would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupt_is_no_traceback(tmp_path):
    """Ctrl-C in the midst of an evaluation: what was played is kept."""
    suite = 'name = "long"\n[[env]]\nname = "keydoor"\nsplit = "train"\ntasks = 500\nattempts = 100\n'
    (tmp_path / "long.toml").write_text(suite)
    command = [sys.executable, "-m", "agentgym", "eval", "solver", "--suite", "long.toml", "--out", "long"]
    attempts = tmp_path / "long" / "attempts.jsonl"
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
        preexec_fn=heed_interrupts,
    ) as process:
        while process.poll() is None and not (attempts.is_file() and attempts.stat().st_size > 0):
            pass
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip()) == (130, "interrupted; what was finished is on disk")
    assert attempts.stat().st_size > 0


@pytest.mark.parametrize(
    ("host", "prefix"),
    [("127.0.0.1", ""), ("127.0.0.9", ""), ("::1", ""), ("localhost", ""), ("0.0.0.0", "note"), ("::", "note")],
)
def test_a_public_server_without_keys_warns(host, prefix, capsys):
    note_if_open(host, 8000)
    assert capsys.readouterr().err[:4] == prefix
