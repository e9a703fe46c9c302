"""Compare prioritized and uniform sampling on a reward that is earned once in four thousand episodes.

In the Blind Cliffwalk, one of two actions continues and the other one ends the episode. Only the last step is rewarded.
The agent acts at random and learns the action values from its memory.
"""

import os

import noterl
from noterl.callbacks import LambdaCallback
from noterl.policies import EpsGreedyQPolicy
from noterl.replay import Prioritized, Uniform

import gymnasium
import keras
import numpy as np

# The tests of noterl set this variable to shorten the run.
EPISODES = min(50_000, int(os.environ.get("NOTERL_MAX_EPISODES", "50000")))
STATES, GAMMA = 12, 0.9
# The true action values: wrong actions have none.
TRUTH = np.zeros((STATES, 2))
TRUTH[np.arange(STATES), np.arange(STATES) % 2] = GAMMA ** np.arange(STATES - 1, -1, -1)


class BlindCliffwalk(gymnasium.Env):
    """From Schaul et al., "Prioritized experience replay" (2016)."""

    observation_space = gymnasium.spaces.Discrete(STATES)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        self.state = 0
        return self.state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        is_right = action == self.state % 2  # the right action alternates from state to state
        is_last = self.state == STATES - 1
        self.state += int(is_right and not is_last)
        return self.state, float(is_right and is_last), not is_right or is_last, False, {}


def train(sampler: Prioritized | Uniform) -> str:
    agent = noterl.DQN(BlindCliffwalk, double=False, hidden=(), gamma=GAMMA, loss="squared", seed=1)
    agent.compile(
        optimizer=keras.optimizers.SGD(1.0),
        policy=EpsGreedyQPolicy(1.0),
        replay=noterl.Replay(100_000, sampler=sampler),
        batch_size=32,
        learning_starts=20_000,
        update_every=8,
        updates=8,
        target_update=200,
    )

    def check(episode: int, logs: dict[str, float]) -> None:
        if episode % 50 == 0:
            values = agent.forward(keras.ops.eye(STATES))  # states are one-hot vectors
            if np.mean(np.square(keras.ops.convert_to_numpy(values) - TRUTH)) < 1e-3:
                agent.stop("solved")

    history = agent.fit(episodes=EPISODES, callbacks=[LambdaCallback(on_episode_end=check)], log_every=10_000)
    return f"{agent.updates:,} updates ({history.stop_reason})"


for name, sampler in (("uniform", Uniform()), ("prioritized", Prioritized(beta_steps=100_000))):
    print(f"{name}: {train(sampler)}")
