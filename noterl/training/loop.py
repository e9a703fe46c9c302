"""The one training loop, and the only place where events fire.

Owns: the order of act, step, store, learn and hear; budgets; what is due when. A tick is one environment step (N of
them for a native vector environment): the transition is stored, then what is due at that step is learned, then hooks
hear of it. Everything that decides what the next tick does lies in the agent and its lanes, so a run may stop after any
tick and go on as if it had not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl import backends, normalization
from noterl.backends.common import GroupResult, InterruptGuard, NonFiniteError, bucket
from noterl.callback import Events, Handlers
from noterl.learning import update as updating
from noterl.training.dispatch import call_all, deliver, name_raiser, noted_on
from noterl.training.evaluation import Evaluation
from noterl.types import Batch, Logs, Transition
from noterl.utils.checks import check_bool, check_positive

if TYPE_CHECKING:
    from noterl.agent import Agent
    from noterl.envs import EnvSource
    from noterl.history import History

# A group larger than this runs as several calls, so that its gathered batches stay small.
LARGEST_CALL = 256

CLOCK = ("environment", "act", "store", "sample", "learn", "callbacks")


class Loop:
    """One `fit`.

    Args:
        agent: compiled and built, with lanes and memory ready.
        events: the bound callbacks.
        live: whether each update runs as a call of its own.
        episodes: finished episodes to add, or None.
        steps: environment steps to add, or None.
    """

    def __init__(
        self, agent: Agent, events: Events, *, live: bool, episodes: int | None, steps: int | None, history: History
    ) -> None:
        self.agent, self.events, self.lanes, self.live = agent, events, agent.lanes, live
        self.last_episode = math.inf if episodes is None else agent.episodes + episodes
        self.last_step = math.inf if steps is None else agent.steps + steps
        self.history = history
        self.clock = history.time_split = dict.fromkeys(CLOCK, 0.0)
        self.guard = InterruptGuard()
        self.store, self.drawn_from = normalization.filled(agent), agent.drawn_from
        self.rollout = None if agent.on_policy is None else agent.on_policy.rollout
        self._open: list[int] = []  # lanes whose episode was announced, and whose end was not
        self._over = agent.lanes.ledger.over  # those of them whose episode is over
        self._failed = False
        self._started = perf_counter()

    def run(self) -> None:
        """Train until the budget is spent, a callback stops it, or something is raised; every begin gets its end."""
        with self.guard.installed():
            call_all(
                lambda: self._announcing_failure(self._train),
                lambda: self._announcing_failure(self._close_episodes),
                lambda: self._fire(self.events.on_train_end, {}),
                self.guard.check,
            )

    def _train(self) -> None:
        self._fire(self.events.on_train_begin, {})
        self._announce_running()
        self._end_episodes()
        self.guard.check()
        while not self._finished():
            if self.lanes.actions is not None or self._begin_round():
                self._tick()
                if self.events.between_steps:
                    self._between_steps()
            self.guard.check()

    def _announcing_failure(self, part: Callable[[], None]) -> None:
        """Run a part of the training; the first error in it is told before anything ends."""
        try:
            part()
        except BaseException as error:
            if not self._failed:
                self._failed = True
                self.history.stop_reason = f"{type(error).__name__}: {error}"
                with noted_on(error):
                    self._fire(self.events.on_exception, error)
            raise

    def _finished(self) -> bool:
        agent = self.agent
        if agent.stop_training:
            self.history.stop_reason = agent.stop_reason
        elif agent.episodes >= self.last_episode:
            self.history.stop_reason = "episodes"
        elif agent.steps >= self.last_step:
            self.history.stop_reason = "steps"
        else:
            return False
        return True

    def _begin_round(self) -> bool:
        """Choose an action for every lane; False if training ended as an episode began."""
        lanes = self.lanes
        idle = lanes.idle()
        if idle:
            for lane in idle:
                self._begin_episode(lane)
            self.guard.check()
            if self._finished():
                return False
        started = perf_counter()
        actions = self.agent.choose_actions(lanes.observations(), lanes.waiting)
        lanes.begin_round(self.agent.head.executed(actions))
        if self.rollout is not None:
            self.rollout.begin_round(lanes.observations(), actions)
        self.clock["act"] += perf_counter() - started
        return True

    def _tick(self) -> None:
        agent, clock = self.agent, self.clock
        started = perf_counter()
        transitions = self.lanes.tick(agent.steps + 1)
        stepped = perf_counter()
        clock["environment"] += stepped - started
        before = agent.steps
        self._store(transitions)
        clock["store"] += perf_counter() - stepped
        if self.rollout is not None and self.lanes.actions is None:
            self.rollout.end_round()
        due = agent.due(before, len(self._over))
        if due.target:
            agent.update_target()
            agent.acting.target_moved()
        if due.updates:
            self._learn(due.updates)
        self._end_episodes()

    def _between_steps(self) -> None:
        """Let those who asked look at the agent while it is whole; they do not change what it acts on."""
        started = perf_counter()
        deliver(self.events.between_steps)
        self.clock["callbacks"] += perf_counter() - started

    def _store(self, transitions: tuple[Transition, ...]) -> None:
        """Store what the tick brought, up to the budget, and note which episodes are over."""
        agent = self.agent
        attributes = agent.__dict__  # past the agent's own __setattr__, which costs half a microsecond
        for position, transition in enumerate(transitions):
            if position and self._spent():
                self._put_off(transitions[position:])
                break
            self.store.add(*transition)
            attributes["steps"] += 1
            if transition.terminated or transition.truncated:
                self.lanes.finish(transition.lane)
                self._over.append(transition.lane)

    def _spent(self) -> bool:
        """Whether the budget is spent in the middle of a tick."""
        agent = self.agent
        return agent.steps >= self.last_step or agent.episodes + len(self._over) >= self.last_episode

    def _put_off(self, surplus: tuple[Transition, ...]) -> None:
        """Leave what a native vector environment stepped beyond the budget to the next `fit`."""
        self.lanes.put_off(surplus)
        self.agent.say(
            f"the budget ended within a step of the vector environment: {len(surplus)} of its transitions are left to "
            "the next fit"
        )

    def _learn(self, updates: int) -> None:
        """Run one group: draw it as one, update in as few calls as may be, feed its priorities back as one."""
        agent = self.agent
        agent.follow_schedules()
        size = 1 if self.live else agent.call_size(updates)
        started = perf_counter()
        drawn = agent.draw(updates)
        self.clock["sample"] += perf_counter() - started
        parts = [drawn[start : start + size] for start in range(0, updates, size)]
        with self.drawn_from.gather_ahead(lambda part: _padded(agent.gather(part), size), parts) as batches:
            results = []
            for part in parts:
                results.append(self._call(batches, len(part)))
                if results[-1].ended:
                    break
        if self.drawn_from.feedback_fields:
            feedback = [
                {name: value[: len(part)] for name, value in result.feedback.items()}
                for part, result in zip(parts, results, strict=True)
            ]
            self._feed_back(drawn, feedback)

    def _call(self, batches: Iterator[Batch], count: int) -> GroupResult:
        """Run `count` updates on the next batches as one compiled call; what they are longer is padding."""
        agent = self.agent
        started = perf_counter()
        batch = next(batches)
        self.clock["sample"] += perf_counter() - started
        try:
            if self.live:
                self._fire(self.events.on_batch_begin, agent.updates, {})
            started = perf_counter()
            with self.guard.critical():
                result = agent.run_updates(batch, count)
        except BaseException as error:
            if self.live:
                with noted_on(error):
                    self._fire(self.events.on_batch_end, agent.updates, {})
            raise
        self.clock["learn"] += perf_counter() - started
        agent.acting.updated(result.weights)
        agent.loss_mean.add(result.logs["loss"], result.finite)
        self._hear_updates(result, count)
        return result

    def _hear_updates(self, result: GroupResult, count: int) -> None:
        """Count a call's updates and fire their hooks; raise if one was not finite, unless a hook ended training."""
        agent, first, stopped = self.agent, self.agent.updates, self.agent.stop_training
        try:
            if self.events.on_batch_begin or self.events.on_batch_end:
                # A live update that was one too many has begun for those who listen.
                shown = result.finite + (self.live or not result.ended)
                self._fire_batches(result, min(shown, count))
        finally:
            agent.updates = first + result.finite
        if result.finite < count and not result.ended and (stopped or not agent.stop_training):
            loss = float(backends.current().fetch(result.logs["loss"])[result.finite])
            raise NonFiniteError(loss, update=agent.updates, step=agent.steps)

    def _fire_batches(self, result: GroupResult, count: int) -> None:
        """Fire the batch hooks of a call, each with its own update's values."""
        first = self.agent.updates
        logs = {name: backends.current().fetch(value).tolist() for name, value in result.logs.items()}
        for k in range(count):
            self.agent.updates = first + k
            own = updating.spoken(self.agent, first + k, {name: values[k] for name, values in logs.items()})
            self._fire_batch(k < result.finite, own)

    def _fire_batch(self, applied: bool, logs: Logs) -> None:
        agent, number = self.agent, self.agent.updates
        try:
            if not self.live:
                self._fire(self.events.on_batch_begin, number, {})
        except BaseException as error:
            with noted_on(error):
                self._fire(self.events.on_batch_end, number, logs)
            raise
        agent.updates += applied
        self._fire(self.events.on_batch_end, number, logs)

    def _feed_back(self, drawn: Any, feedback: list[dict[str, Any]]) -> None:
        agent, fields = self.agent, self.agent.replay.feedback_fields
        missing = [name for name in fields if name not in feedback[0]]
        if missing:
            raise ValueError(
                f"feedback must hold {', '.join(missing)} [B] for {type(agent.replay.sampler).__name__}, but "
                f"{type(agent).__name__} feeds back {', '.join(feedback[0]) or 'nothing'}"
            )
        fetch = backends.current().fetch
        values = {name: np.concatenate([fetch(part[name]) for part in feedback]) for name in fields}
        agent.replay.feedback(drawn, values)

    def _begin_episode(self, lane: int) -> None:
        agent, number = self.agent, self.agent.episodes_begun
        started = perf_counter()
        self.store.interrupt(lane)
        self.lanes.reset(lane, number, agent.steps)
        if agent.noise is not None:
            agent.noise.reset(lane)
        agent.episodes_begun += 1
        self.clock["environment"] += perf_counter() - started
        self._open.append(lane)
        self._fire(self.events.on_episode_begin, number, {})

    def _announce_running(self) -> None:
        """Episodes that the last fit left in flight go on, and begin again for those who listen."""
        for lane, running in enumerate(self.lanes.ledger.running):
            if running or lane in self._over:
                self._open.append(lane)
                self._fire(self.events.on_episode_begin, self.lanes.ledger.numbers[lane], {})

    def _end_episodes(self) -> None:
        """End those that are over; there may be such as training begins, where it was saved as others were told."""
        while self._over:
            self._end_episode()

    def _end_episode(self) -> None:
        """Count the next episode that is over, and tell of it."""
        lane = self._over.pop(0)
        self.agent.episodes += 1
        self._tell_end(lane, True)

    def _close_episodes(self) -> None:
        """End, for those who listen, the episodes that the end of training cuts short; they go on in the next fit."""
        complete, open_ = sum(lane in self._open for lane in self._over), len(self._open)
        call_all(
            *[self._end_episode] * complete,
            *[lambda: self._tell_end(self._open[0], False)] * (open_ - complete),
            self.guard.check,
        )

    def _tell_end(self, lane: int, complete: bool) -> None:
        self._open.remove(lane)
        self._fire(self.events.on_episode_end, self.lanes.ledger.numbers[lane], self._episode_logs(lane, complete))

    def _episode_logs(self, lane: int, complete: bool) -> Logs:
        agent, ledger = self.agent, self.lanes.ledger
        logs: Logs = {"reward": ledger.returns[lane], "length": ledger.lengths[lane], **self.lanes.logs(lane)}
        loss = agent.loss_mean.take() if complete else agent.loss_mean.peek()
        if loss is not None:
            logs["loss"] = loss
        logs.update(steps=agent.steps, updates=agent.updates, time=perf_counter() - self._started, complete=complete)
        return logs

    def _fire(self, handlers: Handlers, *args: Any) -> None:
        if handlers:
            started = perf_counter()
            try:
                if len(handlers) == 1:  # the usual case, in two thirds of the time
                    handlers[0](*args)
                else:
                    deliver(handlers, *args)
            except Exception as error:
                if len(handlers) == 1:
                    name_raiser(handlers[0], error)
                raise
            finally:
                self.agent.acting.stale = True
                self.clock["callbacks"] += perf_counter() - started


def evaluate(
    agent: Agent, source: EnvSource, episodes: int, seed: int | None, deterministic: bool, num_envs: int, events: Events
) -> dict[str, Any]:
    """Play whole episodes; see `Agent.evaluate`."""
    for name, value in (("episodes", episodes), ("num_envs", num_envs)):
        check_positive(name, value)
    check_bool("deterministic", deterministic)
    result: dict[str, Any] = {}

    def play() -> None:
        deliver(events.on_evaluate_begin, {})
        result.update(Evaluation(agent, source, int(episodes), seed, deterministic, min(num_envs, episodes)).run())

    call_all(play, lambda: deliver(events.on_evaluate_end, dict(result)))
    return result


def _padded(value: Any, size: int) -> Any:
    """Fill batches `[K, B, ...]` up to `size` of them with zeros, so that few shapes are compiled."""
    if isinstance(value, Batch):
        return value if len(value.reward) == size else Batch(*(_padded(part, size) for part in value))
    if isinstance(value, dict):
        return {name: _padded(part, size) for name, part in value.items()}
    return np.concatenate([value, np.zeros((size - len(value), *value.shape[1:]), value.dtype)])


def call_size(updates: int, configured: int | str, usual: int | str) -> int:
    """Return how many updates one compiled call holds, for a group of `updates`.

    The usual group runs as one call of its own size; others as the next power of two, so that few sizes are compiled.
    """
    if configured != "auto":
        return int(configured)
    size = updates if updates == usual else bucket(updates)
    return min(size, LARGEST_CALL)
