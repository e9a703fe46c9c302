"""Running normalization of observations and rewards, as part of an agent.

For rollouts, the observation statistics are constant while a rollout is collected and normalized, so that stored
log-probabilities belong to the policy that acted. The rollout's observations update the statistics afterwards. The
rollout's rewards update the reward statistics before the normalization. With a replay memory, each transition updates
both statistics. The memory stores raw values, and batches are normalized after sampling. Evaluation updates nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from noterl.types import Batch, Transition
from noterl.utils import schema

Array = np.ndarray[Any, Any]

# As in Stable-Baselines3: normalized values are clipped to this, and this is added to variances.
CLIP = 10.0
EPSILON = 1e-8


class RunningMeanStd:
    """Mean and variance of all values so far, by the parallel algorithm of Chan, Golub and LeVeque (1979).

    Args:
        shape: the shape of one value.

    Attributes:
        mean: `[*shape]`, 0 before the first value.
        variance: `[*shape]`, the population variance; 1 before the first value.
        count: the number of values.
        is_fixed: whether further values are ignored.

    Example:
    >>> import numpy as np
    >>> from noterl.normalization import RunningMeanStd
    >>> statistics = RunningMeanStd(())
    >>> statistics.update(np.array([1.0, 3.0]))
    >>> statistics.update(np.array([5.0]))
    >>> float(statistics.mean), round(float(statistics.variance), 3), statistics.count
    (3.0, 2.667, 3)
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean: np.ndarray = np.zeros(shape)
        self.variance: np.ndarray = np.ones(shape)
        self.count: int = 0
        self.is_fixed: bool = False

    def update(self, values: Array) -> None:
        """Add values `[n, *shape]`."""
        if len(values):
            values = np.asarray(values, np.float64)
            self._merge(values.mean(axis=0), values.var(axis=0), len(values))

    def add(self, value: Any) -> None:
        """Add one value `[*shape]`."""
        self._merge(np.asarray(value, np.float64), 0.0, 1)

    def _merge(self, mean: Array, variance: Array | float, added: int) -> None:
        """Add `added` values with this mean and population variance, unless the statistics are fixed."""
        if not self.is_fixed:
            before = self.mean, self.variance, self.count
            self.mean, self.variance, self.count = merged(before, (mean, variance, added))

    def moments_since(self, before: RunningMeanStd) -> Array:
        """Return count, means and sums of squared deviations of the values since `before`, a flat vector."""
        added = self.count - before.count
        if not added:
            return np.zeros(1 + 2 * self.mean.size)
        mean = (self.mean * self.count - before.mean * before.count) / added
        shift = np.square(mean - before.mean) * (before.count * added / self.count)
        squares = self.variance * self.count - before.variance * before.count - shift
        # A difference of large sums may fall slightly below 0.
        return np.concatenate([[added], mean.ravel(), np.maximum(squares, 0.0).ravel()])

    def add_moments(self, moments: Array) -> None:
        """Add the values of a vector that `moments_since` returned."""
        added = int(moments[0])
        mean, squares = moments[1:].reshape(2, *self.mean.shape)
        if added:
            self._merge(mean, squares / added, added)

    def get_state(self) -> dict[str, Any]:
        """Return mean, variance and count."""
        return {"mean": self.mean.copy(), "variance": self.variance.copy(), "count": self.count}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`.

        Raises:
            ValueError: as in `check_state`; this object is then unchanged.
        """
        # All values are checked first, so that a wrong state changes nothing.
        self.check_state(state)
        self.mean, self.variance = (np.array(state[name]) for name in ("mean", "variance"))
        self.count = state["count"]

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Check a state of `get_state`.

        Raises:
            ValueError: if the state has another shape or dtype, a value is not finite, or a variance or the count is
                negative.
        """
        array = schema.Array(np.float64, self.mean.shape)
        schema.check(state, {"mean": array, "variance": array, "count": schema.Int(0)}, "the normalizer")
        if not np.isfinite(state["mean"]).all():
            raise ValueError(f"the normalizer['mean'] must be finite, got {state['mean']}")
        if not (np.isfinite(state["variance"]).all() and np.min(state["variance"]) >= 0):
            raise ValueError(f"the normalizer['variance'] must be finite and at least 0, got {state['variance']}")


def merged(first: tuple[Any, Any, Any], second: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Return mean, population variance and count of two groups of values together, each given by its own three.

    The formula is that of Chan, Golub and LeVeque (1979). The values may be tensors.
    """
    mean, variance, count = first
    added_mean, added_variance, added = second
    total = count + added
    # The mean moves by a difference, which keeps its precision for large counts.
    shift = added_mean - mean
    squares = variance * count + added_variance * added + shift * shift * (count * added / total)
    return mean + shift * (added / total), squares / total, total


class Normalizers:
    """The running statistics of one agent, and normalization with these statistics.

    Observations become `clip((x - mean) / sqrt(variance + 1e-8), -10, 10)`. Rewards are divided by the standard
    deviation of the running discounted return and clipped to the same bounds. No mean is subtracted, so rewards keep
    the sign.

    Args:
        shape: the shape of an observation; None if observations are not normalized.
        reward: whether rewards are normalized.

    Attributes:
        observation: statistics of observations, or None.
        reward: statistics of discounted returns, or None.
        returns: the discounted return of each lane so far, `[N]`.
    """

    def __init__(self, shape: tuple[int, ...] | None, reward: bool) -> None:
        self.observation: RunningMeanStd | None = None if shape is None else RunningMeanStd(shape)
        self.reward: RunningMeanStd | None = RunningMeanStd(()) if reward else None
        self.returns: np.ndarray = np.zeros(0)

    @property
    def is_fixed(self) -> bool:
        """Whether the statistics of observations are fixed, as after training from a data set."""
        return self.observation is not None and self.observation.is_fixed

    def normalize_observation(self, observations: Array) -> Array:
        """Return normalized observations `[..., *shape]`, float32.

        Observations are rounded to float32 first, as in memories, so that acting and learning use the same values.
        """
        statistics = self.observation
        if statistics is None:
            return observations
        shifted = observations.astype(np.float32, copy=False) - statistics.mean
        return np.clip(shifted / np.sqrt(statistics.variance + EPSILON), -CLIP, CLIP).astype(np.float32)

    def normalize_reward(self, rewards: Array) -> Array:
        """Return normalized rewards `[...]`, float32."""
        if self.reward is None:
            return rewards
        return np.clip(rewards / np.sqrt(self.reward.variance + EPSILON), -CLIP, CLIP).astype(np.float32)

    def normalize_rollout(self, batch: Batch, gamma: float, merge: Callable[[], None] | None = None) -> Batch:
        """Return a normalized rollout `[T, N, ...]` and update the statistics with the rollout.

        Args:
            batch: the rollout.
            gamma: the discount of returns.
            merge: called when the statistics are updated; may merge the statistics with the statistics of other
                processes.
        """
        counted = batch.weight > 0
        # With the statistics of acting; the rewards below get the new ones.
        normalized = self._normalize_observations(batch)
        if self.observation is not None:
            self.observation.update(batch.observation[counted])
        if self.reward is not None:
            self.reward.update(self._discounted_returns(batch, gamma)[counted])
        if merge is not None:
            merge()
        return normalized._replace(reward=self.normalize_reward(batch.reward))

    def normalize_batch(self, batch: Batch) -> Batch:
        """Return normalized batches `[K, B, ...]` of a replay memory; an n-step reward is clipped after summation."""
        return self._normalize_observations(batch)._replace(reward=self.normalize_reward(batch.reward))

    def update(self, transition: Transition, gamma: float) -> None:
        """Update the statistics with a transition that is stored in a replay memory."""
        if self.observation is not None:
            self.observation.add(np.asarray(transition.observation, np.float32))
        if self.reward is not None:
            lane = transition.lane
            # The number of lanes is not known before their transitions arrive.
            if lane >= len(self.returns):
                self.returns = np.append(self.returns, np.zeros(lane + 1 - len(self.returns)))
            self.returns[lane] = gamma * self.returns[lane] + transition.reward
            self.reward.add(self.returns[lane])

    def interrupt(self, lane: int) -> None:
        """Reset the discounted return of a lane, whose next transition does not follow from the last one."""
        if lane < len(self.returns):
            self.returns[lane] = 0.0

    def _normalize_observations(self, batch: Batch) -> Batch:
        return batch._replace(
            observation=self.normalize_observation(batch.observation),
            next_observation=self.normalize_observation(batch.next_observation),
        )

    def _discounted_returns(self, batch: Batch, gamma: float) -> Array:
        """Return the discounted return so far at each step `[T, N]`; the end of an episode resets the return.

        The returns after the last step are kept, because the next rollout continues the episodes.
        """
        steps, lanes = batch.reward.shape
        running = self.returns if len(self.returns) == lanes else np.zeros(lanes)
        returns = np.empty((steps, lanes))
        ended = batch.extra["ended"] > 0
        for t in range(steps):
            running = np.where(batch.weight[t] > 0, gamma * running + batch.reward[t], running)
            returns[t] = running
            running = np.where(ended[t], 0.0, running)
        self.returns = running
        return returns

    def get_state(self) -> dict[str, Any]:
        """Return the statistics and the running returns."""
        state = {name: statistics and statistics.get_state() for name, statistics in self._named()}
        return {**state, "returns": self.returns.copy(), "fixed": self.is_fixed}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`.

        Raises:
            ValueError: if the state and the agent do not normalize the same quantities.
        """
        # All names are compared before anything is set.
        for name, statistics in self._named():
            if (state[name] is None) != (statistics is None):
                raise ValueError(f"state: either the state or the agent normalizes {name}s, but not both")
        for name, statistics in self._named():
            if statistics is not None:
                statistics.set_state(state[name])
        if self.observation is not None:
            self.observation.is_fixed = bool(state.get("fixed", False))  # files of older versions lack it
        self.returns = np.array(state["returns"], np.float64)

    def arrays(self) -> dict[str, Array]:
        """Return the statistics by names such as "observation/mean"; they are saved with the weights."""
        states = {name: statistics.get_state() for name, statistics in self._named() if statistics is not None}
        return {f"{name}/{key}": np.asarray(value) for name, state in states.items() for key, value in state.items()}

    def set_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Restore statistics that `arrays` returned, with the same shapes.

        Raises:
            ValueError: if a value is not valid, as in `RunningMeanStd.check_state`; this object is then unchanged.
        """
        values = {name: int(array) if name.endswith("/count") else array for name, array in arrays.items()}
        states = [
            (statistics, {key: values[f"{name}/{key}"] for key in ("mean", "variance", "count")})
            for name, statistics in self._named()
            if statistics is not None
        ]
        for statistics, state in states:
            # All are checked before one is set.
            statistics.check_state(state)
        for statistics, state in states:
            statistics.set_state(state)

    def __str__(self) -> str:
        return " and ".join(f"{name}s" for name, statistics in self._named() if statistics is not None)

    def statistics(self) -> list[RunningMeanStd]:
        """Return all statistics, in a fixed order."""
        return [statistics for _, statistics in self._named() if statistics is not None]

    def _named(self) -> list[tuple[str, RunningMeanStd | None]]:
        return [("observation", self.observation), ("reward", self.reward)]
