"""The simulated user: a scripted customer with a persona, or any OpenAI-compatible model."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field

import numpy as np

from agentgym.errors import EnvironmentCrashed, PolicyFailure, UsageError
from agentgym.openai import OpenAIPolicy
from agentgym.policy import ContextFull

PERSONAS = {
    "brisk": "You answer in few words and only what is asked.",
    "chatty": "You like to talk and add things that have nothing to do with it.",
    "forgetful": "You do not remember your e-mail address nor the numbers of your orders; you know your name and "
    "postcode.",
    "pushy": "You do not take the first no for an answer: you insist once, then give in.",
}

CHAT = ("My neighbour says your parcels are always late.", "It rains here since Monday.", "I am a customer for years!")

Turn = tuple[str, str]
"""(what the agent said, what the user replied)."""


@dataclass
class Wish:
    """One thing that the customer wants."""

    kind: str
    order: int
    thing: str
    """By which the customer names the order when he does not know its number."""
    text: str
    """How he says it; {order} stands for the order."""
    agrees: tuple[str, ...]
    """What a proposal must name, beside the order, so that he says yes; other words for the same are joined by "|"."""
    details: dict[str, str] = field(default_factory=dict)
    """What he says when asked: for "item", "colour", "address", "refund"."""
    by_number: bool = False
    """He knows the number whatever his persona."""


@dataclass(frozen=True)
class Caller:
    """Who calls, and what for."""

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

ASKED = {
    "email": r"e-?mail|verify|identif",
    "name": r"\bname\b|postcode|post code|zip",
    "order": r"order (number|id|no)|which order|number of (the|your) order",
    "item": r"which (item|product|one|article)|what (item|product)",
    "colour": r"colou?r",
    "address": r"(new|which|what|other|another) address|where .*(send|deliver)",
    "refund": r"how .*refund|refund.*(how|way|where|method)|voucher or|or .*voucher",
}

ASKING = r"\?|\b(confirm|agree|proceed)"
REFUSAL = r"\b(unable|not possible|not allowed|sorry|unfortunately)\b|^[^?]*\b(cannot|can't|can not)\b[^?]*$"
"""A question may say what cannot be undone."""
CLOSING = r"anything else|something else|what else|further|all done|else\?"


@dataclass(frozen=True)
class ScriptedUser:
    """Answers by rules; the same conversation gives the same answer."""

    caller: Caller

    def reply(self, turns: list[Turn], said: str) -> str:
        """What the customer says to `said` after `turns`."""
        heard = said.casefold()
        closings, insisted = self.stage(turns)
        wish = self.caller.wishes[min(closings, len(self.caller.wishes) - 1)]
        if closings >= len(self.caller.wishes):
            return "That is all, thank you. Goodbye."
        if re.search(CLOSING, heard):
            more = closings + 1 < len(self.caller.wishes)
            if not more:
                return "No, that is all. Thank you."
            return f"One more thing: {self.caller.wants(self.caller.wishes[closings + 1])}"
        refused = bool(re.search(REFUSAL, heard))
        if str(wish.order) in heard and re.search(ASKING, heard) and not refused:
            agrees = all(any(one.casefold() in heard for one in words.split("|")) for words in wish.agrees)
            return "Yes, please." if agrees else f"No. {self.caller.wants(wish)} {self._details(wish)}".strip()
        told = [self._answer(topic, wish) for topic, sign in ASKED.items() if re.search(sign, heard)]
        if any(told):
            return self._manner(" ".join(one for one in told if one), len(turns))
        if refused:
            pushy = self.caller.persona == "pushy" and not insisted
            return "Make an exception, I am a good customer!" if pushy else "I see. Then leave it."
        return self._manner("All right." if "?" not in said else self.caller.wants(wish), len(turns))

    @staticmethod
    def stage(turns: list[Turn]) -> tuple[int, bool]:
        """(how often the agent asked for more, whether the customer has insisted)."""
        closings = sum(bool(re.search(CLOSING, one.casefold())) for one, _ in turns)
        return closings, any("exception" in answer for _, answer in turns)

    def _answer(self, topic: str, wish: Wish) -> str:
        caller, forgetful = self.caller, self.caller.persona == "forgetful"
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

    def reply(self, turns: list[Turn], said: str) -> str:
        """Raises EnvironmentCrashed when the model fails: then nothing was said."""
        messages = [{"role": "system", "content": self.prompt}, {"role": "assistant", "content": self.caller.greeting}]
        for agent, user in turns:
            messages += [{"role": "user", "content": agent}, {"role": "assistant", "content": user}]
        messages.append({"role": "user", "content": said})
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
