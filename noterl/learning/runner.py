"""Groups of gradient updates and the batch hooks, for `fit` and `pretrain`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from noterl import backends
from noterl.backends.common import GroupResult, NonFiniteError
from noterl.callback import Handlers
from noterl.learning.schedule import UpdateSchedule
from noterl.learning.update import NO_VALUE
from noterl.types import Counters, Logs, StopRequest
from noterl.utils.errors import keep_first_error


class UpdateSource(ABC):
    """Where the groups of updates come from: a `Learner`, or the `Cloning` of an agent.

    Attributes:
        schedule: splits groups into compiled calls.
        memory: receives the feedback of `memory.feedback_fields`; None for no feedback.
    """

    schedule: UpdateSchedule
    memory: Any = None

    @abstractmethod
    def call_size(self, updates: int) -> int:
        """Return how many updates of a group run in one compiled call."""

    @abstractmethod
    def sample(self, updates: int) -> Any:
        """Sample the transitions of a group of updates; the result can be sliced by updates."""

    @abstractmethod
    def batches(self, samples: Sequence[Any], size: int) -> AbstractContextManager[Iterator[Any]]:
        """Return a context manager that yields an iterator over the batches of each part of a sample.

        `update` receives these batches. The batches of a part with fewer updates are padded to `size` updates.
        """

    @abstractmethod
    def update(self, batch: Any, count: int) -> GroupResult:
        """Make the first `count` updates of `batch` in one compiled call."""


@dataclass(eq=False)
class UpdateRunner:
    """Makes groups of updates, counts the updates and calls the batch hooks; a loop has one for its `fit`.

    Attributes:
        source: where the groups come from.
        counters: `updates` is incremented.
        stop: whether a hook has ended training.
        on_batch_begin: the handlers of this event.
        on_batch_end: the handlers of this event.
        fire: calls the handlers of an event: `fire(handlers, *args)`; needed if there are handlers.
        receive: called with the result of each compiled call, before the call's hooks.
        before_call: called before each compiled call, with whether the call is the first one of a group.
        after_call: called with the result of each compiled call, after the call's hooks.
        logs_of_update: returns the logs of one update from its number and the logs of the call; by default all logs.
        is_live: whether each update runs alone, between the hooks of begin and end.
        clock: a dict to which the seconds of "sample" and "learn" are added.
    """

    source: UpdateSource
    counters: Counters
    stop: StopRequest
    _: KW_ONLY
    on_batch_begin: Handlers = ()
    on_batch_end: Handlers = ()
    fire: Callable[..., None] = lambda *arguments: None
    receive: Callable[[GroupResult], None] = lambda result: None
    before_call: Callable[[bool], None] | None = None
    after_call: Callable[[GroupResult], None] | None = None
    logs_of_update: Callable[[int, Logs], Logs] | None = None
    is_live: bool = False
    clock: dict[str, float] = field(default_factory=lambda: {"sample": 0.0, "learn": 0.0})

    def run(self, updates: int) -> None:
        """Run a group of updates: sample all batches, update in as few calls as possible, and feed back the results.

        Raises:
            NonFiniteError: if an update is not finite and no hook has ended training.
        """
        source = self.source
        # Live updates are single calls, so that hooks act between them.
        size = 1 if self.is_live else source.call_size(updates)
        started = perf_counter()
        sample = source.sample(updates)
        self.clock["sample"] += perf_counter() - started
        calls = source.schedule.split(self.counters.updates, updates, size)
        samples = [sample[updates_of_call] for updates_of_call in calls]
        results: list[GroupResult] = []
        failed = False
        with source.batches(samples, size) as batches:
            for part in samples:
                result = self._call(batches, len(part), is_first=not results)
                results.append(result)
                if result.applied < len(part):
                    failed = not result.stopped_early  # not finite, and a callback ended training
                    break
        if not failed and source.memory is not None and source.memory.feedback_fields:
            self._feed_back(sample, results)

    def _call(self, batches: Iterator[Any], count: int, is_first: bool) -> GroupResult:
        """Run `count` updates on the next batches in one compiled call; further batches in the call are padding."""
        started = perf_counter()
        batch = next(batches)
        self.clock["sample"] += perf_counter() - started
        try:
            # Other updates fire their begin events after the call; see `report`.
            if self.is_live:
                self.fire(self.on_batch_begin, self.counters.updates, {})
            started = perf_counter()
            if self.before_call is not None:
                self.before_call(is_first)
            result = self.source.update(batch, count)
        except BaseException as error:
            if self.is_live:
                with keep_first_error(error):
                    self.fire(self.on_batch_end, self.counters.updates, {})
            raise
        self.clock["learn"] += perf_counter() - started
        self.receive(result)
        try:
            self.report(result, count)
        finally:  # also if a hook raises, because the updates have been made
            if self.after_call is not None:
                self.after_call(result)
        return result

    def report(self, result: GroupResult, count: int) -> None:
        """Count the updates of a call and fire the hooks of these updates.

        Args:
            result: of the call.
            count: how many updates were requested.

        Raises:
            NonFiniteError: if an update is not finite and no hook has ended training.
        """
        counters = self.counters
        first = self.counters.updates
        was_stopped = self.stop.is_set
        try:
            if self.on_batch_begin or self.on_batch_end:
                # An update that was not finite is reported too. One that `stop_epochs` has undone is reported only if
                # it is live, because its begin event has fired already.
                reported = result.applied + (self.is_live or not result.stopped_early)
                self._fire_batches(result, min(reported, count))
        finally:  # also if a hook raises, because the updates have been made
            counters.updates = first + result.applied
        if result.applied < count and not result.stopped_early and (was_stopped or not self.stop.is_set):
            loss = float(backends.current().fetch(result.logs["loss"])[result.applied])
            raise NonFiniteError(loss, update=counters.updates, step=counters.steps)

    def _fire_batches(self, result: GroupResult, count: int) -> None:
        """Fire the batch hooks of a call, each with the values of one update."""
        first = self.counters.updates
        values = {name: backends.current().fetch(value).tolist() for name, value in result.logs.items()}
        for k in range(count):
            self.counters.updates = first + k
            logs = {name: column[k] for name, column in values.items()}
            if self.logs_of_update is not None:
                logs = self.logs_of_update(first + k, logs)
            self._fire_batch(k < result.applied, logs)

    def _fire_batch(self, applied: bool, logs: Logs) -> None:
        """Fire the hooks of one update, and count the update between begin and end if it was applied."""
        number = self.counters.updates
        try:
            if not self.is_live:
                self.fire(self.on_batch_begin, number, {})
        except BaseException as error:
            # Each begin event has its end event.
            with keep_first_error(error):
                self.fire(self.on_batch_end, number, logs)
            raise
        self.counters.updates += applied
        self.fire(self.on_batch_end, number, logs)

    def _feed_back(self, sample: Any, results: Sequence[GroupResult]) -> None:
        """Give the memory the feedback of a whole group of updates in one call."""
        memory = self.source.memory
        fetch = backends.current().fetch
        # A call of fewer updates than usual is padded, and so is its feedback.
        values = {
            name: np.concatenate([fetch(result.feedback[name])[: result.applied] for result in results])
            for name in memory.feedback_fields
        }
        # Memories skip NaN.
        memory.feedback(sample, {name: np.where(value == NO_VALUE, np.nan, value) for name, value in values.items()})
