"""Hyperparameter: a scalar with a host value and a device variable, which are always equal."""

from __future__ import annotations

import contextlib
import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl.schedules import Schedule
from noterl.utils.checks import check_number

if TYPE_CHECKING:

    class Variable(np.lib.mixins.NDArrayOperatorsMixin):
        """The part of `keras.Variable` that type checkers need, because Keras has no types."""

        name: str
        value: Any
        assign: Any
        __array_ufunc__: Any

        def __init__(self, initializer: Any, **options: Any) -> None: ...
else:
    Variable = object  # worker processes import this module without Keras; `__new__` adds `keras.Variable`


class Hyperparameter(Variable):
    """A scalar that can be changed during training, without retracing a compiled update.

    A Hyperparameter is a `keras.Variable`, so a tensor inside `loss` and `update`. `float(h)` reads the host value,
    without a device transfer; inside a compiled update, `float` raises. (A torch loss that calls `float` runs eagerly.)
    `assign` changes the value, and so does setting the attribute of the agent that holds it. With a schedule, only the
    schedule changes the value, before each group of updates.

    Args:
        value: the initial value, or a `noterl.schedules.Schedule`.
        name: the name in errors and logs.
        minimum: the lowest allowed value.
        maximum: the highest allowed value.

    Raises:
        ValueError: if the value is not a finite number within the bounds.

    Example:
    >>> from noterl.hyperparameters import Hyperparameter
    >>> gamma = Hyperparameter(0.9, "gamma", maximum=1.0)
    >>> _ = gamma.assign(0.5)
    >>> float(gamma)
    0.5
    """

    def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
        """Return an instance of a subclass that is also a `keras.Variable`."""
        return super().__new__(_variable_class(cls))

    def __init__(
        self, value: float | Schedule, name: str, *, minimum: float | None = None, maximum: float | None = None
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"name of a hyperparameter must be a non-empty string, got {name!r}")
        self.schedule: Schedule | None = value if isinstance(value, Schedule) else None
        value = value(0) if isinstance(value, Schedule) else value
        self._bounds = (-math.inf if minimum is None else minimum, math.inf if maximum is None else maximum)
        self._host = self._check(value, name)
        super().__init__(np.float32(self._host), dtype="float32", trainable=False, autocast=False, name=name)

    def assign(self, value: Any) -> Any:
        """Change the value on the host and on the device.

        Raises:
            ValueError: if the value is not a finite number within the bounds, or a schedule sets it.
        """
        if self.schedule is not None:
            raise ValueError(f"{self.name} is set by {self.schedule!r}, which would overwrite {value!r}")
        return self.restore(value)

    def restore(self, value: Any) -> Any:
        """Set a saved value, also if there is a schedule."""
        # Checked before the device: both values stay equal if it is not allowed.
        self._host = self._check(value, self.name)
        return super().assign(np.float32(self._host))

    def another(self) -> float:
        """Return an allowed value that differs from the current one."""
        low, high = self._bounds
        if math.isfinite(high - low):
            # The middle is allowed and far from both bounds; only if it is the current value, a quarter from the top.
            middle = (low + high) / 2
            return middle if middle != self._host else (middle + high) / 2
        return self._host + 1 if high == math.inf else self._host - 1

    def update_schedules(self, step: int) -> None:
        """Set the schedule's value after `step` environment steps, if there is a schedule."""
        # An assignment transfers the value to the device, so it is skipped if nothing changes.
        if self.schedule is not None and self.schedule(step) != self._host:
            self.restore(self.schedule(step))

    if TYPE_CHECKING:  # `agent.gamma = 0.9` assigns the value; see `Algorithm.__setattr__`

        def __get__(self, instance: Any, owner: type) -> Hyperparameter: ...

        def __set__(self, instance: Any, value: float | Hyperparameter) -> None: ...

    def __float__(self) -> float:
        """Return the host value; raise a RuntimeError while an update is compiled."""
        from noterl import backends

        if backends.current().is_tracing():
            raise RuntimeError(
                f"float({self.name}) would compile the constant {self._host} into the update, and later changes of "
                f"{self.name} would have no effect; use {self.name} itself, which is a tensor there"
            )
        return self._host

    def _check(self, value: Any, name: str) -> float:
        if not isinstance(value, bool | np.bool_ | str | bytes):  # `float` accepts them
            with contextlib.suppress(TypeError, ValueError):
                value = float(value)
        return check_number(name, value, low=self._bounds[0], high=self._bounds[1])


@cache
def _variable_class(cls: Any) -> Any:
    from noterl.backends import keras

    return type(cls.__name__, (cls, keras.Variable), {"__module__": cls.__module__, "__doc__": cls.__doc__})


def discount_factor(agent: Any) -> float:
    """Return the agent's hyperparameter "gamma", or its plain number `gamma`; 1 for an agent with neither.

    Raises:
        ValueError: if the attribute `gamma` is not a number from 0 to 1.
    """
    gamma = agent.hyperparameters.get("gamma", getattr(agent, "gamma", 1.0))
    return float(gamma) if isinstance(gamma, Hyperparameter) else check_number("gamma", gamma, low=0.0, high=1.0)
