"""Train the agents that learn the distribution of returns on CartPole."""

import os

import noterl

# The tests of noterl set this variable to shorten the run.
EPISODES = min(150, int(os.environ.get("NOTERL_MAX_EPISODES", "150")))

for kind in (noterl.QRDQN, noterl.C51, noterl.IQN, noterl.Rainbow):
    agent = kind("CartPole-v1", hidden=(64, 64), seed=1)
    agent.fit(episodes=EPISODES, verbose=0)
    print(f"{kind.__name__}: mean return {agent.evaluate(episodes=10)['reward_mean']:.1f}")
