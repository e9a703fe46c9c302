"""Heads: from the network's output to an action.

A head says what `Agent.forward` returns, which exploration acts on it, and how to act without exploration. It acts in
NumPy on the host, on outputs `[N, ...]`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.policies import Policy


class Head:
    """Base of the heads.

    Attributes:
        acts_on: what policies for this head may act on (`Policy.acts_on`).
    """

    acts_on: tuple[str, ...] = ()

    def check(self, shape: tuple[int, ...], action_space: spaces.Space[Any]) -> None:
        """Raise a ValueError unless outputs of this shape `[N, ...]` choose actions of this space."""

    def deterministic(self, values: np.ndarray) -> np.ndarray:
        """Return the best actions `[N, ...]` for the network's outputs."""
        raise NotImplementedError

    def explore(self, values: np.ndarray, policy: Policy, step: int) -> np.ndarray:
        """Return the actions `[N, ...]` that `policy` selects at environment step `step`."""
        raise NotImplementedError


class Q(Head):
    """Outputs are action values `[N, A]` of a Discrete action space."""

    acts_on = ("q",)

    def check(self, shape: tuple[int, ...], action_space: spaces.Space[Any]) -> None:
        """Raise a ValueError unless there is one value for each action."""
        count = int(action_space.n)  # type: ignore[attr-defined]
        if shape[1:] != (count,):
            raise ValueError(f"forward must return a value for each of the {count} actions, [B, {count}], got {shape}")

    def deterministic(self, values: np.ndarray) -> np.ndarray:
        """Return the actions of the highest value `[N]`; of equal values the first."""
        return np.argmax(values, axis=-1)

    def explore(self, values: np.ndarray, policy: Policy, step: int) -> np.ndarray:
        """Return the actions `[N]` that `policy` selects."""
        actions: Any = policy.select_action(values, step)
        return actions
