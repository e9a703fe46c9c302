"""Train DDPG on Pendulum with the correlated noise of its paper and a prioritized memory of 3-step returns."""

import os

import noterl
from noterl.noise import OrnsteinUhlenbeckProcess
from noterl.replay import Prioritized

import keras

# The tests of noterl set this variable to shorten the run.
EPISODES = min(60, int(os.environ.get("NOTERL_MAX_EPISODES", "60")))

agent = noterl.DDPG("Pendulum-v1", hidden=(64, 64), gamma=0.98, seed=1)
agent.compile(
    optimizer={"actor": keras.optimizers.Adam(5e-4), "critic": keras.optimizers.Adam(1e-3)},
    noise=OrnsteinUhlenbeckProcess(theta=0.15, sigma=0.2, dt=1.0, size=1),
    replay=noterl.Replay(50_000, sampler=Prioritized(alpha=0.6), n_step=3),
    update_every=16,
    updates=16,
)
history = agent.fit(episodes=EPISODES)
history.plot(path="runs/ddpg/curve.png")

result = agent.evaluate(episodes=20)
print(f"mean return {result['reward_mean']:.1f} (about -150 if the pendulum is swung up)")
agent.animate("runs/ddpg/pendulum.gif", max_steps=200)
