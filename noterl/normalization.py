"""Running normalisation of observations and rewards, as part of an agent.

Owns: the running moments, and when they move. Those of observations stand still while a rollout is collected and
learned from, so that the policy that acted is the one whose log-probabilities are taken; they move afterwards. Those of
rewards move first. In evaluation nothing moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from noterl.types import Batch

Array = np.ndarray[Any, Any]

# As in Stable-Baselines3: what is normalised is clipped to this, and this is added to variances.
CLIP, EPSILON = 10.0, 1e-8


class Moments:
    """Mean and variance of all values so far, by the parallel algorithm of Chan, Golub and LeVeque (1979).

    Args:
        shape: of one value.

    Attributes:
        mean: `[*shape]`, 0 before the first value.
        variance: `[*shape]`, the population's; 1 before the first value.
        count: how many values.

    Example:
    >>> import numpy as np
    >>> from noterl.normalization import Moments
    >>> moments = Moments(())
    >>> moments.update(np.array([1.0, 3.0]))
    >>> moments.update(np.array([5.0]))
    >>> float(moments.mean), round(float(moments.variance), 3), moments.count
    (3.0, 2.667, 3)
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean, self.variance, self.count = np.zeros(shape), np.ones(shape), 0

    def update(self, values: Array) -> None:
        """Take more values `[n, *shape]` into account."""
        added = len(values)
        if not added:
            return
        values = np.asarray(values, np.float64)
        mean, variance, total = values.mean(axis=0), values.var(axis=0), self.count + added
        shift = mean - self.mean
        squares = self.variance * self.count + variance * added + np.square(shift) * (self.count * added / total)
        self.mean = self.mean + shift * (added / total)
        self.variance, self.count = squares / total, total

    def get_state(self) -> dict[str, Any]:
        """Return everything."""
        return {"mean": self.mean.copy(), "variance": self.variance.copy(), "count": self.count}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take what `get_state` returned.

        Raises:
            ValueError: if it is of values of another shape; nothing is changed then.
        """
        arrays = [np.array(state[name], np.float64) for name in ("mean", "variance")]
        if any(array.shape != self.mean.shape for array in arrays) or type(state["count"]) is not int:
            raise ValueError(f"the state of the normaliser does not fit: {state!r}")
        (self.mean, self.variance), self.count = arrays, state["count"]


class Normalizers:
    """What an agent normalises.

    Observations become `clip((x - mean) / sqrt(variance + 1e-8), -10, 10)`. Rewards are divided by the standard
    deviation of the running discounted return, which keeps their sign, and clipped likewise.

    Args:
        shape: of an observation, or None to leave observations alone.
        reward: whether rewards are normalised.
    """

    def __init__(self, shape: tuple[int, ...] | None, reward: bool) -> None:
        self.observation = None if shape is None else Moments(shape)
        self.reward = Moments(()) if reward else None
        self._returns = np.zeros(0)  # [N], the discounted return of each lane so far

    def seen(self, observations: Array) -> Array:
        """Return observations `[..., *shape]` as networks see them, float32."""
        moments = self.observation
        if moments is None:
            return observations
        scaled = (observations - moments.mean) / np.sqrt(moments.variance + EPSILON)
        return np.clip(scaled, -CLIP, CLIP).astype(np.float32)

    def rollout(self, batch: Batch, gamma: float) -> Batch:
        """Return a rollout `[T, N, ...]` normalised, with returns discounted by gamma, and take it into account."""
        seen: dict[str, Any] = {name: self.seen(getattr(batch, name)) for name in ("observation", "next_observation")}
        counted = batch.weight > 0
        if self.observation is not None:
            self.observation.update(batch.observation[counted])
        if self.reward is None:
            return batch._replace(**seen)
        self.reward.update(self._discounted(batch, gamma)[counted])
        scaled = batch.reward / np.sqrt(self.reward.variance + EPSILON)
        return batch._replace(reward=np.clip(scaled, -CLIP, CLIP).astype(np.float32), **seen)

    def _discounted(self, batch: Batch, gamma: float) -> Array:
        """Return the discounted return so far at each step `[T, N]`; an episode's end begins it anew."""
        steps, lanes = batch.reward.shape
        running = self._returns if len(self._returns) == lanes else np.zeros(lanes)
        found, ended = np.empty((steps, lanes)), batch.extra["ended"] > 0
        for t in range(steps):
            counted = batch.weight[t] > 0
            running = np.where(counted, gamma * running + batch.reward[t], running)
            found[t] = running
            running = np.where(ended[t], 0.0, running)
        self._returns = running
        return found

    def get_state(self) -> dict[str, Any]:
        """Return everything."""
        state = {name: None if found is None else found.get_state() for name, found in self._named()}
        return {**state, "returns": self._returns.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take what `get_state` returned.

        Raises:
            ValueError: if it normalises other things.
        """
        for name, found in self._named():
            if (state[name] is None) != (found is None):
                raise ValueError(f"the state normalises {name}s, or the agent does, but not both")
        for name, found in self._named():
            if found is not None:
                found.set_state(state[name])
        self._returns = np.array(state["returns"], np.float64)

    def arrays(self) -> dict[str, Array]:
        """Return the moments by "observation/mean" and so on: what belongs to the networks' weights."""
        kept = [(name, found) for name, found in self._named() if found is not None]
        return {f"{name}/{key}": np.asarray(value) for name, found in kept for key, value in found.get_state().items()}

    def set_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Take what `arrays` returned, of the same shapes."""
        values = {name: int(array) if name.endswith("/count") else array for name, array in arrays.items()}
        for name, found in self._named():
            if found is not None:
                found.set_state({key: values[f"{name}/{key}"] for key in ("mean", "variance", "count")})

    def _named(self) -> list[tuple[str, Moments | None]]:
        return [("observation", self.observation), ("reward", self.reward)]
