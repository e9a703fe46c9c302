"""Train PQN on CartPole in 16 environments."""

import os

import noterl

# The tests of noterl set this variable to shorten the run.
EPISODES = min(1_000, int(os.environ.get("NOTERL_MAX_EPISODES", "1000")))

agent = noterl.PQN("CartPole-v1", seed=1)
agent.fit(episodes=EPISODES, num_envs=16)
print(f"mean return {agent.evaluate(episodes=10)['reward_mean']:.1f}")
