"""Steps a second and CPU a step through our wire and through OpenEnv's, the same trivial environment, in one run.

    python benchmarks/wire.py --openenv-python .venv-interop/bin/python

One server process each, uvicorn with uvloop. OpenEnv's environment is a plain class, as `openenv init` writes one and
as ours is; "async" is the same environment as coroutines, which OpenEnv runs without a thread. The claims are of the
plain one. Every client is a process of its own. Rounds are interleaved and the medians printed; "x" is ours over
OpenEnv's, and "of the ceiling" the share of what a bare TCP echo does in the same loop and language. CPU is read from
/proc for server and client apart: other work on the machine lengthens it less than it slows the steps. The ratios are
what travels.

`wire_players.py` has the clients: "own client" is each side's, "raw" the same bare socket against both. OpenEnv needs
a connection for each session; our client carries many sessions on one, so that a session begins without connecting.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
OPENENV_SERVER = HERE.parent / "tests" / "interop" / "openenv_server.py"
MOST = 1024
"""Sessions of the largest measurement; servers are started with room for more."""


@dataclass(frozen=True)
class Server:
    url: str
    pid: int


@dataclass(frozen=True)
class Row:
    """A comparison: what each side runs, and what the issue asks of the ratio."""

    name: str
    ours: str
    theirs: str
    sessions: int
    claim: float | None = None
    cpu: bool = False
    """The claim is of the server's CPU a step, and an upper one."""
    best_of: tuple[int, ...] = ()
    """OpenEnv is tried with so many sessions each, and the best counts."""


ROWS = (
    Row("one step a frame, each session its own client", "ours", "openenv", 32, 4.0),
    Row("raw socket, OpenEnv's frames: server CPU a step", "raw-openenv", "raw-openenv", 32, 0.5, cpu=True),
    Row("batched, one client for all; OpenEnv's best", "ours-together", "openenv", 256, 15.0, best_of=(1, 32, 256)),
    Row("connect, reset, close: raw; ours over plain HTTP, OpenEnv's socket", "raw-http-churn", "raw-churn", 8, 3.0),
    Row("connect, reset, close: the same raw socket, OpenEnv's frames", "raw-churn", "raw-churn", 8),
    Row("connect, reset, close: own clients", "ours-churn", "openenv-churn", 8),
    Row("reset, close: sessions of one client; OpenEnv must connect", "ours-sessions", "openenv-churn", 8),
    Row("HTTP: one client for all; OpenEnv's stateless step, raw", "ours-http", "raw-http", 32, 4.0),
)
LATENCIES = (1, 32, 256, MOST)


@contextlib.contextmanager
def serving(command: list[str], **environment: str) -> Iterator[Server]:
    """A server process that prints "... serving at URL" once it listens."""
    env = {**os.environ, **environment}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if " at " not in line:
                raise SystemExit(f"{' '.join(command)} did not start; run it by itself to see why")
            yield Server(line.split()[-1], process.pid)
        finally:
            process.kill()


def play(python: str, kind: str, server: Server, sessions: int, seconds: float) -> dict[str, float]:
    command = [python, str(HERE / "wire_players.py"), kind, server.url, str(server.pid), str(sessions), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def median(runs: list[dict[str, float]]) -> dict[str, float]:
    """Medians: `rate` in steps/s, `server` and `client` in us of CPU a step, p50 and p99 in ms."""
    per_step = [
        {
            "rate": run["count"] / run["seconds"],
            "server": 1e6 * run["server"] / run["count"],
            "client": 1e6 * run["client"] / run["count"],
            "p50": run["p50"],
            "p99": run["p99"],
        }
        for run in runs
    ]
    return {key: statistics.median(run[key] for run in per_step) for key in per_step[0]}


def shown(run: dict[str, float]) -> str:
    return (
        f"{run['rate']:>9,.0f}/s {run['server']:>7.1f} {run['client']:>7.1f} us "
        f"{run['p50']:>8.2f} {run['p99']:>8.2f} ms"
    )


def compare(row: Row, sides: dict[str, Server], pythons: dict[str, str], rounds: int, seconds: float) -> None:
    peers = ("OpenEnv", "async")
    tried = {(side, n): [] for side in peers for n in row.best_of or (row.sessions,)}
    runs: dict[tuple[str, int], list[dict[str, float]]] = {**tried, ("ours", row.sessions): []}
    for _ in range(rounds):
        for (side, sessions), done in runs.items():
            kind = row.ours if side == "ours" else row.theirs
            python = pythons["OpenEnv" if kind.startswith("openenv") else "ours"]
            done.append(play(python, kind, sides[side], sessions, seconds))
    medians = {key: median(done) for key, done in runs.items()}
    ours = medians.pop(("ours", row.sessions))
    print(f"\n{row.name}, {row.sessions} sessions")
    print(f"  {'ours':<13} {shown(ours)}")
    for peer in peers:
        (_, sessions), theirs = max(
            ((key, run) for key, run in medians.items() if key[0] == peer), key=lambda item: item[1]["rate"]
        )
        ratio = ours["server"] / theirs["server"] if row.cpu else ours["rate"] / theirs["rate"]
        name = f"{peer}, {sessions}" if row.best_of else peer
        print(f"  {name:<13} {shown(theirs)}   {verdict(row, ratio, peer == 'OpenEnv')}", flush=True)


def verdict(row: Row, ratio: float, claimed: bool) -> str:
    ratio_text = f"{ratio:.2f} x {'its server CPU' if row.cpu else 'its steps/s'}"
    if row.claim is None or not claimed:
        return ratio_text
    held = ratio <= row.claim if row.cpu else ratio >= row.claim
    return f"{ratio_text} (at {'most' if row.cpu else 'least'} {row.claim:g}: {'yes' if held else 'NO'})"


def ceiling(sides: dict[str, Server], python: str, rounds: int, seconds: float) -> None:
    print("\nraw socket, one step a frame: latencies, and the share of a bare TCP echo")
    for sessions in LATENCIES:
        kinds = {"echo": "echo", "ours": "raw-ours", "OpenEnv": "raw-openenv"}
        runs: dict[str, list[dict[str, float]]] = {side: [] for side in kinds}
        for _ in range(rounds):
            for side, kind in kinds.items():
                runs[side].append(play(python, kind, sides[side], sessions, seconds))
        medians = {side: median(run) for side, run in runs.items()}
        for side, run in medians.items():
            share = run["rate"] / medians["echo"]["rate"]
            print(f"  {sessions:>5} {side:<7} {shown(run)}  {share:>5.0%} of the ceiling", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--openenv-python",
        default=os.environ.get("AGENTGYM_INTEROP_PYTHON"),
        help="an interpreter that has the openenv package (make interop makes one)",
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.openenv_python is None:
        parser.error("--openenv-python is needed; `make interop` makes one")
    room = str(2 * MOST + 64)
    paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = [sys.executable, "-m", "agentgym_servers.env_server.app", "wire_servers:Parrot"]
    with (
        serving([*environment, "--port", "0", "--max-sessions", room], PYTHONPATH=paths) as ours,
        serving([options.openenv_python, str(OPENENV_SERVER), "0", room]) as theirs,
        serving([options.openenv_python, str(OPENENV_SERVER), "0", room, "async"]) as their_fastest,
        serving([sys.executable, str(HERE / "wire_servers.py")]) as echo,
    ):
        sides = {"ours": ours, "OpenEnv": theirs, "async": their_fastest, "echo": echo}
        pythons = {"ours": sys.executable, "OpenEnv": options.openenv_python}
        print(f"{'':<15} {'steps':>9}   {'server':>7} {'client':>7}    {'p50':>8} {'p99':>8}")
        for row in ROWS:
            compare(row, sides, pythons, options.rounds, options.seconds)
        ceiling(sides, sys.executable, options.rounds, options.seconds)


if __name__ == "__main__":
    main()
