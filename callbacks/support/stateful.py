"""Bases of callbacks whose state consists of attributes."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from noterl.callback import Callback
from noterl.types import Logs

from .monitor import Monitor


class StatefulCallback(Callback):
    """Base of callbacks that save some of their attributes.

    Attributes:
        saved: the names of these attributes. In the state, the names have no leading underscore.
    """

    saved: Sequence[str] = ()

    def get_state(self) -> dict[str, Any]:
        """Return copies of the attributes."""
        return {name.lstrip("_"): deepcopy(getattr(self, name)) for name in self.saved}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned; attributes that the state of an older version lacks stay unchanged."""
        for name in self.saved:
            if name.lstrip("_") in state:
                setattr(self, name, deepcopy(state[name.lstrip("_")]))


class MonitoringCallback(StatefulCallback):
    """Base of callbacks that compare the mean of a metric, whose values are part of the state."""

    takes_epochs = True
    _monitor: Monitor

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Add the metric of a complete episode to the mean."""
        if logs.get("complete", True):
            self._monitor.update(logs, self)

    def on_train_end(self, logs: Logs) -> None:
        """Warn if nothing was compared."""
        self._monitor.end(self)

    def get_state(self) -> dict[str, Any]:
        """Return the recent values and the attributes."""
        return {**self._monitor.get_state(), **super().get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self._monitor.set_state(state)
        super().set_state(state)
