"""An own environment: `agentgym envs check guess_number:GuessNumber`, `agentgym serve guess_number:GuessNumber`."""

import json

from agentgym import Env, EnvSpec
from agentgym.errors import BadRequest


class GuessNumber(Env):
    env_spec = EnvSpec(
        id="guess-number",
        description="Find a hidden number from 0 to 15 by bisection.",
        instructions="A number from 0 to 15 is hidden. Say a number; you are told whether it is too low or too high.",
        splits={"train": 12, "test": 4},
        max_turns=6,
        info_keys=("success", "valid_action", "progress"),
        capabilities=("snapshot", "solver"),
        inline=True,
    )
    turn, over = -1, True

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        split, task = self.select_task(options)
        self.hidden, self.low, self.high = task + 12 * (split == "test"), 0, 15
        self.turn, self.over = 0, False
        return f"{split} number {task}: guess", self.info(valid=True)

    def step(self, action):
        if self.over:
            raise BadRequest("there is no episode: call reset first")
        self.turn += 1
        valid = isinstance(action, str) and action.isascii() and action.isdigit() and len(action) < 9
        guess = int(action) if valid else -1
        won = guess == self.hidden
        if valid and guess < self.hidden:
            self.low = max(self.low, guess + 1)
        elif valid:
            self.high = min(self.high, guess)
        truncated = self.turn == self.env_spec.max_turns and not won
        self.over = won or truncated
        observation = (
            "found" if won else f"{guess} is too {'low' if guess < self.hidden else 'high'}" if valid else "a number!"
        )
        return observation, float(won), won, truncated, self.info(valid, won)

    def info(self, valid, won=False):
        return {"success": won, "valid_action": valid, "progress": 1 - (self.high - self.low) / 15}

    def solver(self):
        return str((self.low + self.high) // 2)

    def snapshot(self):
        chance = self.np_random.bit_generator.state
        return json.dumps([self.hidden, self.low, self.high, self.turn, self.over, chance]).encode()

    def restore(self, state):
        self.hidden, self.low, self.high, self.turn, self.over, chance = json.loads(state)
        self.np_random.bit_generator.state = chance
