"""Price of a model's tokens, and a policy whose replies are counted."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from agentgym.errors import ConfigError, UsageError
from agentgym.rollouts.policy import Actor, EpisodeSpec, ModelResponse, Policy, Tokens, TurnContext, Usage
from agentgym.rollouts.prompt_format import Message


class Price(BaseModel):
    """Dollars for a million tokens of a model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: float = Field(ge=0, allow_inf_nan=False)
    completion: float = Field(ge=0, allow_inf_nan=False)

    def of(self, tokens: Usage) -> float:
        """Cost of some tokens in dollars."""
        return (tokens.prompt * self.prompt + tokens.completion * self.completion) / 1e6


def read_prices(path: Path) -> dict[str, Price]:
    """Prices by model, from a TOML file with a table for each: ["NAME"], prompt = 0.25, completion = 2.0.

    Raises ConfigError for a file that is something else.
    """
    try:
        return TypeAdapter(dict[str, Price]).validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as prices: {error}") from error
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ConfigError(
            f'{path} does not hold prices ({problems}); each model is a table ["NAME"] with prompt and completion, in '
            "dollars for a million tokens"
        ) from error


@dataclass
class Budget:
    """Dollars that an evaluation may cost, and has cost."""

    price: Price | None = None
    max_cost: float | None = None
    """Dollars. Once they are spent no further episode is started."""
    spent: float = 0.0

    def __post_init__(self) -> None:
        if self.max_cost is not None and self.price is None:
            raise UsageError("a maximum cost needs the model's price")

    def add(self, tokens: Usage | None) -> None:
        """Count the tokens of a reply. Raises UsageError where a limit is set and nobody counted the tokens."""
        if self.price is not None and tokens is not None:
            self.spent += self.price.of(tokens)
        elif self.max_cost is not None:
            raise UsageError("the policy does not count its tokens, so its cost cannot be limited")

    def has_room(self) -> bool:
        """Return whether another episode may be started."""
        return self.max_cost is None or self.spent < self.max_cost


@dataclass
class CountedPolicy:
    """A policy whose tokens are counted for each episode, tries that infrastructure failed included."""

    policy: Policy
    budget: Budget
    counts: dict[EpisodeSpec, Usage | None] = field(default_factory=dict)

    def actor(self, episode: EpisodeSpec) -> Actor:
        """Return the actor of one episode."""
        return _CountedActor(self, episode, self.policy.actor(episode))

    def add(self, episode: EpisodeSpec, tokens: Usage | None) -> None:
        """Count a reply. An episode with one that nobody counted has no count."""
        self.budget.add(tokens)
        before = self.counts.get(episode, Usage(0, 0))
        self.counts[episode] = None if before is None or tokens is None else before.plus(tokens)

    def take(self, episode: EpisodeSpec) -> Usage | None:
        """Tokens of a finished episode, which is forgotten. None where they are not known."""
        return self.counts.pop(episode, Usage(0, 0))


@dataclass
class _CountedActor:
    counted: CountedPolicy
    episode: EpisodeSpec
    actor: Actor

    async def act(self, ask: TurnContext) -> ModelResponse:
        reply = await self.actor.act(ask)
        self.counted.add(self.episode, reply.tokens)
        return reply

    def finish(self, messages: list[Message] | None) -> Tokens:
        return self.actor.finish(messages)
