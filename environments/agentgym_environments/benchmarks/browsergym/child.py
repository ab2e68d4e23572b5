"""BrowserGym's side of the adapter: runs in an interpreter that has BrowserGym, one task, one session.

Reads a JSON object a line and answers with one: {"reset": seed} and {"step": action}. Ends with its standard input. It
is run as a file, since that interpreter need not have AgentGym.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from typing import Any


def use_browser(program: str) -> None:
    """Have every browser that BrowserGym starts be this program; it offers no setting for its second one."""
    from playwright.sync_api import BrowserType

    launch = BrowserType.launch

    @functools.wraps(launch)
    def launched(self: Any, **given: Any) -> Any:
        return launch(self, **{"executable_path": program, **given})

    BrowserType.launch = launched


def make(task: str, options: dict[str, Any]) -> Any:
    """The Gymnasium environment of a task such as "miniwob.click-test"."""
    import gymnasium

    benchmark = task.split(".")[0]
    importlib.import_module("browsergym.core" if benchmark == "openended" else f"browsergym.{benchmark}")
    return gymnasium.make(f"browsergym/{task}", **options)


def shown(observation: dict[str, Any]) -> dict[str, Any]:
    """Return what is handed on of an observation."""
    from browsergym.utils.obs import flatten_axtree_to_str  # pyright: ignore[reportMissingImports]

    tree = flatten_axtree_to_str(observation["axtree_object"], observation["extra_element_properties"])
    return {
        "goal": observation["goal"],
        "tree": tree,
        "url": observation["url"],
        "error": observation["last_action_error"],
        "focus": observation["focused_element_bid"],
    }


def serve(task: str, program: str, options: dict[str, Any]) -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed is no answer
    if program:
        use_browser(program)
    env: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            env = env or make(task, options)
            if "step" in request:
                observation, reward, terminated, truncated, _ = env.step(request["step"])
            else:
                observation, _ = env.reset(seed=request["reset"])
                reward, terminated, truncated = 0.0, False, False
            ending = {"reward": reward, "terminated": terminated, "truncated": truncated}
            answer = {"result": {**shown(observation), **ending}}
        except Exception as error:  # noqa: BLE001  (the other side says what has failed)
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    if env is not None:
        env.close()


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
