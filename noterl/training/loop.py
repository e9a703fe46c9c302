"""The training loop; events of training fire only here and, for updates, in `UpdateRunner`.

A tick is one environment step; for a vector environment, one step of each single environment. After it, the
transitions are stored, then the updates that are due run, then the hooks are called. A round is one action for every
lane: one tick for each lane, or one tick of a vector environment. The next tick depends only on the state of the
learner, the actor and the lanes. So training can stop after any tick and continue later.

`Loop` fires the events and makes the updates. A `Stepping` makes rounds and ticks: this one in a single process, others
in several processes or on the device. `EventLoop` has what `Loop` shares with the loop of updates on a data set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from noterl.acting.actor import Actor
from noterl.backends.common import GroupResult
from noterl.callback import Budget, Events, Handlers
from noterl.collect import Lanes
from noterl.history import History
from noterl.learning.info_fields import store_info
from noterl.learning.learner import Learner
from noterl.learning.runner import UpdateRunner, UpdateSource
from noterl.training.dispatch import add_source, call_handlers
from noterl.training.session import Session
from noterl.types import Counters, Logs, StopRequest, Transition
from noterl.utils.errors import keep_first_error, run_all
from noterl.utils.interrupts import InterruptGuard, StepGate

CLOCK = ("environment", "act", "store", "sample", "learn", "callbacks")


def accept_masks(learner: Learner, actor: Actor, lanes: Lanes) -> None:
    """Store and use the action masks that lanes offer, unless the head cannot.

    Memory and updates change only now, so that nothing changes for environments without masks.
    """
    fields = lanes.fields
    if not fields.offered:
        return
    if not actor.head.takes_mask:
        fields.decline()
        return
    store_info(learner, fields.offered)
    fields.accept()


class Stepping:
    """Makes the rounds and ticks of a loop, in one process; other kinds override what differs.

    Args:
        loop: the loop.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop: Loop = loop
        self.learner: Learner = loop.learner
        self.actor: Actor = loop.actor
        self.lanes: Lanes = loop.lanes
        self.counters: Counters = loop.counters
        self.budget: Budget = loop.budget
        self.over: list[int] = loop.lanes.ledger.over  # lanes whose episode is over and has not fired its end

    def begin(self) -> None:
        """Called before the first event of the training."""

    def finish(self) -> None:
        """Called after the last tick."""

    def is_finished(self) -> bool:
        """Return whether training ends now, and set the reason in the history."""
        stop = self.loop.stop
        history = self.loop.history
        if stop.is_set:
            history.stop_reason = stop.reason
        elif self.counters.episodes >= self.budget.last_episode:
            history.stop_reason = "episodes"
        elif self.counters.steps >= self.budget.last_step:
            history.stop_reason = "steps"
        else:
            return False
        return True

    def begin_round(self) -> bool:
        """Start episodes in idle lanes, and choose an action for every lane; return False if no round has begun.

        This is the case if training is finished after the begin of an episode, or if a worker process has failed.
        """
        lanes = self.lanes
        learner = self.learner
        loop = self.loop
        # Arrays and dicts among the agent's attributes can change without an assignment.
        if learner.algorithm._reads.in_place:
            learner.algorithm._reads.check()
        idle = lanes.idle()
        while lanes.interrupted:  # after `idle`, which may interrupt some, and before others begin
            loop.fire_episode_end(lanes.interrupted.pop(0), False)
        if idle:
            for lane in idle:
                self._begin_episode(lane)
            loop.guard.check()
            if self.is_finished() or lanes.interrupted:
                return False
        started = perf_counter()
        if learner.acting_policy is not None and not lanes.has_rounds:
            learner.discard_old_rollout()
        begun = lanes.choose_actions(self.actor, self.counters.steps)
        if begun is not None:
            learner.begin_round(*begun)
        loop.clock[lanes.acting_clock] += perf_counter() - started
        return begun is not None

    def tick(self) -> None:
        """Step the next lanes, store the transitions, make the updates that are due, and end episodes."""
        learner = self.learner
        lanes = self.lanes
        counters = self.counters
        clock = self.loop.clock
        started = perf_counter()
        transitions = lanes.tick(counters.steps + 1)
        stepped = perf_counter()
        clock[lanes.stepping_clock] += stepped - started
        before = counters.steps
        budget = self.budget
        for position, transition in enumerate(transitions):
            is_spent = counters.steps >= budget.last_step or counters.episodes + len(self.over) >= budget.last_episode
            if position and is_spent:
                self.discard(transitions[position:])  # a vector environment has stepped beyond the budget
                break
            self.store(transition)
            counters.steps += 1
        clock["store"] += perf_counter() - stepped
        if lanes.actions is None:  # all lanes of the round have stepped
            learner.end_round()
        due = learner.due(before, counters.steps, len(self.over))
        if due.target:
            self.loop.update_target()
        if due.updates:
            self.loop.learn(due.updates)
        self.end_episodes()

    def store(self, transition: Transition) -> None:
        """Store a transition, and record whether its episode is over."""
        self.learner.add(transition)
        if transition.terminated or transition.truncated:
            self.lanes.ledger.finish(transition.lane)
            self.over.append(transition.lane)

    def discard(self, transitions: tuple[Transition, ...]) -> None:
        """Discard transitions beyond the budget."""
        for transition in transitions:
            self.learner.interrupt(transition.lane)
        self.lanes.discard(transitions)

    def _begin_episode(self, lane: int) -> None:
        """Reset a lane and fire the begin of the episode."""
        counters = self.counters
        number = self.next_number()
        started = perf_counter()
        # The first transition of the new episode must not follow the last stored one.
        self.learner.interrupt(lane)
        self.lanes.reset(lane, number, counters.steps)
        accept_masks(self.learner, self.actor, self.lanes)  # a reset may show that the environment reports masks
        self.lanes.reset_noise(self.actor, lane)
        counters.episodes_begun += 1
        self.loop.clock[self.lanes.stepping_clock] += perf_counter() - started
        self.loop.fire_episode_begin(lane, number)

    def next_number(self) -> int:
        """Return the number of the next episode."""
        return self.counters.episodes_begun

    def end_episodes(self) -> None:
        """End the episodes that are over.

        A fit may start with such episodes, if the file was saved in a hook of another episode's end.
        """
        while self.over:
            self.end_episode()

    def end_episode(self) -> None:
        """Count the next episode that is over and fire the end."""
        lane = self.over.pop(0)
        self.counters.episodes += 1
        self.loop.fire_episode_end(lane, True)

    def complete_logs(self, logs: Logs) -> Logs:
        """Return the logs of an episode's end with what only this kind adds."""
        return logs


@dataclass(eq=False)
class EventLoop:
    """One `fit`: its updates, its events and its end; a subclass defines what happens between them.

    Attributes:
        learner: the built learner.
        actor: the built actor.
        session: the agent's session, with bound callbacks.
        counters: the agent's counters, which the loop increments.
        budget: the counts at which the fit ends.
        history: the loop sets `stop_reason` and `time_split`.
    """

    learner: Learner
    actor: Actor
    session: Session
    counters: Counters
    budget: Budget
    history: History

    def __post_init__(self) -> None:
        session = self.session
        self.events: Events = session.events
        self.stop: StopRequest = session.stop
        self.metrics: Any = session.metrics
        self.guard: InterruptGuard = session.guard
        self.gate: StepGate = session.gate
        self.clock: dict[str, float] = dict.fromkeys(CLOCK, 0.0)
        self.history.time_split = self.clock
        self.has_failed: bool = False
        self._started = perf_counter()
        self.runner: UpdateRunner = self._make_runner(self.learner)

    def _make_runner(self, source: UpdateSource) -> UpdateRunner:
        """Return the runner of a source's updates, which fires batch events and calls `_receive` and `_after_call`."""
        return UpdateRunner(
            source,
            self.counters,
            self.stop,
            on_batch_begin=self.events.on_batch_begin,
            on_batch_end=self.events.on_batch_end,
            fire=self.fire,
            receive=self._receive,
            after_call=self._after_call,
            logs_of_update=self.learner.updater.logs_of_update if self.learner.algorithm.update_period > 1 else None,
            is_live=self.session.callbacks.needs_live_updates,
            clock=self.clock,
        )

    def train(self) -> None:
        """Fire the first events, and train until the budget is spent or a callback stops training."""
        raise NotImplementedError

    def close(self) -> None:
        """Fire the end events of what is in progress."""
        raise NotImplementedError

    def _after_call(self, result: GroupResult) -> None:
        """Make a hard copy if it is due after a compiled call of updates and the hooks of the call."""
        # No call passes a hard copy, because `UpdateSchedule.split` ends calls there.
        every = self.runner.source.schedule.hard_copy_updates
        if result.applied and every and self.counters.updates % every == 0:
            self.update_target()

    def run(self) -> None:
        """Train until the budget is spent, a callback stops training, or an error is raised.

        Each begin event has its end event.
        """
        run_all(lambda: self.report_failure(self.train), self.end)

    def end(self) -> None:
        """Fire the end events that are missing."""
        run_all(
            lambda: self.report_failure(self.close),
            lambda: self.fire_between(self.events.on_train_end, {}),
            self.guard.check,
        )

    def report_failure(self, part: Callable[[], None]) -> None:
        """Run a part of the training; if the part raises the first error of this fit, fire `on_exception`."""
        try:
            part()
        except BaseException as error:
            # Later errors, such as in the end hooks, fire no second `on_exception`.
            if not self.has_failed:
                self.has_failed = True
                self.history.stop_reason = f"{type(error).__name__}: {error}".removesuffix(": ")
                with keep_first_error(error):
                    self.fire_between(self.events.on_exception, error)
            raise

    def _receive(self, result: GroupResult) -> None:
        """Use the new weights, and add the logs of a call to the means."""
        self.actor.forward.weights_updated(result.weights)
        self.metrics.add(result.logs, result.applied)

    def with_metrics(self, logs: Logs, complete: bool) -> Logs:
        """Return the logs of an episode or epoch, with the counts and the means of what updates logged."""
        # An end that is not complete does not end the means of updates.
        metrics = self.metrics.take() if complete else self.metrics.peek()
        self.learner.algorithm.check_metrics(metrics)
        if "loss" in metrics:
            logs["loss"] = metrics["loss"]
        counters = self.counters
        logs.update(steps=counters.steps, updates=counters.updates, time=perf_counter() - self._started)
        return {**logs, **{name: mean for name, mean in metrics.items() if name not in logs}}

    def update_target(self) -> None:
        """Make a hard copy to the target network, which acting may use too."""
        self.learner.algorithm.update_target()
        self.actor.forward.target_moved()

    def fire_step_end(self) -> None:
        """Call the `on_step_end` hooks; the agent is consistent and can be saved. Hooks must not change weights."""
        started = perf_counter()
        with self.gate:  # a thread for which a hook waits may use the agent; the guard defers Ctrl-C
            call_handlers(self.events.on_step_end, call=self.guard.call)
        self.clock["callbacks"] += perf_counter() - started

    def fire_between(self, handlers: Handlers, *args: Any) -> None:
        """Call the handlers of an event between two steps; the call may wait for another thread that uses the agent."""
        with self.gate:
            self.fire(handlers, *args)

    def fire(self, handlers: Handlers, *args: Any) -> None:
        """Call the handlers of an event."""
        if handlers:
            started = perf_counter()
            try:
                if len(handlers) == 1:  # the usual case, in two thirds of the time
                    self.guard.call(handlers[0], *args)
                else:
                    call_handlers(handlers, *args, call=self.guard.call)
            except Exception as error:
                if len(handlers) == 1:
                    add_source(handlers[0], error)
                raise
            finally:
                self.actor.mark_stale()  # a hook may have set weights
                self.clock["callbacks"] += perf_counter() - started


@dataclass(eq=False)
class Loop(EventLoop):
    """One `fit` in environments.

    Attributes:
        make_stepping: returns what makes rounds and ticks.
    """

    make_stepping: Callable[[Loop], Stepping] = Stepping

    def __post_init__(self) -> None:
        lanes = self.session.lanes
        assert lanes is not None
        self.lanes: Lanes = lanes
        super().__post_init__()
        lanes.attach_loop(self.learner, self.counters, self.budget)
        self.clock.setdefault(lanes.stepping_clock, 0.0)
        self._open: dict[int, None] = {}  # lanes whose episode has fired its begin event, but no end event
        self.stepping: Stepping = self.make_stepping(self)

    def begin(self) -> None:
        """Fire the begin events of the training, and the events that a restored run has not fired yet."""
        self.stepping.begin()
        self.fire_between(self.events.on_train_begin, {})
        ledger = self.lanes.ledger
        # The episodes that continue from the previous `fit`.
        for lane, running in enumerate(ledger.running):
            if running or lane in ledger.over:
                self.fire_episode_begin(lane, ledger.numbers[lane])
        self.stepping.end_episodes()
        self.guard.check()

    def train(self) -> None:
        """Make ticks until training is finished."""
        self.begin()
        stepping = self.stepping
        queue = self.gate.queue
        while not stepping.is_finished():
            if self.lanes.actions is not None or stepping.begin_round():
                stepping.tick()
                if self.events.on_step_end:
                    self.fire_step_end()
                if queue:
                    self.gate.serve()
            self.guard.check()
        stepping.finish()

    def learn(self, updates: int) -> None:
        """Run a group of updates."""
        self.learner.updater.update_schedules(self.counters.steps)
        self.lanes.before_updates(updates)
        self.runner.run(updates)

    def _after_call(self, result: GroupResult) -> None:
        """Called after each compiled call of updates and the hooks of the call."""
        self.lanes.learned(self.counters.updates)
        super()._after_call(result)

    def close(self) -> None:
        """Fire the end events of all open episodes; incomplete episodes continue in the next fit."""
        # Episodes that are over end as complete, before the others are cut.
        complete = sum(lane in self._open for lane in self.lanes.ledger.over)
        open_ = len(self._open)
        run_all(
            *[self.stepping.end_episode] * complete,
            *[lambda: self.fire_episode_end(next(iter(self._open)), False)] * (open_ - complete),
            self.guard.check,
        )

    def fire_episode_begin(self, lane: int, number: int) -> None:
        """Fire the begin of the episode in a lane."""
        self._open[lane] = None
        self.fire_between(self.events.on_episode_begin, number, {})

    def fire_episode_end(self, lane: int, complete: bool) -> None:
        """Fire the end of the episode in a lane; `complete` is False if the episode goes on or was cut."""
        del self._open[lane]
        ledger = self.lanes.ledger
        logs: Logs = {"reward": ledger.returns[lane], "length": ledger.lengths[lane], **self.lanes.logs(lane)}
        logs |= ledger.info[lane].logs()
        logs = self.stepping.complete_logs({**self.with_metrics(logs, complete), "complete": complete})
        self.fire_between(self.events.on_episode_end, ledger.numbers[lane], logs)
