"""Train TD3 on Pendulum with exploration noise that decreases, and animate the agent."""

import os

import noterl
from noterl.noise import GaussianWhiteNoiseProcess
from noterl.schedules import Linear

import keras

# The tests of noterl set this variable to shorten the run.
EPISODES = min(100, int(os.environ.get("NOTERL_MAX_EPISODES", "100")))

agent = noterl.TD3("Pendulum-v1", hidden=(64, 64), gamma=0.98, seed=1)
agent.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    # The noise has the scale [-1, 1], in which the bounds of the actions are -1 and 1.
    noise=GaussianWhiteNoiseProcess(sigma=Linear(0.3, 0.05, steps=10_000), size=1),
    replay=noterl.Replay(50_000),
    update_every=16,
    updates=16,
)
history = agent.fit(episodes=EPISODES)
history.plot(path="runs/td3/curve.png")

result = agent.evaluate(episodes=20)
print(f"mean return {result['reward_mean']:.1f} (from -200 to -130 if the pendulum is swung up)")
agent.animate("runs/td3/pendulum.gif", max_steps=200)
