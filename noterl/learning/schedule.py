"""When updates and hard copies are due, in environment steps, episodes and gradient updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from noterl.utils.checks import check_int, check_int_or_word, check_word, whole


class Due(NamedTuple):
    """Gradient updates that are due after a tick of the loop, and whether a hard copy to the target precedes them."""

    updates: int
    target: bool


# What can be set during training, and the word that it may be instead of a number.
SETTABLE = {"batch_size": "rollout", "update_every": "episode", "updates": "pass"}
MOST_SAMPLED = 2**27  # transitions of a group: 1 GiB of indices


class UpdateSchedule:
    """When to update, and how often; `Agent.compile` documents the arguments.

    Attributes:
        compiled: the values of `batch_size`, `update_every` and `updates` before changes during training.

    Raises:
        ValueError: if an argument is not one of the allowed values.
    """

    def __init__(
        self,
        *,
        batch_size: int | str,
        learning_starts: float,
        update_every: float | str,
        updates: int | str,
        target_update: int | float | None,
        target_unit: str = "steps",
    ) -> None:
        rollout = isinstance(batch_size, str) and batch_size == "rollout"
        self.batch_size: Any = batch_size if rollout else check_int("batch_size", batch_size)
        self.learning_starts: int = check_int("learning_starts", whole(learning_starts), least=0)
        self.update_every: int | str = check_int_or_word("update_every", whole(update_every), "episode")
        self.updates = check_int_or_word("updates", updates, "pass")
        self.check_sampled("updates", self.updates)
        every, tau = _target(target_update)
        self.tau: float | None = tau
        counts_updates = check_word("target_unit", target_unit, ("steps", "updates")) == "updates"
        if counts_updates and not every:
            raise ValueError(
                "target_unit='updates' is for a target_update that is an int, the number of gradient updates between "
                f"hard copies, got target_update={target_update!r}"
            )
        self.hard_copy_every: int = 0 if counts_updates else every
        self.hard_copy_updates: int = every if counts_updates else 0
        # For `changes`, which compares the current values with these.
        self.compiled: dict[str, Any] = {name: getattr(self, name) for name in SETTABLE}

    def check_sampled(self, name: str, updates: Any) -> None:
        """Raise a ValueError if the argument `name` makes a group or a call of too many transitions."""
        size = 1 if isinstance(self.batch_size, str) else int(self.batch_size)
        if not isinstance(updates, str) and updates * size > MOST_SAMPLED:
            raise ValueError(
                f"{name} times batch_size must be at most {MOST_SAMPLED:,}, because the transitions are sampled "
                f"together; got {name}={updates} and batch_size={self.batch_size}"
            )

    def keep_ratio(self, default_every: int | str) -> None:
        """Reduce the default of `updates`, so that a smaller `update_every` does not raise the updates per step.

        `compile` calls this method if the user has not chosen `updates`.
        """
        updates = self.updates
        every = self.update_every
        if not isinstance(updates, str) and not isinstance(every, str) and not isinstance(default_every, str):
            self.updates = self.compiled["updates"] = min(updates, max(1, updates * every // default_every))

    def changes(self) -> dict[str, Any]:
        """Return what was set during training, by name."""
        values = {name: getattr(self, name) for name in SETTABLE if getattr(self, name) != self.compiled[name]}
        return {name: value if isinstance(value, str) else int(value) for name, value in values.items()}

    def set_changes(self, changes: Mapping[str, Any]) -> None:
        """Restore what `changes` returned.

        Raises:
            ValueError: if a name or a value is not one of the allowed ones.
        """
        for name, value in changes.items():
            check_int_or_word(name, value, SETTABLE[check_word("schedule", name, tuple(SETTABLE))])
        for name, value in {**self.compiled, **changes}.items():
            setattr(self, name, value)
        self.check_sampled("updates", self.updates)

    @property
    def polyak(self) -> bool:
        """Whether the target moves by Polyak averaging, every `target_period` gradient updates."""
        return self.tau is not None

    @property
    def updates_per_step(self) -> float | None:
        """Gradient updates per environment step; None if episodes or the size of the memory decide."""
        if isinstance(self.updates, str) or isinstance(self.update_every, str):
            return None
        return self.updates / self.update_every

    @property
    def description(self) -> str:
        """One line about how often updates are made."""
        ratio = "" if self.updates_per_step is None else f" ({self.updates_per_step:.3g} per step)"
        every = "episode" if isinstance(self.update_every, str) else f"{self.update_every:,} steps"
        return f"updates: {self.updates} every {every}{ratio}"

    def split(self, first: int, updates: int, size: int) -> list[slice]:
        """Return the parts of a group of updates: at most `size` each, and none beyond a hard copy that counts updates.

        Args:
            first: gradient updates before the group.
            updates: of the group.
            size: the largest number of updates in one compiled call.
        """
        slices = []
        start = 0
        while start < updates:
            end = min(start + size, updates)
            if self.hard_copy_updates:
                end = min(end, start + self.hard_copy_updates - (first + start) % self.hard_copy_updates)
            slices.append(slice(start, end))
            start = end
        return slices

    def steps_within(self, updates: int, step: int, most: int) -> int:
        """Return how many environment steps can follow before more than `updates` updates can be due.

        Args:
            updates: a number of updates.
            step: environment steps so far.
            most: updates of a group at the most, if a group is a pass over the memory.
        """
        groups = updates // (most if isinstance(self.updates, str) else self.updates)
        start = max(step, self.learning_starts)
        if isinstance(self.update_every, str):  # each step may end an episode
            return start - step + groups
        return (start // self.update_every + groups + 1) * self.update_every - 1 - step

    def due(self, before: int, after: int, ended: int, num_sampleable: Callable[[], int]) -> Due:
        """Return what is due as the environment steps go from `before` to `after`.

        Args:
            before: steps before the tick.
            after: steps after the tick.
            ended: episodes that ended in the tick.
            num_sampleable: counts the transitions that can be sampled. No update is due for less than a batch. The
                function is called only if updates are due by the steps or episodes, because counting may be slow.
        """
        every = self.hard_copy_every
        # A tick may be several steps, so a copy is due if a multiple of `every` is passed.
        target = bool(every) and after // every > before // every
        if after <= self.learning_starts:
            times = 0
        elif isinstance(self.update_every, str):
            times = ended
        else:
            times = after // self.update_every - max(before, self.learning_starts) // self.update_every
        count = num_sampleable() if times else 0
        if not times or count < self.batch_size:
            return Due(0, target)
        updates = math.ceil(count / self.batch_size) if isinstance(self.updates, str) else self.updates
        return Due(times * updates, target)


def _target(target_update: Any) -> tuple[int, float | None]:
    """Return `(number between hard copies, Polyak coefficient)`; 0 and None mean that there is none."""
    if target_update is None:
        return 0, None
    if isinstance(target_update, float | np.floating) and 0 < target_update < 1:
        return 0, float(target_update)
    steps = target_update if target_update == 1 else whole(target_update)  # 1.0 may be meant as either
    if isinstance(steps, int | np.integer) and not isinstance(steps, bool) and steps >= 1:
        return int(steps), None
    raise ValueError(
        "target_update must be an int (steps between hard copies, in target_unit) or a float between 0 and 1 (Polyak's "
        f"coefficient, applied after every update), got {target_update!r}"
    )
