"""The head of networks that return a policy and a value side by side."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from noterl.explorer import Explorer
from noterl.heads.base import ops
from noterl.heads.stochastic import Categorical

Tensor = Any


class PolicyValue(Categorical):
    """Outputs `[N, A + 1]` are the logits of a Discrete space, then the value of the observation.

    Actions are chosen as by `Categorical`; the value does not affect the actions.
    """

    kinds: ClassVar[tuple[type, ...]] = (spaces.Discrete,)
    outputs = "a logit for each action, then a value"
    further = 1
    acts_on: tuple[str, ...] = ()

    def deterministic(self, values: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        """Return the most probable actions `[N]`; the first of equally probable ones."""
        return super().deterministic(self._logits(values), mask)

    def explore(self, values: np.ndarray, explorer: Explorer, step: int, mask: np.ndarray | None = None) -> np.ndarray:
        """Return samples `[N]` of the softmax."""
        return super().explore(self._logits(values), explorer, step, mask)

    def masked(self, values: Tensor, mask: Tensor) -> Tensor:
        """Return the outputs `[B, A + 1]` with -1e9 for the logits of illegal actions."""
        if mask is None:
            return values
        return ops.concatenate([super().masked(self._logits(values), mask), values[:, -1:]], axis=-1)

    def check_values(self, values: np.ndarray) -> None:
        """Raise a ValueError if the first A outputs are probabilities."""
        super().check_values(self._logits(values))

    def value(self, values: Tensor) -> Tensor:
        """Return the values `[B]` in outputs `[B, A + 1]`."""
        return values[:, -1]

    def _logits(self, values: Tensor) -> Tensor:
        return values[:, : self.counts[0]]
