"""Chess: whole games against Stockfish, from many openings."""

from __future__ import annotations

from pathlib import Path

from agentgym.spec import EnvSpec
from agentgym_environments.games.chess.board import ChessEnv, chess
from agentgym_environments.games.chess.tasks import opening

VALUE = {chess.PAWN: 1, chess.KNIGHT: 3, chess.BISHOP: 3, chess.ROOK: 5, chess.QUEEN: 9}


class Chess(ChessEnv):
    """Reward at the end of the game: 1 for a win, 1/2 for a draw, 0 for a loss. Out of turns: cut, reward 0."""

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        nodes: int = 1,
        slips: float = 0.3,
        strong: int = 10_000,
        engine: str = "stockfish",
    ) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        super().__init__(spec, nodes=nodes, slips=slips, strong=strong, engine=engine)

    def begin(self, split: str, task: int) -> None:
        moves, white = opening(self.env_spec.splits, split, task)
        board = chess.Board()
        for move in moves:
            board.push_uci(move)
        self.open(board.fen(), chess.WHITE if white else chess.BLACK)

    def worth(self, result: chess.Outcome) -> float:
        return 0.5 if result.winner is None else super().worth(result)

    def progress(self) -> float:
        """The agent's share of the pieces' value (pawn 1, knight and bishop 3, rook 5, queen 9)."""
        white, black = (
            sum(value * len(self.board.pieces(piece, colour)) for piece, value in VALUE.items())
            for colour in (True, False)
        )
        own = white if self.colour == chess.WHITE else black
        return own / (white + black) if white + black else 0.5
