"""Train PPO in two processes that share each batch; without the launcher, the same script trains in one process.

Run it with `KERAS_BACKEND=torch noterl launch --strategy ddp --processes 2 examples/strategy.py`.
"""

import os

import noterl

# The tests of noterl set this variable to shorten the run.
EPISODES = int(os.environ.get("NOTERL_MAX_EPISODES", "0")) or None
PROCESSES = int(os.environ.get("WORLD_SIZE", "1"))  # the launcher sets it

agent = noterl.PPO("CartPole-v1", gamma=0.98, gae_lambda=0.8, rollout_steps=32, epochs=20, seed=1)
agent.compile(optimizer=1e-3, batch_size=256)  # of all processes together
history = agent.fit(
    episodes=EPISODES,
    steps=50_000,  # of all processes together
    num_envs=8 // PROCESSES,
    strategy="ddp" if PROCESSES > 1 else None,
    log_every=100,
)

# The first process receives the episodes of all; a column holds the rank.
if os.environ.get("RANK", "0") == "0":
    rewards = history.history["reward"]
    ranks = history.history.get("rank", [0] * len(rewards))
    print("rank  episodes  mean return of the last 20")
    for rank in sorted(set(ranks)):
        returns = [reward for reward, other in zip(rewards, ranks, strict=True) if other == rank]
        print(f"{rank:4.0f}  {len(returns):8}  {sum(returns[-20:]) / len(returns[-20:]):.1f}")
    history.plot(path="runs/strategy/curve.png")
