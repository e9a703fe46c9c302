"""Train DQN with a pool of two worker processes, each of which collects whole episodes, and compare the workers."""

import os

import noterl
from noterl.collect import Workers

import numpy as np

# The tests of noterl set this variable to shorten the run.
EPISODES = min(300, int(os.environ.get("NOTERL_MAX_EPISODES", "300")))

agent = noterl.DQN("CartPole-v1", hidden=(128, 128), seed=1)
agent.compile(optimizer=1e-3, replay=noterl.Replay(50_000), update_every=64, updates=64)
history = agent.fit(episodes=EPISODES, num_envs=4, workers=Workers(2, collect="episode"), log_every=50)

workers, rewards = np.array(history.history["worker"]), np.array(history.history["reward"])
print("worker  episodes  mean return")
for worker in np.unique(workers):
    returns = rewards[workers == worker]
    print(f"{worker:6.0f}  {len(returns):8}  {returns.mean():11.1f}")
print(f"{history.time_split['workers']:.1f} seconds of waiting for the workers")
history.plot(path="runs/workers/curve.png")
