"""Heads that draw from a distribution of their own, whose log-probabilities losses need.

`Categorical` is that of discrete actions, one or several at once; `Gaussian` that of continuous ones, whose actions are
clipped to the bounds for the environment alone: what is remembered, and what log-probabilities are of, is the draw.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl import losses
from noterl.backends import ops
from noterl.explorer import Explorer
from noterl.heads.base import Head
from noterl.policies import Policy

Tensor = Any

# The logarithm of the logarithm of float32 numbers this far from 0 and 1 is finite.
TINY = 1e-7


class Categorical(Head):
    """Outputs are logits: `[N, A]` for a Discrete space, for a MultiDiscrete one those of its parts side by side.

    A policy on logits may explore in a Discrete space; without one actions are drawn from the softmax.
    """

    acts_on: tuple[str, ...] = ("logits",)
    samples = True
    counts: tuple[int, ...]

    def bind(self, action_space: spaces.Space[Any]) -> Head:
        """Return this head for a Discrete or MultiDiscrete space.

        Raises:
            ValueError: for another space.
        """
        if not isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete):
            raise ValueError(
                f"env: the head Categorical takes a Discrete or MultiDiscrete action space, got {action_space}"
            )
        bound: Any = super().bind(action_space)
        if isinstance(action_space, spaces.Discrete):
            bound.counts = (int(action_space.n),)
        else:
            bound.counts, bound.acts_on = tuple(map(int, action_space.nvec.reshape(-1))), ()
        return bound

    @property
    def size(self) -> int:
        """How many outputs there are for each observation."""
        return sum(self.counts)

    def check(self, shape: tuple[int, ...], action_space: spaces.Space[Any]) -> None:
        """Raise a ValueError unless there is a logit for each choice."""
        if shape[1:] != (self.size,):
            raise ValueError(f"forward must return a logit for each choice, [B, {self.size}], got {shape}")

    def deterministic(self, values: np.ndarray) -> np.ndarray:
        """Return the most probable actions; of equally probable ones the first."""
        return self._joined([part.argmax(axis=-1) for part in self._parts(values)])

    def explore(self, values: np.ndarray, explorer: Explorer, step: int) -> np.ndarray:
        """Return the actions that the policy selects, or draws from the softmax."""
        if isinstance(explorer, Policy):
            selected: Any = explorer.select_action(values, step)
            return selected
        draws = explorer.generator.random((len(values), len(self.counts)))
        return self._joined([_drawn(part, draws[:, column]) for column, part in enumerate(self._parts(values))])

    def log_prob(self, values: Tensor, action: Tensor) -> Tensor:
        """Return the log-probability `[B]` of actions `[B, ...]` under logits `[B, A]`: of several at once the sum."""
        action = ops.reshape(ops.cast(action, "int32"), (-1, len(self.counts)))
        parts = [ops.log_softmax(part, axis=-1) for part in self._parts(values)]
        return sum(losses.take(part, action[:, column]) for column, part in enumerate(parts))

    def entropy(self, values: Tensor) -> Tensor:
        """Return the entropy `[B]` of the softmax of logits `[B, A]`, in nats: of several at once the sum."""
        parts = [ops.log_softmax(part, axis=-1) for part in self._parts(values)]
        return sum(-ops.sum(ops.exp(part) * part, axis=-1) for part in parts)

    def one_hot(self, action: Tensor) -> Tensor:
        """Return actions `[B, ...]` as float32 one-hot vectors `[B, A]`, those of several choices side by side."""
        choices = ops.reshape(ops.cast(action, "int32"), (-1, len(self.counts)))
        parts = [_one_hot(choices[:, column], count) for column, count in enumerate(self.counts)]
        return ops.concatenate(parts, axis=-1)

    def greedy(self, values: Tensor) -> Tensor:
        """Return the most probable actions `[B, A]` under logits `[B, A]`, one-hot, without a gradient."""
        parts = [_one_hot(ops.argmax(part, axis=-1), count) for part, count in self._counted(values)]
        return ops.concatenate(parts, axis=-1)

    def straight_through(self, values: Tensor, uniform: Tensor, temperature: Any = 1.0) -> Tensor:
        """Return one-hot samples `[B, A]` of the softmax of logits `[B, A]`, through which gradients flow.

        The straight-through Gumbel-softmax estimator (Jang, Gu and Poole, 2017, section 2.2): forward it is the
        one-hot vector of `argmax(logits + g)`, backward the softmax of `(logits + g) / temperature`, with Gumbel noise
        `g = -log(-log(u))`.

        Args:
            values: the logits.
            uniform: numbers in [0, 1), `[B, A]`.
            temperature: of the softmax, above 0.
        """
        gumbel = -ops.log(-ops.log(ops.clip(uniform, TINY, 1.0 - TINY)))
        parts = []
        for part, count in self._counted(values + gumbel):
            soft = ops.softmax(part / temperature, axis=-1)
            hard = _one_hot(ops.argmax(part, axis=-1), count)
            parts.append(ops.stop_gradient(hard - soft) + soft)
        return ops.concatenate(parts, axis=-1)

    def _counted(self, values: Tensor) -> list[tuple[Tensor, int]]:
        return list(zip(self._parts(values), self.counts, strict=True))

    def _parts(self, values: Any) -> list[Any]:
        """Split `[N, A]` into the logits of each choice."""
        if len(self.counts) == 1:
            return [values]
        ends = np.cumsum(self.counts).tolist()
        return [values[:, end - count : end] for end, count in zip(ends, self.counts, strict=True)]

    def _joined(self, choices: list[np.ndarray]) -> np.ndarray:
        """Put choices `[N]` together to actions of the space."""
        if isinstance(self.action_space, spaces.Discrete):
            return choices[0]
        space: Any = self.action_space
        return np.stack(choices, axis=-1).reshape(-1, *space.shape).astype(space.dtype, copy=False)


def _one_hot(index: Tensor, count: int) -> Tensor:
    """Return float32 `[B, count]`; Keras's own looks at the values on torch, which keeps a loss from being traced."""
    return ops.cast(ops.equal(ops.cast(index, "int32")[:, None], np.arange(count, dtype=np.int32)), "float32")


def _drawn(logits: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return `[N]` indices drawn from softmax(logits `[N, A]`), one uniform draw `[N]` for each."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    cumulative = weights.cumsum(axis=-1, dtype=np.float64)
    # draw * total stays below the total, so some entry is above it, and the first one has a weight above zero.
    above = cumulative > (draws * cumulative[:, -1])[:, None]
    return above.argmax(axis=-1)


class Gaussian(Head):
    """Outputs `[N, 2 A]` are the mean of each number of an action, then the logarithm of its standard deviation."""

    samples = True
    size: int

    def bind(self, action_space: spaces.Space[Any]) -> Head:
        """Return this head for a Box of floats.

        Raises:
            ValueError: for another space.
        """
        if not isinstance(action_space, spaces.Box) or action_space.dtype.kind != "f":
            raise ValueError(f"env: the head Gaussian takes a Box of floats as action space, got {action_space}")
        bound: Any = super().bind(action_space)
        bound.size = 2 * int(np.prod(action_space.shape))
        return bound

    def check(self, shape: tuple[int, ...], action_space: spaces.Space[Any]) -> None:
        """Raise a ValueError unless there are a mean and a logarithm for each number of an action."""
        if shape[1:] != (self.size,):
            raise ValueError(
                "forward must return the means and then the logarithms of the standard deviations, "
                f"[B, {self.size}], got {shape}"
            )

    def deterministic(self, values: np.ndarray) -> np.ndarray:
        """Return the means as actions `[N, ...]`."""
        return self._shaped(values[:, : self.size // 2])

    def explore(self, values: np.ndarray, explorer: Explorer, step: int) -> np.ndarray:
        """Return actions `[N, ...]` drawn from the distribution, beyond the bounds as well."""
        mean, log_std = values[:, : self.size // 2], values[:, self.size // 2 :]
        return self._shaped(mean + np.exp(log_std) * explorer.generator.standard_normal(mean.shape, np.float32))

    def executed(self, actions: np.ndarray) -> np.ndarray:
        """Return the actions `[N, ...]` clipped to the bounds of the space."""
        space: Any = self.action_space
        return actions.clip(space.low, space.high).astype(space.dtype, copy=False)

    def log_prob(self, values: Tensor, action: Tensor) -> Tensor:
        """Return the log-density `[B]` of actions `[B, ...]`, as they were drawn, under outputs `[B, 2 A]`."""
        mean, log_std = self._parameters(values)
        error = (ops.reshape(action, (-1, self.size // 2)) - mean) * ops.exp(-log_std)
        return -ops.sum(0.5 * ops.square(error) + log_std + 0.5 * math.log(2 * math.pi), axis=-1)

    def entropy(self, values: Tensor) -> Tensor:
        """Return the differential entropy `[B]` of outputs `[B, 2 A]`, in nats."""
        _, log_std = self._parameters(values)
        return ops.sum(log_std + 0.5 * math.log(2 * math.pi * math.e), axis=-1)

    def _parameters(self, values: Tensor) -> tuple[Tensor, Tensor]:
        return values[:, : self.size // 2], values[:, self.size // 2 :]

    def _shaped(self, actions: np.ndarray) -> np.ndarray:
        space: Any = self.action_space
        return actions.reshape(-1, *space.shape)
