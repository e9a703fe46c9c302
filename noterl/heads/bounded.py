"""Heads for actions within bounds: the network's output goes through a tanh, and then fills the bounds of the space.

Between the two lies the scaled action, in [-1, 1] in every dimension whatever the bounds are: noise is added to it,
critics take it, and log-probabilities are those of it. `batch.action` holds what the environment was given; `scaled`
goes back.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.backends import ops
from noterl.heads.base import Head

Tensor = Any

# The float32 next to 1.
_INSIDE = 1.0 - float(np.finfo(np.float32).epsneg)


class Bounded(Head):
    """Base of the heads here."""

    outputs = 1  # of the network, for each number of an action

    def bind(self, action_space: spaces.Space[Any]) -> Head:
        """Return this head for a Box of floats with finite bounds.

        Raises:
            ValueError: for another space.
        """
        name = type(self).__name__
        if not isinstance(action_space, spaces.Box) or action_space.dtype.kind != "f":
            raise ValueError(f"env: the head {name} takes a Box of floats as action space, got {action_space}")
        if not (np.isfinite(action_space.low).all() and np.isfinite(action_space.high).all()):
            raise ValueError(
                f"env: the head {name} takes actions within finite bounds, got {action_space}: give the action space "
                "bounds, for example with gymnasium.wrappers.TransformAction"
            )
        bound: Any = super().bind(action_space)
        low, high = (np.asarray(side, np.float64).reshape(-1) for side in (action_space.low, action_space.high))
        bound.size = len(low)
        bound.center = (0.5 * (low + high)).astype(np.float32)
        bound.half = (0.5 * (high - low)).astype(np.float32)
        # A dimension whose bounds are equal has one action: any divisor scales it to 0.
        bound.divisor = np.where(bound.half > 0, bound.half, np.float32(1))
        return bound

    def check(self, shape: tuple[int, ...], action_space: spaces.Space[Any]) -> None:
        """Raise a ValueError unless there are the outputs for each number of an action."""
        count = self.outputs * int(np.prod(action_space.shape or ()))
        if shape[1:] != (count,):
            raise ValueError(f"forward must return {count} numbers for each observation, [B, {count}], got {shape}")

    def filled(self, scaled: np.ndarray) -> np.ndarray:
        """Return the actions `[N, *shape]` of the space for scaled ones `[N, A]`."""
        space: Any = self.action_space
        actions = (self.center + self.half * scaled).reshape(len(scaled), *space.shape)
        # In float32 center + half may lie a bit beyond the bound.
        return np.clip(actions, space.low, space.high).astype(space.dtype, copy=False)

    def scaled(self, action: Tensor) -> Tensor:
        """Return the scaled actions `[B, A]` of actions `[B, *shape]` of the space, for losses."""
        flat = ops.reshape(ops.cast(action, "float32"), (-1, self.size))
        return ops.divide(ops.subtract(flat, self.center), self.divisor)

    center: np.ndarray
    half: np.ndarray
    divisor: np.ndarray
    size: int


class Deterministic(Bounded):
    """Outputs `[N, A]` are the actions before the tanh; a noise is added to the scaled action, which is then clipped.

    A noise of standard deviation 0.1 moves actions by a twentieth of the width of their bounds.
    """

    takes_noise = True

    def deterministic(self, values: np.ndarray) -> np.ndarray:
        """Return the actions `[N, *shape]`."""
        return self.filled(np.tanh(values))

    def explore(self, values: np.ndarray, explorer: Any, step: int) -> np.ndarray:
        """Return the actions `[N, *shape]` with noise on them."""
        explorer.update_schedules(step)
        return self.disturbed(values, explorer.sample(len(values)))

    def disturbed(self, values: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return the actions `[N, *shape]` with this noise `[N, A]` on them."""
        return self.filled(np.clip(np.tanh(values) + noise, -1.0, 1.0))

    def act(self, values: Tensor) -> Tensor:
        """Return the scaled actions `[B, A]`, for losses."""
        return ops.tanh(values)


class SquashedGaussian(Bounded):
    """Outputs `[N, 2 A]` are mean and log standard deviation of a Gaussian, whose samples go through the tanh.

    Haarnoja et al. (2018), appendix C. The log standard deviation is clipped to `[-20, 2]`.
    """

    samples = True
    outputs = 2
    log_std_range = (-20.0, 2.0)

    def deterministic(self, values: np.ndarray) -> np.ndarray:
        """Return the actions `[N, *shape]` of the mean."""
        return self.filled(np.tanh(values[:, : self.size]))

    def explore(self, values: np.ndarray, explorer: Any, step: int) -> np.ndarray:
        """Return sampled actions `[N, *shape]`."""
        std = np.exp(np.clip(values[:, self.size :], *self.log_std_range))
        noise = explorer.generator.standard_normal(std.shape, dtype=np.float32)
        return self.filled(np.tanh(values[:, : self.size] + std * noise))

    def sample(self, values: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return scaled actions `[B, A]` and their log-probabilities `[B]`, for losses.

        Args:
            values: the network's outputs `[B, 2 A]`.
            noise: standard normal numbers `[B, A]`; gradients flow past them (the reparametrisation trick).
        """
        mean, log_std = self._parameters(values)
        unsquashed = mean + ops.exp(log_std) * noise
        return ops.tanh(unsquashed), _log_density(noise, log_std, unsquashed)

    def log_prob(self, values: Tensor, action: Tensor) -> Tensor:
        """Return the log-probabilities `[B]` of scaled actions `[B, A]`, as `sample` gives them, for losses.

        Of an action of the environment it is that of `scaled(action)`. At the bounds the tanh has no inverse: actions
        count as at most the float32 next to 1, which keeps the result finite.

        Args:
            values: the network's outputs `[B, 2 A]`.
            action: in [-1, 1].
        """
        mean, log_std = self._parameters(values)
        unsquashed = ops.arctanh(ops.clip(ops.reshape(action, (-1, self.size)), -_INSIDE, _INSIDE))
        return _log_density((unsquashed - mean) * ops.exp(-log_std), log_std, unsquashed)

    def _parameters(self, values: Tensor) -> tuple[Tensor, Tensor]:
        return values[:, : self.size], ops.clip(values[:, self.size :], *self.log_std_range)


def _log_density(noise: Tensor, log_std: Tensor, unsquashed: Tensor) -> Tensor:
    """Return the log-density `[B]` of `tanh(unsquashed)`, where `noise` is how many deviations `unsquashed` is off."""
    gaussian = -0.5 * ops.square(noise) - log_std - 0.5 * math.log(2 * math.pi)
    return ops.sum(gaussian - _log_slope(unsquashed), axis=-1)


def _log_slope(unsquashed: Tensor) -> Tensor:
    """Return `log(1 - tanh(u)^2)`, the tanh's log-derivative, exact where `1 - tanh(u)^2` would round to 0."""
    return 2.0 * (math.log(2.0) - unsquashed - ops.softplus(-2.0 * unsquashed))
