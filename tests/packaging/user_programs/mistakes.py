"""Mistakes of a user: type checkers report each marked line, and no other. Only the checkers read it; it is not run."""

from __future__ import annotations

from typing import Any

import noterl
from noterl.callbacks import EarlyStoping  # wrong

noterl.DQM("CartPole-v1")  # wrong
noterl.heads.Categorial()  # wrong
noterl.PPO("CartPole-v1", gama=0.9)  # wrong
noterl.PPO("CartPole-v1", hiden=(64,))  # wrong
noterl.PPO("CartPole-v1", hidden="64")  # wrong
noterl.PPO("CartPole-v1", seed="7")  # wrong
noterl.TRPO("CartPole-v1", clip=0.2)  # wrong
noterl.DQN("CartPole-v1", double=0.5)  # wrong
noterl.SAC("Pendulum-v1", normalise_observation=True)  # wrong
noterl.MADDPG("simple_spread", independent="yes")  # wrong
noterl.callbacks.EarlyStopping(trial_cout=3)  # wrong
noterl.Replay("many")  # wrong
agent = noterl.PPO("CartPole-v1")
agent.fit(stesp=100)  # wrong
agent.fitt(steps=100)  # wrong
agent.compile(batchsize=3)  # wrong
agent.gamma = "high"  # wrong
agent.gamma = None  # wrong
agent.rollout_steps = 0.5  # wrong
history: int = agent.fit(steps=100)  # wrong
print(EarlyStoping)


class Wide(noterl.DQN):
    def __init__(self, env: Any, *, width: int = 8) -> None:
        super().__init__(env, hiden=(width,))  # wrong


Wide("CartPole-v1", widht=3)  # wrong
