"""Relabeling: changes to the contents of stored transitions in batches, and `Triplets`.

The random choices are made when indices are sampled. A gathered batch depends only on the memory and these choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.envs import EnvSource
from noterl.registry import register
from noterl.replay.columns import Array, gather, map_leaves, reshape
from noterl.replay.returns import gather_transitions
from noterl.replay.storage import Storage, StorageUser
from noterl.types import Batch


class Relabel(StorageUser[Storage]):
    """Changes the contents of a batch; subclass `Relabel` for a rule of your own.

    Attributes:
        supports_n_step: whether the relabeling can be combined with n-step returns.
        lost_per_eviction: how many transitions, at most, stop being sampleable when one is evicted (itself included).
        storage: holds the transitions, once the memory is built.
    """

    supports_n_step: bool = True
    lost_per_eviction: int = 1

    def attach(self, agent: Any, source: EnvSource | None = None) -> None:
        """Use an agent and the training environment from now on; `fit` calls this before the training starts.

        Raises:
            ValueError: if the agent and the environment lack what the relabeling needs.
        """

    def bind(self, storage: Storage, observation_space: spaces.Space[Any]) -> None:
        """Use a storage from now on.

        Raises:
            ValueError: if this is bound to another storage, if the memory has several agents, or if observations of
                this space cannot be relabeled.
        """
        if "present" in storage.extra:
            raise ValueError(f"relabel must be None for several agents, got {type(self).__name__}(...)")
        self._use(storage, "relabel")

    def sampleable(self, indices: Array) -> Array | None:
        """Return which of the stored transitions `[n]` can be relabeled (bool); None if all can.

        Only evictions may reverse this: each one for at most `lost_per_eviction` transitions.
        """
        return None

    def sample_choices(self, indices: Array, generator: np.random.Generator) -> dict[str, Array]:
        """Return the random choices for indices `[n]`, as arrays `[n, ...]` by name."""
        return {}

    def further_observation(self, observation: Any, next_observation: Any) -> Any:
        """Return an observation that batches may hold for this step beside the stored ones, or None.

        The learner calls this method for each new transition, for the statistics of the normalizer of observations.
        """
        return None

    def gather(self, indices: Array, choices: Mapping[str, Array], gamma: float, n_step: int) -> Batch:
        """Return the batch of indices `[n]`, with fields `[n, ...]`; the memory sets `weight` and `index`."""
        return gather_transitions(self.storage, indices, gamma, n_step)


@register
class Triplets(Relabel):
    """Replaces each sampled transition by two consecutive segments of the same episode.

    For losses that relate a path to its two parts; from Note_rl's `TRL` sampling. Three transitions `i < k < j` of an
    episode are chosen: the sampled one and two others at random. With `Uniform()`, any three of an episode have the
    same probability. The fields of a batch get an axis of 2 after B: `observation` is `[B, 2, ...]`, `reward` and
    `discount` are `[B, 2]`.

    - `[:, 0]` is the segment from i to k: observation, action and reward of i; the next observation is the one of k.
    - `[:, 1]` is the segment from k to j: observation, action and reward of k; the next observation is the one after j.

    Rewards and discounts belong to the first transition of a segment. `weight`, `index` and the loss's feedback stay
    `[B]` and belong to the sampled transition. Networks take one segment at a time, as in
    `self.q(batch.observation[:, 0])`.

    Episodes with fewer than three sampleable transitions are not sampled.

    Differs: observation, action and reward of a segment belong to one transition. In Note_rl, the second action and
    reward belong to the observation that follows the second one. The sampler chooses one of the three transitions, and
    running episodes can be sampled.

    Example:
        >>> import numpy as np
        >>> import noterl
        >>> from gymnasium import spaces
        >>> from noterl.replay import Triplets
        >>> replay = noterl.Replay(100, relabel=Triplets())
        >>> replay.build(spaces.Box(0.0, 9.0, (1,)), spaces.Discrete(9))
        >>> for step in range(3):
        ...     index = replay.add(0, [step], step, 10.0 * step, [step + 1], False, step == 2)
        >>> batch = replay.gather(replay.sample(1, 1, generator=np.random.default_rng(0)), gamma=0.9)
        >>> batch.observation[0, 0].tolist(), batch.next_observation[0, 0].tolist()
        ([[0.0], [1.0]], [[1.0], [3.0]])
        >>> batch.action[0, 0].tolist(), batch.reward[0, 0].tolist()
        ([0, 1], [0.0, 10.0])
    """

    supports_n_step = False
    lost_per_eviction = 3  # all of an episode of three

    def sampleable(self, indices: Array) -> Array:
        """Return which transitions `[n]` belong to an episode with three or more sampleable transitions."""
        storage = self.storage
        return storage.before(indices) + storage.episodes.after(indices) >= 2

    def sample_choices(self, indices: Array, generator: np.random.Generator) -> dict[str, Array]:
        """Return the indices of i, k and j for indices `[n]`, as "triplet" `[n, 3]`."""
        storage = self.storage
        before = storage.before(indices)
        others = before + storage.episodes.after(indices)
        places = (generator.random((len(indices), 2)) * np.stack([others, others - 1], axis=1)).astype(np.int64)
        # The second place was sampled without the first one, and both without the sampled transition: shift them.
        places[:, 1] += places[:, 1] >= places[:, 0]
        places += places >= before[:, None]
        places = np.sort(np.column_stack([places, before]), axis=1)
        shifts = places - before[:, None]
        return {"triplet": np.column_stack([storage.episodes.shifted(indices, shift) for shift in shifts.T])}

    def gather(self, indices: Array, choices: Mapping[str, Array], gamma: float, n_step: int) -> Batch:
        """Return the batch of the triplets in `choices`, with fields `[n, 2, ...]`."""
        storage = self.storage
        _, middle, last = choices["triplet"].T
        starts = choices["triplet"][:, :2].reshape(-1)
        fields = {
            "observation": storage.observations(starts),
            "action": gather(storage.action, starts, storage.action_layout),
            "reward": storage.reward.take(starts),
            "discount": np.where(storage.terminated.take(starts), np.float32(0), np.float32(gamma)),
            "extra": {name: self._extra(name, starts, middle, last) for name in storage.extra_layout},
        }
        return Batch(
            **{name: reshape(value, (len(indices), 2)) for name, value in fields.items()},
            next_observation=_stacked(storage.observations(middle), storage.next_observations(last)),
            weight=None,
            index=indices,
        )

    def _extra(self, name: str, starts: Array, middle: Array, last: Array) -> Array:
        """Return a further field `[2 n, ...]`; `next_...` belongs to the next observations, middle and last."""
        storage = self.storage
        fields = storage.extra
        layouts = storage.extra_layout
        base_name = name.removeprefix("next_")
        if base_name == name or base_name not in layouts:
            return gather(fields[name], starts, layouts[name])
        # The first segment ends with the observation of `middle`, the second one with the next observation of `last`.
        pair = gather(fields[base_name], middle, layouts[base_name]), gather(fields[name], last, layouts[name])
        return np.stack(pair, axis=1).reshape(-1, *pair[0].shape[1:])


def _stacked(first: Any, second: Any) -> Any:
    """Return arrays `[n, ...]` as one `[n, 2, ...]`, leaf by leaf."""
    return map_leaves(lambda *pair: np.stack(pair, axis=1), first, second)
