"""Train CrossQ on Pendulum: batch renormalization instead of target networks, and one update for each step."""

import os

import noterl

# The tests of noterl set this variable to shorten the run.
EPISODES = min(60, int(os.environ.get("NOTERL_MAX_EPISODES", "60")))

agent = noterl.CrossQ("Pendulum-v1", hidden=(64, 64), critic_hidden=(256, 256), seed=1)
agent.compile(batch_size=128)
agent.fit(episodes=EPISODES)
print(f"mean return {agent.evaluate(episodes=10)['reward_mean']:.1f}")
