"""The one training loop, and the only place where events fire.

Owns: the order of act, step, store, learn and hear; budgets; what is due when. A tick is one environment step (N of them for a native vector
environment): the transition is stored, then what is due at that step is learned, then hooks hear of it. Everything that decides
what the next tick does lies in the agent and its lanes, so a run may stop after any tick and go on as if it had not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl import backends
from noterl.backends.common import GroupResult, InterruptGuard, NonFiniteError, bucket
from noterl.callback import Events
from noterl.evaluation import Evaluation
from noterl.types import Batch, Logs, Transition

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
        self._open: list[int] = []  # lanes whose episode was announced
        self._started = perf_counter()
        self._surplus_said = False

    def run(self) -> None:
        """Train until the budget is spent, a callback stops it, or something is raised."""
        with self.guard.installed():
            try:
                self._fire(self.events.on_train_begin, {})
                self._announce_running()
                while not self._finished():
                    self._round()
            except BaseException as error:
                self.history.stop_reason = f"{type(error).__name__}: {error}"
                self._fire(self.events.on_exception, error)
                raise
            finally:
                try:
                    self._close_episodes()
                finally:
                    self._fire(self.events.on_train_end, {})

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

    def _round(self) -> None:
        lanes = self.lanes
        if lanes.actions is None:
            for lane in lanes.idle():
                self._begin_episode(lane)
            if self._finished():
                return
            started = perf_counter()
            lanes.begin_round(self.agent.choose_actions(lanes.observations()))
            self.clock["act"] += perf_counter() - started
        while lanes.actions is not None and not self._finished():
            self._tick()
            self.guard.check()

    def _tick(self) -> None:
        agent, clock = self.agent, self.clock
        started = perf_counter()
        transitions = self.lanes.tick(agent.steps + 1)
        stepped = perf_counter()
        clock["environment"] += stepped - started
        before = agent.steps
        ended = self._store(transitions)
        clock["store"] += perf_counter() - stepped
        due = agent.schedule.due(before, agent.steps, len(ended), len(agent.replay))
        if due.target:
            agent.update_target()
            agent.actor.stale = True
        if due.updates:
            self._learn(due.updates)
        for transition in ended:
            self._end_episode(transition)

    def _store(self, transitions: tuple[Transition, ...]) -> list[Transition]:
        """Store what the tick brought, up to the budget; return the transitions that ended an episode."""
        agent, ended = self.agent, []
        for position, transition in enumerate(transitions):
            if agent.steps >= self.last_step or agent.episodes + len(ended) >= self.last_episode:
                self._discard(transitions[position:])
                break
            agent.replay.add(*transition)
            agent.steps += 1
            if transition.terminated or transition.truncated:
                ended.append(transition)
        return ended

    def _discard(self, surplus: tuple[Transition, ...]) -> None:
        """Drop what a native vector environment stepped beyond the budget."""
        for transition in surplus:
            self.agent.replay.interrupt(transition.lane)
        if not self._surplus_said:
            self._surplus_said = True
            self.agent.say(
                f"the budget ended within a step of the vector environment: {len(surplus)} of its transitions were discarded"
            )

    def _learn(self, updates: int) -> None:
        """Run one group: sample it as one, update in as few calls as may be, feed its priorities back as one."""
        agent, clock = self.agent, self.clock
        size = 1 if self.live else agent.call_size(updates)
        done = 0
        while done < updates:  # more than one turn only for groups beyond LARGEST_CALL
            count = min(updates - done, max(LARGEST_CALL, size))
            started = perf_counter()
            batch = agent.sample(count)
            clock["sample"] += perf_counter() - started
            feedback = [self._call(*part) for part in _parts(batch, count, size)]
            self._feed_back(batch.index, feedback)
            done += count

    def _call(self, batch: Batch, count: int) -> dict[str, Any]:
        agent = self.agent
        if self.live:
            self._fire(self.events.on_batch_begin, agent.updates, {})
        started = perf_counter()
        try:
            with self.guard.critical():
                result = agent.run_updates(batch, count)
        except BaseException:
            if self.live:
                self._fire(self.events.on_batch_end, agent.updates, {})
            raise
        self.clock["learn"] += perf_counter() - started
        agent.actor.stale = True
        agent.loss_mean.add(result.logs["loss"], result.finite)
        self._hear_updates(result, count)
        return {name: value[:count] for name, value in result.feedback.items()} if agent.replay.feedback_fields else {}

    def _hear_updates(self, result: GroupResult, count: int) -> None:
        """Fire the batch hooks of a call, each with its own update's values, and raise if one was not finite."""
        agent, events = self.agent, self.events
        if not (events.on_batch_begin or events.on_batch_end):
            agent.updates += result.finite
        else:
            logs = {name: backends.current().fetch(value) for name, value in result.logs.items()}
            for k in range(min(result.finite + 1, count)):
                number = agent.updates
                if not self.live:
                    self._fire(events.on_batch_begin, number, {})
                agent.updates += k < result.finite
                self._fire(events.on_batch_end, number, {name: value[k].item() for name, value in logs.items()})
        if result.finite < count and not agent.stop_training:
            loss = float(backends.current().fetch(result.logs["loss"])[result.finite])
            raise NonFiniteError(loss, update=agent.updates, step=agent.steps)

    def _feed_back(self, index: np.ndarray, feedback: list[dict[str, Any]]) -> None:
        fields = [name for name in self.agent.replay.feedback_fields if name in feedback[0]]
        if fields:
            fetch = backends.current().fetch
            values = {name: np.concatenate([fetch(part[name]) for part in feedback]) for name in fields}
            self.agent.replay.feedback(index, values)

    def _begin_episode(self, lane: int) -> None:
        agent, number = self.agent, self.agent.episodes_begun
        started = perf_counter()
        agent.replay.interrupt(lane)
        self.lanes.reset(lane, number, agent.steps)
        agent.episodes_begun += 1
        self.clock["environment"] += perf_counter() - started
        self._open.append(lane)
        self._fire(self.events.on_episode_begin, number, {})

    def _announce_running(self) -> None:
        """Episodes that the last fit left in flight go on, and begin again for those who listen."""
        for lane, running in enumerate(self.lanes.ledger.running):
            if running:
                self._open.append(lane)
                self._fire(self.events.on_episode_begin, self.lanes.ledger.numbers[lane], {})

    def _end_episode(self, transition: Transition) -> None:
        lane = transition.lane
        self.agent.episodes += 1
        self.lanes.finish(lane)
        self._open.remove(lane)
        self._fire(self.events.on_episode_end, self.lanes.ledger.numbers[lane], self._episode_logs(lane, True))

    def _close_episodes(self) -> None:
        """End, for those who listen, the episodes that the end of training cuts short; they go on in the next fit."""
        while self._open:
            lane = self._open.pop(0)
            self._fire(self.events.on_episode_end, self.lanes.ledger.numbers[lane], self._episode_logs(lane, False))

    def _episode_logs(self, lane: int, complete: bool) -> Logs:
        agent, ledger = self.agent, self.lanes.ledger
        logs: Logs = {"reward": ledger.returns[lane], "length": ledger.lengths[lane]}
        loss = agent.loss_mean.take() if complete else agent.loss_mean.last
        if loss is not None:
            logs["loss"] = loss
        logs.update(steps=agent.steps, updates=agent.updates, time=perf_counter() - self._started, complete=complete)
        return logs

    def _fire(self, handlers: tuple[Callable[..., None], ...], *args: Any) -> None:
        if handlers:
            started = perf_counter()
            for handler in handlers:
                handler(*args)
            self.agent.actor.stale = True
            self.clock["callbacks"] += perf_counter() - started


def evaluate(
    agent: Agent, source: EnvSource, episodes: int, seed: int | None, deterministic: bool, num_envs: int, events: Events
) -> dict[str, Any]:
    """Play whole episodes; see `Agent.evaluate`."""
    for name, value in (("episodes", episodes), ("num_envs", num_envs)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name} must be a positive int, got {value!r}")
    for handler in events.on_evaluate_begin:
        handler({})
    result = Evaluation(agent, source, int(episodes), seed, deterministic, min(num_envs, episodes)).run()
    for handler in events.on_evaluate_end:
        handler(dict(result))
    return result


def _parts(batch: Batch, count: int, size: int) -> list[tuple[Batch, int]]:
    """Split batches `[K, B, ...]` into calls of `size` updates; the last is padded, so that shapes stay few."""
    if size == count:
        return [(batch, count)]
    return [
        (_padded(batch, start, size), min(size, count - start)) for start in range(0, count, size)
    ]


def _padded(value: Any, start: int, size: int) -> Any:
    if isinstance(value, Batch):
        return Batch(*(_padded(part, start, size) for part in value))
    if isinstance(value, dict):
        return {name: _padded(part, start, size) for name, part in value.items()}
    part = value[start : start + size]
    missing = size - len(part)
    return np.concatenate([part, np.zeros((missing, *part.shape[1:]), part.dtype)]) if missing else part


def call_size(updates: int, configured: int | str, usual: int) -> int:
    """Return how many updates one compiled call holds, for a group of `updates`.

    The usual group runs as one call of its own size; others as the next power of two, so that few sizes are compiled.
    """
    if configured != "auto":
        return int(configured)
    size = updates if updates == usual else bucket(updates)
    return min(size, LARGEST_CALL)
