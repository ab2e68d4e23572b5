"""Dialogue: serve a shop's customer by talking and by tools, under a written policy; the user is simulated."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from agentgym.env import Action
from agentgym.errors import ConfigError
from agentgym.rollouts.openai_policy import OpenAIPolicy
from agentgym.spec import EnvSpec
from agentgym_environments.synthetic.tools.calls import JobEnv, as_text
from agentgym_environments.synthetic.tools.database import Dump
from agentgym_environments.synthetic.tools.goals import says
from agentgym_environments.synthetic.tools.job import Job, PlannedStep
from agentgym_environments.synthetic.tools.registry import Tool, tool, tools_of
from agentgym_environments.synthetic.tools_dialogue import desk
from agentgym_environments.synthetic.tools_dialogue.cases import KINDS, LAST_DELIVERY, Case, case
from agentgym_environments.synthetic.tools_dialogue.days import days_in
from agentgym_environments.synthetic.tools_dialogue.policy import POLICY
from agentgym_environments.synthetic.tools_dialogue.users import AFFIRMED, PERSONAS, ModelUser, ScriptedUser

Speech = Annotated[str, Field(min_length=1, max_length=600)]

OPENERS = ("May I have your e-mail address, please?", "What is your order number?", "Is there anything else?")
ASIDE = ("say", "policy", "finish", "find_customer", "order_details", "product_colours", "refuse", "hand_over")
"""Tools that need nobody's yes."""


@tool
def say(env: Any, text: Speech) -> str:
    """Say something to the customer. You read the answer."""
    return env.say(text)


@tool
def policy(env: Any) -> str:
    """The policy once more, and the tools."""
    return "\n".join([POLICY, *(one.usage for one in env.tools.values())])


@tool
def finish(env: Any) -> str:
    """End the conversation, once all that the customer wants is done, answered or refused."""
    env.done = True
    return "finished"


class Dialogue(JobEnv):
    """One conversation.

    kind, persona: conversations of this kind, or with this sort of customer; "" draws them.
    user: "scripted", or the URL of an OpenAI-compatible server whose `model` plays the customer.
    """

    tools: ClassVar[dict[str, Tool]] = tools_of(desk)
    env_tools: ClassVar[dict[str, Tool]] = {"say": say, "policy": policy, "finish": finish}

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        kind: str = "",
        persona: str = "",
        user: str = "scripted",
        model: str = "",
        api_key: str | None = None,
        timeout_s: float = 60.0,
        retries: int = 2,
    ) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        if kind not in ("", *KINDS) or persona not in ("", *PERSONAS):
            raise ConfigError(
                f"tools-dialogue: kind is one of {', '.join(KINDS)}; persona is one of {', '.join(PERSONAS)}"
            )
        self._model: OpenAIPolicy | None = None
        if user != "scripted":
            self._model = OpenAIPolicy(user, model, api_key, timeout_s=timeout_s, retries=retries)
            why = f"The customer is played by the model {model or 'of'} {user}, which may answer differently each time."
            can = tuple(one for one in spec.capabilities if one != "solver")  # its conversation is with the script
            deadline_s = (retries + 2) * timeout_s
            changes = {"inline": False, "deterministic": False, "notes": why, "step_deadline_s": deadline_s}
            spec = spec.model_copy(update={**changes, "capabilities": can})
        super().__init__(spec)
        self.kind, self.persona = kind, persona
        self.case: Case
        self.turns: list[tuple[str, str]] = []
        """Pairs (the agent's message, the user's reply)."""

    def choose(self, split: str, task: int) -> tuple[Any, Dump, Job, str]:
        self.case = case(split, task, self.kind, self.persona)
        self.turns = []
        opening = f"It is {self.case.today}. The customer says: {self.case.caller.greeting}"
        return self.case.desk(), self.case.before, self.case.job, opening

    def say(self, text: str) -> str:
        """The customer's answer. Raises EnvironmentFailure when his model fails; then nothing was said."""
        caller = self.case.caller
        user = ScriptedUser(caller) if self._model is None else ModelUser(caller, self._model)
        answer = user.reply(self.turns, text)
        self.turns.append((text, answer))
        named = [int(number) for number in re.findall(r"\b\d{5}\b", text)]
        self.desk.agreed = named if AFFIRMED.match(answer) else []
        return f"The customer says: {answer}"

    def answered(self) -> bool | None:
        statements = self._statements()
        return all(statements) if statements else None

    def _statements(self) -> list[bool]:
        """Return of each content that has to be said whether it was."""
        messages = [text for text, _ in self.turns]
        found = [any(says(text, one) for text in messages) for one in self.case.must_say]
        return [*found, self._names_day(messages)] if self.case.arrives else found

    def _names_day(self, messages: list[str]) -> bool:
        """Return whether the day of delivery was said, and no other of the next days on which nothing comes: nobody
        succeeds by naming them all."""
        today = date.fromisoformat(self.case.today)
        days = {day for text in messages for day in days_in(text, today) if 0 < (day - today).days <= LAST_DELIVERY}
        sql = "SELECT delivery FROM orders JOIN customers ON customers.id = customer WHERE email = ?"
        own = {row["delivery"] for row in self.db.rows(sql, self.case.caller.email)}
        return self.case.arrives in map(str, days) and {str(day) for day in days} <= own

    def farewell(self) -> Action:
        return {"name": "finish", "arguments": {}}

    def next_step(self) -> PlannedStep | None:
        """Do as planned, but what needs a yes is asked for again when something else was said since."""
        step = super().next_step()
        if step is None or step.name in ASIDE or step.arguments["order"] in self.desk.agreed:
            return step
        questions = [one for one in self.job.plan[: self.job.plan.index(step)] if one.name == "say"]
        return questions[-1]

    def extra(self) -> Any:
        return {"turns": self.turns, "known": self.desk.known, "agreed": self.desk.agreed}

    def beside(self) -> Any:
        """Return where the conversation stands, not how it came there; a model's next word depends on all of it."""
        if self._model is not None:
            return self.extra()
        return [self.desk.known, self.desk.agreed, self._statements(), ScriptedUser(self.case.caller).stage(self.turns)]

    def set_extra(self, extra: Any) -> None:
        self.turns = [(agent, user) for agent, user in extra["turns"]]
        self.desk.known, self.desk.agreed = list(extra["known"]), list(extra["agreed"])

    def offered(self) -> list[str]:
        """Calls that would be understood now: openers, and what can be done with the orders of customers found."""
        calls = [as_text("say", {"text": text}) for text in OPENERS]
        calls += [as_text("policy", {}), as_text("finish", {})]
        for order in self.db.rows("SELECT * FROM orders ORDER BY id"):
            id = order["id"]
            if order["customer"] in self.desk.known:
                names = ("order_details", "hand_over", *(["cancel_order"] if order["status"] != "cancelled" else []))
                calls += [as_text(name, {"order": id}) for name in names]
                calls += [as_text("refuse", {"order": id, "rule": rule}) for rule in (1, 3, 4, 5)]
        return calls
