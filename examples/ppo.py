"""Train PPO on CartPole with rl-zoo3's settings, plot the run and animate the agent."""

import os

import noterl
from noterl.schedules import Linear

import keras

# The tests of noterl set this variable to shorten the run.
EPISODES = int(os.environ.get("NOTERL_MAX_EPISODES", "0")) or None
STEPS = 100_000

agent = noterl.PPO(
    "CartPole-v1", gamma=0.98, gae_lambda=0.8, rollout_steps=32, epochs=20, clip=Linear(0.2, 0.0, STEPS), seed=1
)
agent.compile(keras.optimizers.Adam(Linear(1e-3, 0.0, STEPS), epsilon=1e-5, global_clipnorm=0.5), batch_size=256)
agent.summary()

history = agent.fit(episodes=EPISODES, steps=STEPS, num_envs=8, log_every=100)
history.plot(path="runs/ppo/curve.png")
print(f"mean return {agent.evaluate(episodes=20)['reward_mean']:.1f}")
agent.animate("runs/ppo/cartpole.gif", max_steps=200)
