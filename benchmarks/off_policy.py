"""What the learning tasks of DDPG, TD3 and SAC on Pendulum-v1 share: the settings of rl-zoo3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

import noterl
from benchmarks.on_policy import Task

STEPS, LEAST = 20_000, -200.0


def pendulum(kind: type[noterl.Agent], settings: dict[str, Any], published: str) -> Task:
    """Return the task; what `settings` holds beside the learning rate and the schedule is for the constructor."""
    return Task("Pendulum-v1", STEPS, 1, _maker(kind, settings), settings, LEAST, published)


def _maker(kind: type[noterl.Agent], settings: dict[str, Any]) -> Callable[[int, int], noterl.Agent]:
    def make(seed: int, _: int) -> noterl.Agent:
        own = dict(settings)
        rate, capacity, starts = (own.pop(name) for name in ("learning_rate", "capacity", "learning_starts"))
        agent = kind("Pendulum-v1", seed=seed, **own)
        agent.compile(keras.optimizers.Adam(rate, epsilon=1e-8), replay=noterl.Replay(capacity), learning_starts=starts)
        return agent

    return make
