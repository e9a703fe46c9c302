"""Train PPO with a prioritized replay memory of its rollouts.

The score of a transition combines its value error and how much the policy has changed since it was collected.
`ESSWindow` keeps about as many of the newest transitions as the effective sample size.
"""

import os

import noterl
from noterl.callbacks import ESSWindow
from noterl.replay import Prioritized, RatioScore
from noterl.schedules import Linear

import keras

# The tests of noterl set this variable to shorten the run.
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
window = ESSWindow(mode="target", min_size=256, every=256, unit="steps")
history = agent.fit(episodes=EPISODES, steps=STEPS, num_envs=8, callbacks=[window], log_every=100)
history.plot(path="runs/ppo_prioritized/curve.png")
print(f"mean return {agent.evaluate(episodes=20)['reward_mean']:.1f}")
agent.animate("runs/ppo_prioritized/cartpole.gif", max_steps=200)
