"""When something is due that a callback does every so many episodes, steps, updates or seconds."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from noterl.checks import check_number, check_positive, check_word

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
        self._mark: float = 0

    def begin(self, agent: Agent) -> None:
        """Count from here; to be called when training begins."""
        self._mark = self._now(agent)

    def due(self, agent: Agent) -> bool:
        """Say whether it is time, and if so count from here."""
        now = self._now(agent)
        if now - self._mark < self.every if self.unit == "seconds" else now // self.every == self._mark // self.every:
            return False
        self._mark = now
        return True

    def _now(self, agent: Agent) -> float:
        return perf_counter() if self.unit == "seconds" else getattr(agent, self.unit)
