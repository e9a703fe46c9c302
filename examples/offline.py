"""Record episodes of a trained agent, and train another agent on them without an environment."""

import os

import noterl
from noterl.evaluation import fqe

# The tests of noterl set this variable to shorten the run.
SHORT = "NOTERL_MAX_EPISODES" in os.environ

expert = noterl.SAC("Pendulum-v1", hidden=(64, 64), seed=1)
expert.fit(steps=1_100 if SHORT else 6_000, verbose=0)
data = noterl.Dataset.record(expert, steps=400 if SHORT else 20_000, deterministic=False)
print(data)

agent = noterl.IQL("Pendulum-v1", hidden=(64, 64), seed=1)
agent.fit(dataset=data, updates=50 if SHORT else 20_000)
print(f"mean return {agent.evaluate(episodes=10)['reward_mean']:.1f}, of the data {data.returns.mean():.1f}")
print("discounted, from the data alone:", fqe(agent, data, updates=20 if SHORT else 10_000, bootstrap=5))
