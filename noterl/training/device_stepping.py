"""The steps in environments of JAX: many steps and updates run in one call on the device.

The hooks of a call run after the call, in the order of `Loop`, each with the values of one event. The agent's steps and
weights are already the ones at the end of the call; the agent's episodes and updates count the events whose hooks have
been called. A stop and the end of a budget of episodes take effect at the end of the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from noterl.backends.common import GroupResult, NonFiniteError
from noterl.backends.on_device import Carry, DeviceProgram, MemberCall, Members
from noterl.backends.reads import Reads
from noterl.collect.device import DeviceLanes
from noterl.learning.device_runner import find_runner
from noterl.training.loop import Loop, Stepping
from noterl.types import CallEvents, Logs
from noterl.utils.errors import run_all


class DeviceStepping(Stepping):
    """Makes the calls of a loop with environments of JAX, each of which is a tick."""

    lanes: DeviceLanes

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self._is_single = loop.runner.is_live  # whether a call makes one iteration only; see `_next_call`
        # The runner only reports the updates of a call, so the hooks of an update run after the call in any case.
        loop.runner.is_live = False
        self._own_steps: int | None = None  # environment steps at the last end in a call; None after the call's hooks
        self._counted: int | None = None  # the number of the last episode that counts
        self._cut: float = math.inf  # from this position on (see `CallEvents`), the ends of the last call do not count
        self.device_runner: Any = None

    def find_runner(self) -> Any:
        """Return the runner of the learner for the lanes."""
        return find_runner(self.learner, self.actor, self.lanes.source, self.lanes.num_envs)

    def begin(self) -> None:
        """Start the environments on the device, or continue the episodes in flight."""
        started = perf_counter()
        self.learner.discard_rollout()  # of the host, which the calls' updates would make off-policy
        self.device_runner = self.find_runner()
        self.lanes.open(self.device_runner, self.learner)
        self.loop.clock["device"] += perf_counter() - started

    def is_finished(self) -> bool:
        """Return whether training ends now; the reason names the last episode that counts."""
        finished = super().is_finished()
        history = self.loop.history
        if finished and self._cut < math.inf and self._counted is not None:
            history.stop_reason = f"{history.stop_reason} (at episode {self._counted})"
        return finished

    def begin_round(self) -> bool:
        """Start the episodes of idle lanes; return whether a call follows."""
        self._begin_idle()
        self.loop.guard.check()
        return not self.is_finished()

    def _begin_idle(self) -> None:
        """Number the episodes that the device has started in idle lanes, and fire the begins."""
        for lane in self.lanes.idle():
            number = self.next_number()
            self.lanes.reset(lane, number, self.counters.steps)
            self.counters.episodes_begun += 1
            self.loop.fire_episode_begin(lane, number)

    def tick(self) -> None:
        """Make one call on the device, which sets the agent's weights, and call the hooks of the call's events."""
        arguments = self._next_call()  # first, because it may replace `device_runner`
        started = perf_counter()
        result = self.device_runner.call(*arguments)
        self.loop.clock["device"] += perf_counter() - started
        self._receive_call(*result)

    def _next_call(self) -> tuple[Any, int, int, int]:
        """Prepare the next call: discard a rollout of other weights, and return the arguments of the runner's `call`.

        Returns:
            the carry, the positions at which the call begins and ends, and the environment steps before the rollout.
        """
        # A callback may have changed the size of minibatches.
        self.device_runner = self.find_runner()
        self._cut = math.inf
        lanes = self.lanes
        runner = self.device_runner
        counters = self.counters
        if self.learner.discard_old_rollout() and lanes.position:
            lanes.carry = runner.adopt(lanes.carry)
            lanes.position = 0
        # A callback that acts between updates gets one iteration per call.
        begin = lanes.position
        iterations = 1 if self._is_single else runner.program.iterations
        end = int(min(iterations * runner.program.size, begin + self.budget.last_step - counters.steps))
        return lanes.carry, begin, end, counters.steps - begin

    def _receive_call(self, carry: Carry, events: CallEvents) -> None:
        """Call the hooks of the events of a call."""
        lanes = self.lanes
        lanes.carry = carry
        lanes.position = events.last % self.device_runner.program.size
        self.counters.steps = events.first_step + events.last
        lanes.pending = events
        self.actor.mark_stale()
        self.end_episodes()

    def begin_call(self) -> bool:
        """Start the episodes of idle lanes; return whether this member of a population makes a call now."""
        return not self.loop.has_failed and not self.is_finished() and self.begin_round()

    def member_call(self, program: DeviceProgram) -> tuple[MemberCall, int]:
        """Prepare the next call of this member; return the call and the environment steps before the rollout."""
        carry, begin, end, first_step = self._next_call()
        self.check_program(program)
        scheduled = self.device_runner.scheduled(first_step)
        return MemberCall(self.learner.variables, carry, begin, end, scheduled), first_step

    def check_program(self, program: DeviceProgram) -> None:
        """Check that no callback has changed what the program of all members contains."""
        if self.find_runner().program is not program:
            raise ValueError(
                "callbacks: one of them has changed the size of minibatches, the number of epochs or a plain "
                "attribute, which the program of all members of a Population contains: change only hyperparameters and "
                "learning rates"
            )

    def receive_member(self, carry: Carry, events: CallEvents) -> None:
        """Use the result of a call of this member of a population.

        As after a tick in `Loop.train`, the hooks of a step's end run, functions of other threads are called, and a
        deferred signal is raised.
        """
        self._receive_call(carry, events)
        if self.loop.events.on_step_end:
            self.loop.fire_step_end()
        self.loop.gate.serve()
        self.loop.guard.check()

    def end_episodes(self) -> None:
        """Call the hooks of the events that are pending; a restored run continues after the hooks that were called."""
        events = self.lanes.pending
        if events is None:
            return
        num_envs = self.lanes.num_envs
        # The position of each group's first update in the logs of the call.
        firsts = np.cumsum(events.due) - events.due
        self._cut_if_stopped(0)
        while True:
            end = int(events.ends[events.next_end]) if events.next_end < len(events.ends) else math.inf
            learn = int(events.learns[events.next_learn]) if events.next_learn < len(events.learns) else math.inf
            position = min(end, learn, events.last - 1)
            # Lanes whose episodes ended in an earlier round begin new episodes before the events of this round.
            if events.next_end and events.ends[events.next_end - 1] // num_envs < position // num_envs:
                self._begin_idle()
                self._cut_if_stopped(position)
            if position == learn:
                self._report_learned(events, int(firsts[events.next_learn]))
            elif position == end:
                self._end_on_device(events, int(end))
            else:
                break
            # As in a vector environment, all lanes have made their step of the round before its hooks are called.
            self._cut_if_stopped((position // num_envs + 1) * num_envs)
        ledger = self.lanes.ledger
        for lane, running in enumerate(ledger.running):
            if running:
                ledger.returns[lane] = float(events.returns_after[lane])
                ledger.lengths[lane] = int(events.lengths_after[lane])
        self.lanes.pending = self._own_steps = None

    def _cut_if_stopped(self, position: float) -> None:
        """If training has been stopped, do not count the ends of this call from this position on."""
        if self.loop.stop.is_set:
            self._cut = min(self._cut, position)

    def _report_learned(self, events: CallEvents, first: int) -> None:
        """Count a group of updates and call the hooks of these updates; raise if an update is not finite.

        Args:
            events: of the call.
            first: the position of the group's first update in the logs of the call.
        """
        number = events.next_learn
        events.next_learn += 1
        due = int(events.due[number])
        logs = {name: values[first : first + due] for name, values in events.logs.items()}
        result = GroupResult(logs, {}, int(events.applied[number]), bool(events.stopped[number]))
        self.loop.metrics.add(result.logs, result.applied)
        self.loop.runner.report(result, due)

    def _end_on_device(self, events: CallEvents, position: int) -> None:
        """Fire the end of an episode, which is complete and counts unless training has ended before this position."""
        number = events.next_end
        lane = position % self.lanes.num_envs
        ledger = self.lanes.ledger
        events.next_end += 1
        ledger.returns[lane] = float(events.returns[number])
        ledger.lengths[lane] = int(events.lengths[number])
        ledger.finish(lane)
        self._own_steps = events.first_step + position + 1
        complete = position < self._cut
        self.counters.episodes += complete
        self.loop.fire_episode_end(lane, complete)
        if complete:
            self._counted = ledger.numbers[lane]
        # The call went on beyond the budget of episodes, so later ends in it do not count.
        if self.counters.episodes >= self.budget.last_episode:
            self._cut = min(self._cut, position + 1)

    def complete_logs(self, logs: Logs) -> Logs:
        """Return the logs with the steps at the end of the episode, which the call has passed."""
        return logs if self._own_steps is None else {**logs, "steps": self._own_steps}


def train_members(
    loops: Sequence[Loop],
    members: Members,
    reads: Reads,
    *,
    after_call: Callable[[], None],
    on_failure: Callable[[int], None],
) -> None:
    """Run the loops of the members of a population, whose calls on the device are made together.

    Each loop fires events as if no other loop existed. A loop whose updates are not finite ends, and the others go on;
    any other error ends all loops.

    Args:
        loops: of the members.
        members: makes the calls.
        reads: what the program of all members has read.
        after_call: called after each call and the hooks of the call.
        on_failure: called with the number of a loop whose updates are not finite.

    Raises:
        ValueError: if a callback changes what the compiled program of all members contains.
    """
    steppings: list[Any] = [loop.stepping for loop in loops]

    def train() -> None:
        values = [loop.learner.algorithm._reads.own_values() for loop in loops]
        for loop, stepping in zip(loops, steppings, strict=True):
            stepping.find_runner().program = members.program  # the members share one compiled program
            loop.begin()
        running = list(range(len(loops)))
        while running := [number for number in running if steppings[number].begin_call()]:
            pairs = [steppings[number].member_call(members.program) for number in running]
            results = members.call([call for call, _ in pairs])
            for number, (call, first_step), (carry, report) in zip(running, pairs, results, strict=True):
                loop = loops[number]
                stepping = steppings[number]
                loop.learner.algorithm._reads.adopt(reads, values[number])
                stepping.check_program(members.program)
                events = stepping.device_runner.events_of(carry, report, call.end, first_step)
                try:
                    loop.report_failure(partial(stepping.receive_member, carry, events))
                except NonFiniteError:
                    on_failure(number)
            after_call()

    # An error of the shared training fires `on_exception` in every loop.
    for loop in loops:
        train = partial(loop.report_failure, train)
    run_all(train, *[loop.end for loop in loops], after_call)
