"""tools-dialogue: the customer judges an agent's messages by what they do, not by single words."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from agentgym import registry
from agentgym_environments.synthetic.tools_dialogue.acts import acts

_spec = importlib.util.spec_from_file_location("wordings", Path(__file__).with_name("wordings.py"))
wordings = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(wordings)


ALIKE = {"return": "refund"}
"""To propose the refund is to propose the return."""


def understood(act: str, text: str) -> bool:
    heard = acts(text)
    kind, _, what = act.partition(" ")
    others = bool(heard.refuses or heard.consent or heard.asks or heard.more or heard.farewell)
    if act == "does not refuse":
        return not heard.refuses
    if act == "refuses":
        return heard.refuses and not heard.consent
    if act == "asks for more":
        return heard.more and not heard.asks
    if kind == "asks":
        return what in heard.asks and not heard.consent and not heard.more
    if kind == "proposes":
        return (
            heard.consent and bool({what, ALIKE.get(what, what)} & heard.actions) and not heard.asks and not heard.more
        )
    return {
        "farewell": heard.farewell,
        "reports done": heard.done and not others,
        "nothing": not others and not heard.done,
    }[act]


@pytest.mark.parametrize("act", wordings.WRITTEN)
def test_every_wording_of_an_act_is_understood(act):
    assert len(wordings.WRITTEN[act]) >= 8
    assert [text for text in wordings.WRITTEN[act] if not understood(act, text)] == []


def test_nearly_every_held_out_wording_is_understood():
    tried = [(act, text) for act, texts in wordings.HELD_OUT.items() for text in texts]
    missed = [(act, text) for act, text in tried if not understood(act, text)]
    assert len(missed) <= 0.05 * len(tried), missed


POLITE = ("{}", "Thank you. {}", "I'm sorry to hear that. {}", "Of course! {}", "{} Thank you!", "Hello Ulla. {}")


@pytest.mark.parametrize("frame", POLITE)
def test_courtesy_before_and_after_changes_no_act(frame):
    courtesy = {"farewell", "nothing"}  # these are courtesy themselves
    tried = [(act, text) for act, texts in wordings.WRITTEN.items() if act not in courtesy for text in texts]
    missed = [(act, text) for act, text in tried if not understood(act, frame.format(text))]
    assert missed == []


@pytest.mark.parametrize("change", [str.upper, lambda text: text.replace("'", "\u2019"), lambda text: f"**{text}**"])
def test_letter_case_and_typography_change_no_act(change):
    missed = [text for act, texts in wordings.WRITTEN.items() for text in texts if not understood(act, change(text))]
    assert missed == []


# Whole conversations in other words.

SENTENCES = {
    "Hello! May I have your e-mail address, please?": (
        "Before we go further, may I have your e-mail address to verify your account?",
        "I'm sorry to hear that. Could you share your email with me?",
        "Hi there, I'd be happy to help. What's your e-mail?",
    ),
    "Then your full name and postcode, please?": (
        "No problem! Could you give me your full name and postal code instead?",
        "I'm sorry, I can't find you without it. What is your name, and your postcode?",
        "In that case I need your name and zip code.",
    ),
    "Is there anything else?": (
        "Can I help you with anything else today?",
        "Sorry again for the trouble. Is there something else I can do for you?",
        "That's settled. Do you have any other questions?",
    ),
    "Which order number is it{too}, please?": (
        "Could you tell me the order number{too}?",
        "I'm sorry about that. Which order is this about{too}?",
        "I can't see which one you mean - could you repeat the order number{too}?",
    ),
    "Please tell me{too}: which item is it, and how shall I refund it?": (
        "Which item would you like to send back{too}? And how would you like your money back?",
        "I'm sorry it did not suit you. What product is it{too}, and how should we refund it?",
        "Could you let me know{too} which product it is? Do you prefer a voucher or the way you paid?",
    ),
    "Please tell me{too}: which item is it, and which colour shall it be?": (
        "Which product do you want to swap{too}? What color would you like?",
        "I'm sorry you don't like it. What item is it{too}, and in which colour do you want it?",
        "Could you tell me{too} the item in question? And the colour you'd prefer?",
    ),
    "Please tell me{too}: which new address is it?": (
        "Where should we send it{too}?",
        "I'm sorry for the trouble. What is the new address{too}?",
        "Could you give me the new delivery address{too}?",
    ),
    "Shall I cancel order {order} and pay {price} euros back to your {way}?": (
        "I've located order #{order}. Shall I go ahead and call it off, with {price} euros back to your {way}?",
        "I'm sorry you leave. Just to confirm: shall I cancel order {order}, {price} euros refunded to your {way}?",
        "I would void order {order}; {price} euros go back to your {way}. Is that okay?",
    ),
    "Shall I send order {order} to {street}?": (
        "Would you like me to change the address of order {order} to {street}?",
        "I'm sorry for the confusion. May I redirect order {order} to {street}?",
        "I'd update the delivery address of order {order} to {street}, is that correct?",
    ),
    "Shall I return the {item} of order {order} and pay {price} euros back by {way}?": (
        "I can take back the {item} of order {order}: {price} euros by {way}. Do you agree?",
        "I'm sorry it broke. May I send the {item} of order {order} back and reimburse {price} euros by {way}?",
        "Are you OK with a return of the {item}, order {order}, for {price} euros by {way}?",
    ),
    "Shall I exchange the {item} of order {order} for the {colour} one? {price} euros are {how}.": (
        "Would you like me to swap the {item} of order {order} for the {colour} one? {price} euros are {how}.",
        "Sorry for the wait! {price} euros are {how}. May I replace the {item} of order {order} with the {colour} one?",
        "I'd exchange the {item} (order {order}) for the {colour} one; {price} euros are {how}. Please confirm.",
    ),
    "I am sorry, I cannot do that. {why}": (
        "Unfortunately our policy doesn't allow that. {why}",
        "I'm afraid that is not possible. {why}",
        "I won't be able to do this for you, I'm very sorry. {why}",
    ),
    "I am sorry to hear that. I hand this over to a colleague.": (
        "That sounds painful! A colleague will take it from here.",
        "I'm so sorry you were hurt. I'm escalating this to a specialist.",
        "Please take care; I'll pass this on to my supervisor.",
    ),
    "It comes on {day}.": (
        "Sorry for the delay: your order arrives on {day}.",
        "Good news, it will be delivered on {day}.",
        "You can expect it on {day}!",
    ),
}


def reworded(text: str, way: int) -> str:
    """One of the shipped plan's messages in other words."""
    for shipped, others in SENTENCES.items():
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.*?)", re.escape(shipped))
        found = re.fullmatch(pattern, text)
        if found:
            return others[way].format(**found.groupdict())
    raise AssertionError(f"no other words for {text!r}")


def replayed(task: int, words: Callable[[str], str]) -> bool:
    """Play the shipped plan once, without planning again."""
    env = registry.make("tools-dialogue")
    env.reset(seed=0, options={"split": "test", "task": task})
    for step in env.job.plan:
        arguments = {"text": words(step.arguments["text"])} if step.name == "say" else step.arguments
        env.step({"name": step.name, "arguments": arguments})
    success = env.step({"name": "finish", "arguments": {}})[4]["success"]
    env.close()
    return success


WAYS = {
    "as shipped": str,
    "thanks": lambda text: f"Thank you. {text}",
    "sorry": lambda text: f"I'm sorry to hear that. {text}",
    "one moment": lambda text: f"One moment, please. Thank you for your patience! {text} Sorry for the trouble.",
    "other words 1": lambda text: reworded(text, 0),
    "other words 2": lambda text: reworded(text, 1),
    "other words 3": lambda text: reworded(text, 2),
}


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_the_shipped_plan_succeeds_in_any_words(first):
    tried = [(task, way) for task in range(first, first + 50) for way in WAYS]
    assert [(task, way) for task, way in tried if not replayed(task, WAYS[way])] == []
