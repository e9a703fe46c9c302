"""Critics: networks `[B, D + A] -> [B, 1]`, or `[B, D] -> [B, A]` for all Discrete actions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from noterl import networks
from noterl.backends import ops

Tensor = Any


def q_values(critics: Sequence[networks.Network], observation: Tensor, action: Tensor) -> list[Tensor]:
    """Return each critic's values of the actions, `[B]` each.

    Args:
        critics: networks `[B, D + A] -> [B, 1]`.
        observation: `[B, ...]` with D values per row.
        action: `[B, A]`.

    Example:
    >>> import numpy as np
    >>> from noterl import networks
    >>> from noterl.networks.critics import build_critics, q_values
    >>> critics = build_critics([None, None], [8], lambda hidden: networks.mlp(3 + 2, hidden, 1), (3 + 2,))
    >>> first, second = q_values(critics, np.zeros((4, 3), "float32"), np.ones((4, 2), "float32"))
    >>> first.shape == second.shape == (4,)
    True
    """
    return [scalar_values(critic(joint(observation, action))) for critic in critics]


def joint(observation: Tensor, action: Tensor) -> Tensor:
    """Return observations `[B, ...]` and actions `[B, A]` side by side: the inputs of critics, `[B, D + A]`."""
    flat = ops.reshape(ops.cast(observation, "float32"), (-1, int(np.prod(observation.shape[1:]))))
    return ops.concatenate([flat, ops.cast(action, "float32")], axis=-1)


def scalar_values(values: Tensor) -> Tensor:
    """Return a critic's outputs `[B, 1]` as values `[B]`.

    Raises:
        ValueError: if the outputs have another width.
    """
    return action_values(values, 1)[:, 0]


def action_values(values: Tensor, actions: int) -> Tensor:
    """Return a critic's values of all Discrete actions, `[B, A]`, unchanged.

    Raises:
        ValueError: if the outputs have another width, because such outputs would be broadcast.
    """
    if len(values.shape) != 2 or values.shape[1] != actions:
        raise ValueError(f"a critic must return values [B, {actions}], got {tuple(values.shape)}")
    return values


def build_critics(
    critics: Sequence[Any], hidden: Any, build: Callable[[Any], networks.Network], shape: tuple[int, ...]
) -> list[networks.Network]:
    """Return critics with different weights; arguments as in `network_or_default`.

    Raises:
        ValueError: if two critics have equal weights, because their minimum would then equal each of the two.
    """
    built = [networks.network_or_default(critic, hidden, build, shape) for critic in critics]
    for first, second in itertools.combinations(map(networks.get_weights, built), 2):
        if len(first) == len(second) and all(map(np.array_equal, first, second)):
            raise ValueError("network must have critics with different initial weights, but two of them are equal")
    return built
