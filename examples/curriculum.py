"""Teach DQN to balance a pole whose pushes get weaker: a callback makes all environments harder between two steps."""

import os
from pathlib import Path

import noterl

import gymnasium
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# The tests of noterl set this variable to shorten the run.
EPISODES = int(os.environ.get("NOTERL_MAX_EPISODES", "400"))
LEVELS, GOOD = 5, 150  # levels, and the mean return of ten episodes at which the next one starts


class WeakCart(gymnasium.Wrapper):
    """CartPole, with less force at higher levels."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.level = 0

    def set_level(self, level: int) -> None:
        self.level, self.unwrapped.force_mag = level, 10.0 - 1.5 * level


class Curriculum(noterl.Callback):
    def __init__(self) -> None:
        self.level, self.recent, self.levels = 0, [], []

    def on_train_begin(self, logs: dict) -> None:
        self.agent.env_call("set_level", self.level)  # a restored run has new environments

    def on_episode_end(self, episode: int, logs: dict) -> None:
        if logs["complete"]:
            self.levels.append(self.agent.env_get("level")[0])
            self.recent = [*self.recent[-9:], logs["reward"]]
            if len(self.recent) == 10 and sum(self.recent) >= 10 * GOOD and self.level < LEVELS - 1:
                self.level, self.recent = self.level + 1, []
                self.agent.env_call("set_level", self.level)

    def get_state(self) -> dict:
        return {"level": self.level, "recent": self.recent, "levels": self.levels}

    def set_state(self, state: dict) -> None:
        self.level, self.recent, self.levels = (state[name] for name in ("level", "recent", "levels"))


agent, curriculum = noterl.DQN(WeakCart, seed=1), Curriculum()
history = agent.fit(episodes=EPISODES, num_envs=4, callbacks=[curriculum], log_every=50)

Path("runs").mkdir(exist_ok=True)
figure, axis = plt.subplots()
axis.plot(history.history["reward"], label="return")
axis.twinx().step(range(len(curriculum.levels)), curriculum.levels, "C1", where="post", label="level")
axis.set(xlabel="episode", ylabel="return (blue), level (orange)")
figure.savefig("runs/curriculum.png")
