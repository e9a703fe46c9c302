"""Flip 15 bits until they equal a goal, with and without hindsight.

The reward is -1 until all bits are right, so random actions almost never reach the goal. `Hindsight` replaces the goal
of sampled transitions by a goal that the episode achieved.
"""

import os

import noterl
from noterl.envs import BitFlip
from noterl.policies import EpsGreedyQPolicy
from noterl.replay import Hindsight

import keras

# The tests of noterl set this variable to shorten the run.
EPISODES = min(1_500, int(os.environ.get("NOTERL_MAX_EPISODES", "1500")))
BITS = 15


def train(relabel: Hindsight | None) -> float:
    agent = noterl.DQN(lambda: BitFlip(BITS), double=False, hidden=(256,), gamma=0.98, seed=1)
    agent.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        policy=EpsGreedyQPolicy(0.1),
        replay=noterl.Replay(100_000, relabel=relabel),
        batch_size=128,
        learning_starts=1_000,
        update_every=64,
        updates=16,
        target_update=0.05,
    )
    agent.fit(episodes=EPISODES, num_envs=8, log_every=EPISODES)
    success = agent.evaluate(episodes=100, num_envs=100)["success_rate"]
    agent.close()
    return success


for name, relabel in (("without hindsight", None), ("with hindsight", Hindsight("future", ratio=0.8))):
    print(f"{name}: {train(relabel):.0%} of 100 goals reached")
