"""The tunables of adaptive callbacks, and the rules `Rate` and `Scale` by which they change."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from noterl.callback import AgentView
from noterl.utils.checks import check_number, check_positive

Values = dict[str, float]
Read = Callable[[AgentView], Values]
Write = Callable[[AgentView, Values], None]

# The default upper bound of a count, as a multiple of its first value.
LARGEST = 8
# Each batch size is compiled separately, so their number is limited.
MOST_SIZES = 16


class Rate:
    """Move a number by `rate` times the difference between the measured ratio and 1.

    `target = clip(value ± rate * (ratio - 1), min, max)`; `new = smooth * target + (1 - smooth) * value`.

    Args:
        rate: how far the number moves if the ratio is 2.
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
        self.rate = check_number("rate", rate, low=0, above=True)
        self.min, self.max = check_number("min", min), check_number("max", max)
        self.smooth = check_number("smooth", smooth, low=0, high=1, above=True)
        if self.min > self.max:
            raise ValueError(f"min must be at most max, {self.max:g}, got {min!r}")

    def next(self, value: float, ratio: float, sign: int) -> float:
        """Return the next value."""
        target = _clip(value + self.rate * sign * (ratio - 1.0), self.min, self.max)
        return self.smooth * target + (1.0 - self.smooth) * value


class Scale:
    """Multiply a count by `scale` and by the measured ratio, or by `scale` and the inverse of the ratio.

    The count is kept without rounding between measurements, so small ratios accumulate.

    Args:
        scale: a factor of every change.
        min: the lower bound; by default 1, or half of the first size of a batch.
        max: the upper bound; by default eight times the first value.
        align: counts are rounded down to a multiple of it, but never below `min`. By default 1, or the first size of
            a batch.

    Raises:
        ValueError: if an argument is not one of the allowed values.
    """

    def __init__(
        self, scale: float = 1.0, min: int | None = None, max: int | None = None, align: int | None = None
    ) -> None:
        self.scale = check_number("scale", scale, low=0, above=True)
        self.min: Any = check_positive("min", min, none=True)
        self.max: Any = check_positive("max", max, none=True)
        self.align: Any = check_positive("align", align, none=True)
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min must be at most max, {self.max}, got {self.min}")

    def with_defaults(self, first: int, *, batch: bool) -> Scale:
        """Return a copy whose defaults are replaced by values that depend on the first count.

        Raises:
            ValueError: if a batch could take too many sizes.
        """
        low = self.min or (max(1, first // 2) if batch else 1)
        high = max(low, self.max or LARGEST * first)
        align = self.align or (first if batch else 1)
        if batch and high // align - low // align + 1 > MOST_SIZES:
            raise ValueError(
                f"align must be larger: a batch between {low} and {high} may take at most {MOST_SIZES} sizes, because "
                f"each is compiled; got {align}"
            )
        return Scale(self.scale, low, high, align)

    def next(self, value: float, ratio: float, power: int) -> float:
        """Return the next count, not rounded."""
        factor = ratio if power > 0 else 1.0 / ratio if ratio > 0 else math.inf
        return _clip(self.scale * value * factor, self.min, self.max)

    def rounded(self, value: float, *, batch: bool) -> int:
        """Return the count as the agent receives it."""
        whole = round(value) if batch else int(value)
        return max(self.min, whole // self.align * self.align)


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


class Tunable(NamedTuple):
    """A number of an agent that a callback may adapt.

    Attributes:
        is_count: whether it is a count, for `Scale`; otherwise a number, for `Rate`.
        ess: +1 if it rises with the effective sample size, -1 if it falls.
        noise: the same for the gradient noise; 0 if it does not depend on it.
        read: returns its values by name: one, or one for each optimizer.
        write: sets them.
    """

    is_count: bool
    ess: int
    noise: int
    read: Read
    write: Write


def _rule(name: str, rule: str) -> tuple[Read, Write]:
    """Return how to read and set a rule of every optimizer."""

    def parts(agent: AgentView) -> dict[str, str]:
        names = agent.optimizer_names
        return {name if len(names) == 1 else f"{name}/{optimizer}": optimizer for optimizer in names}

    def read(agent: AgentView) -> Values:
        return {part: agent.get_rule(rule, optimizer) for part, optimizer in parts(agent).items()}

    def write(agent: AgentView, values: Values) -> None:
        for part, optimizer in parts(agent).items():
            agent.set_rule(rule, values[part], optimizer)

    return read, write


def _attribute(name: str, owner: Callable[[AgentView], Any], attribute: str = "") -> tuple[Read, Write]:
    """Return how to read and set an attribute of some part of an agent."""
    attribute = attribute or name

    def read(agent: AgentView) -> Values:
        found = owner(agent)
        value: Any = getattr(found, attribute, None)
        if isinstance(value, bool) or not hasattr(value, "__float__") or isinstance(value, str):
            raise ValueError(f"{name} cannot be adapted: {type(found).__name__} has no number {attribute!r}")
        return {name: float(value)}

    def write(agent: AgentView, values: Values) -> None:
        present: Any = getattr(owner(agent), attribute)
        setattr(owner(agent), attribute, type(present)(values[name]))

    return read, write


def _hyperparameter(name: str, other: Callable[[AgentView], Any] | None = None) -> tuple[Read, Write]:
    """Return how to read and set a hyperparameter, or an attribute of another part if the agent has no such one."""

    def read(agent: AgentView) -> Values:
        if name in agent.hyperparameters:
            return {name: float(agent.hyperparameters[name])}
        found = other(agent) if other is not None else None
        if found is None or not hasattr(found, name):
            known = ", ".join(sorted(agent.hyperparameters))
            raise ValueError(f"{name} cannot be adapted: {type(agent).__name__} has the hyperparameters {known}")
        return {name: float(getattr(found, name))}

    def write(agent: AgentView, values: Values) -> None:
        if name in agent.hyperparameters:
            agent.hyperparameters[name].assign(values[name])
        elif other is not None:
            setattr(other(agent), name, values[name])

    return read, write


def _tau(agent: AgentView) -> Values:
    if not agent.schedule.polyak:
        raise ValueError("tau cannot be adapted: the target moves by hard copies; compile with target_update below 1")
    return {"tau": float(agent.hyperparameters["tau"])}


def _sampler(agent: AgentView) -> Any:
    return getattr(agent.replay, "sampler", None)


def _schedule(agent: AgentView) -> Any:
    return agent.schedule


def _groups(name: str, attribute: str) -> tuple[Read, Write]:
    """Return how to read and set when groups of updates are due, or how large they are."""
    read, write = _attribute(name, _schedule, attribute)

    def read_checked(agent: AgentView) -> Values:
        if agent.memory != "replay":
            raise ValueError(f"{name} cannot be adapted: {type(agent).__name__} learns when a rollout is complete")
        return read(agent)

    return read_checked, write


# The directions are those of Note_rl. They need not be the same for both measured quantities.
TUNABLES = {
    "batch": Tunable(True, 1, 1, *_attribute("batch", _schedule, "batch_size")),
    "alpha": Tunable(False, 1, -1, *_attribute("alpha", _sampler)),
    "lr": Tunable(False, 1, -1, *_rule("lr", "learning_rate")),
    "eps": Tunable(False, -1, 1, *_attribute("eps", lambda agent: agent.policy)),
    "update_every": Tunable(True, -1, 1, *_groups("update_every", "update_every")),
    "tau": Tunable(False, 1, -1, _tau, _hyperparameter("tau")[1]),
    "gamma": Tunable(False, 1, -1, *_hyperparameter("gamma")),
    "updates": Tunable(True, 1, 0, *_groups("updates", "updates")),
    "collect": Tunable(True, -1, 0, *_groups("collect", "update_every")),
    "weight_decay": Tunable(False, -1, 1, *_rule("weight_decay", "weight_decay")),
    "beta1": Tunable(False, 1, 1, *_rule("beta1", "beta_1")),
    "beta2": Tunable(False, 1, 1, *_rule("beta2", "beta_2")),
    "clip": Tunable(False, 1, -1, *_hyperparameter("clip")),
    "beta": Tunable(False, -1, 1, *_hyperparameter("beta", _sampler)),
}
