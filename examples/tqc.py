"""Train TQC on Pendulum, where each critic returns quantiles of the return."""

import os

import noterl

# The tests of noterl set this variable to shorten the run.
EPISODES = min(60, int(os.environ.get("NOTERL_MAX_EPISODES", "60")))

agent = noterl.TQC("Pendulum-v1", critics=2, hidden=(64, 64), seed=1)
agent.compile(optimizer=1e-3, batch_size=128)
agent.fit(episodes=EPISODES)
print(f"mean return {agent.evaluate(episodes=10)['reward_mean']:.1f}")
