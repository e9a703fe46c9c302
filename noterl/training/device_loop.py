"""The training loop for environments of JAX: many rollouts and their updates run in one call on the device.

The hooks of a call run after it, in the order of `Loop`, each with its event's own values. The agent's steps and
weights are those at the end of the call; its episodes and updates count the events whose hooks have been called. A stop
and the end of a budget of episodes take effect at the end of the call.
"""

from __future__ import annotations

import math
from time import perf_counter
from typing import Any

import numpy as np

from noterl.backends.common import GroupResult
from noterl.collect.device import DeviceLanes, PendingEvents
from noterl.learning import device
from noterl.learning.rollout_learner import RolloutLearner
from noterl.training.loop import Loop
from noterl.types import Logs


class DeviceLoop(Loop):
    """One `fit` with environments of JAX; the attributes are those of `Loop`."""

    lanes: DeviceLanes
    learner: RolloutLearner

    def __post_init__(self) -> None:
        super().__post_init__()
        # The hooks of an update run after its call in any case.
        self._is_single, self.live = self.live, False
        self.clock["device"] = 0.0
        self._schedules = device.scheduled(self.learner)
        self._own_steps: int | None = None
        self._cut: int | None = None  # the number of the episode after which the events of a call no longer count
        self.program: Any = None

    def _train(self) -> None:
        started = perf_counter()
        self.program = device.find_program(self.learner, self.lanes.source)
        self.lanes.open(self.program, self.learner)
        self.clock["device"] += perf_counter() - started
        super()._train()

    def _is_finished(self) -> bool:
        finished = super()._is_finished()
        if finished and self._cut is not None:
            self.history.stop_reason = f"{self.history.stop_reason} (at episode {self._cut})"
        return finished

    def _begin_round(self) -> bool:
        """Start the episodes of idle lanes; return whether a call follows."""
        for lane in self.lanes.idle():
            self._begin_episode(lane)
        self.guard.check()
        return not self._is_finished()

    def _begin_episode(self, lane: int) -> None:
        number = self.counters.episodes_begun
        self.lanes.ledger.begin(lane, number)
        self.counters.episodes_begun += 1
        self._open[lane] = None
        self._fire(self.events.on_episode_begin, number, {})

    def _tick(self) -> None:
        """Make one call on the device, and call the hooks of its events."""
        # A callback may have changed the size of minibatches.
        self.program = device.find_program(self.learner, self.lanes.source)
        lanes, program, counters = self.lanes, self.program, self.counters
        begin, size = lanes.position, self.program.size
        rollouts = 1 if self._is_single else program.rollouts
        end = int(min(rollouts * size, begin + self.budget.last_step - counters.steps))
        first_step = counters.steps - begin
        steps = [first_step + size * (number + 1) for number in range(program.rollouts)]
        started = perf_counter()
        with self.guard.critical():
            scheduled = device.scheduled_values(self._schedules, steps)
            lanes.carry, report = program(lanes.carry, begin, end, scheduled)
            learned = end // size
            failed = [k for k in range(learned) if report.applied[k] < program.updates and not report.stopped[k]]
            if failed:
                learned, end = failed[0] + 1, (failed[0] + 1) * size
            lanes.position = end % size
            counters.steps = first_step + end
            lanes.pending = self._pending(report, first_step, end, learned)
            if learned:
                self.learner.update_schedules(steps[learned - 1])
            self.actor.mark_stale()
        self.clock["device"] += perf_counter() - started
        self._end_episodes()

    def _pending(self, report: Any, first_step: int, end: int, learned: int) -> PendingEvents:
        """Return the events of a call."""
        ends = np.flatnonzero(report.ended)
        returns, lengths = (np.asarray(value) for value in (report.returns, report.lengths))
        carry = self.lanes.carry
        return PendingEvents(
            first_step,
            end,
            ends,
            returns.reshape(-1)[ends].astype(np.float64) + report.rests.reshape(-1)[ends],
            lengths.reshape(-1)[ends].astype(np.int64),
            np.array(report.applied[:learned], np.int64),
            np.array(report.stopped[:learned]),
            {name: np.array(values[:learned]) for name, values in report.logs.items()},
            np.asarray(carry.returns, np.float64) + np.asarray(carry.rests),
            np.asarray(carry.lengths, np.int64),
        )

    def _end_episodes(self) -> None:
        """Call the hooks of the events that are pending; a restored run continues after those that it has called."""
        events = self.lanes.pending
        if events is None:
            return
        size, num_envs = self.program.size, self.lanes.num_envs
        while True:
            end = int(events.ends[events.next_end]) if events.next_end < len(events.ends) else math.inf
            learn = (events.next_learn + 1) * size - 1 if events.next_learn < len(events.applied) else math.inf
            position = min(end, learn, events.last - 1)
            if events.next_end and events.ends[events.next_end - 1] // num_envs < position // num_envs:
                for lane in self.lanes.idle():
                    self._begin_episode(lane)
            if position == learn:
                self._report_learned(events)
            elif position == end:
                self._end_on_device(events, int(end))
            else:
                break
        ledger = self.lanes.ledger
        for lane, running in enumerate(ledger.running):
            if running:
                ledger.returns[lane] = float(events.returns_after[lane])
                ledger.lengths[lane] = int(events.lengths_after[lane])
        self.lanes.pending = self._own_steps = None

    def _report_learned(self, events: PendingEvents) -> None:
        """Count the updates on a rollout and call their hooks; raise if one is not finite."""
        number = events.next_learn
        events.next_learn += 1
        logs = {name: values[number] for name, values in events.logs.items()}
        result = GroupResult(logs, {}, int(events.applied[number]), bool(events.stopped[number]))
        self.metrics.add(result.logs, result.applied)
        self._report_updates(result, len(result.logs["loss"]))

    def _end_on_device(self, events: PendingEvents, position: int) -> None:
        """Count an episode and fire its end; if training has ended before it, it is not complete and does not count."""
        number, lane, ledger = events.next_end, position % self.lanes.num_envs, self.lanes.ledger
        events.next_end += 1
        ledger.returns[lane], ledger.lengths[lane] = float(events.returns[number]), int(events.lengths[number])
        ledger.finish(lane)
        self._own_steps = events.first_step + position + 1
        complete = self._cut is None
        self.counters.episodes += complete
        self._fire_episode_end(lane, complete)
        if complete and (self.stop.is_set or self.counters.episodes >= self.budget.last_episode):
            self._cut = ledger.numbers[lane]

    def _episode_logs(self, lane: int, complete: bool) -> Logs:
        logs = super()._episode_logs(lane, complete)
        return logs if self._own_steps is None else {**logs, "steps": self._own_steps}
