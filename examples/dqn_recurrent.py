"""Train DQN with a memory on CartPole without its velocities, and keep the best agent."""

import os

import noterl
from noterl.callbacks import Checkpoint, Evaluate

# The tests of noterl set this variable to shorten the run.
EPISODES = int(os.environ.get("NOTERL_MAX_EPISODES", "0")) or None


def hidden_cartpole():
    """Return CartPole without the velocities of the cart and of the pole."""
    return noterl.envs.hide("CartPole-v1", [1, 3])


agent = noterl.DQN(hidden_cartpole, recurrent="lstm", seed=1)
agent.summary()
history = agent.fit(
    episodes=EPISODES,
    steps=100_000,
    callbacks=[
        Evaluate(episodes=10, every=5_000, unit="steps"),
        Checkpoint("runs/dqn_recurrent", save_best_only=True, monitor="evaluation_reward_mean"),
    ],
    log_every=100,
)
history.plot(path="runs/dqn_recurrent/curve.png")
print(f"mean return {agent.evaluate(episodes=20)['reward_mean']:.1f}")
