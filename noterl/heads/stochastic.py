"""Heads that sample from their own distribution, whose log-probabilities losses need."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from noterl.explorer import Explorer
from noterl.heads.base import HALF_LOG_2_PI, ILLEGAL, Head, halves, ops, select, split
from noterl.policies import Policy, sample_indices
from noterl.utils.masks import legal_choice, part_sizes

Tensor = Any

# Uniform numbers are kept this far from 0 and 1, so that -log(-log(u)) is finite in float32.
_TINY = 1e-7

# Probabilities of legal actions are multiplied by this, so that those of illegal ones, _TINY, vanish beside them.
_LEGAL_SCALE = 1e20


class Stochastic(Head):
    """Base of the heads of a distribution with log-probabilities."""

    samples = True

    def log_prob(self, values: Tensor, action: Tensor) -> Tensor:
        """Return the log-probability or log-density `[B]` of actions `[B, ...]` under outputs `[B, A]`."""
        raise NotImplementedError(f"{type(self).__name__} must define log_prob(values, action)")

    def cloning_loss(self, values: Tensor, action: Tensor) -> Tensor:
        """Return the negative log-likelihood `[B]` of an expert's actions `[B, ...]`, a cross entropy for choices."""
        return -self.log_prob(values, action)


class Categorical(Stochastic):
    """Outputs are logits `[N, A]` of a Discrete space, or of all parts of a MultiDiscrete space, side by side.

    In a Discrete space, a policy on logits can explore. Without a policy, actions are sampled from the softmax.

    Attributes:
        counts: the number of choices of each part.
    """

    kinds: ClassVar[tuple[type, ...]] = (spaces.Discrete, spaces.MultiDiscrete)
    outputs = "a logit for each choice"
    acts_on: tuple[str, ...] = ("logits",)
    output_activation = "softmax"
    sampled_from: str = "uniform"
    takes_mask = True
    counts: tuple[int, ...]

    def bind(self, action_space: spaces.Space[Any]) -> Head:
        """Return a copy of this head for a Discrete or MultiDiscrete space.

        Raises:
            ValueError: for another space.
        """
        bound: Any = super().bind(action_space)
        bound.counts = part_sizes(action_space)
        if isinstance(action_space, spaces.MultiDiscrete):
            bound.acts_on = ()
        return bound

    def deterministic(self, values: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        """Return the most probable actions; the first of equally probable ones."""
        if mask is not None:
            values = np.where(mask, values, -np.inf)
        return self._join([part.argmax(axis=-1) for part in split(values, self.counts)])

    def explore(self, values: np.ndarray, explorer: Explorer, step: int, mask: np.ndarray | None = None) -> np.ndarray:
        """Return the actions that the policy selects, or samples of the softmax."""
        if isinstance(explorer, Policy):
            return select(explorer, values, step, mask)
        uniform = explorer.generator.random((len(values), len(self.counts)))
        if mask is None:
            weights = [self._weights(part) for part in split(values, self.counts)]
        else:
            pairs = zip(split(values, self.counts), split(mask, self.counts), strict=True)
            weights = [self._legal_weights(part, legal) for part, legal in pairs]
        return self._join([sample_indices(part, uniform[:, column]) for column, part in enumerate(weights)])

    def random(self, count: int, generator: np.random.Generator, mask: np.ndarray | None = None) -> np.ndarray:
        """Return uniformly random actions `[count, ...]`."""
        if mask is None:
            return super().random(count, generator)
        uniform = generator.random((count, len(self.counts)))
        columns = enumerate(split(mask, self.counts))
        return self._join([legal_choice(part, uniform[:, column]) for column, part in columns])

    def masked(self, values: Tensor, mask: Tensor) -> Tensor:
        """Return the outputs `[B, A]` in which choices outside of the mask have the probability 0."""
        return values if mask is None else ops.where(mask, values, ILLEGAL)

    def sample_actions(self, values: Tensor, numbers: Tensor) -> Tensor:
        """Return samples `[B, ...]` of the softmax, int32, from uniform numbers `[B, A]`, by the Gumbel-max trick.

        `argmax(logits + g)` with `g = -log(-log(u))` has the probabilities of the softmax (Gumbel, 1954).
        """
        perturbed = self._perturbed(values, numbers)
        choices = [ops.cast(ops.argmax(part, axis=-1), "int32") for part in split(perturbed, self.counts)]
        if isinstance(self.action_space, spaces.Discrete):
            return choices[0]
        return ops.reshape(ops.stack(choices, axis=-1), (-1, *(self.action_space.shape or ())))

    def log_prob(self, values: Tensor, action: Tensor) -> Tensor:
        """Return the log-probability `[B]` of actions `[B, ...]` under outputs `[B, A]`, summed over the parts."""
        from noterl import losses

        choices = self._choices(action)
        return sum(losses.take(part, choices[:, column]) for column, part in enumerate(self._log_policies(values)))

    def entropy(self, values: Tensor) -> Tensor:
        """Return the entropy `[B]` of the policy with outputs `[B, A]`, in nats, summed over the parts."""
        return sum(-ops.sum(ops.exp(part) * part, axis=-1) for part in self._log_policies(values))

    def kl_divergence(self, old: Tensor, new: Tensor) -> Tensor:
        """Return KL(old, new) `[B]` of the policies with outputs `[B, A]`, in nats, summed over the parts."""
        pairs = zip(self._log_policies(old), self._log_policies(new), strict=True)
        return sum(ops.sum(ops.exp(before) * (before - after), axis=-1) for before, after in pairs)

    def one_hot(self, action: Tensor) -> Tensor:
        """Return actions `[B, ...]` as float32 one-hot vectors `[B, A]`, with the parts side by side."""
        choices = self._choices(action)
        vectors = [_one_hot(choices[:, column], count) for column, count in enumerate(self.counts)]
        return ops.concatenate(vectors, axis=-1)

    def greedy(self, values: Tensor) -> Tensor:
        """Return the most probable actions `[B, A]` under logits `[B, A]`, one-hot, without a gradient."""
        pairs = zip(split(values, self.counts), self.counts, strict=True)
        return ops.concatenate([_one_hot(ops.argmax(part, axis=-1), count) for part, count in pairs], axis=-1)

    def straight_through(self, values: Tensor, uniform: Tensor, temperature: Any = 1.0) -> Tensor:
        """Return one-hot samples `[B, A]` of the softmax of logits `[B, A]`, through which gradients flow.

        The straight-through Gumbel-softmax estimator (Jang, Gu and Poole, 2017, section 2.2). The forward value is the
        one-hot vector of `argmax(logits + g)`. The gradient is the one of the softmax of `(logits + g) / temperature`,
        with Gumbel noise `g = -log(-log(u))`.

        Args:
            values: the logits.
            uniform: numbers in [0, 1), `[B, A]`.
            temperature: of the softmax, above 0.
        """
        perturbed = self._perturbed(values, uniform)
        logits = split(perturbed, self.counts)
        soft = ops.concatenate([ops.softmax(part / temperature, axis=-1) for part in logits], axis=-1)
        return ops.stop_gradient(self.greedy(perturbed) - soft) + soft

    def log_policy(self, values: Tensor) -> Tensor:
        """Return the log-probabilities `[B, A]` of all choices under outputs `[B, A]`, the parts side by side."""
        log_policies = self._log_policies(values)
        return log_policies[0] if len(log_policies) == 1 else ops.concatenate(log_policies, axis=-1)

    def check_values(self, values: np.ndarray) -> None:
        """Raise a ValueError if the outputs `[N, A]` are probabilities."""
        if all(_are_probabilities(part, 1e-5) for part in split(values, self.counts)):
            raise ValueError(
                "forward must return logits, but its outputs are probabilities: remove the softmax from the network, "
                "or declare head = noterl.heads.Probabilities() in the agent's class"
            )

    def _perturbed(self, values: Tensor, uniform: Tensor) -> Tensor:
        """Return the logits plus Gumbel noise, from uniform numbers."""
        return self._logits(values) - ops.log(-ops.log(ops.clip(uniform, _TINY, 1.0 - _TINY)))

    def _logits(self, values: Tensor) -> Tensor:
        return values

    def _log_policies(self, values: Tensor) -> list[Tensor]:
        """Return the log-probabilities of all choices, `[B, choices]` of each part."""
        return [ops.log_softmax(part, axis=-1) for part in split(self._logits(values), self.counts)]

    def _weights(self, part: np.ndarray) -> np.ndarray:
        """Return numbers `[N, choices]` that are proportional to the probabilities of one part's choices."""
        return np.exp(part - part.max(axis=-1, keepdims=True))

    def _legal_weights(self, part: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return numbers `[N, choices]` like `_weights`, with 0 for illegal choices."""
        return self._weights(np.where(mask, part, -np.inf))

    def _choices(self, action: Tensor) -> Tensor:
        return ops.reshape(ops.cast(action, "int32"), (-1, len(self.counts)))

    def _join(self, choices: list[np.ndarray]) -> np.ndarray:
        """Join the choices `[N]` of all parts to actions of the space."""
        if isinstance(self.action_space, spaces.Discrete):
            return choices[0]
        space: Any = self.action_space
        if not isinstance(choices[0], np.ndarray):  # in a compiled call
            return ops.reshape(ops.stack(choices, axis=-1), (-1, *space.shape))
        return np.stack(choices, axis=-1).reshape(-1, *space.shape).astype(space.dtype, copy=False)


class Probabilities(Categorical):
    """Outputs are probabilities `[N, A]`, for networks that end in a softmax; otherwise like `Categorical`.

    In a Discrete space, `noterl.policies.SoftmaxPolicy` can explore.
    """

    outputs = "a probability for each choice"
    acts_on: tuple[str, ...] = ("probabilities",)

    def check_values(self, values: np.ndarray) -> None:
        """Raise a ValueError if the outputs `[N, A]` are not probabilities."""
        if not all(_are_probabilities(part, 1e-3) for part in split(values, self.counts)):
            raise ValueError(
                "forward must return probabilities, rows of at least 0 that sum to 1: end the network in a softmax, or "
                "use the head Categorical for logits"
            )

    def _logits(self, values: Tensor) -> Tensor:
        return ops.log(ops.maximum(values, _TINY))

    def masked(self, values: Tensor, mask: Tensor) -> Tensor:
        """Return the outputs `[B, A]`, no longer normalized, for `log_prob`, `entropy` and the like."""
        if mask is None:
            return values
        return ops.where(mask, ops.maximum(values, _TINY) * _LEGAL_SCALE, 0.0)

    def _weights(self, part: np.ndarray) -> np.ndarray:
        return part

    def _legal_weights(self, part: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return np.where(mask, np.maximum(part, _TINY), 0.0)  # the same probabilities as in losses


class Bernoulli(Stochastic):
    """Outputs are logits `[N, A]` of a MultiBinary space: each value of an action is 1 with its sigmoid as probability.

    Values are independent of each other.
    """

    kinds: ClassVar[tuple[type, ...]] = (spaces.MultiBinary,)
    outputs = "a logit for each value of an action"
    sampled_from: str = "uniform"

    def deterministic(self, values: np.ndarray) -> np.ndarray:
        """Return the most probable actions; 0 where both values are equally probable."""
        return self._reshape(values > 0)

    def explore(self, values: np.ndarray, explorer: Explorer, step: int) -> np.ndarray:
        """Return sampled actions `[N, ...]`."""
        # The sigmoid, without overflow for large negative logits.
        probabilities = 0.5 + 0.5 * np.tanh(0.5 * values)
        return self._reshape(explorer.generator.random(values.shape) < probabilities)

    def sample_actions(self, values: Tensor, numbers: Tensor) -> Tensor:
        """Return sampled actions `[B, ...]` of the space's dtype, from uniform numbers `[B, A]`."""
        space: Any = self.action_space
        return ops.reshape(ops.cast(numbers < ops.sigmoid(values), str(space.dtype)), (-1, *space.shape))

    def log_prob(self, values: Tensor, action: Tensor) -> Tensor:
        """Return the log-probability `[B]` of actions `[B, ...]` under outputs `[B, A]`, summed over the values."""
        chosen = ops.reshape(ops.cast(action, "float32"), (-1, values.shape[1]))
        # log sigmoid(x) = -softplus(-x) for 1, and log sigmoid(-x) for 0.
        return -ops.sum(ops.softplus((1.0 - 2.0 * chosen) * values), axis=-1)

    def entropy(self, values: Tensor) -> Tensor:
        """Return the entropy `[B]` of outputs `[B, A]`, in nats, summed over the values."""
        return ops.sum(ops.softplus(values) - values * ops.sigmoid(values), axis=-1)

    def kl_divergence(self, old: Tensor, new: Tensor) -> Tensor:
        """Return KL(old, new) `[B]` of the policies with outputs `[B, A]`, in nats, summed over the values."""
        return ops.sum(ops.softplus(new) - ops.softplus(old) + ops.sigmoid(old) * (old - new), axis=-1)

    def _reshape(self, chosen: np.ndarray) -> np.ndarray:
        space: Any = self.action_space
        return chosen.reshape(-1, *space.shape).astype(space.dtype)


class Gaussian(Stochastic):
    """Outputs `[N, 2 A]` are the means of an action's values, then the logarithms of their standard deviations.

    Samples may exceed the bounds of the space; the environment receives clipped actions. Rollouts and sequences hold
    the samples, of which `log_prob` is the density. A memory of single transitions (`memory="replay"`) holds the
    clipped actions, as the environment received them: `log_prob` of an action at a bound is not the sample's density.
    """

    kinds: ClassVar[tuple[type, ...]] = (spaces.Box,)
    outputs = "the means and then the logarithms of the standard deviations"
    width = 2
    sampled_from: str = "normal"

    def deterministic(self, values: np.ndarray) -> np.ndarray:
        """Return the means as actions `[N, ...]`."""
        return self._reshape(halves(values)[0])

    def explore(self, values: np.ndarray, explorer: Explorer, step: int) -> np.ndarray:
        """Return sampled actions `[N, ...]`, which may exceed the bounds."""
        mean, log_std = halves(values)
        return self._reshape(mean + np.exp(log_std) * explorer.generator.standard_normal(mean.shape, np.float32))

    def sample_actions(self, values: Tensor, numbers: Tensor) -> Tensor:
        """Return sampled actions `[B, ...]`, which may exceed the bounds, from standard normal numbers `[B, A]`."""
        mean, log_std = halves(values)
        return ops.reshape(mean + ops.exp(log_std) * numbers, (-1, *(self.action_space.shape or ())))

    def executed(self, actions: np.ndarray) -> np.ndarray:
        """Return the actions `[N, ...]` clipped to the bounds of the space."""
        space: Any = self.action_space
        return actions.clip(space.low, space.high).astype(space.dtype, copy=False)

    def log_prob(self, values: Tensor, action: Tensor) -> Tensor:
        """Return the log-density `[B]` of sampled actions `[B, ...]` under outputs `[B, 2 A]`."""
        mean, log_std = halves(values)
        error = (ops.reshape(ops.cast(action, mean.dtype), (-1, mean.shape[1])) - mean) * ops.exp(-log_std)
        return -ops.sum(0.5 * ops.square(error) + log_std + HALF_LOG_2_PI, axis=-1)

    def entropy(self, values: Tensor) -> Tensor:
        """Return the differential entropy `[B]` of outputs `[B, 2 A]`, in nats."""
        return ops.sum(halves(values)[1] + 0.5 * math.log(2 * math.pi * math.e), axis=-1)

    def kl_divergence(self, old: Tensor, new: Tensor) -> Tensor:
        """Return KL(old, new) `[B]` of the distributions with outputs `[B, 2 A]`, in nats."""
        old_mean, old_log_std = halves(old)
        mean, log_std = halves(new)
        variances = ops.exp(2.0 * (old_log_std - log_std))
        error = (old_mean - mean) * ops.exp(-log_std)
        return ops.sum(log_std - old_log_std + 0.5 * (variances + ops.square(error) - 1.0), axis=-1)

    def _reshape(self, actions: np.ndarray) -> np.ndarray:
        space: Any = self.action_space
        return actions.reshape(-1, *space.shape)


def _are_probabilities(part: np.ndarray, tolerance: float) -> bool:
    return bool((part >= 0).all() and (np.abs(part.sum(axis=-1, dtype=np.float64) - 1.0) <= tolerance).all())


def _one_hot(index: Tensor, count: int) -> Tensor:
    """Return float32 `[B, count]`; `ops.one_hot` reads the values on torch, which prevents tracing the loss."""
    return ops.cast(ops.equal(ops.cast(index, "int32")[:, None], np.arange(count, dtype=np.int32)), "float32")
