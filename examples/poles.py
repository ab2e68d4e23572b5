"""A plain Gymnasium environment, in text: `agentgym envs check poles:Pole`, `agentgym serve poles:Pole`."""

from agentgym import GymnasiumEnv


class Pole(GymnasiumEnv):
    def __init__(self):
        super().__init__(
            "CartPole-v1",
            actions=["left", "right"],
            render="cart at {0[0]:.2f} m moves {0[1]:.2f} m/s; pole at {0[2]:.2f} rad turns {0[3]:.2f} rad/s".format,
            instructions="Keep the pole upright on the cart. Each turn push the cart: left or right.",
            reward_range=(0.0, 1.0),
        )


if __name__ == "__main__":
    env = Pole()
    observation, info = env.reset(seed=0, options={"split": "test", "task": 0})
    total, over = 0.0, False
    while not over:
        words = observation.split()
        action = "right" if float(words[9]) + float(words[12]) > 0 else "left"
        observation, reward, terminated, truncated, info = env.step(action)
        total, over = total + reward, terminated or truncated
    print(f"{observation}\nreturn {total:g}, success {info['success']}")
    env.close()
