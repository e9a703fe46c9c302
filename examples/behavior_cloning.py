"""Clone an expert of CartPole from five episodes, and plot the loss and the returns of clone and expert."""

import os
from pathlib import Path

import noterl
from noterl.callbacks import EarlyStopping

from matplotlib.figure import Figure

# The tests of noterl set this variable to shorten the run.
SHORT = "NOTERL_MAX_EPISODES" in os.environ
EPISODES = min(1_000, int(os.environ.get("NOTERL_MAX_EPISODES", "1000")))

expert = noterl.PPO("CartPole-v1", gamma=0.98, gae_lambda=0.8, rollout_steps=32, epochs=20, seed=7)
expert.compile(optimizer=1e-3, batch_size=256)
expert.fit(episodes=EPISODES, num_envs=8, callbacks=[EarlyStopping(trial_count=20, criterion=490)], log_every=100)

demonstrations = noterl.Dataset.record(expert, episodes=5, path="runs/cloning/expert", deterministic=True)
print(demonstrations)

clone = noterl.PPO("CartPole-v1", seed=1)
losses = clone.pretrain(demonstrations, updates=50 if SHORT else 2_000)["loss"]
clone.save_weights("runs/cloning/clone.safetensors")

returns = {name: agent.evaluate(episodes=20)["returns"] for name, agent in (("expert", expert), ("clone", clone))}
for name, values in returns.items():
    print(f"{name}: mean return {values.mean():.1f}")

figure = Figure(figsize=(9, 3.4), layout="constrained")
left, right = figure.subplots(1, 2)
left.plot(losses, linewidth=0.7)
left.set(xlabel="update", ylabel="cross entropy", yscale="log")
right.boxplot(list(returns.values()), tick_labels=list(returns))
right.set(ylabel="return of an episode")
Path("runs/cloning").mkdir(parents=True, exist_ok=True)
figure.savefig("runs/cloning/cloning.png")
