"""When something is due that a callback does every so many episodes, steps, updates or seconds."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from noterl.utils.checks import check_number, check_positive, check_word

if TYPE_CHECKING:
    from noterl.agent import Agent

UNITS = ("episodes", "steps", "updates", "seconds")


class Cadence:
    """A frequency in one of four units; due once for every multiple that was reached or passed.

    Counts are the agent's totals, so that a run which is resumed keeps time with one that was never interrupted;
    seconds are those since `begin`.

    Args:
        name: what messages call the frequency.
        every: how many of the unit; a positive int, of seconds any positive number.
        unit: "episodes", "steps", "updates" or "seconds".

    Raises:
        ValueError: if an argument is not what it may be.

    Attributes:
        mark: the count that it counts from; None before it began.

    Example:
    >>> from types import SimpleNamespace
    >>> from noterl.callbacks.cadence import Cadence
    >>> cadence, agent = Cadence("every", 10, "steps"), SimpleNamespace(steps=0)
    >>> cadence.begin(agent)
    >>> for agent.steps in (9, 10, 11, 32, 39, 40):
    ...     print(cadence.due(agent), end=" ")
    False True False True False True
    """

    def __init__(self, name: str, every: float, unit: str) -> None:
        self.unit = check_word("unit", unit, UNITS)
        self.every: float = (
            check_number(name, every, low=0, above=True) if unit == "seconds" else check_positive(name, every)
        )
        self.mark: float | None = None

    def begin(self, agent: Agent) -> None:
        """Count from here; to be called when training begins."""
        self.mark = self._now(agent)

    def go_on(self, agent: Agent) -> None:
        """Count on from `mark`; to be called instead of `begin` by those who cannot look as soon as it is time.

        It counts from here where it never began, and where the agent is one that has not come that far.
        """
        if self.unit == "seconds" or self.mark is None or self.mark > self._now(agent):
            self.begin(agent)

    @property
    def saved_mark(self) -> float | None:
        """What a state holds of it: the mark, but no time of a clock that another process has not."""
        return None if self.unit == "seconds" else self.mark

    def due(self, agent: Agent) -> bool:
        """Say whether it is time, and if so count from here."""
        now, mark = self._now(agent), self.mark or 0
        if now - mark < self.every if self.unit == "seconds" else now // self.every == mark // self.every:
            return False
        self.mark = now
        return True

    def _now(self, agent: Agent) -> float:
        return perf_counter() if self.unit == "seconds" else getattr(agent, self.unit)
