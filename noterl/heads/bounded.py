"""Heads for bounded continuous actions: a tanh squashes the network's output, which is then scaled to the bounds.

The scaled action lies in [-1, 1] in every dimension, whatever the bounds are. Noise is added to the scaled action,
critics receive it, and log-probabilities are densities of scaled actions. `batch.action` holds the environment's
action, which `Bounded.scale` converts.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from noterl.heads.base import HALF_LOG_2_PI, Head, halves, ops
from noterl.noise import NoiseProcess

Tensor = Any

# The float32 next to 1.
_BELOW_ONE = 1.0 - float(np.finfo(np.float32).epsneg)

# An expert's scaled actions are clipped to this, because the tanh has no inverse at the bounds.
_CLONED_BOUND = 0.999


class Bounded(Head):
    """Base of the heads for bounded actions.

    Attributes:
        center: the middle between the bounds of each value, float32 `[A]`.
        half: half the width of the bounds, float32 `[A]`.
        divisor: like `half`, but 1 where the bounds are equal.
    """

    kinds: ClassVar[tuple[type, ...]] = (spaces.Box,)
    output_activation = "tanh"
    center: np.ndarray
    half: np.ndarray
    divisor: np.ndarray

    def bind(self, action_space: spaces.Space[Any]) -> Head:
        """Return a copy of this head for a Box of floats with finite bounds.

        Raises:
            ValueError: for another space.
        """
        bound: Any = super().bind(action_space)
        space: Any = action_space
        if not space.is_bounded():
            raise ValueError(
                f"env: the head {type(self).__name__} takes actions within finite bounds, got {space}: give the action "
                "space bounds, for example with gymnasium.wrappers.TransformAction"
            )
        low, high = (np.asarray(side, np.float64).reshape(-1) for side in (space.low, space.high))
        bound.center = (0.5 * (low + high)).astype(np.float32)
        bound.half = (0.5 * (high - low)).astype(np.float32)
        # If the bounds of a dimension are equal, any divisor scales its only action to 0.
        bound.divisor = np.where(bound.half > 0, bound.half, np.float32(1))
        return bound

    def unscale(self, scaled: np.ndarray) -> np.ndarray:
        """Return the actions `[N, *shape]` of the space for scaled actions `[N, A]`."""
        space: Any = self.action_space
        actions = (self.center + self.half * scaled).reshape(len(scaled), *space.shape)
        # In float32, center + half can exceed the bound.
        return np.clip(actions, space.low, space.high).astype(space.dtype, copy=False)

    def unscale_tensors(self, scaled: Tensor) -> Tensor:
        """Return what `unscale` returns, as float32 tensors `[B, *shape]`."""
        space: Any = self.action_space
        actions = ops.reshape(ops.add(self.center, ops.multiply(self.half, scaled)), (-1, *space.shape))
        low, high = (np.asarray(side, np.float32) for side in (space.low, space.high))
        return ops.minimum(ops.maximum(actions, low), high)

    def scale(self, action: Tensor) -> Tensor:
        """Return the scaled actions `[B, A]` of actions `[B, *shape]` of the space, for losses."""
        flat = ops.reshape(ops.cast(action, "float32"), (-1, len(self.center)))
        return ops.divide(ops.subtract(flat, self.center), self.divisor)


class Deterministic(Bounded):
    """Outputs `[N, A]` are the actions before the tanh; noise is added to the scaled action, which is then clipped.

    A noise with a standard deviation of 0.1 moves actions by 5 % of the width of their bounds.
    """

    takes_noise = True

    def deterministic(self, values: np.ndarray) -> np.ndarray:
        """Return the actions `[N, *shape]`."""
        return self.unscale(np.tanh(values))

    def explore(self, values: np.ndarray, explorer: Any, step: int) -> np.ndarray:
        """Return the actions `[N, *shape]` with noise."""
        explorer.update_schedules(step)
        return self.add_noise(values, explorer.sample(len(values)))

    def add_noise(self, values: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return the actions `[N, *shape]` with this noise `[N, A]`."""
        return self.unscale(np.clip(np.tanh(values) + noise, -1.0, 1.0))

    def act(self, values: Tensor) -> Tensor:
        """Return the scaled actions `[B, A]`, for losses."""
        return ops.tanh(values)

    def cloning_loss(self, values: Tensor, action: Tensor) -> Tensor:
        """Return the mean squared error `[B]` of the scaled actions, for an expert's actions `[B, *shape]`."""
        return ops.mean(ops.square(self.act(values) - self.scale(action)), axis=-1)


class SquashedGaussian(Bounded):
    """Outputs `[N, 2 A]` are mean and log standard deviation of a Gaussian, whose samples go through the tanh.

    Haarnoja et al. (2018), appendix C. The log standard deviation is clipped to `[-20, 2]`.
    """

    outputs = "the means and then the logarithms of the standard deviations"
    width = 2
    samples = True
    takes_noise = True
    sampled_from: str = "normal"
    log_std_range: tuple[float, float] = (-20.0, 2.0)

    def deterministic(self, values: np.ndarray) -> np.ndarray:
        """Return the actions `[N, *shape]` of the mean."""
        return self.unscale(np.tanh(halves(values)[0]))

    def explore(self, values: np.ndarray, explorer: Any, step: int) -> np.ndarray:
        """Return sampled actions `[N, *shape]`; a noise replaces the Gaussian numbers."""
        mean, log_std = halves(values)
        if isinstance(explorer, NoiseProcess):
            explorer.update_schedules(step)
            noise = explorer.sample(len(values))
        else:
            noise = explorer.generator.standard_normal(mean.shape, dtype=np.float32)
        return self.unscale(np.tanh(mean + np.exp(np.clip(log_std, *self.log_std_range)) * noise))

    def sample_actions(self, values: Tensor, numbers: Tensor) -> Tensor:
        """Return sampled actions `[B, *shape]`, from standard normal numbers `[B, A]`."""
        return self.unscale_tensors(self.sample(values, numbers)[0])

    def sample(self, values: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return scaled actions `[B, A]` and their log-probabilities `[B]`, for losses.

        Args:
            values: the network's outputs `[B, 2 A]`.
            noise: standard normal numbers `[B, A]`, for the reparameterization trick.
        """
        mean, log_std = self._mean_and_log_std(values)
        unsquashed = mean + ops.exp(log_std) * noise
        return ops.tanh(unsquashed), _squashed_log_density(noise, log_std, unsquashed)

    def log_prob(self, values: Tensor, action: Tensor) -> Tensor:
        """Return the log-probabilities `[B]` of scaled actions `[B, A]`, for losses.

        For an action of the environment, call it with `scale(action)`. The tanh has no inverse at the bounds, so
        actions are clipped to the float32 next to 1, which keeps the result finite.

        Args:
            values: the network's outputs `[B, 2 A]`.
            action: in [-1, 1].
        """
        mean, log_std = self._mean_and_log_std(values)
        unsquashed = ops.arctanh(ops.clip(ops.reshape(action, (-1, len(self.center))), -_BELOW_ONE, _BELOW_ONE))
        return _squashed_log_density((unsquashed - mean) * ops.exp(-log_std), log_std, unsquashed)

    def cloning_loss(self, values: Tensor, action: Tensor) -> Tensor:
        """Return the negative log-likelihood `[B]` of an expert's actions `[B, *shape]`.

        Scaled actions are clipped to ±0.999. Closer to a bound, the tanh needs a mean that no network should learn.
        """
        return -self.log_prob(values, ops.clip(self.scale(action), -_CLONED_BOUND, _CLONED_BOUND))

    def _mean_and_log_std(self, values: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = halves(values)
        return mean, ops.clip(log_std, *self.log_std_range)


def _squashed_log_density(noise: Tensor, log_std: Tensor, unsquashed: Tensor) -> Tensor:
    """Return the log-density `[B]` of `tanh(unsquashed)`, which lies `noise` standard deviations from the mean."""
    gaussian = -0.5 * ops.square(noise) - log_std - HALF_LOG_2_PI
    # log(1 - tanh(u)^2), exact where 1 - tanh(u)^2 would round to 0.
    log_slope = 2.0 * (math.log(2.0) - unsquashed - ops.softplus(-2.0 * unsquashed))
    return ops.sum(gaussian - log_slope, axis=-1)
