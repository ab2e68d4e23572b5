"""Base of both chess environments: a board in words, moves in UCI, an engine that answers, and snapshots."""

from __future__ import annotations

from typing import Any

from agentgym.errors import ConfigError, MissingDependency
from agentgym.spec import EnvSpec
from agentgym_environments.base.text_env import Outcome, TurnEnv
from agentgym_environments.games.chess.engine import ChessEngine, program

try:
    import chess
except ModuleNotFoundError as error:
    raise MissingDependency("the chess environments need python-chess: pip install 'turngym[chess]'") from error


class ChessEnv(TurnEnv):
    """The agent plays one side, the engine the other. A subclass begins with `self.open(fen, colour)`.

    nodes: what the engine may search for each of its moves. slips: the probability of any legal move instead.
    strong: the nodes of the solver. engine: a program that speaks UCI.
    """

    def __init__(self, spec: EnvSpec, *, nodes: int, slips: float, strong: int, engine: str) -> None:
        super().__init__(spec)
        if min(nodes, strong) < 1 or not 0 <= slips <= 1:
            raise ConfigError(
                f"{spec.id}: nodes and strong are 1 or more, slips 0 to 1; not {nodes}, {strong}, {slips}"
            )
        self.nodes, self.slips, self.strong = nodes, slips, strong
        self.engine = ChessEngine(program(engine))
        self.board = chess.Board()
        self.colour = chess.WHITE

    def open(self, fen: str, colour: chess.Color) -> None:
        """Set the pieces up; the engine moves first when it is its turn."""
        self.board, self.colour = chess.Board(fen), colour
        if self.board.turn != colour:
            self._answer()

    def observe(self) -> str:
        lines = [self._last()]
        if self.over:
            lines.append(self._result())
        else:
            lines.append(f"you are {chess.COLOR_NAMES[self.colour]}{', in check' if self.board.is_check() else ''}")
        rows = str(self.board).splitlines()
        ranks = [f"{8 - number} {row}" for number, row in enumerate(rows)]
        return "\n".join([*filter(None, lines), *ranks, "  a b c d e f g h", f"fen {self.board.fen()}"])

    def refuse(self, action: str) -> str:
        return f"not a legal move; say one of {' '.join(self._legal())}\n{self.observe()}"

    def act(self, action: str) -> Outcome | None:
        if action not in self._legal():
            return None
        self.board.push_uci(action)
        if self._decided() is None:
            self._answer()
        result = self._decided()
        if result is None:
            return Outcome()
        return Outcome(self.worth(result), ended=True, success=result.winner == self.colour)

    def worth(self, result: chess.Outcome) -> float:
        """The reward for the end of a game."""
        return float(result.winner == self.colour)

    def _answer(self) -> None:
        legal = sorted(move.uci() for move in self.board.legal_moves)
        if self.slips and self.np_random.random() < self.slips:
            self.board.push_uci(legal[int(self.np_random.integers(len(legal)))])
        else:
            self.board.push_uci(self._search(self.nodes))

    def _search(self, nodes: int) -> str:
        return self.engine.best(self.board.root().fen(), [move.uci() for move in self.board.move_stack], nodes)

    def _decided(self) -> chess.Outcome | None:
        """Mate, stalemate, too few pieces, the same position for the third time, or fifty moves without progress."""
        return self.board.outcome(claim_draw=False) or _draw(self.board)

    def _legal(self) -> list[str]:
        return sorted(move.uci() for move in self.board.legal_moves)

    def _last(self) -> str:
        if not self.board.move_stack:
            return ""
        mine = self.board.turn != self.colour
        return f"{'you' if mine else 'the engine'} played {self.board.peek().uci()}"

    def _result(self) -> str:
        result = self._decided()
        if result is None:
            return "out of moves"
        winner = "" if result.winner is None else ", you win" if result.winner == self.colour else ", you lose"
        return f"{result.termination.name.lower().replace('_', ' ')}{winner or ', a draw'}"

    def key(self) -> str:
        """The position and whose side is the agent's; not the clocks."""
        return f"{chess.COLOR_NAMES[self.colour]} {self.board.epd()}"

    def describe(self) -> dict[str, Any]:
        """`available_actions` are the legal moves."""
        return {"progress": self.progress(), "available_actions": [] if self._decided() else self._legal()}

    def progress(self) -> float:
        raise NotImplementedError

    def solver(self) -> str:
        """The engine's own move, with more nodes."""
        self.require_episode("solver")
        return self._search(self.strong)

    def save(self) -> Any:
        moves = [move.uci() for move in self.board.move_stack]
        return {"fen": self.board.root().fen(), "moves": moves, "white": self.colour == chess.WHITE}

    def load(self, state: Any) -> None:
        self.board, self.colour = chess.Board(state["fen"]), bool(state["white"])
        for move in state["moves"]:
            self.board.push_uci(move)

    def close(self) -> None:
        self.engine.close()


def _draw(board: chess.Board) -> chess.Outcome | None:
    if board.is_repetition(3):
        return chess.Outcome(chess.Termination.THREEFOLD_REPETITION, None)
    if board.halfmove_clock >= 100:
        return chess.Outcome(chess.Termination.FIFTY_MOVES, None)
    return None
