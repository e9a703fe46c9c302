"""Seeing stored transitions in another light when they are sampled.

Owns: what was drawn, with the choices made for it, and the contract of relabelling. Chance is spent when rows are
drawn; gathering them is a plain function of the memory and of these choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from noterl.registry import Configurable
from noterl.replay.columns import Array
from noterl.replay.returns import plain
from noterl.replay.storage import Storage
from noterl.types import Batch

if TYPE_CHECKING:
    from noterl.envs import EnvSource


class Drawn:
    """Rows `[K, B]` of a group of updates, and what relabelling chose for each; slices take some of the updates.

    Args:
        rows: the rows, int64.
        weight: of each in the loss, float32 `[K, B]`.
        choices: arrays `[K, B, ...]` by name.
        gamma: the discount of one step, where it was settled already.
    """

    __slots__ = ("choices", "gamma", "rows", "weight")

    def __init__(
        self, rows: Array, weight: Array, choices: Mapping[str, Array] | None = None, gamma: float | None = None
    ) -> None:
        self.rows, self.weight, self.choices, self.gamma = rows, weight, dict(choices or {}), gamma

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, updates: slice) -> Drawn:
        choices = {name: array[updates] for name, array in self.choices.items()}
        return Drawn(self.rows[updates], self.weight[updates], choices, self.gamma)

    def joined(self, other: Drawn) -> Drawn:
        """Return these updates and then the other's."""
        choices = {name: np.concatenate([array, other.choices[name]]) for name, array in self.choices.items()}
        rows, weight = np.concatenate([self.rows, other.rows]), np.concatenate([self.weight, other.weight])
        return Drawn(rows, weight, choices, self.gamma)


class Relabel(Configurable):
    """Changes what a batch says of its rows; subclass it for a rule of your own.

    Attributes:
        takes_n_step: whether it can be combined with n-step returns.
        spoiled: how many usable rows there are less, at most, when one is overwritten.
        storage: the rows, once it is bound.
    """

    takes_n_step: bool = True
    spoiled: int = 1
    storage: Storage | None = None

    def attach(self, agent: Any, source: EnvSource | None = None) -> None:
        """Take what is needed of an agent, and of where it trains; `fit` calls this before it begins.

        Raises:
            ValueError: if they lack it.
        """

    def bind(self, storage: Storage, observation_space: spaces.Space[Any]) -> None:
        """Belong to a storage, from now on.

        Raises:
            ValueError: if it belongs to another one, or cannot relabel observations of this space.
        """
        if self.storage is not None and self.storage is not storage:
            raise ValueError(f"relabel must belong to one memory alone, got the {type(self).__name__} of another")
        if "present" in storage.extra:
            raise ValueError(f"relabel must be None for several agents, got {type(self).__name__}(...)")
        self.storage = storage

    def usable(self, rows: Array) -> Array | None:
        """Return which of the live rows `[n]` can be relabelled (bool); None if all can.

        Others are not drawn. What is usable stays so as others are added, and until `spoiled` says otherwise.
        """
        return None

    def draw(self, rows: Array, generator: np.random.Generator) -> dict[str, Array]:
        """Return the choices for rows `[n]`, arrays `[n, ...]` by name."""
        return {}

    def gather(self, rows: Array, choices: Mapping[str, Array], gamma: float, n_step: int) -> Batch:
        """Return the batch of rows `[n]`, fields `[n, ...]`; `weight` and `index` are the memory's to fill in."""
        assert self.storage is not None
        return plain(self.storage, rows, gamma, n_step)
