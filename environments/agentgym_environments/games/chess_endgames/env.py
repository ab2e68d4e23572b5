"""Chess endgames: mate a king that the engine defends, in a limited number of moves."""

from __future__ import annotations

from pathlib import Path

from agentgym.spec import EnvSpec
from agentgym_environments.games.chess.board import ChessEnv, chess
from agentgym_environments.games.chess_endgames.tasks import kinds, position


class Endgames(ChessEnv):
    """The only reward is 1 for mate. A draw, or no mate within `max_turns`, is a loss.

    pieces: kinds of endgames, names joined by "+", of KQK, KRK, KRRK, KQRK, KBBK, KPK, KQKB and KQKN.
    """

    out_of_turns_terminates = True

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        pieces: str = "KQK+KRK+KRRK+KQRK",
        nodes: int = 1000,
        strong: int = 100_000,
        engine: str = "stockfish",
    ) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        super().__init__(spec, nodes=nodes, slips=0.0, strong=strong, engine=engine)
        self.pieces = kinds(pieces)

    def begin(self, split: str, task: int) -> None:
        fen = position(self.pieces, split, task)
        self.open(fen, chess.Board(fen).turn)

    def progress(self) -> float:
        """Return how closely the other king is held: 1 less an eighth for each square it could go to."""
        king = self.board.king(not self.colour)
        board = self.board.copy(stack=False)
        board.turn = not self.colour
        return 1 - sum(move.from_square == king for move in board.legal_moves) / 8
