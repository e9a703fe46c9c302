"""Critics: networks that value actions: one `[B, D + A] -> [B, 1]`, or all that are Discrete `[B, D] -> [B, A]`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from noterl import networks
from noterl.backends import ops

Tensor = Any


def q_values(critics: Sequence[networks.Network], observation: Tensor, action: Tensor) -> list[Tensor]:
    """Return every critic's value of the actions, `[B]` each.

    Args:
        critics: networks `[B, D + A] -> [B, 1]`.
        observation: `[B, ...]`, of D numbers each.
        action: `[B, A]`.

    Example:
    >>> import numpy as np
    >>> from noterl import networks
    >>> from noterl.networks import critics
    >>> twins = critics.twins([None, None], lambda: networks.mlp(3 + 2, [8], 1))
    >>> first, second = critics.q_values(twins, np.zeros((4, 3), "float32"), np.ones((4, 2), "float32"))
    >>> first.shape == second.shape == (4,), bool(np.any(np.asarray(first == second)))
    (True, False)
    """
    size = int(np.prod(observation.shape[1:]))
    flat = ops.reshape(ops.cast(observation, "float32"), (-1, size))
    inputs = ops.concatenate([flat, ops.cast(action, "float32")], axis=-1)  # [B, D + A]
    return [column(critic(inputs)) for critic in critics]


def column(values: Tensor) -> Tensor:
    """Return a critic's values `[B]` of its outputs `[B, 1]`.

    Raises:
        ValueError: if it has other outputs, of which the rest would be dropped.
    """
    return _of_width(values, 1, "one number for each row, [B, 1]")[:, 0]


def rows(values: Tensor, actions: int) -> Tensor:
    """Return a critic's values of all Discrete actions, `[B, A]`, as they are.

    Raises:
        ValueError: if it has other outputs, which would be broadcast.
    """
    return _of_width(values, actions, f"a number for each action, [B, {actions}]")


def _of_width(values: Tensor, width: int, expected: str) -> Tensor:
    if len(values.shape) != 2 or values.shape[1] != width:
        raise ValueError(f"a critic must return {expected}, got {tuple(values.shape)}")
    return values


def twins(given: Sequence[Any], build: Callable[[], networks.Network]) -> list[networks.Network]:
    """Return two critics that differ in their weights: those given, built where that is None.

    Raises:
        ValueError: if the weights are equal: the lesser of both would be no better than either.
    """
    both = [networks.given(critic, build) for critic in given]
    first, second = map(networks.get_weights, both)
    if len(first) == len(second) and all(map(np.array_equal, first, second)):
        raise ValueError("network must have critics of different initial weights, but the two given are equal")
    return both
