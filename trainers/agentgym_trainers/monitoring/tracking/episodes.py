"""Table of a step's episodes, as trackers show it."""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.rollouts.trajectory import Trajectory

COLUMNS = ("step", "env", "split", "task", "seed", "attempt", "score", "success", "turns", "stop", "transcript")
MAX_TRANSCRIPT = 4000
"""Characters of a transcript; a longer one keeps its beginning and its end."""

Rows = list[list[int | float | bool | str]]


def episode_rows(step: int, trajectories: Sequence[Trajectory], count: int) -> Rows:
    """A row for each of `count` episodes at most, spread evenly over the step's groups."""
    size = min(count, len(trajectories))
    chosen = [trajectories[i * len(trajectories) // size] for i in range(size)]
    return [
        [step, t.env, t.split, t.task, t.seed, t.attempt, t.score, t.success, len(t.turns), t.stop.value, transcript(t)]
        for t in chosen
    ]


def transcript(trajectory: Trajectory) -> str:
    """Observations and responses of an episode, turn by turn, at most MAX_TRANSCRIPT characters."""
    parts = [part for turn in trajectory.turns for part in (f"< {turn.observation}", f"> {turn.reply}")]
    end = trajectory.error or trajectory.final_observation
    text = "\n".join([*parts, f"< {end}"] if end else parts)
    text = text.encode("utf-8", errors="replace").decode()  # a lone surrogate is refused by every tracker
    if len(text) <= MAX_TRANSCRIPT:
        return text
    cut = f"\n… {len(text) - MAX_TRANSCRIPT} more characters …\n"
    kept = MAX_TRANSCRIPT - len(cut)
    return text[: kept // 2] + cut + text[-(kept - kept // 2) :]
