"""WebShop: buy what an instruction asks for, among products of a real shop."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentgym.errors import ConfigError, MissingDependency
from agentgym.spec import EnvSpec
from agentgym_environments.base.engine_env import package, require_flag
from agentgym_environments.base.text_env import Outcome, TurnEnv
from agentgym_environments.benchmarks.webshop import catalogue, pages
from agentgym_environments.benchmarks.webshop.fetch import default_folder, fetch_command
from agentgym_environments.benchmarks.webshop.lazy import LAZY_POLICIES
from agentgym_environments.benchmarks.webshop.pages import WebShopState
from agentgym_environments.benchmarks.webshop.reward import Nouns, reward, spacy_nouns, title_nouns
from agentgym_environments.benchmarks.webshop.solver import next_action
from agentgym_environments.tasks.webshop import Goal

ACTION = re.compile(r"(search|click)\[(.+)\]", re.DOTALL)


class WebShop(TurnEnv):
    """The only reward is WebShop's, for what is bought.

    data: folder of WebShop's files; "" for where `fetch` puts them. size: "all" or "small" (a thousand products).
    goals: "human" or "synthetic". observation: "text" or "text_rich". show_attributes: offer the page of attributes.
    tagger: a spaCy model that finds the nouns of titles, en_core_web_lg as in WebShop; "" for a rule that needs none.
    """

    lazy_policies = LAZY_POLICIES

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        data: str = "",
        size: str = "all",
        goals: str = "human",
        observation: str = "text",
        show_attributes: bool = False,
        tagger: str = "",
    ) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        for name, value, known in (
            ("size", size, tuple(catalogue.SIZES)),
            ("goals", goals, catalogue.GOALS),
            ("observation", observation, pages.OBSERVATIONS),
        ):
            if value not in known:
                raise ConfigError(f"{spec.id}: {name} is {' or '.join(known)}, not {value!r}")
        require_flag(spec.id, "show_attributes", show_attributes)
        package("thefuzz", "webshop")
        self.catalogue, self.tasks, most = catalogue.load(_folder(spec.id, data, size), size, goals)
        self.nouns: Nouns = spacy_nouns(tagger) if tagger else title_nouns
        self.rich, self.show_attributes = observation == "text_rich", show_attributes
        super().__init__(
            spec.model_copy(
                update={
                    "splits": self.tasks.splits,
                    "task_set": self.tasks.content_hash,
                    "reward_range": (0.0, most),
                }
            )
        )
        self.state = WebShopState()
        self.reward = 0.0

    def begin(self, split: str, task: int) -> None:
        self.place = (split, task)
        self.task = self.tasks[split, task]
        grader = self.task.grader
        product = self.catalogue.products[grader["asin"]]
        self.goal = Goal(product, tuple(grader["attributes"]), tuple(grader["options"]), grader["price_upper"])
        self.state, self.reward = WebShopState(), 0.0

    def observe(self) -> str:
        if self.state.page == "done":
            return f"Thank you for shopping with us! [SEP] Your score (min 0.0, max 1.0) [SEP] {self.reward}"
        nodes = pages.shown(self.state, self.task.prompt, self.catalogue, self.show_attributes)
        return pages.rich_text_of(nodes, self.state) if self.rich else pages.text_of(nodes)

    def refuse(self, action: str) -> str:
        """Return the page as it is, as WebShop does."""
        return self.observe()

    def act(self, action: str) -> Outcome | None:
        understood = ACTION.match(action)
        if understood is None:
            return None
        verb, target = understood[1], understood[2].strip()
        if verb == "search":
            if not target:
                return None
            self.state = pages.search(self.state, target)
            return Outcome()
        after = pages.click(self.state, target, self.catalogue, show_attributes=self.show_attributes)
        if after is None:
            return None
        self.state = after
        if after.page != "done":
            return Outcome()
        bought = self.catalogue.products[after.asin]
        self.reward = reward(bought, self.goal, dict(after.options), self.nouns)
        return Outcome(self.reward, ended=True, success=self.reward == 1.0)

    def key(self) -> str:
        return hashlib.sha256(f"{self.place} {self.task.id} {self.state}".encode()).hexdigest()[:16]

    def describe(self) -> dict[str, Any]:
        """`available_actions` are the clicks; on the search page, a search for the instruction."""
        if self.over or self.state.page == "done":
            return {"available_actions": []}
        if self.state.page == "search":
            return {"available_actions": [f"search[{self.task.prompt.lower()}]"]}
        targets = pages.clickable(self.state, self.catalogue, show_attributes=self.show_attributes)
        return {"available_actions": [f"click[{target}]" for target in targets]}

    def solver(self) -> str:
        self.require_running("solver")
        return next_action(self.goal, self.state, self.catalogue)

    def save(self) -> Any:
        return {"place": self.place, "state": asdict(self.state), "reward": self.reward}

    def load(self, state: Any) -> None:
        split, task = state["place"]
        loaded = pages.read_state(state["state"])
        self.begin(*self.select_task({"split": split, "task": task}))
        self.state, self.reward = loaded, state["reward"]


def _folder(name: str, data: str, size: str) -> Path:
    """Return the folder of the files. Raises an error that names the command where one is missing."""
    folder = Path(data).expanduser() if data else default_folder()
    missing = [file for file in catalogue.files(size) if not (folder / file).is_file()]
    if missing:
        problem = f"{name} needs {', '.join(missing)} of WebShop in {folder}: {fetch_command(data, size)}"
        raise ConfigError(problem) if data else MissingDependency(problem)
    return folder
