"""Live scalars: a value on the host and the same on the device, so that a change neither retraces nor is lost."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from noterl import backends
from noterl.backends import keras
from noterl.schedules import Schedule
from noterl.utils.checks import check_number


class Hyperparameter(keras.Variable):
    """A scalar that callbacks may change while a compiled update uses it.

    Inside `loss` and `update` it is a tensor like any other, and `float(h)` raises where it would freeze the value in
    what is compiled (a torch loss that asks for it runs eagerly); on the host it costs no device transfer. It is
    changed by `assign`, or by setting the attribute of the agent that holds it. One that follows a schedule changes by
    itself, before each group of updates, and by nothing else.

    Args:
        value: the initial value, or a `noterl.schedules.Schedule`.
        name: what errors and logs call it.
        minimum: the least value allowed.
        maximum: the greatest value allowed.

    Raises:
        ValueError: for a value that is no finite number, or out of bounds.

    Example:
    >>> from noterl.hyperparameters import Hyperparameter
    >>> gamma = Hyperparameter(0.9, "gamma", maximum=1.0)
    >>> _ = gamma.assign(0.5)
    >>> float(gamma)
    0.5
    """

    def __init__(
        self, value: float | Schedule, name: str, *, minimum: float | None = None, maximum: float | None = None
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"name of a hyperparameter must be a word, got {name!r}")
        self.schedule = value if isinstance(value, Schedule) else None
        value = value(0) if isinstance(value, Schedule) else value
        self._bounds = (-math.inf if minimum is None else minimum, math.inf if maximum is None else maximum)
        self._host = self._checked(value, name)
        super().__init__(np.float32(self._host), dtype="float32", trainable=False, autocast=False, name=name)

    def assign(self, value: Any) -> Any:
        """Change the value, here and on the device.

        Raises:
            ValueError: for a value that is no finite number, out of bounds, or overruled by a schedule.
        """
        if self.schedule is not None:
            raise ValueError(f"{self.name} follows {self.schedule!r}, which would overrule {value!r}")
        return self.restore(value)

    def restore(self, value: Any) -> Any:
        """Take a saved value, also of one that follows a schedule."""
        self._host = self._checked(value, self.name)
        return super().assign(np.float32(self._host))

    def another(self) -> float:
        """Return another value that it may have."""
        low, high = self._bounds
        if math.isfinite(high - low):
            middle = (low + high) / 2
            return middle if middle != self._host else (middle + high) / 2
        return self._host + 1 if high == math.inf else self._host - 1

    def update_schedules(self, step: int) -> None:
        """Take the schedule's value after `step` environment steps, if there is a schedule."""
        if self.schedule is not None and self.schedule(step) != self._host:
            self.restore(self.schedule(step))

    def __float__(self) -> float:
        if backends.current().is_tracing():
            raise RuntimeError(
                f"float({self.name}) in a compiled update would be {self._host} for ever, whatever becomes of "
                f"{self.name}: use {self.name} itself, which is a tensor there"
            )
        return self._host

    def _checked(self, value: Any, name: str) -> float:
        if isinstance(value, bool | np.bool_ | str | bytes):  # which `float` would take
            raise ValueError(f"{name} must be a number, got {value!r}")
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} must be a number, got {value!r}") from error
        low, high = self._bounds
        if not math.isfinite(number) or not low <= number <= high:
            bounds = "" if self._bounds == (-math.inf, math.inf) else f" from {low} to {high}"
            raise ValueError(f"{name} must be a finite number{bounds}, got {value!r}")
        return number


def discount_factor(agent: Any) -> float:
    """Return the agent's hyperparameter "gamma", or a plain number of that name, 1 where there is neither.

    Raises:
        ValueError: if the attribute of that name is something else, by which no memory would discount.
    """
    gamma = agent.hyperparameters.get("gamma", getattr(agent, "gamma", 1.0))
    return float(gamma) if isinstance(gamma, Hyperparameter) else check_number("gamma", gamma, low=0.0, high=1.0)
