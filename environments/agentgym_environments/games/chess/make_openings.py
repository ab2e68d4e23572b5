"""Makes openings.txt: eight random legal moves after which the engine sees neither side ahead.

python -m agentgym_environments.games.chess.make_openings
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import chess

from agentgym_environments.base.text_env import task_random
from agentgym_environments.games.chess.engine import program

COUNT, PLIES, NODES, EVEN = 600, 8, 20_000, 40
"""EVEN: hundredths of a pawn."""


def main() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([program("stockfish")], stdin=pipe, stdout=pipe, text=True, bufsize=1) as engine:
        random = task_random("chess", "openings")
        found: dict[str, str] = {}
        while len(found) < COUNT:
            board = chess.Board()
            while len(board.move_stack) < PLIES and (legal := sorted(move.uci() for move in board.legal_moves)):
                board.push_uci(random.choice(legal))
            moves = " ".join(move.uci() for move in board.move_stack)
            if not board.is_game_over() and abs(score(engine, moves)) <= EVEN:
                found.setdefault(board.epd(), moves)
        engine.stdin.write("quit\n")  # type: ignore[union-attr]
    Path(__file__).with_name("openings.txt").write_text("\n".join(found.values()) + "\n", encoding="utf-8")


def score(engine: subprocess.Popen[str], moves: str) -> int:
    """Hundredths of a pawn for the side to move; 10,000 where there is a mate."""
    assert engine.stdin is not None
    assert engine.stdout is not None
    engine.stdin.write(f"ucinewgame\nposition startpos moves {moves}\ngo nodes {NODES}\n")
    engine.stdin.flush()
    last = 10_000
    for line in engine.stdout:
        if line.startswith("bestmove"):
            break
        if score_match := re.search(r"score cp (-?\d+)", line):
            last = int(score_match[1])
    return last


if __name__ == "__main__":
    main()
