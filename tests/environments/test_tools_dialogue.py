"""tools-dialogue: what the customer answers, what the policy forbids, and customers played by a model."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from agentgym import registry
from agentgym.errors import ConfigError, EnvironmentCrashed, UsageError
from agentgym.rollouts.policy import EpisodeSpec, ScriptedPolicy
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, rollout
from agentgym.rollouts.trajectory import StopReason
from agentgym.session import LocalSession
from agentgym_environments.synthetic.tools_dialogue.cases import KINDS
from agentgym_environments.synthetic.tools_dialogue.days import days_in
from agentgym_environments.synthetic.tools_dialogue.users import PERSONAS


def desk(kind: str, persona: str = "brisk", task: int = 0, **arguments: Any) -> Any:
    env = registry.make("tools-dialogue", kind=kind, persona=persona, **arguments)
    env.reset(seed=0, options={"task": task})
    return env


def do(env: Any, name: str, /, **arguments: Any) -> str:
    return env.step({"name": name, "arguments": arguments})[0]


def say(env: Any, text: str) -> str:
    return do(env, "say", text=text).removeprefix("The customer says: ")


def found(env: Any) -> Any:
    """The customer is found, and the order of the first wish is known."""
    do(env, "find_customer", email=env.case.caller.email)
    return env.case.caller.wishes[0].order


def arrival(env: Any) -> date:
    return date.fromisoformat(env.case.arrives)


def finish(env: Any) -> bool:
    return env.step({"name": "finish", "arguments": {}})[4]["success"]


def allowed(kind: str, call: str) -> Any:
    """A desk whose first wish the policy allows."""
    for task in range(30):
        env = desk(kind, task=task)
        if any(step.name == call for step in env.job.plan):
            return env
    raise AssertionError(f"no {kind} that ends with {call}")


@pytest.mark.parametrize("persona", PERSONAS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_solver_serves_every_kind_of_wish_and_of_customer(kind, persona):
    for task in range(3):
        env = desk(kind, persona, task)
        while not env.over:
            *_, info = env.step(env.solver())
            assert info["valid_action"], env.output
        assert info["success"]


def test_personas_differ_and_tell_facts_only_on_request():
    brisk, forgetful, chatty = (desk("cancel", persona) for persona in ("brisk", "forgetful", "chatty"))
    caller = brisk.case.caller
    assert str(caller.wishes[0].order) in brisk.opening
    assert caller.email not in brisk.opening
    assert say(brisk, "Your e-mail address?") == f"My e-mail address is {caller.email}."
    assert str(forgetful.case.caller.wishes[0].order) not in forgetful.opening
    assert say(forgetful, "Your e-mail address?") == "I forgot which address I gave you."
    other = forgetful.case.caller
    assert say(forgetful, "Name and postcode?") == f"My name is {other.name}, postcode {other.postcode}."
    assert say(forgetful, "Which order is it?").startswith("I do not have the number. It is the one with the ")
    assert len(say(chatty, "Your name?")) > len(say(brisk, "Your name?"))


def test_a_pushy_customer_insists_once():
    env = desk("cancel_too_late", "pushy")
    assert say(env, "Sorry, that is not possible.") == "Make an exception, I am a good customer!"
    assert say(env, "Sorry, that is not possible.") == "I see. Then leave it."


def test_the_customer_agrees_only_to_what_was_wanted():
    env = allowed("swap", "exchange_item")
    order, colour = found(env), env.case.caller.wishes[0].names[0]
    assert say(env, f"Shall I cancel order {order}?").startswith("No. I want to exchange")
    assert say(env, f"Shall I exchange it for the pink one, order {order}?").startswith("No. ")
    assert env.desk.agreed == []
    assert (
        say(env, f"I would swap it for the {colour} one, order {order}. It cannot be undone. Do you agree?")
        == "Yes, please."
    )
    assert env.desk.agreed == [order]
    say(env, "One moment.")
    assert env.desk.agreed == []


def test_the_second_wish_comes_when_the_first_is_settled():
    for task in range(30):
        env = registry.make("tools-dialogue", persona="brisk")
        env.reset(options={"task": task})
        _, *rest = env.case.caller.wishes
        if rest:
            break
    assert env.case.caller.wants(rest[0]) not in env.opening
    assert say(env, "Anything else?") == f"One more thing: {env.case.caller.wants(rest[0])}"
    assert say(env, "Anything else?") == "No, that is all. Thank you."
    assert say(env, "Hm?") == "That is all, thank you. Goodbye."


def test_a_closing_too_early_can_be_taken_back():
    env = allowed("cancel", "cancel_order")
    order = found(env)
    ask = next(step for step in reversed(env.job.plan) if step.name == "say").arguments["text"]
    assert say(env, "Is there anything else?") == "No, that is all. Thank you."
    assert say(env, "What is your e-mail address?") == f"My e-mail address is {env.case.caller.email}."
    assert say(env, ask) == "Yes, please."
    do(env, "cancel_order", order=order)
    assert finish(env)


def test_the_customer_says_yes_to_a_question_only():
    env = allowed("cancel", "cancel_order")
    order = found(env)
    for text in (
        f"What is your e-mail, so that I can cancel order {order}?",
        f"I will now proceed to cancel order {order}.",
        f"Why do you want to cancel order {order}?",
        f"I've located order {order}. Is that the right one?",
    ):
        assert not say(env, text).startswith("Yes"), text
        assert env.desk.agreed == []
    assert say(env, f"Shall I cancel order {order}, or exchange it?").startswith("No. I want to cancel")


def test_a_change_without_consent_breaks_the_policy():
    env = allowed("cancel", "cancel_order")
    order = found(env)
    ask = next(step for step in reversed(env.job.plan) if step.name == "say").arguments["text"]
    do(env, "cancel_order", order=order)
    assert say(env, ask) == "Yes, please."  # too late
    assert [change.table for change in env.found] == ["orders", "payments", "violations"]
    assert not finish(env)


def test_who_refuses_before_he_knows_who_speaks_fails():
    env = desk("anothers")
    do(env, "refuse", order=env.case.caller.wishes[0].order, rule=1)
    do(env, "find_customer", email=env.case.caller.email)
    assert not finish(env)


def test_a_cancellation_fails_if_the_amount_is_not_stated():
    env = allowed("cancel", "cancel_order")
    order = found(env)
    assert say(env, f"Shall I cancel order {order}?") == "Yes, please."
    do(env, "cancel_order", order=order)
    assert env.answered() is False
    assert not finish(env)


@pytest.mark.parametrize("way", ["{day:%Y-%m-%d}", "{day:%B} {day.day}, {day.year}", "the {day.day}th of {day:%B}"])
def test_a_day_of_delivery_may_be_in_words(way):
    for task in range(8):
        env = desk("ask_delivery", task=task)
        found(env)
        say(env, f"Thank you for waiting! Your order will be with you on {way.format(day=arrival(env))}. {'.' * 150}")
        assert finish(env)


def test_naming_every_day_does_not_say_when_it_comes():
    for task in range(8):
        days = [date.fromisoformat(desk("ask_delivery", task=task).case.today) + timedelta(n) for n in range(1, 10)]
        for messages in ([" ".join(map(str, days))], map(str, days)):
            env = desk("ask_delivery", task=task)
            for message in messages:
                say(env, f"It comes on {message}.")
            assert not finish(env)


def test_days_of_a_message():
    text = "Today, Dec 28th, I see it: ordered 2026-12-20, it comes on 1 January, 2.1.2027 or Jan. 3, 2027."
    days = [(2026, 12, 28), (2026, 12, 20), (2027, 1, 1), (2027, 1, 2), (2027, 1, 3)]
    assert days_in(f"{text} Not on 30 February.", date(2026, 12, 28)) == {date(*day) for day in days}


@pytest.mark.parametrize(
    ("kind", "call"),
    [("cancel_too_late", "cancel_order"), ("injured", "cancel_order"), ("ask_delivery", "cancel_order")],
)
def test_what_the_policy_forbids_the_tools_do_and_it_fails(kind, call):
    env = desk(kind)
    order = found(env)
    do(env, call, order=order)
    while not env.over:
        *_, info = env.step(env.solver())
    assert not info["success"]


def test_orders_of_people_who_were_not_found_stay_shut():
    env = desk("anothers")
    order = found(env)
    for name in ("order_details", "cancel_order"):
        assert "is of a customer who was not found" in do(env, name, order=order)
    assert "no such customer" in do(env, "find_customer", name=env.case.caller.name, postcode="00000")
    assert "give the e-mail address, or" in do(env, "find_customer", name=env.case.caller.name)
    do(env, "refuse", order=order, rule=3)  # not the rule
    assert not finish(env)


def test_the_solver_repeats_its_question_after_other_talk():
    env = allowed("move_address", "change_address")
    while env.solver()["name"] != "change_address":
        env.step(env.solver())
    say(env, "One moment, please.")
    again = env.solver()
    assert again["name"] == "say"
    env.step(again)
    assert env.solver()["name"] == "change_address"


def test_the_key_leaves_out_how_the_conversation_came_there():
    one, other = desk("cancel"), desk("cancel")
    say(one, "Good morning!")
    say(one, "Lovely weather.")
    assert one.key() == other.key()
    say(one, "Anything else?")
    assert one.key() != other.key()


# Customers played by a model.


@contextmanager
def model(answer: Callable[[dict[str, Any]], tuple[int, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that speaks /chat/completions: its URL and the requests that it got."""
    requests: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            status, content = answer(requests[-1])
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def completion(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}]}


def test_with_a_model_as_customer_the_database_still_grades():
    env = allowed("cancel", "cancel_order")
    task = env._where[1]
    with model(lambda body: (200, completion("Yes, do so."))) as (url, requests):
        env = desk("cancel", task=task, user=url, model="customer")
        assert (env.env_spec.inline, env.env_spec.deterministic) == (False, False)
        assert url in env.env_spec.notes
        for step in env.job.plan:
            env.step({"name": step.name, "arguments": step.arguments})
        assert finish(env)
    prompt, greeting, *_, last = requests[-1]["messages"]
    assert requests[-1]["model"] == "customer"
    assert env.case.caller.email in prompt["content"]
    assert greeting == {"role": "assistant", "content": env.case.caller.greeting}
    assert last["content"].startswith("Shall I cancel")


@pytest.mark.parametrize(
    "answer", [(500, {}), (400, {"error": "no"}), (404, {}), (200, {"no": 1}), (200, completion(" "))]
)
def test_a_failing_customer_model_is_an_environment_error(answer):
    with model(lambda body: answer) as (url, _):
        env = desk("cancel", user=url, retries=0)
        before = env.key(), env.turn
        with pytest.raises(EnvironmentCrashed, match="the simulated user's model"):
            say(env, "Hello!")
        assert (env.key(), env.turn, env.turns) == (*before, [])


def test_an_episode_whose_customer_fails_is_not_scored():
    env = desk("cancel", user="http://127.0.0.1:9/v1", retries=0)
    policy = ScriptedPolicy([{"name": "say", "arguments": {"text": "Hello!"}}])
    episode = EpisodeSpec("tools-dialogue", "train", 0)
    prompt_format = PromptFormat(grammar="tool_call")
    session = LocalSession(env)
    played = asyncio.run(rollout(session, policy.actor(episode), prompt_format, episode, Limits()))
    assert played.stop == StopReason.ENVIRONMENT_FAILED
    assert "simulated user" in str(played.error)


def test_a_response_without_a_call_is_speech():
    env = desk("cancel")
    policy = ScriptedPolicy(["May I have your e-mail address, please?", {"name": "finish", "arguments": {}}])
    episode = EpisodeSpec("tools-dialogue", "train", 0)
    played = asyncio.run(rollout(LocalSession(env), policy.actor(episode), PromptFormat(), episode, Limits()))
    first = played.turns[0]
    assert first.action == {"name": "say", "arguments": {"text": "May I have your e-mail address, please?"}}
    assert first.reply == "May I have your e-mail address, please?"
    assert env.case.caller.email in played.turns[1].observation


def test_arguments_that_do_not_exist_are_refused():
    with pytest.raises(ConfigError, match="persona is one of brisk"):
        registry.make("tools-dialogue", persona="rude")
    with pytest.raises(UsageError, match="begins with http"):
        registry.make("tools-dialogue", user="localhost")


def test_the_new_address_is_another():
    """Drawn anew where chance gives the order's own: nothing could be changed (validation 217 was such a task)."""
    env = registry.make("tools-dialogue")
    env.reset(seed=0, options={"split": "validation", "task": 217})
    over, info = False, {}
    while not over:
        _, _, terminated, truncated, info = env.step(env.solver())
        over = terminated or truncated
    assert info["success"] is True
