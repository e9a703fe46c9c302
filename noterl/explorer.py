"""Explorer: the base of policies and noises, with a random generator, tunable attributes and state."""

from __future__ import annotations

import copy
import functools
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from noterl.registry import Configurable
from noterl.schedules import Schedule
from noterl.utils.checks import Check


class Explorer(Configurable):
    """Base of policies and noises.

    A subclass lists in `tunables` the attributes that can be changed during training. Each has a check: a function of
    `(name, value)` that returns the value to store or raises a ValueError. Every assignment calls the check. The state
    consists of these attributes and the state of the generator.

    A tunable argument of the constructor may be a `noterl.schedules.Schedule`. The attribute then holds the schedule's
    value at the step of the last `update_schedules`, and cannot be assigned.

    A subclass lists in `counters` the tunable attributes that count environment steps.

    Attributes:
        assignments: how often tunable attributes were assigned. Steps that are counted and schedules do not count.
        schedules: the schedules by attribute.
    """

    tunables: ClassVar[Mapping[str, Check]] = {}
    counters: ClassVar[tuple[str, ...]] = ()
    assignments = 0
    schedules: Mapping[str, Schedule] = {}

    # A property would cost more per read, and could not be assigned.
    @functools.cached_property
    def generator(self) -> np.random.Generator:
        """The `np.random.Generator` of all random numbers; unseeded until another one is assigned."""
        return np.random.default_rng()

    # Checked on assignment, because reading happens at every step.
    def __setattr__(self, name: str, value: Any) -> None:
        """Assign an attribute; a tunable one is checked first."""
        check = self.tunables.get(name)
        if check is not None:
            argument: Any = self._config.get(name)
            # Only the constructor's schedule is kept: one that is assigned later is not in the configuration.
            if isinstance(value, Schedule) and argument is value:
                super().__setattr__("schedules", {**self.schedules, name: value})
                value = value(0)
            elif name in self.schedules:
                raise ValueError(f"{name} is set by {self.schedules[name]!r}, which would overwrite {value!r}")
            value = check(name, value)
            super().__setattr__("assignments", self.assignments + 1)
        elif name == "generator" and not isinstance(value, np.random.Generator):
            raise ValueError(f"generator must be a numpy.random.Generator, got {value!r}")
        super().__setattr__(name, value)

    def skip(self, steps: int) -> None:
        """Count environment steps for which nothing is sampled: before `learning_starts`, and of other workers.

        The number of steps is added to the attributes of `counters`.
        """
        for name in self.counters:
            # Not assigned: a count is no change of the policy, and this is called in every step.
            vars(self)[name] += steps

    def update_schedules(self, step: int) -> None:
        """Set the scheduled attributes to the values after `step` environment steps, before acting."""
        for name, schedule in self.schedules.items():
            super().__setattr__(name, self.tunables[name](name, schedule(step)))

    def copy_with_generator(self, generator: np.random.Generator) -> Self:
        """Return a copy in this state that uses another generator and shares nothing with this object."""
        copied = copy.copy(self)
        for name, value in vars(self).items():
            if name != "_config" and isinstance(value, np.ndarray | list | dict | set | deque):
                setattr(copied, name, copy.deepcopy(value))
        copied.generator = generator
        copied.set_state({**self.get_state(), "generator": generator.bit_generator.state})
        return copied

    def get_state(self) -> dict[str, Any]:
        """Return the state of the generator and the tunable attributes, as copies."""
        state: dict[str, Any] = {"generator": self.generator.bit_generator.state}
        for name in self.tunables:
            value = getattr(self, name)
            state[name] = list(value) if isinstance(value, tuple) else copy.copy(value)
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`; the generator stays the same object.

        Raises:
            ValueError: if an entry is missing or has an invalid value; this object is then unchanged.
        """
        missing = sorted({"generator", *self.tunables} - set(state))
        if missing:
            raise ValueError(f"state must hold {missing} for {type(self).__name__}, it holds {sorted(state)}")
        # All values are checked before one is set.
        values = {name: check(name, state[name]) for name, check in self.tunables.items()}
        try:
            self.generator.bit_generator.state = state["generator"]
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            generator_class = type(self.generator.bit_generator).__name__
            raise ValueError(f"state['generator'] is not the state of a {generator_class}: {error}") from error
        for name, value in values.items():
            super().__setattr__(name, value)
        super().__setattr__("assignments", self.assignments + 1)
