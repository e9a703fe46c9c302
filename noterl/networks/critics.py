"""Critics: networks `[B, D + A] -> [B, 1]`, or `[B, D] -> [B, A]` for all Discrete actions."""

from __future__ import annotations

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
    >>> from noterl.networks.critics import critic_pair, q_values
    >>> critics = critic_pair([None, None], [8], lambda hidden: networks.mlp(3 + 2, hidden, 1), (3 + 2,))
    >>> first, second = q_values(critics, np.zeros((4, 3), "float32"), np.ones((4, 2), "float32"))
    >>> first.shape == second.shape == (4,)
    True
    """
    size = int(np.prod(observation.shape[1:]))
    flat = ops.reshape(ops.cast(observation, "float32"), (-1, size))
    inputs = ops.concatenate([flat, ops.cast(action, "float32")], axis=-1)  # [B, D + A]
    return [scalar_values(critic(inputs)) for critic in critics]


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


def critic_pair(
    critics: Sequence[Any], hidden: Any, build: Callable[[Any], networks.Network], shape: tuple[int, ...]
) -> list[networks.Network]:
    """Return two critics with different weights; arguments as in `network_or_default`.

    Raises:
        ValueError: if the critics have equal weights, because their minimum would then equal each critic.
    """
    pair = [networks.network_or_default(critic, hidden, build, shape) for critic in critics]
    first, second = map(networks.get_weights, pair)
    if len(first) == len(second) and all(map(np.array_equal, first, second)):
        raise ValueError("network must have critics with different initial weights, but the two are equal")
    return pair
