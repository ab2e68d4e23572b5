"""Shaped rewards: what credit is assigned from. Pure functions of recorded turns."""

from __future__ import annotations

from agentgym.trajectory import Trajectory


def shaped_rewards(trajectory: Trajectory) -> list[float]:
    """One reward a turn: the world's, less the harness's penalty for a reply without an action."""
    return [turn.reward - turn.penalty for turn in trajectory.turns]
