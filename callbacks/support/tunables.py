"""The tunables of adaptive callbacks, and the rules of change, `Rate` and `Scale`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from noterl.callback import AgentView
from noterl.utils.checks import check_number, check_positive

Values = dict[str, float]

# The default upper bound of a count, as a multiple of its first value.
LARGEST = 8
# Updates are compiled for each batch size, so the number of sizes is limited.
MOST_SIZES = 16


class Rate:
    """Change a number by `rate` times the difference between the measured ratio and 1.

    `target = clip(value ± rate * (ratio - 1), min, max)`; `new = smooth * target + (1 - smooth) * value`.

    Args:
        rate: how much the number changes if the ratio is 2.
        min: the lower bound.
        max: the upper bound.
        smooth: weight of the new value, above 0 and at most 1 (no smoothing).

    Raises:
        ValueError: if an argument is not one of the allowed values.

    Example:
    >>> from noterl.callbacks import Rate
    >>> Rate(0.1, 0.0, 1.0).next(0.5, 2.0, +1), Rate(0.1, 0.0, 1.0, smooth=0.5).next(0.5, 2.0, -1)
    (0.6, 0.45)
    """

    def __init__(self, rate: float, min: float, max: float, smooth: float = 1.0) -> None:
        self.rate: float = check_number("rate", rate, low=0, above=True)
        self.min: float = check_number("min", min)
        self.max: float = check_number("max", max)
        self.smooth: float = check_number("smooth", smooth, low=0, high=1, above=True)
        if self.min > self.max:
            raise ValueError(f"min must be at most max, {self.max:g}, got {min!r}")

    def next(self, value: float, ratio: float, sign: int) -> float:
        """Return the next value; `sign` is +1 for a rise with the ratio, -1 for a fall."""
        target = min(max(value + self.rate * sign * (ratio - 1.0), self.min), self.max)
        return self.smooth * target + (1.0 - self.smooth) * value


class Scale:
    """Multiply a count by `scale` and by the measured ratio, or by `scale` and the inverse of the ratio.

    The count is kept without rounding between measurements, so small ratios accumulate.

    Args:
        scale: a factor of every change.
        min: the lower bound; by default 1, or half of the first size of a batch.
        max: the upper bound; by default eight times the first value.
        align: counts are rounded down to a multiple of `align`, but never below `min`. By default 1, or the first size
            of a batch.

    Raises:
        ValueError: if an argument is not one of the allowed values.
    """

    def __init__(
        self, scale: float = 1.0, min: int | None = None, max: int | None = None, align: int | None = None
    ) -> None:
        self.scale: float = check_number("scale", scale, low=0, above=True)
        self.min: Any = check_positive("min", min, none=True)
        self.max: Any = check_positive("max", max, none=True)
        self.align: Any = check_positive("align", align, none=True)
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min must be at most max, {self.max}, got {self.min}")

    def with_defaults(self, first: int, *, largest_batch: int | None) -> Scale:
        """Return a copy whose defaults are replaced by values that depend on the first count.

        Args:
            first: the first count.
            largest_batch: of a batch, the largest size that can be sampled; None for another count.

        Raises:
            ValueError: if the batch could take too many sizes.
        """
        batch = largest_batch is not None
        low = self.min or (max(1, first // 2) if batch else 1)
        high = max(low, self.max or LARGEST * first)
        if largest_batch is not None:
            # The first size is allowed even if the memory is smaller now, because the user has chosen it.
            high = max(low, min(high, max(largest_batch, first)))
        align = self.align or (first if batch else 1)
        if batch and high // align - low // align + 1 > MOST_SIZES:
            raise ValueError(
                f"align must be larger: a batch between {low} and {high} may take at most {MOST_SIZES} sizes, because "
                f"each is compiled; got {align}"
            )
        return Scale(self.scale, low, high, align)

    def next(self, value: float, ratio: float, power: int) -> float:
        """Return the next count, not rounded; `power` is +1 for a rise with the ratio, -1 for a fall."""
        factor = ratio if power > 0 else 1.0 / ratio if ratio > 0 else math.inf
        return min(max(self.scale * value * factor, self.min), self.max)

    def rounded(self, value: float, *, batch: bool) -> int:
        """Return the count, rounded for the agent."""
        whole = round(value) if batch else int(value)
        return max(self.min, whole // self.align * self.align)


class Tunable(NamedTuple):
    """A number of an agent that a callback may adapt; `TUNABLES` lists all.

    Attributes:
        name: the argument of the callback.
        owner: what holds the number: an attribute of the agent, or "sampler" for the sampler of the replay memory.
        attribute: the name of the number there.
        is_count: whether the number is a count, for `Scale`; otherwise a rate, for `Rate`.
        ess: +1 if the number rises with the effective sample size, -1 if the number falls.
        noise: the same for the gradient noise; 0 for no dependence.
    """

    name: str
    owner: str
    attribute: str
    is_count: bool
    ess: int
    noise: int

    def read(self, agent: AgentView) -> Values:
        """Return the values by name: one, or one for each optimizer.

        Raises:
            ValueError: if the agent has no such number.
        """
        if self.owner == "optimizers":
            return {part: agent.get_rule(self.attribute, optimizer) for part, optimizer in self._optimizers(agent)}
        if self.name == "tau" and not agent.schedule.polyak:
            reason = "the target moves by hard copies; compile with target_update below 1"
        elif self.is_count and self.name != "batch" and agent.memory != "replay":
            reason = f"{type(agent).__name__} learns when a rollout is complete"
        else:
            owner = self._owner(agent)
            attribute = self._attribute(agent)
            if isinstance(owner, Mapping):
                value: Any = owner.get(attribute)
                reason = f"{type(agent).__name__} has the hyperparameters {', '.join(sorted(owner))}"
            else:
                value = getattr(owner, attribute, None)
                if self.name == "batch" and not isinstance(value, str):
                    value = agent.update_batch_size  # that of rollouts may be lower
                reason = f"{type(owner).__name__} has no number {self.attribute!r}"
            if hasattr(value, "__float__") and not isinstance(value, bool):
                return {self.name: float(value)}
        raise ValueError(f"{self.name} cannot be adapted: {reason}")

    def write(self, agent: AgentView, values: Values) -> None:
        """Set the values, by the names that `read` returns."""
        if self.owner == "optimizers":
            for part, optimizer in self._optimizers(agent):
                agent.set_rule(self.attribute, values[part], optimizer)
            return
        owner = self._owner(agent)
        attribute = self._attribute(agent)
        if isinstance(owner, Mapping):
            owner[attribute].assign(values[self.name])
        else:
            setattr(owner, attribute, values[self.name])

    def _optimizers(self, agent: AgentView) -> Iterator[tuple[str, str]]:
        """Yield a name for the value of each optimizer, and the optimizer's name."""
        names = agent.optimizer_names
        return ((self.name if len(names) == 1 else f"{self.name}/{optimizer}", optimizer) for optimizer in names)

    def _attribute(self, agent: AgentView) -> str:
        return str(getattr(agent.policy, "annealed_to", "eps")) if self.name == "eps" else self.attribute

    def _owner(self, agent: AgentView) -> Any:
        if self.name == "beta" and "beta" in agent.hyperparameters:
            return agent.hyperparameters
        return getattr(agent.replay, "sampler", None) if self.owner == "sampler" else getattr(agent, self.owner)


# The directions are those of Note_rl. They need not be the same for both measured quantities.
_ALL = (
    Tunable("batch", "schedule", "batch_size", True, 1, 1),
    Tunable("alpha", "sampler", "alpha", False, 1, -1),
    Tunable("lr", "optimizers", "learning_rate", False, 1, -1),
    Tunable("eps", "policy", "eps", False, -1, 1),
    Tunable("update_every", "schedule", "update_every", True, -1, 1),
    Tunable("tau", "hyperparameters", "tau", False, 1, -1),
    Tunable("gamma", "hyperparameters", "gamma", False, 1, -1),
    Tunable("updates", "schedule", "updates", True, 1, 0),
    Tunable("collect", "schedule", "update_every", True, -1, 0),
    Tunable("weight_decay", "optimizers", "weight_decay", False, -1, 1),
    Tunable("beta1", "optimizers", "beta_1", False, 1, 1),
    Tunable("beta2", "optimizers", "beta_2", False, 1, 1),
    Tunable("clip", "hyperparameters", "clip", False, 1, -1),
    Tunable("beta", "sampler", "beta", False, -1, 1),
)
TUNABLES = {tunable.name: tunable for tunable in _ALL}
