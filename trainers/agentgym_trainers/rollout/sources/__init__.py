"""Sources: where a step's episodes come from.

A source is a class that is built from its options (a table [source] with `kind`) and asked for groups, step by step. To
add one, write its file and add it here.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agentgym_trainers.rollout.sources.base import SourceKind
from agentgym_trainers.rollout.sources.branched import Branched, BranchedSource
from agentgym_trainers.rollout.sources.external_agent import ForeignAgent, ForeignAgentSource
from agentgym_trainers.rollout.sources.offline import Offline, OfflineSource
from agentgym_trainers.rollout.sources.online import Online, OnlineSource
from agentgym_trainers.rollout.sources.self_play import SelfPlay, SelfPlaySource

SOURCES: dict[str, SourceKind] = {
    "online": SourceKind(Online, OnlineSource),
    "offline": SourceKind(Offline, OfflineSource, lambda options: frozenset({"expert"} if options.expert else ())),
    "branched": SourceKind(Branched, BranchedSource),
    "harness": SourceKind(ForeignAgent, ForeignAgentSource),
    "selfplay": SourceKind(
        SelfPlay,
        SelfPlaySource,
        lambda options: frozenset({"two_player"} | ({"expert"} if options.opponent == "expert" else set())),
    ),
}
AnySource = Annotated[Online | Offline | Branched | ForeignAgent | SelfPlay, Field(discriminator="kind")]
"""The options of any of them, told apart by `kind`."""
