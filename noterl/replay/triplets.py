"""Triplets of transitions of one trajectory, for losses that tie a long way to its two halves.

From Note_rl's `TRL` sampling. Differs: what belongs to one transition stays together (there the second action and
reward came with the observation after theirs), the trajectory is drawn by one of its transitions, so that samplers have
a say in it, and one that still runs can be drawn too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from noterl.registry import register
from noterl.replay.columns import Array, gather, reshape
from noterl.replay.relabel import Relabel
from noterl.replay.storage import Storage
from noterl.types import Batch


@register
class Triplets(Relabel):
    """Gives, for each transition drawn, two stretches of its trajectory that follow one another.

    Three transitions `i < k < j` of the trajectory are drawn: the one the sampler chose and any two others, so that
    with `Uniform()` any three of a trajectory have the same chance. The fields of a batch get an axis of 2 after B
    (`observation` is `[B, 2, ...]`, `reward` and `discount` are `[B, 2]`):

    - `[:, 0]` is the stretch from i to k: observation, action and reward of i; its next observation is that of k.
    - `[:, 1]` is the stretch from k to j: those of k; its next observation is what came after j.

    Rewards and discounts are those of the one transition at the start of the stretch. `weight` and `index` stay
    `[B]`: they are about the transition that the sampler chose, and so is what the loss feeds back. Networks are given
    one side at a time, such as `self.q(batch.observation[:, 0])`.

    Trajectories of fewer than three transitions (so far, and still in the memory) are not drawn.

    Example:
        >>> import numpy as np
        >>> import noterl
        >>> from gymnasium import spaces
        >>> from noterl.replay import Triplets
        >>> replay = noterl.Replay(100, relabel=Triplets())
        >>> replay.build(spaces.Box(0.0, 9.0, (1,)), spaces.Discrete(9))
        >>> for step in range(3):
        ...     row = replay.add(0, [step], step, 10.0 * step, [step + 1], False, step == 2)
        >>> batch = replay.sample(1, 1, generator=np.random.default_rng(0), gamma=0.9)
        >>> batch.observation[0, 0].tolist(), batch.next_observation[0, 0].tolist()
        ([[0.0], [1.0]], [[1.0], [3.0]])
        >>> batch.action[0, 0].tolist(), batch.reward[0, 0].tolist()
        ([0, 1], [0.0, 10.0])
    """

    takes_n_step = False
    spoiled = 3  # all of a trajectory of three

    def usable(self, rows: Array) -> Array:
        """Return which rows `[n]` belong to a trajectory of three or more."""
        episodes = self._bound().episodes
        return episodes.before(rows) + episodes.after(rows) >= 2

    def draw(self, rows: Array, generator: np.random.Generator) -> dict[str, Array]:
        """Return the rows i, k and j for rows `[n]`, as "triplet" `[n, 3]`."""
        episodes = self._bound().episodes
        before = episodes.before(rows)
        others = before + episodes.after(rows)
        places = (generator.random((len(rows), 2)) * np.stack([others, others - 1], axis=1)).astype(np.int64)
        # Two different ones of the others: counted without the first, and then all without the row itself.
        places[:, 1] += places[:, 1] >= places[:, 0]
        places += places >= before[:, None]
        places = np.sort(np.column_stack([places, before]), axis=1)
        shifts = places - before[:, None]
        return {"triplet": np.column_stack([episodes.shifted(rows, shift) for shift in shifts.T])}

    def gather(self, rows: Array, choices: Mapping[str, Array], gamma: float, n_step: int) -> Batch:
        """Return the batch of rows `[n]`, fields `[n, 2, ...]`."""
        storage = self._bound()
        _, middle, last = choices["triplet"].T
        starts = choices["triplet"][:, :2].reshape(-1)
        fields = {
            "observation": storage.observations(starts),
            "action": gather(storage.action, starts, storage.action_layout),
            "reward": storage.reward.take(starts),
            "discount": np.where(storage.terminated.take(starts), np.float32(0), np.float32(gamma)),
            "extra": {name: gather(storage.extra[name], starts, leaf) for name, leaf in storage.extra_layout.items()},
        }
        return Batch(
            **{name: reshape(value, (len(rows), 2)) for name, value in fields.items()},
            next_observation=_side_by_side(storage.observations(middle), storage.next_observations(last)),
            weight=None,
            index=rows,
        )

    def _bound(self) -> Storage:
        if self.storage is None:
            raise RuntimeError("this Triplets belongs to no memory yet: call Replay.build first")
        return self.storage


def _side_by_side(first: Any, second: Any) -> Any:
    """Return arrays `[n, ...]` as one `[n, 2, ...]`, leaf by leaf."""
    if isinstance(first, dict):
        return {name: _side_by_side(part, second[name]) for name, part in first.items()}
    return np.stack([first, second], axis=1)
