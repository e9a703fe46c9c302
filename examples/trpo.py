"""Train TRPO on CartPole with rl-zoo3's settings, plot the run and its steps, and animate the agent."""

import os
from pathlib import Path

import noterl

from matplotlib.figure import Figure

# The tests of noterl set this variable to shorten the run.
EPISODES = int(os.environ.get("NOTERL_MAX_EPISODES", "0")) or None
FOLDER = Path("runs/trpo")

agent = noterl.TRPO("CartPole-v1", gae_lambda=0.98, rollout_steps=512, epochs=20, cg_damping=1e-3, seed=1)
agent.compile(batch_size=512)
agent.summary()

history = agent.fit(episodes=EPISODES, steps=100_000, num_envs=2, log_every=50)
history.plot(path=FOLDER / "curve.png")
print(f"mean return {agent.evaluate(episodes=20)['reward_mean']:.1f}")

# Divergence of each step of the policy, at most `target_kl`, and by how much it increased the surrogate.
figure = Figure(figsize=(7, 5), layout="constrained")
for axes, name in zip(figure.subplots(2, sharex=True), ("kl", "surrogate_gain"), strict=True):
    if name in history.history:
        axes.plot(history.history["steps"], history.history[name])
    axes.set(xlabel="environment steps", ylabel=name)
    axes.grid(alpha=0.3)
figure.savefig(FOLDER / "steps.png", dpi=150)
agent.animate(FOLDER / "cartpole.gif", max_steps=200)
