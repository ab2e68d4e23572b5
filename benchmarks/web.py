"""MiniWoB++ here and in BrowserGym, on this machine, in this run: time to reset and step, memory, and the same clicks.

    make .venv-browsergym/ready && python benchmarks/web.py

Both sides play the same pages by turns: BrowserGym in an interpreter of its own (`--peer`), whose Playwright is an
older one. Times are medians, as the caller sees them. Memory is the proportional set size (shared pages are split among
those who share them) of processes and all their descendants, Python, driver and browsers included, divided by the
sessions that are open at once: ours in one process, BrowserGym's in a process each, since its Playwright is the
synchronous one, where a process has but one thread for all its browsers. Exits with 1 when a reset or step is less than
20 times faster, a session takes more than a tenth of the memory, or an episode is not solved by the same actions on the
same elements.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CHILD = ROOT / "environments/agentgym_environments/benchmarks/browsergym"
PAGES = ("click-test", "click-button", "click-option", "click-checkboxes", "enter-text", "login-user", "click-dialog-2")
FASTER, LIGHTER = 20.0, 10.0


def pss_mb(pid: int) -> float:
    """Of a process and all its descendants."""
    total = 0.0
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        total = int(re.findall(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)[0]) / 1024
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            total += sum(pss_mb(int(child)) for child in path.read_text().split())
    except (FileNotFoundError, ProcessLookupError, IndexError):  # it has just ended
        pass
    return total


def timed(times: list[float], call: Callable[[], Any]) -> Any:
    begun = time.perf_counter()
    answer = call()
    times.append(time.perf_counter() - begun)
    return answer


# BrowserGym's side, run by its interpreter.


def peer(pages: str, program: str) -> None:
    """Answers {"open": n}, {"reset": [session, page, seed]} and {"step": [session, action]}, a JSON object a line."""
    sys.path.insert(0, str(CHILD))
    import child

    child.use_browser(program)
    envs: dict[int, Any] = {}
    for line in sys.stdin:
        ((verb, given),) = json.loads(line).items()
        if verb == "reset":
            session, page, seed = given
            if session not in envs or envs[session][0] != page:
                if session in envs:
                    envs.pop(session)[1].close()
                envs[session] = (page, child.make(f"miniwob.{page}", {"task_kwargs": {"base_url": pages}}))
            answer = {**child.shown(envs[session][1].reset(seed=seed)[0]), "reward": 0.0}
        else:
            session, action = given
            observation, reward, *_ = envs[session][1].step(action)
            answer = {**child.shown(observation), "reward": float(reward)}
        print(json.dumps(answer), flush=True)
    for _, env in envs.values():
        env.close()


class Peer:
    def __init__(self, python: str) -> None:
        from agentgym_environments.backends.browser.browser import find_program
        from agentgym_environments.benchmarks.miniwob.site import folder

        command = [python, __file__, "--peer-of", f"{folder().as_uri()}/miniwob/", find_program()]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **question: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate(timeout=60)


def page_seed(seed: int) -> int:
    """What BrowserGym makes of a seed."""
    import numpy as np

    return int(np.random.RandomState(seed).randint(0, 1000000))


# The same actions on both.


def translate(action: str, ours: str, theirs: str) -> str:
    """Our action on an element, as BrowserGym writes it: the same number of the elements of the same kind."""
    from agentgym_environments.benchmarks.miniwob.elements import Elements

    verb, number, *text = action.split(" ", 2)
    elements = Elements(ours)
    element = next(one for one in elements if one.id == int(number))
    place = [one.id for one in elements.of(element.role)].index(element.id)
    bid = re.findall(rf"\[(\w+)\] {element.role}\b", theirs)[place]
    return f"fill('{bid}', {text[0]!r})" if verb == "fill" else f"click('{bid}')"


def play(site: Any, peer: Peer, page: str, seed: int, times: dict[str, list[float]]) -> bool:
    """One episode on both sides, by our solver's actions; whether both were solved and asked for the same."""
    from agentgym_environments.backends.browser.actions import parse
    from agentgym_environments.benchmarks.miniwob.elements import Elements
    from agentgym_environments.benchmarks.miniwob.solver import solve

    def our_reset() -> Any:
        site.start(page, page_seed(seed))
        return site.look()

    def our_step(command: str) -> Any:
        action = parse(command)
        assert action is not None
        site.act(action)
        return site.look(1000)

    page_state = timed(times["our reset"], our_reset)
    theirs = timed(times["their reset"], lambda: peer.ask(reset=[0, page, seed]))
    same, reward, turns = page_state.task == theirs["goal"], 0.0, 0
    while not page_state.done and turns < 12:
        command = solve(page, page_state.task, Elements(page_state.tree))
        action = translate(command, page_state.tree, theirs["tree"])
        page_state = timed(times["our step"], lambda: our_step(command))  # noqa: B023
        theirs = timed(times["their step"], lambda: peer.ask(step=[0, action]))  # noqa: B023
        reward, turns = theirs["reward"], turns + 1
    return same and page_state.score > 0 and reward > 0


def race(peer: Peer, rounds: int) -> tuple[dict[str, list[float]], int, int]:
    from agentgym_environments.benchmarks.miniwob.site import MiniWobSite
    from agentgym_environments.benchmarks.miniwob.tasks import RELOAD

    site, solved, played = MiniWobSite(RELOAD), 0, 0
    times: dict[str, list[float]] = {
        name: [] for name in ("our reset", "our step", "their reset", "their step", "other page")
    }
    for page in PAGES:
        times_there = {**times, "our reset": times["other page"]}
        for number in range(rounds):
            solved += play(site, peer, page, 100 + number, times_there if number == 0 else times)
            played += 1
    site.close()
    return times, solved, played


def memory(python: str, ours: int, theirs: int) -> tuple[float, float]:
    """Megabytes a session: `ours` in one process, and `theirs` in a process each, all open at once."""
    code = (
        "import sys\nfrom agentgym import registry\n"
        "environments = [registry.make('miniwob') for _ in range(int(sys.argv[1]))]\n"
        "for number, environment in enumerate(environments): env.reset(seed=0, options={'task': number})\n"
        "print('open', flush=True)\nsys.stdin.read()\n[env.close() for environment in environments]"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(ours)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        our_mb = pss_mb(process.pid) / ours
        process.communicate()
    peers = [Peer(python) for _ in range(theirs)]
    for number, peer in enumerate(peers):
        peer.ask(reset=[0, PAGES[number % len(PAGES)], 5])
    their_mb = sum(pss_mb(peer.process.pid) for peer in peers) / theirs
    for peer in peers:
        peer.close()
    return our_mb, their_mb


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--peer", default=str(ROOT / ".venv-browsergym/bin/python"), help="an interpreter with BrowserGym"
    )
    parser.add_argument("--rounds", type=int, default=4, help="episodes of each page")
    parser.add_argument("--sessions", type=int, nargs=2, default=(128, 8), help="open at once for memory")
    parser.add_argument("--peer-of", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer_of:
        peer(*options.peer_of)
        return 0
    if not Path(options.peer).exists():
        parser.error(f"there is no {options.peer}: make .venv-browsergym/ready")
    other = Peer(options.peer)
    times, solved, played = race(other, options.rounds)
    ms = {name: statistics.median(some) * 1000 for name, some in times.items()}
    other.close()
    our_mb, their_mb = memory(options.peer, *options.sessions)
    rows = [
        ("reset, same page", ms["our reset"], ms["their reset"], "ms"),
        ("reset, another page", ms["other page"], ms["their reset"], "ms"),
        ("step", ms["our step"], ms["their step"], "ms"),
        ("memory a session", our_mb, their_mb, "MB"),
    ]
    print(f"{'':22}{'AgentGym':>12}{'BrowserGym':>14}{'ratio':>9}")
    for name, mine, theirs, unit in rows:
        print(f"{name:22}{mine:9.1f} {unit}{theirs:11.1f} {unit}{theirs / mine:8.1f}x")
    print(f"{solved} of {played} episodes solved on both sides by the same actions on the same elements")
    fast = all(theirs / mine >= FASTER for name, mine, theirs, _ in rows if name in ("reset, same page", "step"))
    return 0 if fast and their_mb / our_mb >= LIGHTER and solved == played else 1


if __name__ == "__main__":
    sys.exit(main())
