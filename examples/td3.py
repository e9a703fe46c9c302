"""Train TD3 on Pendulum, with exploration noise that fades, and watch it."""

import os

import keras

import noterl
from noterl.noise import GaussianWhiteNoiseProcess
from noterl.schedules import Linear

EPISODES = min(60, int(os.environ.get("NOTERL_MAX_EPISODES", "60")))

agent = noterl.TD3("Pendulum-v1", hidden=(64, 64), gamma=0.98, seed=1)
agent.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    noise=GaussianWhiteNoiseProcess(sigma=Linear(0.3, 0.05, steps=10_000), size=1),  # of half the width of the bounds
    replay=noterl.Replay(50_000),
    update_every=16,
    updates=16,
)
history = agent.fit(episodes=EPISODES)
history.plot(path="runs/td3/curve.png")

result = agent.evaluate(episodes=20)
print(f"mean return {result['reward_mean']:.1f}: a pendulum that is swung up earns about -150")
agent.animate("runs/td3/pendulum.gif", max_steps=200)
