"""What callbacks share that change an agent by what they measure."""

from __future__ import annotations

import math
from typing import Any

from noterl.callback import Callback
from noterl.types import Logs
from noterl.utils.checks import check_number

from .adjustables import QUANTITIES, Rate, Scale, Values
from .cadence import Cadence


class Adapting(Callback):
    """Measures, compares with a target, and moves what it was given by the ratio; a base class.

    What may be adjusted, and which way it goes as the measure's ratio to its target rises above 1 (- where it does not
    follow that measure):

    | name | by | effective sample size | gradient noise |
    | --- | --- | --- | --- |
    | `batch` (transitions) | `Scale` | more | more |
    | `update_every` (environment steps between groups) | `Scale` | fewer | more |
    | `updates` (in a group) | `Scale` | more | - |
    | `collect` (as `update_every`, and fewer the fuller the memory) | `Scale` | fewer | - |
    | `alpha` (of prioritized sampling) | `Rate` | up | down |
    | `lr` (of every optimizer), `tau` (Polyak), `gamma`, `clip` | `Rate` | up | down |
    | `eps` (of the policy), `weight_decay`, `beta` (the agent's, else the sampler's) | `Rate` | down | up |
    | `beta1`, `beta2` (of every optimizer) | `Rate` | up | up |

    Every value is clipped, stands in the episodes' logs under its name (`lr/<optimizer>` where there are several), and
    holds on when training ends. Formulas: Note_rl, `adjust_*`.

    Attributes:
        ema: the smoothed measure, None before the first look.
        ratio: the smoothed measure over its target at the last look.
    """

    measure = ""  # what the measure is called in logs
    follows = ""  # which column of the table

    def __init__(self, smooth: float, every: float, unit: str, adjusted: dict[str, Any]) -> None:
        self.smooth = check_number("smooth", smooth, low=0, high=1, above=True)
        self._cadence = Cadence("every", every, unit)
        self._adjusted = {name: how for name, how in adjusted.items() if how is not None}
        for name, how in self._adjusted.items():
            self._check(name, how)
        if {"collect", "update_every"} <= self._adjusted.keys():
            raise ValueError("collect and update_every move the same number: adjust one of them")
        self.adds = (self.measure, f"{self.measure}_ratio")
        self.ema: float | None = None
        self.ratio: float | None = None
        self._last: float | None = None
        self._values: dict[str, Values] = {}  # not rounded
        self._first: dict[str, Values] = {}
        if unit != "episodes":
            self.between_steps = self._look  # type: ignore[method-assign]

    def _check(self, name: str, how: Any) -> None:
        known = [other for other, quantity in QUANTITIES.items() if getattr(quantity, self.follows)]
        if name not in known:
            raise ValueError(f"{type(self).__name__} adjusts {', '.join(known)}; got {name!r}")
        wanted = Scale if QUANTITIES[name].scaled else Rate
        if not isinstance(how, wanted):
            raise ValueError(f"{name} must be a {wanted.__name__}, got {how!r}")

    def measured(self) -> float | None:
        """Measure; None if there is nothing to measure yet."""
        raise NotImplementedError

    def smoothed(self, new: float, old: float | None) -> float:
        """Return the moving average that follows."""
        return new if old is None else self.smooth * new + (1.0 - self.smooth) * old

    def target(self) -> float:
        """Return what the smoothed measure is compared with."""
        raise NotImplementedError

    def on_train_begin(self, logs: Logs) -> None:
        """Begin."""
        self.begin(logs)

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Look if it is time, and log."""
        self.look(logs)

    def begin(self, logs: Logs) -> None:
        """Find out whether everything can be adjusted, and go on with the values of a run that was restored."""
        self._cadence.go_on(self.agent)
        for name, how in self._adjusted.items():
            quantity = QUANTITIES[name]
            present = quantity.read(self.agent)
            if name not in self._first:
                self._first[name] = self._values[name] = present
            if quantity.scaled:
                (first,) = self._first[name].values()
                self._adjusted[name] = how.fit(int(first), batch=name == "batch")
            self._write(name)

    def look(self, logs: Logs) -> None:
        """Look if it is time, before others save what there is; log what was measured and what holds now."""
        if not logs.get("complete", True):
            return
        self._look()
        if self._last is not None:
            logs[self.measure] = self._last
            logs[f"{self.measure}_ratio"] = self.ratio
        for name in self._adjusted:
            logs.update(self._settled(name))

    def _look(self) -> None:
        """Measure and adjust, if it is time."""
        if not self._cadence.due(self.agent):
            return
        measured = self.measured()
        if measured is None or not math.isfinite(measured):
            return
        self._last = measured
        self.ema = self.smoothed(measured, self.ema)
        target = self.target()
        self.ratio = self.ema / target if target > 0 else math.inf
        if math.isfinite(self.ratio):
            for name in self._adjusted:
                self._adjust(name, self.ratio)

    def _adjust(self, name: str, ratio: float) -> None:
        quantity, how = QUANTITIES[name], self._adjusted[name]
        direction = getattr(quantity, self.follows)
        if name == "collect":
            room = 1.0 - len(self.agent.replay) / self.agent.replay.capacity
            ratio = ratio / room if room > 0 else ratio
        self._values[name] = {part: how.next(value, ratio, direction) for part, value in self._values[name].items()}
        self._write(name)

    def _reset(self) -> None:
        """Bring everything back to its first value."""
        for name in self._adjusted:
            self._values[name] = dict(self._first[name])
            self._write(name)

    def _settled(self, name: str) -> Values:
        how, values = self._adjusted[name], self._values[name]
        if isinstance(how, Scale):
            return {part: how.rounded(value, batch=name == "batch") for part, value in values.items()}
        return values

    def _write(self, name: str) -> None:
        QUANTITIES[name].write(self.agent, self._settled(name))

    def get_state(self) -> dict[str, Any]:
        """Return what was measured, and the values now and at first."""
        return {
            "ema": self.ema,
            "ratio": self.ratio,
            "last": self._last,
            "mark": self._cadence.saved_mark,
            "values": {name: dict(values) for name, values in self._values.items()},
            "first": {name: dict(values) for name, values in self._first.items()},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state` returned."""
        self.ema, self.ratio, self._last = state["ema"], state["ratio"], state["last"]
        self._cadence.mark = state["mark"]
        self._values = {name: dict(values) for name, values in state["values"].items() if name in self._adjusted}
        self._first = {name: dict(values) for name, values in state["first"].items() if name in self._adjusted}
