"""Train ACER on CartPole, show how far it learned from replayed sequences, and animate the agent."""

import os

import noterl

# The tests of noterl set this variable to shorten the run.
EPISODES = int(os.environ.get("NOTERL_MAX_EPISODES", "0")) or None

agent = noterl.ACER("CartPole-v1", replay_ratio=4, entropy_coefficient=0.0, seed=1)
agent.compile(replay=40_000)
agent.summary()

history = agent.fit(episodes=EPISODES, steps=200_000, num_envs=8, log_every=100)
history.plot(path="runs/acer/curve.png")
rollouts = agent.steps // (8 * agent.rollout_steps)
print(f"{rollouts} rollouts, {agent.updates - rollouts} further updates on stored sequences")
print(f"mean return {agent.evaluate(episodes=20)['reward_mean']:.1f}")
agent.animate("runs/acer/cartpole.gif", max_steps=200)
