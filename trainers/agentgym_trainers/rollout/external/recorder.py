"""Episodes of external agents by name: begun by their first call, ended by a reward, forgotten when nobody goes on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentgym.errors import EpisodeRefused
from agentgym.rollouts.policy import EpisodeSpec
from agentgym.rollouts.trajectory import Trajectory, write_jsonl
from agentgym_trainers.rollout.external.episode import PreparedCall, RecordedEpisode
from agentgym_trainers.rollout.external.reconcile import PromptRequest
from agentgym_trainers.rollout.tokens import ChatTemplate

FILE = "episodes.jsonl"
"""File in the folder of `--record`: a trajectory a line, as `source.path` of offline training takes it."""
NAMED = "foreign"
"""The environment of episodes whose agent names none."""


class Recorder:
    """Recorder of the inference server's episodes. Use it within one event loop."""

    def __init__(
        self,
        template: ChatTemplate,
        *,
        folder: Path | None = None,
        strict: bool = False,
        lease_s: float = 900.0,
        most: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Finished episodes are appended to `folder`/episodes.jsonl. One that nobody asks or tells anything for
        `lease_s` seconds is forgotten. At most `most` are kept: finished ones make room, the oldest first."""
        self.template, self.strict, self.lease_s, self.most = template, strict, lease_s, most
        self.path = folder / FILE if folder is not None else None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        self._episodes: dict[str, RecordedEpisode] = {}
        self._used: dict[str, float] = {}
        self._attempts: Counter[tuple[str, str, int, int]] = Counter()
        self._unseeded = np.random.default_rng()
        self.ended: Counter[str] = Counter()
        """Episodes that were finished or expired, and the kinds of their calls."""

    def open(
        self, name: str, played: EpisodeSpec | None = None, rng: np.random.Generator | None = None
    ) -> RecordedEpisode:
        """Begin an episode. `played` is the trainer's episode, `rng` its random stream. Raises EpisodeRefused."""
        self._expire()
        if name in self._episodes:
            raise EpisodeRefused(f"the episode {name!r} exists already; choose another name")
        episode = self._new(name, played, rng)
        self.begin(name, episode)
        return episode

    def get(self, name: str) -> RecordedEpisode:
        """Raises EpisodeRefused where there is none, or no more."""
        self._expire()
        if name not in self._episodes:
            raise EpisodeRefused(
                f"there is no episode {name!r}; its first call begins it, and {self.lease_s:g} s without any end it",
                404,
            )
        self._used[name] = self._clock()
        return self._episodes[name]

    def forget(self, name: str) -> None:
        """Drop an episode, finished or not; there need be none."""
        self._episodes.pop(name, None)
        self._used.pop(name, None)

    def chat(self, name: str, text: str, ids: list[int], shown: str) -> tuple[RecordedEpisode, PreparedCall]:
        """Find where a conversation continues: `text` and `ids` are the whole of it, `shown` its last message.

        An episode of a new name is kept once `begin` is called. Raises EpisodeRefused.
        """
        return self._ask(name, PromptRequest(text, fresh=ids), shown)

    def complete(self, name: str, prompt: str | list[int], ids: list[int]) -> tuple[RecordedEpisode, PreparedCall]:
        """Find where a text continues, or its tokens; `ids` are those of either. Raises EpisodeRefused."""
        if isinstance(prompt, str):
            request = PromptRequest(prompt, fresh=ids)
        else:
            request = PromptRequest(self.template.decode(ids), ids, ids)
        return self._ask(name, request, request.text)

    def begin(self, name: str, episode: RecordedEpisode) -> None:
        """Keep the episode of a call that will be answered. Raises EpisodeRefused where there is no room."""
        if name not in self._episodes:
            self._make_room()
            self._episodes[name] = episode
            self._used[name] = self._clock()

    def finish(
        self,
        name: str,
        *,
        reward: float | Sequence[float] | None = None,
        success: bool | None = None,
        truncated: bool = False,
        env: str | None = None,
        split: str | None = None,
        task: int | None = None,
        group: int | None = None,
    ) -> Trajectory:
        """The episode as it is trained on. Told once more, the same ending is the same trajectory.

        `group` is the trajectory's seed: episodes of one task and group are compared. Raises EpisodeRefused.
        """
        episode = self.get(name)
        ending = {"reward": reward, "success": success, "truncated": truncated, "env": env, "split": split}
        ending |= {"task": task, "group": group}
        if episode.trajectory is not None:
            if ending != episode.ending:
                raise EpisodeRefused(f"the episode {name!r} was finished otherwise before; that stays")
            return episode.trajectory
        trajectory = episode.finish(reward, success, truncated, self._played(episode, env, split, task, group))
        episode.ending = ending
        self._attempts[trajectory.env, trajectory.split, trajectory.task, trajectory.seed] += 1
        self.ended["finished"] += 1
        self.ended.update(episode.kinds)
        if self.path is not None:
            write_jsonl(self.path, [trajectory])
        return trajectory

    def summary(self) -> dict[str, int]:
        """Counts for /health: episodes, and how calls went on."""
        self._expire()
        open_ = [one for one in self._episodes.values() if one.trajectory is None]
        kinds = sum((one.kinds for one in open_), Counter(self.ended))
        names = ("finished", "expired", "clean", "realign", "fork")
        return {"open": len(open_), **{name: kinds[name] for name in names}}

    def list(self) -> list[dict[str, Any]]:
        """Every episode that is kept, the oldest first."""
        self._expire()
        return [
            {
                "episode": name,
                "finished": one.trajectory is not None,
                "turns": len(one.turns),
                **{kind: one.kinds[kind] for kind in ("clean", "realign", "fork")},
            }
            for name, one in self._episodes.items()
        ]

    def _ask(self, name: str, request: PromptRequest, shown: str) -> tuple[RecordedEpisode, PreparedCall]:
        self._expire()
        episode = self.get(name) if name in self._episodes else self._new(name)
        return episode, episode.ask(request, shown)

    def _new(
        self, name: str, played: EpisodeSpec | None = None, rng: np.random.Generator | None = None
    ) -> RecordedEpisode:
        rng = self._unseeded.spawn(1)[0] if rng is None else rng
        return RecordedEpisode(name, self.template, rng, played, self.strict)

    def _played(
        self, episode: RecordedEpisode, env: str | None, split: str | None, task: int | None, group: int | None
    ) -> EpisodeSpec:
        """Specification of the episode. Raises EpisodeRefused where the agent says otherwise than the trainer that sent
        it."""
        given = {"env": env, "split": split, "task": task, "seed": group}
        if episode.played is not None:
            for field, value in given.items():
                own = getattr(episode.played, field)
                if value is not None and value != own:
                    raise EpisodeRefused(
                        f"the episode {episode.name!r} has {field} {own!r}, not {value!r}: leave it out of the ending"
                    )
            return episode.played
        key = (env or NAMED, split or "train", task or 0, group or 0)
        return EpisodeSpec(*key, self._attempts[key])

    def _expire(self) -> None:
        late = self._clock() - self.lease_s
        for name in [name for name, used in self._used.items() if used < late]:
            episode = self._episodes[name]
            if episode.running:
                continue
            if episode.trajectory is None:
                self.ended["expired"] += 1
                self.ended.update(episode.kinds)
            self.forget(name)

    def _make_room(self) -> None:
        if len(self._episodes) < self.most:
            return
        done = next((name for name, one in self._episodes.items() if one.trajectory is not None), None)
        if done is None:
            raise EpisodeRefused(f"{self.most} episodes are open; finish some, or ask again later", 503)
        self.forget(done)
