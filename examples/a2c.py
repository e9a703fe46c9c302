"""Train A2C on CartPole with normalized observations, plot the run and animate the agent."""

import os

import noterl

# The tests of noterl set this variable to shorten the run.
EPISODES = int(os.environ.get("NOTERL_MAX_EPISODES", "0")) or None

agent = noterl.A2C("CartPole-v1", rollout_steps=5, gae_lambda=1.0, normalize_observation=True, seed=1)
agent.compile()
history = agent.fit(episodes=EPISODES, steps=500_000, num_envs=8, log_every=200)
history.plot(path="runs/a2c/curve.png")
print(f"mean return {agent.evaluate(episodes=20)['reward_mean']:.1f}")
agent.animate("runs/a2c/cartpole.gif", max_steps=200)
