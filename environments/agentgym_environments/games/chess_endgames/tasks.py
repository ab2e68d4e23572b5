"""Endgames by rule: the pieces of a kind on random squares, the stronger side to move, in every case a won game."""

from __future__ import annotations

from functools import lru_cache
from random import Random

from agentgym.errors import ConfigError
from agentgym_environments.base.text_env import split_of, task_random
from agentgym_environments.games.chess.board import chess

KINDS = ("KQK", "KRK", "KRRK", "KQRK", "KBBK", "KPK", "KQKB", "KQKN")
"""The stronger side's pieces, then the weaker side's; each begins with the king."""


def kinds(text: str) -> tuple[str, ...]:
    """Names joined by "+". Raises ConfigError."""
    names = tuple(text.split("+"))
    if not set(names) <= set(KINDS):
        raise ConfigError(f"chess-endgames: pieces is some of {'+'.join(KINDS)}, not {text!r}")
    return names


@lru_cache(maxsize=4096)
def position(names: tuple[str, ...], split: str, task: int) -> str:
    """FEN of task `task` of `split`; the agent is to move and has the pieces. Every second task it is black."""
    random = task_random("chess-endgames", *names, split, task)
    colour = task % 2 == 0
    while True:
        board = _attempt(random, random.choice(names), colour)
        if board is not None and split_of(board.epd()) == split:
            return board.fen()


def _attempt(random: Random, kind: str, colour: chess.Color) -> chess.Board | None:
    own, its = kind[: kind.rindex("K")], kind[kind.rindex("K") :]
    board = chess.Board(None)
    board.turn = colour
    squares = random.sample(range(64), len(kind))
    for symbol, side, square in zip(kind, [colour] * len(own) + [not colour] * len(its), squares):
        board.set_piece_at(square, chess.Piece(chess.Piece.from_symbol(symbol).piece_type, side))
    king, others = squares[0], squares[1 : len(own)]
    if not board.is_valid() or board.is_game_over() or not _won(board, kind, king, others):
        return None
    board.push(chess.Move.null())  # the weaker side to move: nothing may hang, nor may it be mate or stalemate already
    quiet = not board.is_game_over() and not any(board.is_capture(move) for move in board.legal_moves)
    board.pop()
    return board if quiet else None


def _won(board: chess.Board, kind: str, king: chess.Square, others: list[chess.Square]) -> bool:
    if kind == "KBBK":  # one bishop on each colour of squares
        return len({(chess.square_file(square) + chess.square_rank(square)) % 2 for square in others}) == 2
    if kind != "KPK":
        return True
    # The king on the sixth rank, before its own pawn: won wherever the other king is, unless at the board's edge.
    forward = chess.square_rank if board.turn else lambda square: 7 - chess.square_rank(square)
    same = chess.square_file(king) == chess.square_file(others[0])
    return same and 0 < chess.square_file(king) < 7 and forward(king) == 5 and 1 <= forward(others[0]) <= 4
