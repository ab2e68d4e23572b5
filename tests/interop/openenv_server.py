"""An OpenEnv server, made with the `openenv` package: run by an interpreter that has it.

    python openenv_server.py PORT [MAX_SESSIONS [async]]

The environment echoes: an action is {"text": str}, an observation {"text": str, "turn": int}; "please raise" raises;
the third step ends the episode with reward 1. Port 0 takes a free one; "serving at URL" is printed once it listens. The
environment is written as `openenv init` writes one; with "async", as the coroutines that OpenEnv runs without a thread.
"""

import socket
import sys
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class EchoAction(Action):
    text: str


class EchoObservation(Observation):
    text: str
    turn: int


class Echo(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> EchoObservation:
        self._state = State(episode_id=episode_id or "episode", step_count=0)
        return EchoObservation(text=f"ready {seed}", turn=0, metadata={"seed": seed} if seed is not None else {})

    def step(self, action: EchoAction, timeout_s: float | None = None, **kwargs: Any) -> EchoObservation:
        if action.text == "please raise":
            raise RuntimeError("as asked")
        self._state.step_count += 1
        turn = self._state.step_count
        return EchoObservation(text=f"you said {action.text}", turn=turn, reward=float(turn == 3), done=turn == 3)

    @property
    def state(self) -> State:
        return self._state


class AsyncEcho(Echo):
    async def reset_async(self, **kwargs: Any) -> EchoObservation:
        return self.reset(**kwargs)

    async def step_async(self, action: EchoAction, **kwargs: Any) -> EchoObservation:
        return self.step(action, **kwargs)


def main() -> None:
    port, sessions = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 64
    env = AsyncEcho if sys.argv[3:] == ["async"] else Echo
    listener = socket.socket()
    listener.bind(("127.0.0.1", port))
    listener.listen(2048)
    print(f"serving at http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    app = create_fastapi_app(env, EchoAction, EchoObservation, max_concurrent_envs=sessions)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main()
