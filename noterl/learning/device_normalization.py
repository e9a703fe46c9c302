"""Normalization on the device: the statistics of an agent's normalizers as variables of a compiled program."""

from __future__ import annotations

from typing import Any

import numpy as np

from noterl.backends import keras, ops
from noterl.normalization import CLIP, EPSILON, Normalizers, RunningMeanStd, merged
from noterl.types import Batch

# Beyond this count, one value changes a mean in float32 by less than the rounding error.
_LARGEST_COUNT = 2.0**20


class DeviceStatistics:
    """Mean, variance and count as variables, in float32.

    Args:
        host: the statistics on the host.

    Attributes:
        variables: the three variables.
    """

    def __init__(self, host: RunningMeanStd) -> None:
        self._host = host
        shapes = host.mean.shape, host.mean.shape, ()
        self.variables: list[Any] = [keras.Variable(np.zeros(shape, np.float32), trainable=False) for shape in shapes]

    def load(self) -> None:
        """Assign the values on the host to the variables."""
        values = self._host.mean, self._host.variance, self._host.count
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value)

    def unload(self) -> None:
        """Assign the values of the variables to the statistics on the host, if all values are finite."""
        mean, variance, count = (np.array(variable, np.float64) for variable in self.variables)
        if np.isfinite([mean, variance]).all():
            self._host.set_state({"mean": mean, "variance": variance, "count": int(count)})

    def add(self, values: Any) -> None:
        """Add values `[n, *shape]`."""
        values = ops.cast(values, "float32")
        # The mean of differences is exact for a value that never changes.
        shifted = values - values[0]
        added = values[0] + ops.mean(shifted, axis=0), ops.var(shifted, axis=0), float(values.shape[0])
        self._assign(merged(self._tensors(), added))

    def add_each(self, values: Any, counted: Any) -> None:
        """Add the values `[n, *shape]` that are `counted`, `[n]`, one after another.

        So the result is the same if other calls add some of the values. From `_LARGEST_COUNT` values on, the statistics
        are moving averages over about as many.
        """

        def step(before: tuple[Any, ...], row: tuple[Any, Any]) -> tuple[tuple[Any, ...], None]:
            mean, variance, count = before
            moments = merged((mean, variance, ops.minimum(count, _LARGEST_COUNT)), (row[0], 0.0, 1.0))[:2]
            after = *moments, count + 1.0
            return tuple(ops.where(row[1], new, old) for new, old in zip(after, before, strict=True)), None

        self._assign(ops.scan(step, self._tensors(), (ops.cast(values, "float32"), counted))[0])

    def _tensors(self) -> tuple[Any, ...]:
        return tuple(map(ops.convert_to_tensor, self.variables))

    def _assign(self, values: tuple[Any, ...]) -> None:
        if not self._host.is_fixed:
            for variable, value in zip(self.variables, values, strict=True):
                variable.assign(value)

    def scale(self, values: Any, mean: Any = 0.0) -> Any:
        """Return values less `mean`, divided by the standard deviation and clipped."""
        shifted = ops.cast(values, "float32") - mean
        return ops.clip(shifted / ops.sqrt(self.variables[1] + EPSILON), -CLIP, CLIP)


class DeviceNormalizers:
    """What `Normalizers` does, for the N lanes of a program; without normalizers, nothing changes.

    A runner calls `load` before and `unload` after each call. The program traces the other methods.

    Args:
        normalizers: of the agent; None if nothing is normalized.
        num_envs: N.

    Attributes:
        variables: of the statistics, and the discounted return of each lane, `[N]`.
    """

    def __init__(self, normalizers: Normalizers | None, num_envs: int) -> None:
        self._host: Normalizers = normalizers or Normalizers(None, reward=False)
        hosts = self._host.observation, self._host.reward
        self._observation, self._reward = (None if host is None else DeviceStatistics(host) for host in hosts)
        self._statistics = [each for each in (self._observation, self._reward) if each is not None]
        self._returns: Any = keras.Variable(np.zeros(num_envs, np.float32), trainable=False)
        self.variables: list[Any] = [variable for each in self._statistics for variable in each.variables]
        if self._reward is not None:
            self.variables.append(self._returns)

    def load(self) -> None:
        """Assign the values on the host to the variables; with another number of lanes, returns start from 0."""
        for statistics in self._statistics:
            statistics.load()
        returns = self._host.returns
        self._returns.assign(returns if returns.shape == self._returns.shape else np.zeros(self._returns.shape))

    def restart(self) -> None:
        """Reset the discounted returns, because all episodes start."""
        self._host.returns = np.zeros(0)

    def unload(self) -> None:
        """Assign the values of the variables to the normalizers on the host."""
        for statistics in self._statistics:
            statistics.unload()
        if self._reward is not None:
            self._host.returns = np.nan_to_num(np.array(self._returns, np.float64), posinf=0.0, neginf=0.0)

    def observations(self, observations: Any) -> Any:
        """Return normalized observations of networks `[..., *shape]`."""
        statistics = self._observation
        return observations if statistics is None else statistics.scale(observations, statistics.variables[0])

    def batch(self, batch: Batch) -> Batch:
        """Return a normalized batch `[B, ...]` of a replay memory."""
        return self._with_observations(batch)._replace(reward=self._rewards(batch.reward))

    def rollout(self, batch: Batch, gamma: Any) -> Batch:
        """Return a normalized rollout `[T, N, ...]`, and update the statistics with the rollout."""
        normalized = self._with_observations(batch)
        if self._observation is not None:
            self._observation.add(ops.reshape(batch.observation, (-1, *batch.observation.shape[2:])))
        if self._reward is not None:

            def step(before: Any, row: tuple[Any, Any]) -> tuple[Any, Any]:
                returns = gamma * before + row[0]
                return (1.0 - row[1]) * returns, returns

            after, returns = ops.scan(step, ops.convert_to_tensor(self._returns), (batch.reward, batch.extra["ended"]))
            self._returns.assign(after)
            self._reward.add(ops.reshape(returns, -1))
        return normalized._replace(reward=self._rewards(batch.reward))

    def round(self, observations: Any, reward: Any, ended: Any, counted: Any, gamma: Any) -> None:
        """Update the statistics with the transitions of the `counted` lanes, `[N]` each; observations of networks."""
        if self._observation is not None:
            self._observation.add_each(observations, counted)
        if self._reward is not None:
            before = ops.convert_to_tensor(self._returns)
            returns = gamma * before + reward
            self._reward.add_each(returns, counted)
            self._returns.assign(ops.where(counted, ops.where(ended, 0.0, returns), before))

    def _rewards(self, rewards: Any) -> Any:
        return rewards if self._reward is None else self._reward.scale(rewards)

    def _with_observations(self, batch: Batch) -> Batch:
        names = ("observation", "next_observation")
        return batch._replace(**{name: self.observations(getattr(batch, name)) for name in names})
