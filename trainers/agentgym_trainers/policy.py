"""The token policy: an engine's samples, recorded token by token, as the rollout's policy."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.harness import Message
from agentgym.policy import Ask, Episode, Reply, Tokens
from agentgym_trainers.engines.base import Conversation, Engine, Sampling
from agentgym_trainers.tokens import ChatTemplate, Transcript


@dataclass(frozen=True)
class TokenPolicy:
    """Samples replies from an engine. `salt` (the run's seed, the step) decides the random streams."""

    engine: Engine
    template: ChatTemplate
    sampling: Sampling
    salt: tuple[int, ...] = (0,)

    def actor(self, episode: Episode) -> TokenActor:
        return TokenActor(
            self.engine.open(episode.rng(*self.salt)), self.template, self.sampling, self.engine.max_length
        )


class TokenActor:
    """One episode: a transcript and the engine's conversation that it mirrors."""

    def __init__(self, conversation: Conversation, template: ChatTemplate, sampling: Sampling, max_length: int) -> None:
        self._conversation, self._template, self._sampling = conversation, template, sampling
        self._max_length = max_length
        self._transcript: Transcript | None = None

    async def act(self, ask: Ask) -> Reply:
        if self._transcript is None:
            tools = ask.harness.tools(ask.session.spec)
            self._transcript = Transcript(self._template, self._sampling.stop_ids, tools)
        prompt = self._transcript.prompt(ask.messages)
        completion = await self._conversation.generate(prompt, self._sampling)
        span, text = self._transcript.sampled(ask.turn, completion.ids, completion.logprobs, completion.version)
        return Reply(text, finish=completion.finish, span=span)

    def finish(self, messages: list[Message] | None) -> Tokens:
        self._conversation.close()
        return self._transcript.finish(messages, self._max_length) if self._transcript is not None else Tokens()
