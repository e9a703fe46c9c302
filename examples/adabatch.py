"""Adapt the batch size of DQN to the noise scale of its gradients (McCandlish et al., 2018)."""

import os

import noterl
from noterl.callbacks import AdaBatch, Scale

# The tests of noterl set this variable to shorten the run.
EPISODES = min(300, int(os.environ.get("NOTERL_MAX_EPISODES", "300")))

agent = noterl.DQN("CartPole-v1", hidden=(128, 128), seed=1)
agent.compile(
    optimizer=1e-3, replay=noterl.Replay(50_000), batch_size=32, update_every=16, updates=16, learning_starts=32
)
adapt = AdaBatch(4, scale="simple", batch=Scale(min=16, max=256, align=16), every=5 if EPISODES > 5 else 1)
history = agent.fit(episodes=EPISODES, callbacks=[adapt], log_every=50)

batches = history.history["batch"]
print("batch size  episodes  mean return")
for batch in sorted(set(batches)):
    returns = [reward for reward, other in zip(history.history["reward"], batches, strict=True) if other == batch]
    print(f"{batch:10.0f}  {len(returns):8}  {sum(returns) / len(returns):11.1f}")
history.plot(metrics=("reward", "batch"), path="runs/adabatch/curves.png")
