"""Find a learning rate, compare two optimizers, and train with the better one."""

import os

import noterl
from noterl.finders import LRFinder, OptFinder

import keras

# The tests of noterl set this variable to shorten the run.
EPISODES = min(200, int(os.environ.get("NOTERL_MAX_EPISODES", "200")))

agent = noterl.DQN("CartPole-v1", seed=1)
agent.compile(learning_starts=500)

rates = LRFinder(agent)
rate = rates.find(metric="loss", updates=min(300, 20 * EPISODES), start_lr=1e-5)
print(f"suggested learning rate {rate:.2g}, clear: {rates.is_clear} ({rates.stop_reason})")
rates.plot_loss(path="runs/finders/rates.png")
rate = rate if rates.is_clear else 1e-3

optimizers = {"Adam": keras.optimizers.Adam(rate), "SGD": keras.optimizers.SGD(rate)}
finder = OptFinder(agent, optimizers)
best = finder.find(episodes=min(30, EPISODES))
print("optimizer  mean return  spread")
for row in finder.results:
    print(f"{row['name']:9}  {row['mean']:11.1f}  {row['spread']:6.1f}")
print(f"best {best}, clear: {finder.is_clear}")
finder.plot_reward(path="runs/finders/optimizers.png")

agent.compile(optimizer=optimizers[best])
history = agent.fit(episodes=EPISODES, log_every=50)
history.plot(path="runs/finders/curve.png")
