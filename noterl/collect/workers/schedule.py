"""When workers collect: in phases that alternate with learning, or all the time (overlap)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from noterl.collect.base import LanesLearner
from noterl.collect.workers.pool import Pool
from noterl.collect.workers.process import Inbox
from noterl.collect.workers.supervisor import Supervisor
from noterl.collect.workers.weights import Publisher
from noterl.collect.workers.worker import LIMIT, WANTED
from noterl.types import Counters

if TYPE_CHECKING:  # worker processes import this module, and would import more than they need
    from noterl.callback import Budget

# With overlap, a worker wakes the learner after half of this number of rounds at the latest.
_MAX_AWAITED = 64

# Seconds between two looks for failed workers while the learner does not wait for rounds.
_LOOK_SECONDS = 0.25


class Lead(NamedTuple):
    """How many rounds workers may be ahead of the loop in a `fit`.

    Attributes:
        learner: learns from the rounds.
        counters: the agent's counters.
        budget: the counts at which the fit ends.
        num_envs: number of lanes of all workers.
        max_staleness: see `WorkerSettings`.
    """

    learner: LanesLearner
    counters: Counters
    budget: Budget
    num_envs: int
    max_staleness: int | None

    def rounds(self, overlap: bool) -> float | None:
        """Return the number of rounds, the next one included; None if the setting `collect` decides."""
        rounds: float | None = self.learner.rounds_left
        if rounds is None and overlap:
            rounds = self.learner.rounds_within(self.max_staleness, self.counters.steps, self.num_envs)
        return None if rounds is None else min(rounds, self._rounds_of_budget())

    def next_rollout(self, updates: int) -> int:
        """Return how many rounds workers collect while the agent makes the updates of a complete rollout.

        The number is 0 if the transitions would then be too stale, if the agent needs rollouts of the current policy,
        or if the budget ends in the next rollout: the next `fit` continues the rollout with other weights.
        """
        learner = self.learner
        most = self.max_staleness
        if learner.rollout is None or not learner.algorithm.corrects_staleness or (most is not None and updates > most):
            return 0
        return learner.rollout.length if learner.rollout.length <= self._rounds_of_budget() else 0

    def _rounds_of_budget(self) -> float:
        """Return how many rounds the budget of steps still needs; inf without such a budget."""
        left = self.budget.last_step - self.counters.steps
        return math.ceil(left / self.num_envs) if left < math.inf else math.inf


class Phases:
    """Workers collect several rounds with the same weights, and then wait.

    A phase begins when the loop has consumed all rounds of the last one, or earlier if `begin` is called.

    Args:
        lanes: with the processes. The settings have the rounds of a phase, if the learner does not decide their number.
        publisher: publishes the weights.
    """

    def __init__(self, lanes: Pool, publisher: Publisher) -> None:
        self.supervisor: Supervisor = lanes.supervisor
        self.inboxes: Sequence[Inbox] = lanes.inboxes
        self.control: Sequence[np.ndarray] = lanes.control
        self.publisher: Publisher = publisher
        self._num_envs = lanes.num_envs
        self._rounds: Any = lanes.settings.collect  # ignored by subclasses
        self._targets = [0] * len(self.inboxes)  # rows that each worker has published when its phase ends

    def outstanding(self) -> list[int]:
        """Return how many rows each worker has yet to publish in this phase."""
        pairs = zip(self._targets, self.inboxes, strict=True)
        return [target - inbox.ring.published for target, inbox in pairs]

    def has_rounds(self) -> bool:
        """Return whether each worker has rounds of this phase left, collected or not."""
        # In this order: a worker that publishes its last rows between the two looks has rows left.
        outstanding = self.outstanding()
        return all(left or inbox.rows for left, inbox in zip(outstanding, self.inboxes, strict=True))

    def rows_to_wait_for(self, index: int) -> int:
        """Return how many rows a worker publishes before waking the learner: half of what the worker may publish.

        The learner looks for rows every few milliseconds anyway. A worker that woke the learner after each round would
        lose more time by waking than by a cheap step of an environment.
        """
        inbox = self.inboxes[index]
        half = min(self._allowed(index), inbox.ring.capacity) // 2
        return max(half // inbox.count, 1) * inbox.count

    def _allowed(self, index: int) -> int:
        """Return how many rows a worker publishes without another command."""
        return self.outstanding()[index]

    def prepare_round(self, step: int, updates: int, rounds: float | None) -> None:
        """Begin a phase if a worker has no rounds left.

        Args:
            step: environment steps before the round.
            updates: gradient updates so far.
            rounds: of the phase; None for the `rounds` of the constructor.
        """
        if not self.has_rounds():
            self.begin(step, updates, self._rounds if rounds is None else int(rounds))

    def begin(self, step: int, updates: int, rounds: int) -> None:
        """Send the weights, and let each worker collect until the worker is `rounds` rounds ahead."""
        self.publisher.publish(updates)  # always, because torch changes the same arrays in place
        changes = self.publisher.changes(len(self.inboxes))
        for index, inbox in enumerate(self.inboxes):
            ahead = inbox.rows // inbox.count
            missing = max(rounds - ahead, 0)
            self._targets[index] += missing * inbox.count
            self.supervisor.send(index, "collect", missing, step + ahead * self._num_envs, changes[index])

    def resume(self, index: int, step: int) -> None:
        """Let the process that replaces another one collect the rest of the phase."""
        left = self.outstanding()[index] // self.inboxes[index].count
        if left:
            self._collect_again(index, left, step)

    def _collect_again(self, index: int, rounds: int | None, step: int) -> None:
        """Let a new process collect so many rounds, or whole episodes, and wake the loop at the first round."""
        inbox = self.inboxes[index]
        self.control[index][WANTED] = inbox.ring.published + inbox.count
        self.supervisor.send(index, "collect", rounds, step + inbox.rows // inbox.count * self._num_envs, {})

    def receive(self, index: int, ended: np.ndarray[Any, Any]) -> None:
        """Called with each round that the loop receives; `ended` holds in which lanes of a worker an episode ends."""

    def unsent(self, index: int) -> dict[str, Any]:
        """Return the attributes of the policy or noise that a worker receives with the next phase."""
        return {}

    def publish(self, updates: int) -> None:
        """Called after each compiled call of updates; the weights of a phase do not change."""

    def pause(self) -> None:
        """Called when the workers have sent the state of the lanes."""


class EpisodePhases(Phases):
    """In a phase, a worker collects until an episode has ended in each lane of the worker; workers begin in turn."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # The lanes of each worker in which no episode of the phase has ended, as far as the loop has received rounds.
        self._pending = [np.zeros(inbox.count, np.bool_) for inbox in self.inboxes]
        self._changes: list[dict[str, Any]] = [{} for _ in self.inboxes]  # of the exploration, to be sent

    def prepare_round(self, step: int, updates: int, rounds: float | None) -> None:
        """Begin a phase of each worker that has no rounds left."""
        empty = [index for index, inbox in enumerate(self.inboxes) if not inbox.rows]
        waiting = [index for index in empty if not self._pending[index].any()]
        if not waiting:
            return
        self.publisher.publish(updates)
        changes = self.publisher.changes(len(self.inboxes))
        for index in range(len(self.inboxes)):
            self._changes[index] |= changes[index]  # kept until the worker begins a phase
        for index in waiting:
            self._pending[index][:] = True
            unsent = self._changes[index]
            self._changes[index] = {}
            self.supervisor.send(index, "collect", None, step, unsent)

    def _allowed(self, index: int) -> int:
        """Return the rows of two rounds: a phase may end with any round, so a worker wakes the learner after each."""
        return 2 * self.inboxes[index].count

    def receive(self, index: int, ended: np.ndarray[Any, Any]) -> None:
        """Record in which lanes of a worker an episode has ended in the round that the loop has received."""
        self._pending[index] &= ~ended

    def unsent(self, index: int) -> dict[str, Any]:
        """Return what a callback has changed since the worker's phase began."""
        return self._changes[index]

    def resume(self, index: int, step: int) -> None:
        """Let the process that replaces another one collect a whole phase, if the phase was not complete."""
        self._changes[index] = {}  # the new process has a copy of the learner's policy or noise
        if (self._pending[index] & ~self.inboxes[index].ended()).any():
            self._collect_again(index, None, step)


class Overlap(Phases):
    """Workers collect all the time, with the newest weights, as far as `prepare_round` allows."""

    _is_running = False
    _next_look = 0.0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._limits = [0] * len(self.inboxes)  # the rows that each worker may publish

    def prepare_round(self, step: int, updates: int, rounds: float | None) -> None:
        """Let workers collect until they are `rounds` rounds ahead, the next one included; None for a full ring."""
        changes = self.publisher.changes(len(self.inboxes))
        starts = not self._is_running
        if starts or self.publisher.is_stale:
            self.publisher.publish(updates)
        self._is_running = True  # first: if a process is replaced while commands are sent, `resume` reads the flag
        for index, inbox in enumerate(self.inboxes):
            most = inbox.ring.capacity // inbox.count
            allowed = most if rounds is None else int(min(rounds, most))
            # The rows that the loop has consumed, and the rows of the allowed rounds.
            self._limits[index] = inbox.ring.published - inbox.rows + allowed * inbox.count
            # After `publish`, so that workers that read this limit also find these weights.
            self.control[index][LIMIT] = self._limits[index]
            if changes[index]:  # first, because a worker collects as soon as it is told to run
                self.supervisor.send(index, "change", changes[index])
            if starts:
                self.supervisor.send(index, "run", step + inbox.rows // inbox.count * self._num_envs)
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            self.supervisor.handle_messages(0.0)

    def _allowed(self, index: int) -> int:
        """Return the rows up to the limit, at most `_MAX_AWAITED` rounds."""
        inbox = self.inboxes[index]
        return min(self._limits[index] - inbox.ring.published, _MAX_AWAITED * inbox.count)

    def resume(self, index: int, step: int) -> None:
        """Let the process that replaces another one go on."""
        inbox = self.inboxes[index]
        self.control[index][WANTED] = inbox.ring.published + inbox.count
        self.control[index][LIMIT] = self._limits[index]
        if self._is_running:
            self.supervisor.send(index, "run", step + inbox.rows // inbox.count * self._num_envs)

    def publish(self, updates: int) -> None:
        """Publish the newest weights."""
        self.publisher.publish(updates)

    def pause(self) -> None:
        """Record that the workers wait, because the state was sent."""
        self._is_running = False
