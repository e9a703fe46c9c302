"""Learn Pendulum from five episodes of an expert, without the reward of the environment, and plot both rewards."""

import os
from pathlib import Path

import noterl
from noterl.imitation import GAIL

from matplotlib.figure import Figure

# The tests of noterl set this variable to shorten the run.
EPISODES = min(100, int(os.environ.get("NOTERL_MAX_EPISODES", "100")))


def make(seed: int, **settings: object) -> noterl.SAC:
    agent = noterl.SAC("Pendulum-v1", hidden=(64, 64), seed=seed)
    agent.compile(optimizer=1e-3, update_every=16, updates=16, learning_starts=500, **settings)
    return agent


expert = make(7)
expert.fit(episodes=EPISODES)
demonstrations = noterl.Dataset.record(expert, episodes=5, path="runs/gail/expert", deterministic=True)
print(demonstrations)

agent = make(1, reward_model=GAIL(demonstrations, reward="logit"))
history = agent.fit(episodes=EPISODES).history  # the environment's reward is logged, but not learned from

for name, each in (("expert", expert), ("GAIL", agent)):
    print(f"{name}: mean return {each.evaluate(episodes=20)['reward_mean']:.1f}")

figure = Figure(figsize=(6, 6), layout="constrained")
names = ("reward", "model_reward", "discriminator_accuracy")
for axes, name in zip(figure.subplots(len(names), sharex=True), names, strict=True):
    axes.plot(history.get(name, []))
    axes.axhline(demonstrations.returns.mean(), color="gray", linestyle=":") if name == "reward" else None
    axes.set(ylabel=name.replace("_", " "))
axes.set(xlabel="episode")
Path("runs/gail").mkdir(parents=True, exist_ok=True)
figure.savefig("runs/gail/gail.png")
agent.animate("runs/gail/pendulum.gif", max_steps=200)
