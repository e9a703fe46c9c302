"""Rainbow: C51 with double Q-learning, dueling networks, n-step returns, prioritized memory and noisy layers.

Paper: Hessel et al., "Rainbow: combining improvements in deep reinforcement learning" (2018), section "The integrated
agent".

Differs: on vectors, optimizer and schedule as in `DQN`. The exponent beta of the importance weights stays at the
paper's initial 0.4.
"""

from __future__ import annotations

from typing import Any

from noterl.agent import Defaults
from noterl.agents.c51 import C51
from noterl.backends import keras
from noterl.registry import register
from noterl.replay import Prioritized


@register
class Rainbow(C51):
    """The combination of six improvements of DQN, for Discrete actions.

    Each is a setting of `C51`: `double=True`, `dueling=True`, `noisy=True`, and in `compile` a `Replay` with `n_step=3`
    and `Prioritized` sampling.

    Args:
        env: see `noterl.Agent`.
        double: see `DQN`.
        dueling: see `DQN`.
        noisy: see `DQN`.
        **options: see `C51`, such as `atoms` and `support`.

    Raises:
        ValueError: if the space is not supported, or an argument is not one of the allowed values.

    Example:
    >>> import noterl
    >>> agent = noterl.Rainbow("CartPole-v1", hidden=(64,), seed=7)
    >>> history = agent.fit(steps=100, verbose=0)
    >>> agent.steps
    100
    """

    def __init__(
        self, env: Any, *, double: bool = True, dueling: bool = True, noisy: bool = True, **options: Any
    ) -> None:
        super().__init__(env, double=double, dueling=dueling, noisy=noisy, **options)

    def defaults(self) -> Defaults:
        """Return the settings of `DQN` with 3-step returns and a prioritized memory; for images, the paper's."""
        defaults = super().defaults()._replace(n_step=3, sampler=Prioritized(alpha=0.5, beta=0.4))
        if not self.is_image:
            return defaults
        optimizer = keras.optimizers.Adam(6.25e-5, epsilon=1.5e-4)
        return defaults._replace(optimizer=optimizer, learning_starts=20_000, target_update=8_000)
