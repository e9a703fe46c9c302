"""PPO that learns again from rollouts of before: they stay in a prioritized replay memory while they are worth it.

What a rollout's transitions are worth is said by how wrong the value is and how far the policy has moved since;
`ESSWindow` forgets the oldest as the effective sample size falls.
"""

import os

import keras

import noterl
from noterl.callbacks import ESSWindow
from noterl.replay import Prioritized, RatioScore
from noterl.schedules import Linear

EPISODES = int(os.environ.get("NOTERL_MAX_EPISODES", "0")) or None
STEPS = 100_000

agent = noterl.PPO(
    "CartPole-v1", gamma=0.98, gae_lambda=0.8, rollout_steps=32, epochs=20, clip=Linear(0.2, 0.0, STEPS), seed=1
)
agent.compile(
    keras.optimizers.Adam(Linear(1e-3, 0.0, STEPS), epsilon=1e-5, global_clipnorm=0.5),
    batch_size=256,
    replay=noterl.Replay(1024, sampler=Prioritized(score=RatioScore())),
)
window = ESSWindow(min_size=256, every=256, unit="steps")
history = agent.fit(episodes=EPISODES, steps=STEPS, num_envs=8, callbacks=[window], log_every=100)
history.plot(path="runs/ppo_prioritized/curve.png")
print(f"mean return {agent.evaluate(episodes=20)['reward_mean']:.1f}")
agent.animate("runs/ppo_prioritized/cartpole.gif", max_steps=200)
