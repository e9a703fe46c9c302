"""The base class of callbacks that adapt an agent to a measured quantity."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from noterl.callback import Every
from noterl.replay import Replay
from noterl.types import Logs
from noterl.utils.checks import check_number
from noterl.utils.words import explain_name

from .stateful import StatefulCallback
from .tunables import TUNABLES, Rate, Scale, Values


class AdaptiveCallback(StatefulCallback):
    """Base class: measure a quantity, compare it with a target, and adapt tunables by the ratio.

    A tunable is a number of the agent that may change during training. The table shows how each one changes if the
    ratio of the measured quantity to the target is above 1. A dash means that the tunable does not depend on that
    quantity.

    | name | by | effective sample size | gradient noise |
    | --- | --- | --- | --- |
    | `batch` (transitions) | `Scale` | more | more |
    | `update_every` (environment steps between groups) | `Scale` | fewer | more |
    | `updates` (in a group) | `Scale` | more | - |
    | `collect` (as `update_every`, times 1 - N / capacity until the memory is full) | `Scale` | fewer | - |
    | `alpha` (of prioritized sampling) | `Rate` | up | down |
    | `lr` (of every optimizer), `tau` (Polyak), `gamma`, `clip` | `Rate` | up | down |
    | `eps` (of the policy), `weight_decay`, `beta` (the agent's, else the sampler's) | `Rate` | down | up |
    | `beta1`, `beta2` (of every optimizer) | `Rate` | up | up |

    Every value is clipped to the bounds. `batch` does not exceed the number of transitions that the memory can sample
    or a rollout has, unless the first value does. If the policy anneals epsilon, `eps` is the value at the end: `end`
    of `LinearEpsGreedyPolicy`, `min_eps` of `AdaptiveEpsGreedyPolicy`. The logs of each episode hold each value under
    the name of the tunable, or under `lr/<optimizer>` if there are several optimizers. The values stay when training
    ends. The formulas are those of `adjust_*` in Note_rl.

    Attributes:
        ema: the moving average of the measured quantity; None before the first measurement.
        ratio: the moving average divided by the target, at the last measurement.
    """

    saved: Sequence[str] = ("ema", "ratio", "_last", "_values", "_first", "_room")
    measure = ""  # the name of the measured quantity in logs
    follows = ""  # the column of the table, a field of `Tunable`

    def __init__(self, smooth: float, every: float, unit: str, adjusted: dict[str, Any]) -> None:
        self.smooth: float = check_number("smooth", smooth, low=0, high=1, above=True)
        self.every: Every = Every(every, unit, at="both", name="every")
        self._adjusted = {name: how for name, how in adjusted.items() if how is not None}
        self._given = dict(self._adjusted)  # without the defaults, which depend on the agent
        supported = [name for name, tunable in TUNABLES.items() if getattr(tunable, self.follows)]
        for name, how in self._adjusted.items():
            if name not in supported:
                raise ValueError(f"{type(self).__name__} does not adapt {name!r}: {explain_name(name, supported)}")
            rule = Scale if TUNABLES[name].is_count else Rate
            if not isinstance(how, rule):
                raise ValueError(f"{name} must be a {rule.__name__}, got {how!r}")
        if {"collect", "update_every"} <= self._adjusted.keys():
            raise ValueError("collect and update_every change the same number: give one of them")
        self.adds: tuple[str, ...] = (self.measure, f"{self.measure}_ratio")
        self.ema: float | None = None
        self.ratio: float | None = None
        self._last: float | None = None
        self._values: dict[str, Values] = {}  # not rounded
        self._first: dict[str, Values] = {}
        self._room = 0  # transitions that the memory had room for when "collect" was last set

    def _largest_batch(self, least: int) -> int:
        """Return the largest batch that the memory will be able to sample.

        Raises:
            ValueError: if that batch is smaller than `least`, the bound of the batch.
        """
        replay = self.agent.replay
        limit = "the transitions of a rollout"
        most = self.agent.largest_batch(sys.maxsize) if self.agent.memory == "rollout" else sys.maxsize
        if isinstance(replay, Replay) and replay.capacity < most:
            most = replay.capacity
            limit = "the capacity of the replay memory"
        if least > most:
            raise ValueError(f"min of batch must be at most {limit}, {most}, got {least}")
        return most

    def _measure(self) -> float | None:
        """Return the measured quantity; None if there is nothing to measure yet."""
        raise NotImplementedError

    def _average(self, new: float, old: float | None) -> float:
        """Return the next moving average."""
        return new if old is None else self.smooth * new + (1.0 - self.smooth) * old

    def _target(self) -> float:
        """Return the target, by which the moving average is divided."""
        raise NotImplementedError

    def on_train_begin(self, logs: Logs) -> None:
        """Check that the agent has every tunable, and set the values of an earlier fit or a restored run."""
        for name, how in self._given.items():
            tunable = TUNABLES[name]
            present = tunable.read(self.agent)
            # The first value stays the reference for later fits and restored runs, so it is read only once.
            if name not in self._first:
                self._first[name] = self._values[name] = present
                if name == "collect":
                    self._read_free_room()
            if tunable.is_count:
                (first,) = self._first[name].values()
                most = self._largest_batch(how.min or 1) if name == "batch" else None
                self._adjusted[name] = how.with_defaults(int(first), largest_batch=most)
            self._write(name)

    takes_epochs = True

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Log the last measurement and the current values."""
        if logs.get("complete", True):
            self._log(logs)

    def on_due(self, logs: Logs) -> bool | None:
        """Measure, adapt and log."""
        self._adapt(self._measure())
        self._log(logs)
        return None

    def _adapt(self, measured: float | None) -> None:
        """Update `ema` and `ratio` by a measurement, and adapt every tunable; None limits only the batch."""
        if "batch" in self._adjusted and self._limit_batch():
            self._write("batch")
        if measured is None or not math.isfinite(measured):
            return
        self._last = measured
        self.ema = self._average(measured, self.ema)
        target = self._target()
        self.ratio = self.ema / target if target > 0 else math.inf
        # A target of 0 has no ratio to adapt by; the values then stay.
        if math.isfinite(self.ratio):
            for name in self._adjusted:
                self._adjust(name, self.ratio)

    def _log(self, logs: Logs) -> None:
        """Add the last measurement, the ratio and the current values."""
        if self._last is not None:
            logs[self.measure] = self._last
            logs[f"{self.measure}_ratio"] = self.ratio
        for name in self._adjusted:
            logs.update(self._rounded(name))

    def _adjust(self, name: str, ratio: float) -> None:
        """Change one tunable by the ratio of what the callback measures, and set the new value in the agent."""
        tunable = TUNABLES[name]
        how = self._adjusted[name]
        direction = getattr(tunable, self.follows)
        self._values[name] = {part: how.next(value, ratio, direction) for part, value in self._values[name].items()}
        if name == "batch":
            self._limit_batch()
        elif name == "collect":
            self._read_free_room()
        self._write(name)

    def _limit_batch(self) -> bool:
        """Limit the batch to what the memory can sample, or to a larger first size; return whether the size changed.

        Without this limit, no update could run while the batch is larger than the memory.
        """
        ((part, size),) = self._values["batch"].items()
        # A first size above the limit was the user's choice, and stays allowed.
        most = max(self.agent.largest_batch(math.ceil(size)), self._first["batch"][part])
        self._values["batch"] = {part: min(size, most)}
        return most < size

    def _reset(self) -> None:
        """Set every tunable to the first value."""
        for name in self._adjusted:
            self._values[name] = dict(self._first[name])
            self._write(name)

    def _read_free_room(self) -> None:
        self._room = self.agent.replay.capacity - len(self.agent.replay)

    def _rounded(self, name: str) -> Values:
        """Return the values of a tunable as the agent gets them: counts as ints, "collect" times the free share."""
        how = self._adjusted[name]
        values = self._values[name]
        if name == "collect" and self._room > 0:  # not in the values, so that it is not applied again to the next one
            values = {part: value * self._room / self.agent.replay.capacity for part, value in values.items()}
        if isinstance(how, Scale):
            return {part: how.rounded(value, batch=name == "batch") for part, value in values.items()}
        return values

    def _write(self, name: str) -> None:
        TUNABLES[name].write(self.agent, self._rounded(name))

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned, for the tunables that the script adapts now."""
        super().set_state(state)
        for values in (self._values, self._first):
            for name in values.keys() - self._adjusted.keys():
                del values[name]
