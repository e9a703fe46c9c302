"""The means of the scalars that updates log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noterl import backends
from noterl.learning.update import NO_VALUE


class MetricMeans:
    """The mean of each scalar that updates log, since the last call of `take`; the session has one for all fits.

    Values are fetched from the device at the next read, or after 1,000 calls of `add`. An update that logs NaN, or
    does not log a metric, is left out of the mean of this metric.
    """

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._sums: dict[str, list[Any]] = {}  # name -> [sum, number of values]
        self._pending: list[tuple[Mapping[str, Any], int]] = []

    def add(self, logs: Mapping[str, Any], count: int) -> None:
        """Add the values of the first `count` updates of a call, `[K]` by name; other arrays are ignored."""
        self._pending.append((logs, count))
        # A bound on the arrays that stay on the device.
        if len(self._pending) >= 1000:
            self._fetch()

    def take(self) -> dict[str, float]:
        """Return the means since the last call, and begin new ones; a metric without a new value keeps its last mean.

        The loops call this method at the end of complete episodes and epochs, and `peek` for incomplete ones.
        """
        self._last = self.peek()
        self._sums = {}
        return self._last

    def peek(self) -> dict[str, float]:
        """Return what `take` would return, and continue the means."""
        self._fetch()
        return {**self._last, **{name: total / count for name, (total, count) in self._sums.items()}}

    def _fetch(self) -> None:
        """Fetch the values that are still on the device, and add the values to the sums."""
        fetch = backends.current().fetch
        for logs, count in self._pending:
            for name, values in logs.items():
                if values.ndim != 1:
                    continue
                # Values are added one by one, so that the grouping of updates does not change the rounding.
                for value in fetch(values)[:count].tolist():
                    if value == value and value != NO_VALUE:  # not NaN; half the time of math.isnan
                        entry = self._sums.setdefault(name, [0.0, 0])
                        entry[0] += value
                        entry[1] += 1
        self._pending.clear()

    def get_state(self) -> dict[str, Any]:
        """Return the state."""
        self._fetch()
        return {"last": dict(self._last), "sums": {name: list(entry) for name, entry in self._sums.items()}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self._pending.clear()
        self._last = dict(state["last"])
        self._sums = {name: list(entry) for name, entry in state["sums"].items()}
