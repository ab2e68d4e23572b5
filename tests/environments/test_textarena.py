"""TextArena's games that need a rule of ours: what a mistake costs, what is won, how many turns there are."""

from __future__ import annotations

import pytest

from agentgym import registry


def empty_cells(env):
    """(row, column, right digit) of the empty cells of a Sudoku."""
    board, full = env.inner.state.game_state["board"], env.inner.full_grid
    cells = [(row, column) for row in range(9) for column in range(9) if not board[row][column]]
    return [(row + 1, column + 1, full[row][column]) for row, column in cells]


@pytest.mark.parametrize("partial", [False, True])
def test_a_mine_ends_the_game(partial):
    env = registry.make("textarena:game=Minesweeper-v0-small", partial=partial)
    assert env.env_spec.instructions.endswith("A mine ends the game.")
    env.reset(options={"task": 0})
    env.step("[2 2]")
    for nonsense in ("a corner", "[9 9]", "[2 2]"):
        assert env.step(nonsense)[1:4] == (0.0, False, False)
    state = env.snapshot()
    mine = next((row, column) for row in range(5) for column in range(5) if env.inner.grid[row][column] == -1)
    safe = next(
        (r, c) for r in range(5) for c in range(5) if env.inner.grid[r][c] >= 0 and not env.inner.revealed[r][c]
    )
    assert not env.step("[{} {}]".format(*safe))[2]
    done = env.inner._get_percentage_completion()
    observation, reward, ended, _, info = env.step("[{} {}]".format(*mine))
    assert observation.endswith("The game is lost.")
    assert (reward, ended, info["success"], info["progress"]) == (done if partial else 0.0, True, False, done)
    env.restore(state)
    assert env.step("[{} {}]".format(*mine))[2]


def test_the_third_wrong_digit_ends_a_sudoku():
    env = registry.make("textarena:game=Sudoku-v0-very-easy")
    assert env.env_spec.instructions.endswith("The third wrong digit ends the game.")
    env.reset(options={"task": 0})
    (row, column, digit), *others = empty_cells(env)
    wrong = f"[{row} {column} {digit % 9 + 1}]"
    for nonsense in ("one", "[0 0 0]", "[10 1 1]", "[1 1]"):
        assert env.step(nonsense)[2:4] == (False, False)
    keys = [env.step(wrong)[4]["state_key"] for _ in range(2)]
    assert keys[0] != keys[1]
    state = env.snapshot()
    _, reward, ended, _, info = env.step(wrong)
    assert (reward, ended, info["success"]) == (0.0, True, False)
    env.restore(state)
    assert not env.step(f"[{row} {column} {digit}]")[2]
    for row, column, digit in others:
        step = env.step(f"[{row} {column} {digit}]")
    assert (step[1], step[2], step[4]["success"]) == (1.0, True, True)


def test_more_hands_won_than_lost_win_blackjack():
    env = registry.make("textarena:game=Blackjack-v0")
    won = set()
    for task in range(30):
        env.reset(options={"task": task})
        while not env.over:
            _, reward, *_ = env.step("[stand]")
        results = env.inner.state.game_state["results_summary"]
        assert env.success == bool(reward) == (results["win"] > results["lose"])
        won.add((env.success, results["win"] == 5))
    assert (True, False) in won


def test_letters_of_a_crossword_count_in_their_order():
    env = registry.make("textarena:game=Crosswords-v0")
    for first in range(4):
        env.reset(options={"task": 0})
        solution, board = (env.inner.state.game_state[name] for name in ("solution", "board"))
        cells = [
            (row, column) for row in range(len(board)) for column in range(len(board)) if board[row][column] == "_"
        ]
        letters = [f"[{row} {column} {solution[row][column]}]" for row, column in cells]
        row, column = cells[first]
        wrong = "[{} {} {}]".format(row, column, "q" if solution[row][column].lower() != "q" else "z")
        env.step(" ".join([*letters[:first], wrong, *letters[first:]]))
        assert [cell for cell in cells if board[cell[0]][cell[1]] != "_"] == cells[:first]


def test_a_game_has_the_turns_that_it_needs():
    for game, target in (
        ("2048-v0", 2048),
        ("2048-v0-easy", 1024),
        ("2048-v0-very-easy", 256),
        ("2048-v0-super-easy", 128),
    ):
        env = registry.make(f"textarena:game={game}")
        assert env.inner.target_tile == target
        assert env.env_spec.max_turns * 2.2 >= 1.5 * target  # a turn adds a 2, or one time in ten a 4
    env = registry.make("textarena:game=Slitherlink-v0")
    observation, _ = env.reset(options={"task": 0})
    assert f"You have up to {env.env_spec.max_turns} moves" in observation
    assert registry.make("textarena:game=2048-v0,turns=50").env_spec.max_turns == 50
