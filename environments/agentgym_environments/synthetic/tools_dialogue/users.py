"""The simulated user: a scripted customer with a persona, or any OpenAI-compatible model."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field

import numpy as np

from agentgym.errors import EnvironmentCrashed, PolicyFailure, UsageError
from agentgym.rollouts.openai_policy import OpenAIPolicy
from agentgym.rollouts.policy import ContextFull
from agentgym_environments.synthetic.tools_dialogue.acts import QUESTION_WORDS, Acts, acts

PERSONAS = {
    "brisk": "You answer in few words and only what is asked.",
    "chatty": "You like to talk and add things that have nothing to do with it.",
    "forgetful": "You do not remember your e-mail address nor the numbers of your orders; you know your name and "
    "postcode.",
    "pushy": "You do not take the first no for an answer: you insist once, then give in.",
}

CHAT = ("My neighbour says your parcels are always late.", "It rains here since Monday.", "I am a customer for years!")

Turn = tuple[str, str]
"""Pair (the agent's message, the user's reply)."""


@dataclass
class Wish:
    """One thing that the customer wants."""

    kind: str
    order: int
    thing: str
    """Name of the order for a customer who does not know its number."""
    text: str
    """Words of the customer; {order} stands for the order."""
    names: tuple[str, ...] = ()
    """Names that a proposal must have, beside the action and the order, so that the customer says yes."""
    details: dict[str, str] = field(default_factory=dict)
    """Answers of the customer: for "item", "colour", "address", "refund"."""
    by_number: bool = False
    """He knows the number whatever his persona."""


@dataclass(frozen=True)
class Caller:
    """Customer who calls, and the reason."""

    name: str
    email: str
    postcode: str
    persona: str
    wishes: tuple[Wish, ...]

    def named(self, wish: Wish) -> str:
        forgot = self.persona == "forgetful" and not wish.by_number
        return f"my order with the {wish.thing}" if forgot else f"my order {wish.order}"

    def wants(self, wish: Wish) -> str:
        return wish.text.format(order=self.named(wish))

    @property
    def greeting(self) -> str:
        chat = f" {CHAT[len(self.name) % len(CHAT)]}" if self.persona == "chatty" else ""
        return f"Hello.{chat} {self.wants(self.wishes[0])}"


AFFIRMED = re.compile(r"\s*(yes|yep|yeah|sure|ok|okay|please do|go ahead|correct|agreed|of course)\b", re.IGNORECASE)

NEEDED = {"cancel": {"cancel"}, "return": {"return", "refund"}, "exchange": {"exchange"}, "injury": {"hand over"}}
"""Actions of which a proposal must name one, so that the customer says yes; other kinds of wishes need none."""
OTHERS = {"cancel": {"exchange"}, "return": {"cancel", "exchange"}, "exchange": {"cancel"}}
"""Actions that the customer does not want; for other kinds of wishes all three."""

MORE, NO_MORE, GOODBYE = "One more thing:", "No, that is all. Thank you.", "That is all, thank you. Goodbye."


@dataclass(frozen=True)
class ScriptedUser:
    """Answers by rules; the same conversation gives the same answer."""

    caller: Caller

    def reply(self, turns: list[Turn], utterance: str) -> str:
        """Return what the customer says to `utterance` after `turns`."""
        heard, wishes = acts(utterance), self.caller.wishes
        settled, insisted = self.stage(turns)
        known = wishes[: settled + 1]
        wish = next((one for one in known if str(one.order) in heard.text), known[-1])
        answer = self._to_proposal(heard, wish)
        if answer:
            return answer
        answers = [self._answer(topic, wish) for topic in (*QUESTION_WORDS, "wish") if topic in heard.asks]
        if any(answers):
            return self._manner(" ".join(dict.fromkeys(one for one in answers if one)), len(turns))
        if heard.more or heard.farewell:
            if settled + 1 < len(wishes):
                return f"{MORE} {self.caller.wants(wishes[settled + 1])}"
            return NO_MORE if heard.more and settled < len(wishes) else GOODBYE
        if heard.refuses:
            pushy = self.caller.persona == "pushy" and not insisted
            return "Make an exception, I am a good customer!" if pushy else "I see. Then leave it."
        if settled == len(wishes):
            return GOODBYE
        return self._manner("All right." if heard.done or "?" not in utterance else self.caller.wants(wish), len(turns))

    def stage(self, turns: list[Turn]) -> tuple[int, bool]:
        """(wishes that the customer holds for settled, whether he has insisted)."""
        settled = sum(answer.startswith((MORE, NO_MORE)) for _, answer in turns)
        return settled, any("exception" in answer for _, answer in turns)

    def _to_proposal(self, heard: Acts, wish: Wish) -> str:
        """Yes or no to what is proposed for the order of a wish; "" where nothing is."""
        named = all(_named(one, heard.text) for one in wish.names)
        if not heard.consent or str(wish.order) not in heard.text or not (heard.actions or (wish.names and named)):
            return ""
        needed, others = NEEDED.get(wish.kind, set()), OTHERS.get(wish.kind, {"cancel", "return", "exchange"})
        if named and (not needed or needed & heard.actions) and not others & heard.offered:
            return "Yes, please."
        return f"No. {self.caller.wants(wish)} {self._details(wish)}".strip()

    def _answer(self, topic: str, wish: Wish) -> str:
        caller, forgetful = self.caller, self.caller.persona == "forgetful"
        if topic == "identity":
            topic = "name" if forgetful else "email"
        if topic == "wish":
            return caller.wants(wish)
        if topic == "email":
            return "I forgot which address I gave you." if forgetful else f"My e-mail address is {caller.email}."
        if topic == "name":
            return f"My name is {caller.name}, postcode {caller.postcode}."
        if topic == "order":
            if forgetful and not wish.by_number:
                return f"I do not have the number. It is the one with the {wish.thing}."
            return f"It is order {wish.order}."
        return wish.details.get(topic, "")

    def _details(self, wish: Wish) -> str:
        return " ".join(wish.details.values())

    def _manner(self, answer: str, turn: int) -> str:
        return f"{answer} {CHAT[turn % len(CHAT)]}" if self.caller.persona == "chatty" else answer


def _named(what: str, text: str) -> bool:
    """Return whether a text has every word of `what`, in any order: "12 Elm Street" names "Elm Street 12"."""
    return all(re.search(rf"\b{re.escape(word)}\b", text) for word in what.casefold().split())


@dataclass(frozen=True)
class ModelUser:
    """Asks a model what the customer says."""

    caller: Caller
    policy: OpenAIPolicy

    @property
    def prompt(self) -> str:
        caller = self.caller
        wishes = "\n".join(
            f"- {caller.wants(wish)} {' '.join(wish.details.values())} (order {wish.order})" for wish in caller.wishes
        )
        return (
            f"You play a customer who writes to a shop's service desk. {PERSONAS[caller.persona]}\n"
            f"You are {caller.name}, e-mail {caller.email}, postcode {caller.postcode}. You want, one after the "
            "other:\n"
            f"{wishes}\nSay nothing of your next wish before the first is settled; give facts only when asked. "
            "When the desk "
            "asks whether it should do exactly what you want, begin your answer with Yes, otherwise with No. "
            "Never play the "
            "desk. Answer with what the customer says and nothing else, in at most three sentences."
        )

    def reply(self, turns: list[Turn], utterance: str) -> str:
        """Raises EnvironmentCrashed when the model fails: then nothing was said."""
        messages = [{"role": "system", "content": self.prompt}, {"role": "assistant", "content": self.caller.greeting}]
        for agent, user in turns:
            messages += [{"role": "user", "content": agent}, {"role": "assistant", "content": user}]
        messages.append({"role": "user", "content": utterance})
        try:
            answer = asyncio.run(self._ask(messages)).strip()
        except (PolicyFailure, UsageError, ContextFull) as error:
            raise EnvironmentCrashed(f"the simulated user's model failed: {error}") from error
        if not answer:
            raise EnvironmentCrashed("the simulated user's model said nothing")
        return answer

    async def _ask(self, messages: list[dict[str, str]]) -> str:
        async with self.policy as policy:
            return (await policy.complete(policy.body(messages), np.random.default_rng(0))).text
