"""Chess against a real Stockfish: the rules' ends, the same episode again, and an engine that outlives nobody."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentgym import registry
from agentgym.conformance.run import check_env
from agentgym.errors import BadRequest, ConfigError, EnvironmentCrashed, MissingDependency
from agentgym_environments.games.chess.engine import ChessEngine, program

chess = pytest.importorskip("chess", reason="needs python-chess: pip install 'turngym[chess]'")
try:
    program("stockfish")
except MissingDependency as error:
    pytest.skip(f"{error}", allow_module_level=True)

ENVS = ["chess", "chess-hard", "chess-endgames", "chess-endgames-hard"]


@pytest.fixture
def make():
    """make(name, **kwargs) -> an environment that is closed after the test."""
    made = []

    def environment(name, **kwargs):
        made.append(registry.make(name, **kwargs))
        return made[-1]

    yield environment
    for env in made:
        env.close()


def begin(env, task=0, split="train", seed=0):
    return env.reset(seed=seed, options={"split": split, "task": task})


def set_up(env, fen, white=True):
    """The environment at a position of ours."""
    begin(env)
    env.board, env.colour = chess.Board(fen), white
    return env


@pytest.mark.parametrize("name", ENVS)
@pytest.mark.envs
def test_it_keeps_the_contract(name):
    """With a solver that hardly looks, which is quick and need not win; two other tests see to the real one."""
    findings = check_env(lambda: registry.make(name, strong=50), tasks=1)
    assert [finding for finding in findings if not finding.ok and finding.rule != "solver_wins"] == []


def test_openings_are_legal_and_in_one_split(make):
    env, keys = make("chess"), {}
    for split, size in env.env_spec.splits.items():
        for task in range(0, size, 1 if size < 200 else 10):
            observation, info = begin(env, task, split)
            assert f"you are {'white' if task % 2 == 0 else 'black'}" in observation
            key = " ".join(env.board.root().epd().split())
            assert keys.setdefault(key, split) == split
            assert info["available_actions"]
    assert len(keys) == 200


def test_a_mate_wins_and_only_then(make):
    env = set_up(make("chess-endgames"), "7k/5K2/8/8/8/8/8/6Q1 w - - 0 1")
    observation, reward, over, _, info = env.step("g1h2")  # h2 is check on the file: mate
    assert (reward, over, info["success"], info["available_actions"]) == (1, True, True, [])
    assert "checkmate, you win" in observation
    env = set_up(make("chess-endgames"), "7k/5K2/8/8/8/8/8/6Q1 w - - 0 1")
    observation, reward, over, _, info = env.step("g1g6")  # stalemate
    assert (reward, over, info["success"]) == (0, True, False)
    assert "stalemate, a draw" in observation


def test_a_draw_is_half_in_a_game_and_a_loss_is_nothing(make):
    env = set_up(make("chess", slips=0), "7k/5K2/8/8/8/8/8/6Q1 w - - 0 1")
    assert env.step("g1g6")[1:3] == (0.5, True)
    env = set_up(env, "6k1/8/8/8/8/8/r7/7K w - - 98 80")
    observation, reward, over, _, info = env.step("h1g1")
    assert (reward, over, info["success"]) == (0.5, True, False)  # the engine's answer was the hundredth ply
    assert "fifty moves, a draw" in observation
    env = set_up(make("chess", slips=0, nodes=1000), "6k1/5ppp/8/8/8/8/r4PPP/7K w - - 0 1")
    observation, reward, over, _, info = env.step("h1g1")
    assert (reward, over, info["success"]) == (0, True, False)  # the rook mates on the first rank
    assert "checkmate, you lose" in observation


def test_the_third_time_is_a_draw(make):
    env = set_up(make("chess", slips=0), chess.STARTING_FEN)
    for move in ["g1f3", "g8f6", "f3g1", "f6g8"] * 2:
        env.board.push_uci(move)
    assert env._decided().termination is chess.Termination.THREEFOLD_REPETITION


def test_what_is_no_legal_move_is_refused_with_the_legal_ones(make):
    env = make("chess-endgames")
    _, info = begin(env)
    for action in ("e9e4", "a1a1", "0000", "king", "e4", ""):
        fen = env.board.fen()
        observation, _, _, _, after = env.step(action)
        assert (after["valid_action"], env.board.fen()) == (False, fen)
        assert all(move in observation for move in info["available_actions"])
    assert env.step(f" {info['available_actions'][0].upper()} ")[4]["valid_action"]


def test_endgames_are_won_quiet_and_of_every_kind(make):
    env = make("chess-endgames", pieces="KBBK+KPK+KQKN")
    kinds = set()
    for task in range(40):
        begin(env, task)
        board = env.board
        own = sorted(piece.symbol().upper() for piece in board.piece_map().values() if piece.color == env.colour)
        kinds.add("".join(own))
        assert board.turn == env.colour == (task % 2 == 0)
        assert board.is_valid()
    assert kinds == {"BBK", "KP", "KQ"}
    for bad, message in (({"pieces": "KNNK"}, "pieces is some of KQK"), ({"nodes": 0}, "nodes and strong")):
        with pytest.raises(ConfigError, match=message):
            registry.make("chess-endgames", **bad)


def test_slips_follow_the_seed_and_everything_is_the_same_again(make):
    """The second environment first plays another game: what its engine learnt there must not show."""

    def game(env, seed):
        observations = [begin(env, 6, seed=seed)[0]]
        while not env.over and env.turn < 12:
            observations.append(env.step(env.describe()["available_actions"][0])[0])
        return observations

    one, other = make("chess"), make("chess")
    game(other, 5)
    first = game(one, 1)
    assert game(other, 1) == first
    assert any(game(other, seed) != first for seed in (2, 3, 4))


def test_a_snapshot_continues_with_a_fresh_engine(make):
    env, copy = make("chess-hard", strong=1000), make("chess-hard", strong=1000)
    begin(env, 3)
    for _ in range(4):
        env.step(env.solver())
    copy.restore(env.snapshot())
    for _ in range(4):
        assert copy.solver() == env.solver()
        move = env.solver()
        assert copy.step(move) == env.step(move)
    with pytest.raises(BadRequest, match="not a snapshot"):
        copy.restore(b"{}")


@pytest.mark.parametrize("name", ["chess", "chess-endgames"])
def test_the_solver_wins(make, name):
    env = make(name)
    begin(env)
    while not env.over:
        env.step(env.solver())
    assert env.success


@pytest.mark.envs
@pytest.mark.parametrize("name", ENVS)
def test_the_solver_wins_nearly_all(make, name):
    env = make(name)
    won = []
    for split in env.env_spec.splits:
        for task in range(8):
            begin(env, task, split)
            while not env.over:
                env.step(env.solver())
            won.append(env.success)
    assert sum(won) >= 0.95 * len(won)


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_the_engine_starts_lazily_and_ends_with_its_env():
    env = registry.make("chess-endgames")
    begin(env)
    assert env.engine.process is None
    env.solver()
    pid = env.engine.process.pid
    assert running(pid)
    env.close()
    env.close()
    assert not running(pid)
    env.solver()  # closed too early: it starts again
    pid = env.engine.process.pid
    del env
    gc.collect()
    assert not running(pid)


def test_a_dead_engine_restarts_and_a_wrong_program_is_an_error():
    engine = ChessEngine(program("stockfish"))
    first = engine.best(chess.STARTING_FEN, [], 50)
    os.kill(engine.process.pid, signal.SIGKILL)
    assert engine.best(chess.STARTING_FEN, [], 50) == first
    engine.close()
    with pytest.raises(EnvironmentCrashed, match="true ends when it is asked for a move"):
        ChessEngine("/bin/true").best(chess.STARTING_FEN, [], 50)


KILLED = """
import sys, time
from agentgym import registry
env = registry.make("chess-endgames")
env.reset(seed=0)
env.solver()
print(env.engine.process.pid, flush=True)
time.sleep(60)
"""


def test_a_killed_process_leaves_no_engine():
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as owner:
        pid = int(owner.stdout.readline())
        assert running(pid)
        owner.kill()
    for _ in range(100):
        if not running(pid):
            return
        time.sleep(0.05)
    pytest.fail("the engine is still there")


def test_a_missing_engine_is_reported_with_the_command():
    with pytest.raises(MissingDependency, match="apt-get install stockfish"):
        registry.make("chess", engine="no-such-engine")
    code = (
        "import sys; sys.modules['chess'] = None\nfrom agentgym import registry\n"
        "registry.get_spec('chess')\nregistry.make('chess')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip().endswith("the chess environments need python-chess: pip install 'turngym[chess]'")
