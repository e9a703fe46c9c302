"""Schedules: numbers that change during training.

A schedule can be passed instead of a number that can be changed during training: a hyperparameter of an agent, a
number of a policy or noise, or the learning rate of a Keras optimizer. The step of a schedule is `Agent.steps`, so a
schedule continues in the next `fit` and after a restore. A later `compile` warns if a schedule, such as epsilon's, has
ended already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from noterl.registry import Configurable, register
from noterl.utils.checks import check_count, finite, non_negative


class Schedule(Configurable):
    """Base class of the schedules. A subclass defines `value(step)`.

    Example:
    >>> from noterl.schedules import Schedule
    >>> class Harmonic(Schedule):
    ...     def value(self, step):
    ...         return 1 / (1 + step)
    >>> Harmonic()(3)
    0.25
    """

    def __call__(self, step: int = 0) -> float:
        """Return the value after `step` environment steps.

        Raises:
            ValueError: if `step` is not a number of at least 0.
        """
        # Checked only if it is not a usual step, because schedules are called in every step.
        if type(step) is not int or step < 0:
            non_negative("step", step)
        return float(self.value(step))

    def value(self, step: int) -> float:
        """Return the value after `step` environment steps. A subclass defines the method."""
        raise NotImplementedError(f"{type(self).__name__} must define value(step)")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.get_config().items())})"


Number = float | Schedule


@register
class Constant(Schedule):
    """A constant value, used as a part of `Piecewise`.

    Args:
        constant: the value.
    """

    def __init__(self, constant: float) -> None:
        self.constant: float = finite("constant", constant)

    def value(self, step: int) -> float:
        """Return the constant."""
        return self.constant


@register
class Linear(Schedule):
    """A straight line from `start` to `end`, and `end` afterwards.

    Args:
        start: the value at step 0.
        end: the value from step `steps` on.
        steps: environment steps, at least 1.

    Raises:
        ValueError: if an argument is out of range.

    Example:
    >>> from noterl.schedules import Linear
    >>> [Linear(1.0, 0.5, steps=100)(step) for step in (0, 50, 100, 1_000)]
    [1.0, 0.75, 0.5, 0.5]
    """

    def __init__(self, start: float, end: float, steps: int) -> None:
        self.start: float = finite("start", start)
        self.end: float = finite("end", end)
        self.steps: int = check_count("steps", steps)

    def value(self, step: int) -> float:
        """Return the value on the line."""
        return linear(self.start, self.end, self.steps, step)


@register
class Exponential(Schedule):
    """`end + (start - end) * exp(-decay_rate * step)`.

    Args:
        start: the value at step 0.
        decay_rate: per environment step, at least 0. After `1 / decay_rate` steps, 63 % of the change is done.
        end: the limit of the value.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(self, start: float, decay_rate: float, end: float = 0.0) -> None:
        self.start: float = finite("start", start)
        self.end: float = finite("end", end)
        self.decay_rate: float = non_negative("decay_rate", decay_rate)

    def value(self, step: int) -> float:
        """Return the value on the curve."""
        return exponential(self.start, self.end, self.decay_rate, step)


@register
class Cosine(Linear):
    """Half a cosine from `start` to `end` (Loshchilov and Hutter, 2017, equation 5, without restarts).

    `end + (start - end) * (1 + cos(pi * step / steps)) / 2`, and `end` from step `steps` on. The arguments are those
    of `Linear`.
    """

    def value(self, step: int) -> float:
        """Return the value on the curve."""
        if step >= self.steps:
            return self.end
        return self.start + (self.end - self.start) * 0.5 * (1 - math.cos(math.pi * step / self.steps))


@register
class Piecewise(Schedule):
    """Schedules one after another, each from step 0 on.

    Args:
        boundaries: the environment steps at which the next part begins, in increasing order.
        parts: numbers or schedules, one more than boundaries.

    Raises:
        ValueError: if an argument is not a list, the boundaries do not increase, or the lengths do not fit.

    Example:
    >>> from noterl.schedules import Linear, Piecewise
    >>> warm_up = Piecewise([100], [Linear(0.0, 1.0, steps=100), Linear(1.0, 0.0, steps=1_000)])
    >>> [warm_up(step) for step in (0, 50, 100, 600, 2_000)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    def __init__(self, boundaries: Sequence[int], parts: Sequence[Number]) -> None:
        for name, argument in (("boundaries", boundaries), ("parts", parts)):
            if not isinstance(argument, Sequence | np.ndarray) or isinstance(argument, str):
                raise ValueError(f"{name} must be a list, got {argument!r}")
        self.boundaries: list[int] = [check_count("boundaries", boundary) for boundary in boundaries]
        if any(later <= earlier for earlier, later in zip(self.boundaries, self.boundaries[1:], strict=False)):
            raise ValueError(f"boundaries must increase, got {boundaries!r}")
        if len(parts) != len(self.boundaries) + 1:
            raise ValueError(f"parts must be {len(self.boundaries) + 1}, one more than boundaries, got {len(parts)}")
        self.parts: list[Schedule | Constant] = [
            part if isinstance(part, Schedule) else Constant(part) for part in parts
        ]

    def value(self, step: int) -> float:
        """Return the value of the part that contains `step`."""
        begins = 0
        for boundary, part in zip(self.boundaries, self.parts, strict=False):
            if step < boundary:
                return part(step - begins)
            begins = boundary
        return self.parts[-1](step - begins)


def has_ended(value: Callable[[int], float], step: int) -> bool:
    """Return whether at most 1 % of the changes of a schedule are left after `step` environment steps.

    Args:
        value: the value after a number of environment steps.
        step: the environment steps so far.
    """
    try:
        # Later than any run, so the final value of every schedule that ends.
        last = value(10**12)
        # Closer together at the beginning, where short schedules end.
        change = max(abs(value(earlier) - last) for earlier in (0, *(step >> k for k in range(30))))
        return change > 0 and abs(value(step) - last) <= 0.01 * change
    except Exception:  # a schedule of the user may have no values so late
        return False


def linear(start: float, end: float, steps: int, step: int) -> float:
    """Return the value of `Linear(start, end, steps)` at `step`."""
    # `end` itself at the end: the formula may differ from it by rounding.
    return end if step >= steps else start + (end - start) * (step / steps)


def exponential(start: float, end: float, decay_rate: float, step: int) -> float:
    """Return the value of `Exponential(start, decay_rate, end)` at `step`."""
    return end + (start - end) * math.exp(-decay_rate * step) if step > 0 else start
