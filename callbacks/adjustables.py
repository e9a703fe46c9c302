"""What adapting callbacks may change in an agent, and by which rules.

Owns: the table of quantities, each with the way to read and set it and with the direction in which it follows a
measure; and the two small objects that say how far it goes, `Rate` and `Scale`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from noterl.learning import optimizers
from noterl.utils.checks import check_number, check_positive

if TYPE_CHECKING:
    from noterl.agent import Agent

Values = dict[str, float]

# So many times its first value a scaled quantity may become where nobody says how many.
LARGEST = 8
# A batch of another size is compiled anew, so there are few of them.
MOST_SIZES = 16


class Rate:
    """Move a number by `rate` times what the measure's ratio differs from 1.

    `new = clip(value ± rate * (ratio - 1), min, max)`, and of that `smooth` parts to `1 - smooth` of the old value.

    Args:
        rate: how far it moves when the measure is twice its target.
        min: the least value.
        max: the greatest value.
        smooth: weight of the new value, above 0 and up to 1 (no smoothing).

    Raises:
        ValueError: if an argument is not what it may be.

    Example:
    >>> from noterl.callbacks.adjustables import Rate
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
        """Return the value that follows."""
        target = _clipped(value + self.rate * sign * (ratio - 1.0), self.min, self.max)
        return self.smooth * target + (1.0 - self.smooth) * value


class Scale:
    """Multiply a count by `scale` and the measure's ratio, or by `scale` and divide it.

    Between looks the count is kept as it is, without being rounded, so that small ratios add up.

    Args:
        scale: a factor of every look.
        min: the least count; None for 1, of a batch half of its first size.
        max: the greatest count; None for eight times the first.
        align: counts are multiples of it, rounded down, and never below `min`; None for 1, of a batch its first size.

    Raises:
        ValueError: if an argument is not what it may be.
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

    def fit(self, first: int, *, batch: bool) -> Scale:
        """Return the same with what was left open settled by the first value.

        Raises:
            ValueError: if a batch could take more sizes than may be compiled.
        """
        low = self.min or (max(1, first // 2) if batch else 1)
        high = max(low, self.max or LARGEST * first)
        align = self.align or (first if batch else 1)
        if batch and high // align - low // align + 1 > MOST_SIZES:
            raise ValueError(
                f"align must let a batch between {low} and {high} take at most {MOST_SIZES} sizes, since each is "
                f"compiled anew; got {align}"
            )
        return Scale(self.scale, low, high, align)

    def next(self, value: float, ratio: float, power: int) -> float:
        """Return the count that follows, not rounded."""
        factor = ratio if power > 0 else 1.0 / ratio if ratio > 0 else math.inf
        return _clipped(self.scale * value * factor, self.min, self.max)

    def rounded(self, value: float, *, batch: bool) -> int:
        """Return the count that is set."""
        whole = round(value) if batch else int(value)
        return max(self.min, whole // self.align * self.align)


def _clipped(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


class Quantity(NamedTuple):
    """A row of the table.

    Attributes:
        scaled: whether it is a count, for `Scale`; else a number, for `Rate`.
        ess: +1 if it rises with the effective sample size, -1 if it falls.
        noise: the same for the gradient noise; 0 if it does not follow it.
        read: returns its parts by name: one, or one for each optimizer.
        write: sets them.
    """

    scaled: bool
    ess: int
    noise: int
    read: Callable[[Agent], Values]
    write: Callable[[Agent, Values], None]


def _rule(name: str, rule: str) -> tuple[Callable[[Agent], Values], Callable[[Agent, Values], None]]:
    """Return how to read and set a rule of every optimizer."""

    def parts(agent: Agent) -> dict[str, str]:
        names = agent.optimizer_names
        return {name if len(names) == 1 else f"{name}/{optimizer}": optimizer for optimizer in names}

    def read(agent: Agent) -> Values:
        return {
            part: optimizers.get_rule(agent.optimizers[optimizer], rule) for part, optimizer in parts(agent).items()
        }

    def write(agent: Agent, values: Values) -> None:
        for part, optimizer in parts(agent).items():
            agent.set_rule(rule, values[part], optimizer)

    return read, write


def _attribute(
    name: str, holder: Callable[[Agent], Any], attribute: str = ""
) -> tuple[Callable[[Agent], Values], Callable[[Agent, Values], None]]:
    """Return how to read and set an attribute of some part of an agent."""
    attribute = attribute or name

    def read(agent: Agent) -> Values:
        found = holder(agent)
        value: Any = getattr(found, attribute, None)
        if isinstance(value, bool) or not hasattr(value, "__float__") or isinstance(value, str):
            raise ValueError(f"{name} cannot be adjusted: {type(found).__name__} has no number {attribute!r}")
        return {name: float(value)}

    def write(agent: Agent, values: Values) -> None:
        present: Any = getattr(holder(agent), attribute)
        setattr(holder(agent), attribute, type(present)(values[name]))

    return read, write


def _hyperparameter(
    name: str, other: Callable[[Agent], Any] | None = None
) -> tuple[Callable[[Agent], Values], Callable[[Agent, Values], None]]:
    """Return how to read and set a live number of the agent, or one of another part where it has none of the name."""

    def read(agent: Agent) -> Values:
        if name in agent.hyperparameters:
            return {name: float(agent.hyperparameters[name])}
        found = other(agent) if other is not None else None
        if found is None or not hasattr(found, name):
            known = ", ".join(sorted(agent.hyperparameters))
            raise ValueError(f"{name} cannot be adjusted: {type(agent).__name__} has the live numbers {known}")
        return {name: float(getattr(found, name))}

    def write(agent: Agent, values: Values) -> None:
        if name in agent.hyperparameters:
            agent.hyperparameters[name].assign(values[name])
        elif other is not None:
            setattr(other(agent), name, values[name])

    return read, write


def _tau(agent: Agent) -> Values:
    if not agent.schedule.polyak:
        raise ValueError("tau cannot be adjusted: the target moves by hard copies; compile with target_update below 1")
    return {"tau": float(agent.hyperparameters["tau"])}


def _sampler(agent: Agent) -> Any:
    return getattr(agent.replay, "sampler", None)


def _schedule(agent: Agent) -> Any:
    return agent.schedule


def _groups(name: str, attribute: str) -> tuple[Callable[[Agent], Values], Callable[[Agent, Values], None]]:
    """Return how to read and set what says when updates fall due, and how many."""
    read, write = _attribute(name, _schedule, attribute)

    def read_checked(agent: Agent) -> Values:
        if agent.memory != "replay":
            raise ValueError(f"{name} cannot be adjusted: {type(agent).__name__} learns whenever a rollout is complete")
        return read(agent)

    return read_checked, write


# The directions are Note_rl's: a number that rises with one measure need not with the other.
QUANTITIES = {
    "batch": Quantity(True, 1, 1, *_attribute("batch", _schedule, "batch_size")),
    "alpha": Quantity(False, 1, -1, *_attribute("alpha", _sampler)),
    "lr": Quantity(False, 1, -1, *_rule("lr", "learning_rate")),
    "eps": Quantity(False, -1, 1, *_attribute("eps", lambda agent: agent.policy)),
    "update_every": Quantity(True, -1, 1, *_groups("update_every", "update_every")),
    "tau": Quantity(False, 1, -1, _tau, _hyperparameter("tau")[1]),
    "gamma": Quantity(False, 1, -1, *_hyperparameter("gamma")),
    "updates": Quantity(True, 1, 0, *_groups("updates", "updates")),
    "collect": Quantity(True, -1, 0, *_groups("collect", "update_every")),
    "weight_decay": Quantity(False, -1, 1, *_rule("weight_decay", "weight_decay")),
    "beta1": Quantity(False, 1, 1, *_rule("beta1", "beta_1")),
    "beta2": Quantity(False, 1, 1, *_rule("beta2", "beta_2")),
    "clip": Quantity(False, 1, -1, *_hyperparameter("clip")),
    "beta": Quantity(False, -1, 1, *_hyperparameter("beta", _sampler)),
}
