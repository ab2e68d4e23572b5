"""The token policy: an engine's samples, recorded token by token, as the rollout's policy."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.rollouts.policy import EpisodeSpec, ModelResponse, Tokens, TurnContext
from agentgym.rollouts.prompt_format import Message
from agentgym.rollouts.trajectory import ImageSpan
from agentgym_trainers.engines.base import Completion, Conversation, Engine, Sampling
from agentgym_trainers.rollout.tokens import ChatTemplate, Transcript


@dataclass(frozen=True)
class TokenPolicy:
    """Samples replies from an engine. `salt` (the run's seed, the step) decides the random streams."""

    engine: Engine
    template: ChatTemplate
    sampling: Sampling
    salt: tuple[int, ...] = (0,)

    def actor(self, episode: EpisodeSpec, transcript: Transcript | None = None) -> TokenActor:
        """`transcript`: the tokens of the turns before, where the episode goes on from a past."""
        conversation = self.engine.open(episode.rng(*self.salt))
        return TokenActor(conversation, self.template, self.sampling, self.engine.max_length, transcript)


class TokenActor:
    """One episode: a transcript and the engine's conversation that it mirrors."""

    def __init__(
        self,
        conversation: Conversation,
        template: ChatTemplate,
        sampling: Sampling,
        max_length: int,
        transcript: Transcript | None = None,
    ) -> None:
        self._conversation, self._template, self._sampling = conversation, template, sampling
        self._max_length, self._transcript = max_length, transcript

    async def act(self, ask: TurnContext) -> ModelResponse:
        prompt, images = self._prompt(ask)
        return self._record(ask, await self._conversation.generate(prompt, self._sampling, images=images))

    def repeat(self, ask: TurnContext, completion: Completion) -> ModelResponse:
        """The turn as it was sampled before, in another episode of the same beginning: recorded, not sampled again."""
        self._prompt(ask)
        return self._record(ask, completion)

    def _prompt(self, ask: TurnContext) -> tuple[list[int], tuple[ImageSpan, ...]]:
        if self._transcript is None:
            tools = ask.prompt_format.tools(ask.session.spec)
            self._transcript = Transcript(self._template, self._sampling.stop_ids, tools)
        return self._transcript.prompt(ask.messages, self._max_length), self._transcript.images

    def _record(self, ask: TurnContext, completion: Completion) -> ModelResponse:
        assert self._transcript is not None
        span, text = self._transcript.sampled(ask.turn, completion.ids, completion.logprobs, completion.versions)
        return ModelResponse(text, finish=completion.finish, span=span)

    def finish(self, messages: list[Message] | None) -> Tokens:
        self._conversation.close()
        return self._transcript.finish(messages, self._max_length) if self._transcript is not None else Tokens()
