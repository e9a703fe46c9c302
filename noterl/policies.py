"""Exploration policies: from a network's outputs for all actions to the selected action.

For a batch, a policy uses the same random numbers as for the rows one after another. So the number of lanes does not
change the action of a row. Among equally good actions, the first is selected.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from noterl.explorer import Explorer
from noterl.registry import register
from noterl.schedules import Schedule, exponential, linear
from noterl.utils import words
from noterl.utils.checks import check_count, increasing_pair, non_negative, positive, probability
from noterl.utils.masks import legal_choice


def _action_counts(name: str, value: Any) -> NDArray[np.int64] | None:
    """Return counts `[A]` or None, or raise a ValueError that names the attribute."""
    if value is None:
        return None
    counts = np.array(value)
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or (counts < 1).any():
        raise ValueError(f"{name} must be None or ints of at least 1, one per action, got {value!r}")
    return counts.astype(np.int64)


class Policy(Explorer):
    """Base of all policies; a subclass defines `choose` for a batch.

    If an environment reports legal actions, `choose` receives -inf for the values of illegal ones, or 0 if the policy
    acts on probabilities. A policy that also chooses at random takes a third argument `mask`, bool `[N, A]` or None.

    Attributes:
        acts_on: the kind of `values`: "q" (action values), "probabilities" (each row sums to 1) or "logits".

    Example:
    >>> import numpy as np
    >>> import noterl.policies
    >>> class LastPolicy(noterl.policies.Policy):
    ...     def choose(self, values, step):
    ...         return np.full(len(values), values.shape[1] - 1)
    >>> LastPolicy().select_action(np.zeros([4, 2]))
    array([1, 1, 1, 1])
    """

    acts_on: ClassVar[Literal["q", "probabilities", "logits"]] = "q"

    def select_action(
        self, values: ArrayLike, step: int = 0, action_mask: ArrayLike | None = None
    ) -> NDArray[np.int64] | int:
        """Return the index of an action for each row of `values`; scheduled attributes are set first.

        Args:
            values: `[N, A]`, or `[A]` for one row; finite, which is not checked.
            step: environment steps so far, for schedules.
            action_mask: which actions are legal, bools in the shape of `values`; None if all are.

        Returns:
            `[N]`, int64; an int for one row.

        Raises:
            ValueError: if `values` has another number of axes, the mask has another shape or forbids all actions, or a
                policy of your own selects an illegal action.
        """
        values = np.asarray(values)
        if self.schedules:
            self.update_schedules(step)
        if values.ndim not in (1, 2):
            raise ValueError(f"values must be [N, A] or [A], got the shape {values.shape}")
        if action_mask is not None:
            actions = self._choose_legal(np.atleast_2d(values), step, np.asarray(action_mask, np.bool_))
            return int(actions[0]) if values.ndim == 1 else actions
        if values.ndim == 2:
            return self.choose(values, step)
        return int(self.choose(values[None], step)[0])

    def choose(self, values: NDArray[Any], step: int) -> NDArray[np.int64]:
        """Return the actions `[N]` for `values` `[N, A]`; a subclass overrides the method."""
        raise NotImplementedError(f"{type(self).__name__} must define choose(values, step)")

    def _choose_legal(self, values: NDArray[Any], step: int, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return legal actions `[N]` for `values` `[N, A]`."""
        mask = np.atleast_2d(mask)
        if mask.shape != values.shape or not mask.any(axis=1).all():
            raise ValueError(f"action_mask must have the shape of values and a legal action in each row, got {mask!r}")
        # An illegal action has the lowest value of its kind: no probability, or minus infinity.
        values = np.where(mask, values, 0.0 if self.acts_on == "probabilities" else -np.inf)
        choose: Any = self.choose
        actions: NDArray[np.int64] = choose(values, step, mask) if _takes_mask(type(self)) else choose(values, step)
        if not mask[np.arange(len(mask)), actions].all():
            raise ValueError(
                f"policy: {type(self).__name__} selected an illegal action; its choose(values, step, mask) must select "
                "only actions that the mask allows"
            )
        return actions


@functools.cache
def _takes_mask(kind: type[Policy]) -> bool:
    """Return whether the method `choose` of a class takes a mask."""
    return "mask" in inspect.signature(kind.choose).parameters


def sample_indices(weights: NDArray[Any], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return one index for each row of `weights` `[N, A]`, with probability `weight / sum(weights)`.

    Args:
        weights: at least 0, with a positive sum in each row.
        uniform: numbers in [0, 1), `[N]`.
    """
    cumulative = weights.cumsum(axis=1, dtype=np.float64)
    # In floating point, u * total is below the total, so an entry is above it. The first such has a positive weight.
    above: NDArray[np.bool_] = cumulative > (uniform * cumulative[:, -1])[:, None]
    return above.argmax(1)


def _boltzmann(
    values: NDArray[Any],
    tau: float,
    clip: tuple[float, float],
    uniform: NDArray[np.float64],
    mask: NDArray[np.bool_] | None,
) -> NDArray[np.int64]:
    """Return legal indices `[N]` sampled from softmax(clip(values / tau)), with one uniform number per row."""
    scaled = np.minimum(np.maximum(np.divide(values, tau, dtype=np.float64), clip[0]), clip[1])
    if mask is not None:
        scaled = np.where(mask, scaled, -np.inf)
    # The largest entry of a row becomes exp(0), so nothing overflows.
    return sample_indices(np.exp(scaled - scaled.max(axis=1, keepdims=True)), uniform)


class _EpsMixturePolicy(Policy):
    """`explore` with probability `epsilon(step)`, else the greedy action; one uniform number per row."""

    epsilon: Callable[..., float]

    def explore(
        self, values: NDArray[Any], uniform: NDArray[np.float64], mask: NDArray[np.bool_] | None = None
    ) -> NDArray[np.int64]:
        """Return exploring actions `[n]` for `values` `[n, A]` from numbers `uniform` `[n]` in [0, 1)."""
        return (uniform * values.shape[1]).astype(np.int64) if mask is None else legal_choice(mask, uniform)

    def choose(self, values: NDArray[Any], step: int, mask: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return the actions `[N]` for `values` `[N, A]` at `step`."""
        actions: NDArray[np.int64] = values.argmax(1)
        epsilon = self.epsilon(step)
        # A uniform number below epsilon, divided by epsilon, is again uniform in [0, 1).
        if len(actions) == 1:
            # The same as below, but without arrays of length 1, in a third of the time.
            number = self.generator.random()
            legal = () if mask is None else (mask,)
            return self.explore(values, np.array([number / epsilon]), *legal) if number < epsilon else actions
        uniform = self.generator.random(len(actions))
        exploring = uniform < epsilon
        if exploring.any():
            legal = () if mask is None else (mask[exploring],)
            actions[exploring] = self.explore(values[exploring], uniform[exploring] / epsilon, *legal)
        return actions


@register
class GreedyQPolicy(Policy):
    """The action with the highest value."""

    def choose(self, values: NDArray[Any], step: int) -> NDArray[np.int64]:
        """Return the actions `[N]` for `values` `[N, A]`."""
        return values.argmax(1)


@register
class EpsGreedyQPolicy(_EpsMixturePolicy):
    """A uniformly random action with probability `eps`, else the greedy one.

    Args:
        eps: between 0 and 1, or a schedule; a number can be changed during training.

    Raises:
        ValueError: if `eps` is not between 0 and 1.

    Example:
    >>> from noterl.policies import EpsGreedyQPolicy
    >>> policy = EpsGreedyQPolicy(eps=0.1)
    >>> policy.eps = 0.0
    >>> policy.select_action([[0.0, 2.0, 2.0], [5.0, 1.0, 0.0]])
    array([1, 0])
    """

    tunables: ClassVar[dict[str, Any]] = {"eps": probability}

    def __init__(self, eps: float | Schedule = 0.1) -> None:
        self.eps: Any = eps  # if it is a schedule, the attribute holds its value

    def epsilon(self, step: int = 0) -> float:
        """Return `eps`, or the value of the schedule at this step."""
        return self.schedules["eps"](step) if "eps" in self.schedules else self.eps


class _ScheduledEpsGreedyPolicy(_EpsMixturePolicy):
    """Epsilon-greedy whose epsilon depends on the step; `annealed_to` names the tunable that epsilon approaches."""

    annealed_to: ClassVar[str]

    @property
    def eps(self) -> float:
        """Raise an AttributeError, because the schedule would overwrite `eps = ...`."""
        raise AttributeError(f"{type(self).__name__} has no eps: read epsilon(step), change {sorted(self.tunables)}")


@register
class AdaptiveEpsGreedyPolicy(_ScheduledEpsGreedyPolicy):
    """Epsilon-greedy with `epsilon = min_eps + (initial_eps - min_eps) * exp(-decay_rate * step)`.

    The formula is Note_rl's.

    Args:
        initial_eps: epsilon at step 0, between 0 and 1.
        min_eps: the limit of epsilon, between 0 and `initial_eps`.
        decay_rate: per environment step, at least 0.

    Raises:
        ValueError: if an argument is out of range.
    """

    annealed_to = "min_eps"
    tunables: ClassVar[dict[str, Any]] = {
        "initial_eps": probability,
        "min_eps": probability,
        "decay_rate": non_negative,
    }

    def __init__(
        self, initial_eps: float | Schedule = 1.0, min_eps: float | Schedule = 0.1, decay_rate: float | Schedule = 1e-4
    ) -> None:
        self.initial_eps: Any = initial_eps
        self.min_eps: Any = min_eps
        self.decay_rate: Any = decay_rate
        if self.min_eps > self.initial_eps:  # type: ignore[operator]  # both are numbers now
            raise ValueError(f"min_eps must be at most initial_eps ({initial_eps!r}), got {min_eps!r}")

    def epsilon(self, step: int = 0) -> float:
        """Return the probability to explore after `step` environment steps."""
        return exponential(self.initial_eps, self.min_eps, self.decay_rate, step)


@register
class LinearEpsGreedyPolicy(_ScheduledEpsGreedyPolicy):
    """Epsilon-greedy with an epsilon that changes linearly from `start` to `end`, and then is constant.

    Args:
        start: epsilon at step 0, between 0 and 1.
        end: epsilon from step `steps` on, between 0 and 1.
        steps: environment steps, at least 1.

    Raises:
        ValueError: if an argument is out of range.

    Example:
    >>> from noterl.policies import LinearEpsGreedyPolicy
    >>> policy = LinearEpsGreedyPolicy(start=1.0, end=0.5, steps=100)
    >>> [policy.epsilon(step) for step in (0, 50, 100, 1_000)]
    [1.0, 0.75, 0.5, 0.5]
    """

    annealed_to = "end"
    tunables: ClassVar[dict[str, Any]] = {"start": probability, "end": probability, "steps": check_count}

    def __init__(self, start: float | Schedule = 1.0, end: float | Schedule = 0.05, steps: int = 10_000) -> None:
        self.start: Any = start
        self.end: Any = end
        self.steps = steps

    def epsilon(self, step: int = 0) -> float:
        """Return the probability to explore after `step` environment steps."""
        return linear(self.start, self.end, self.steps, step)


@register
class BoltzmannQPolicy(Policy):
    """Actions sampled from `softmax(clip(q / tau))`.

    Args:
        tau: temperature, above 0; lower is greedier.
        clip: `(low, high)` bounds of q / tau, which bound the lowest probability.

    Raises:
        ValueError: if an argument is out of range.
    """

    tunables: ClassVar[dict[str, Any]] = {"tau": positive, "clip": increasing_pair}

    def __init__(self, tau: float | Schedule = 1.0, clip: tuple[float, float] = (-500, 500)) -> None:
        self.tau: Any = tau
        self.clip = clip

    def choose(self, values: NDArray[Any], step: int, mask: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return the actions `[N]` for `values` `[N, A]`."""
        return _boltzmann(values, self.tau, self.clip, self.generator.random(len(values)), mask)


@register
class MaxBoltzmannQPolicy(EpsGreedyQPolicy):
    """An action sampled from `softmax(clip(q / tau))` with probability `eps`, else the greedy one.

    Args:
        eps: between 0 and 1.
        tau: temperature, above 0; lower is greedier.
        clip: `(low, high)` bounds of q / tau.

    Raises:
        ValueError: if an argument is out of range.
    """

    tunables: ClassVar[dict[str, Any]] = {"eps": probability, "tau": positive, "clip": increasing_pair}

    def __init__(
        self, eps: float | Schedule = 0.1, tau: float | Schedule = 1.0, clip: tuple[float, float] = (-500, 500)
    ) -> None:
        super().__init__(eps)
        self.tau: Any = tau
        self.clip = clip

    def explore(
        self, values: NDArray[Any], uniform: NDArray[np.float64], mask: NDArray[np.bool_] | None = None
    ) -> NDArray[np.int64]:
        """Return exploring actions `[n]` for `values` `[n, A]` from numbers `uniform` `[n]` in [0, 1)."""
        return _boltzmann(values, self.tau, self.clip, uniform, mask)


@register
class BoltzmannGumbelQPolicy(Policy):
    """The action with the highest `q + C / sqrt(n) * G`; n counts the selections, and G is Gumbel(0, 1) noise.

    Cesa-Bianchi et al., "Boltzmann Exploration Done Right", 2017. All rows of a batch use the counts before the batch.

    Args:
        C: scale of the noise, at least 0 (greedy); larger explores more.

    Attributes:
        counts: `[A]`, int64, starting at 1; None before the first action. Assign None to start again.

    Raises:
        ValueError: if `C` is negative; in `select_action`, if `values` and `counts` differ in the number of actions.
    """

    tunables: ClassVar[dict[str, Any]] = {"C": non_negative, "counts": _action_counts}
    counts: NDArray[np.int64] | None

    def __init__(self, C: float | Schedule = 1.0) -> None:
        self.C: Any = C
        self.counts = None

    def choose(self, values: NDArray[Any], step: int) -> NDArray[np.int64]:
        """Return the actions `[N]` for `values` `[N, A]`, and count these actions."""
        if self.counts is None:
            # Counts start at 1, so that the noise of an action never selected is finite.
            self.counts = np.ones(values.shape[1], np.int64)
        counts = self.counts
        if len(counts) != values.shape[1]:
            raise ValueError(f"values must have {len(counts)} actions, like counts, got {values.shape[1]}")
        gumbel = self.generator.gumbel(size=values.shape)
        actions: NDArray[np.int64] = (values + self.C / np.sqrt(counts) * gumbel).argmax(1)
        counts += np.bincount(actions, minlength=len(counts))
        return actions


@register
class SoftmaxPolicy(Policy):
    """Actions sampled from probabilities, for networks that end in a softmax.

    Each row is divided by the sum of its entries.

    Raises:
        ValueError: in `select_action`, if a row has a negative entry or a sum that differs from 1 by more than 1e-3.
    """

    acts_on: ClassVar[Literal["q", "probabilities", "logits"]] = "probabilities"

    def choose(self, values: NDArray[Any], step: int, mask: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return the actions `[N]` for the probabilities `values` `[N, A]`; with a mask, for legal ones."""
        if mask is not None:
            totals = values.sum(axis=1, keepdims=True, dtype=np.float64)
            # If all legal actions have the probability 0, they are equally probable.
            return sample_indices(np.where(totals > 0, values, mask), self.generator.random(len(values)))
        totals = values.sum(axis=1, dtype=np.float64)
        # The comparison is False for NaN, so NaN is rejected too.
        valid = (np.abs(totals - 1.0) <= 1e-3) & (values >= 0).all(axis=1)
        if not valid.all():
            row = int(valid.argmin())
            raise ValueError(
                f"values must be probabilities, rows of at least 0 that sum to 1; row {row} is {values[row]} with the "
                f"sum {totals[row]:.6g} (for logits use GumbelSoftmaxPolicy, for action values BoltzmannQPolicy)"
            )
        return sample_indices(values, self.generator.random(len(values)))


@register
class GumbelSoftmaxPolicy(Policy):
    """Actions sampled from `softmax(logits)` with Gumbel noise; a uniformly random one with probability `eps`.

    With `U` uniform in [0, 1), the noise is `g = -log(-log(U + 1e-20) + 1e-20)`. The action is the argmax of
    `logits + g`, and `y = softmax((logits + g) / temperature)` is the relaxation of this action. Jang et al.,
    "Categorical Reparameterization with Gumbel-Softmax", 2016. From the same generator state, `select_action` and
    `relaxed_sample` use the same noise.

    Args:
        temperature: above 0; lower makes `relaxed_sample` closer to one-hot. Actions do not depend on the temperature.
        eps: between 0 and 1.

    Raises:
        ValueError: if an argument is out of range.

    Example:
    >>> from noterl.policies import GumbelSoftmaxPolicy
    >>> GumbelSoftmaxPolicy(eps=0.0).select_action([[0.0, 1000.0], [1000.0, 0.0]])
    array([1, 0])
    """

    acts_on: ClassVar[Literal["q", "probabilities", "logits"]] = "logits"
    tunables: ClassVar[dict[str, Any]] = {"temperature": positive, "eps": probability}

    def __init__(self, temperature: float | Schedule = 1.0, eps: float | Schedule = 0.01) -> None:
        self.temperature: Any = temperature
        self.eps: Any = eps

    def choose(self, values: NDArray[Any], step: int, mask: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return the actions `[N]` for the logits `values` `[N, A]`."""
        perturbed, uniform = self._perturb(values)
        actions: NDArray[np.int64] = perturbed.argmax(1)
        exploring = uniform < self.eps
        if exploring.any():
            numbers = uniform[exploring] / self.eps
            if mask is None:
                actions[exploring] = (numbers * values.shape[1]).astype(np.int64)
            else:
                actions[exploring] = legal_choice(mask[exploring], numbers)
        return actions

    def relaxed_sample(self, logits: ArrayLike) -> NDArray[np.float32]:
        """Return `y` (see the class), float32, in the shape of `logits`; `eps` is not used."""
        logits = np.asarray(logits)
        perturbed, _ = self._perturb(np.atleast_2d(logits))
        weights = np.exp((perturbed - perturbed.max(axis=1, keepdims=True)) / self.temperature)
        return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32).reshape(logits.shape)

    def _perturb(self, logits: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return `logits + g` `[N, A]`, and one more uniform number per row `[N]`, which decides on exploring."""
        # One number per action, and one to decide on exploring, in one call of the generator.
        uniform = self.generator.random((len(logits), logits.shape[1] + 1))
        gumbel = -np.log(-np.log(uniform[:, :-1] + 1e-20) + 1e-20)
        return logits + gumbel, uniform[:, -1]


_NAMES: dict[str, type[Policy]] = {
    "greedy": GreedyQPolicy,
    "epsilon_greedy": EpsGreedyQPolicy,
    "linear_epsilon_greedy": LinearEpsGreedyPolicy,
    "adaptive_epsilon_greedy": AdaptiveEpsGreedyPolicy,
    "boltzmann": BoltzmannQPolicy,
    "max_boltzmann": MaxBoltzmannQPolicy,
    "boltzmann_gumbel": BoltzmannGumbelQPolicy,
    "softmax": SoftmaxPolicy,
    "gumbel_softmax": GumbelSoftmaxPolicy,
}


def get(name: str) -> Policy:
    """Return a policy with default arguments.

    Args:
        name: "greedy", "epsilon_greedy", "linear_epsilon_greedy", "adaptive_epsilon_greedy", "boltzmann",
            "max_boltzmann", "boltzmann_gumbel", "softmax" or "gumbel_softmax"; or the name of a class of this module.

    Raises:
        ValueError: if there is no policy of this name.

    Example:
    >>> from noterl import policies
    >>> policies.get("epsilon_greedy")
    EpsGreedyQPolicy()
    """
    kinds = {**_NAMES, **{policy.__name__: policy for policy in _NAMES.values()}}
    if name not in kinds:
        raise ValueError(f"policy must be one of noterl.policies, got {name!r}: {words.explain_name(name, _NAMES)}")
    return kinds[name]()
