"""The loop of updates on a data set: epochs take the place of episodes, and no environment is stepped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from noterl.learning.data_updates import DataUpdates
from noterl.training.loop import EventLoop
from noterl.utils.errors import run_all


@dataclass(eq=False)
class DataLoop(EventLoop):
    """One `fit` on a data set.

    Attributes:
        source: makes the groups of updates.
        updates_per_epoch: gradient updates of an epoch.
        validate: returns the loss on held-out data; None without such data.
    """

    _: KW_ONLY
    source: DataUpdates
    updates_per_epoch: int
    validate: Callable[[], float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.runner = self._make_runner(self.source)
        self._is_open = False  # whether an epoch has fired its begin event, but no end event
        every = [callback.every for callback in self.session.callbacks.callbacks if callback.every is not None]
        self._stops = [entry.count for entry in every if entry.unit == "updates" and entry.at != "episode"]

    def train(self) -> None:
        """Make groups of updates until training is finished."""
        self.fire_between(self.events.on_train_begin, {})
        self.guard.check()
        while not self._is_finished():
            if not self._is_open:
                if not self.counters.epoch_updates:
                    self.metrics.take()  # the means of earlier episodes do not belong to the epoch
                self._is_open = True
                self.fire_between(self.events.on_epoch_begin, self.counters.epochs, {})
                continue  # a hook may have ended training
            self._make_group()
            if self.counters.epoch_updates >= self.updates_per_epoch:
                self._end_epoch(complete=True)
            if self.events.on_step_end:
                self.fire_step_end()
            if self.gate.queue:
                self.gate.serve()
            self.guard.check()

    def close(self) -> None:
        """Fire the end event of an epoch in progress, which continues in the next fit."""
        if self._is_open:
            run_all(lambda: self._end_epoch(complete=False), self.guard.check)

    def _is_finished(self) -> bool:
        """Return whether training ends now, and set the reason in the history."""
        if self.stop.is_set:
            self.history.stop_reason = self.stop.reason
        elif self.counters.updates >= self.budget.last_update:
            self.history.stop_reason = "updates"
        else:
            return False
        return True

    def _make_group(self) -> None:
        """Run the next group of updates."""
        counters = self.counters
        if self.learner.algorithm._reads.in_place:
            self.learner.algorithm._reads.check()
        before = counters.updates
        # Schedules change at the same updates, also if callbacks divide a group.
        self.learner.updater.update_schedules(before - counters.epoch_updates % self.source.group)
        try:
            self.runner.run(self._group_size())
        finally:  # an update that is not finite ends a group early
            counters.epoch_updates += counters.updates - before
            counters.data_updates += counters.updates - before

    def _group_size(self) -> int:
        """Return the size of the next group.

        Groups end at the same updates in each run. Callbacks that act between updates may only divide them if this does
        not change the batches.
        """
        counters = self.counters
        group = self.source.group
        ends = [
            self.budget.last_update - counters.updates,
            self.updates_per_epoch - counters.epoch_updates,
            group - counters.epoch_updates % group,
        ]
        if self.source.is_divisible:
            ends += [count - counters.updates % count for count in self._stops]
        return max(1, int(min(ends)))

    def _end_epoch(self, *, complete: bool) -> None:
        """Fire the end of an epoch; `complete` is False if the epoch continues in the next fit."""
        counters = self.counters
        number = counters.epochs
        self._is_open = False
        if complete:
            counters.epochs += 1
            counters.epoch_updates = 0
        logs = self.with_metrics({}, complete)
        if complete and self.validate is not None:
            logs["validation_loss"] = self.validate()
        self.fire_between(self.events.on_epoch_end, number, {**logs, "complete": complete})
