"""The steps of one process of several that learn together.

All processes make the same number of ticks between two agreements, so a tick counts the steps of all processes
without a message. An agreement is one small message to each process, before every group of updates and from time to
time between groups. The agreement decides for all processes, before the same update, whether training ends and whether
updates are made.
"""

from __future__ import annotations

import json
from time import perf_counter

import numpy as np

from noterl.collect import PoolLanes
from noterl.distribute import Strategy
from noterl.training.loop import Loop, Stepping
from noterl.training.ranks import ChiefSettings
from noterl.types import Logs

# Ticks between agreements if no update is due: an agreement takes about as long as five steps of CartPole.
_MOST_TICKS = 64
_STOP, _STEPS, _EPISODES, _READY = range(4)  # columns of an agreement; the chief's settings follow


class RankStepping(Stepping):
    """Makes the ticks of one of several processes.

    `counters` hold the totals of all processes. The chief fires the ends of the episodes of the others when the
    processes agree; the begin of such an episode fires with the end.

    Args:
        loop: the loop.
        strategy: with several processes.
        is_live: whether a callback of any process acts between updates.
    """

    def __init__(self, loop: Loop, strategy: Strategy, is_live: bool) -> None:
        super().__init__(loop)
        loop.runner.is_live = loop.runner.is_live or is_live
        loop.runner.before_call = self._before_call
        self.strategy: Strategy = strategy
        self._rank = strategy.rank
        self._processes = strategy.processes
        self._settings = ChiefSettings(self.learner)
        self._agreed_every = self.learner.schedule.update_every
        self._reason: str | None = None  # why training ends, agreed by all processes
        self._agreed_steps = self.counters.steps
        self._agreed_episodes = self.counters.episodes
        self._own_steps = self._own_episodes = 0  # of this process, since the last agreement
        self._outbox: list[tuple[int, Logs]] = []  # ended episodes that the chief has not received
        self._surplus: list[int] = []  # lanes whose episode ended beyond the budget
        self._countdown = 0  # ticks until the next agreement
        self._is_stopped = False  # whether a callback of any process has ended training
        self._choose_stepping(np.ones(self._processes, bool))

    def begin(self) -> None:
        """Set when the processes agree first."""
        self._countdown = self._most_ticks()

    def finish(self) -> None:
        """Merge the statistics of the normalizers with the statistics of the other processes."""
        if self.learner.merge_statistics is not None:
            self.learner.merge_statistics()

    def is_finished(self) -> bool:
        """Return whether all processes have agreed that training ends, or the steps are spent; set the reason."""
        if not self._is_stopped and self._reason is None:
            if self.counters.steps < self.budget.last_step:
                return False
            self._reason = "steps"
        self.loop.history.stop_reason = self._reason
        return True

    def next_number(self) -> int:
        """Return a number that no other process uses."""
        return self.counters.episodes_begun * self._processes + self._rank

    def _choose_stepping(self, steps: np.ndarray) -> None:
        """Set which processes step their environments from now on, bool `[processes]`; the others wait."""
        self._is_stepping = bool(steps[self._rank])
        self._num_stepping = int(steps.sum())
        # The position among the processes that step, which orders the steps of a tick.
        self._place = int(steps[: self._rank].sum())

    def begin_round(self) -> bool:
        """Begin a round unless this process waits for the others."""
        return super().begin_round() if self._is_stepping else True

    def tick(self) -> None:
        """Step this process's lanes, and agree with the other processes if an agreement is due."""
        learner = self.learner
        counters = self.counters
        before = counters.steps
        if self._is_stepping and before + self._place < self.budget.last_step:
            self._step()
        if self.lanes.actions is None:
            learner.end_round()
        counters.steps = int(min(before + self.lanes.tick_width * self._num_stepping, self.budget.last_step))
        self._countdown -= 1
        table = self._agree() if self._must_agree(before) else None
        if self._is_stopped:
            self._finish_tick(table)
            return
        ended = 0 if table is None else int(table[:, _EPISODES].sum())
        # Every process needs a share of a batch, so the one with the fewest transitions decides.
        ready = 0.0 if table is None else float(table[:, _READY].min()) * self._processes
        due = learner.due(before, counters.steps, ended, ready)
        if due.target:
            self.loop.update_target()
        if due.updates:
            if learner.rollout is None:
                self.finish()
            self.loop.learn(due.updates)
        self._finish_tick(table)

    def _before_call(self, is_first: bool) -> None:
        """Give all processes what hooks of the chief have set since the agreement or the last call."""
        if self.loop.runner.is_live or not is_first:
            self._follow_chief(self.strategy.agree(self._numbers()))

    def _numbers(self) -> list[float]:
        """Return the settings that the others follow; zeros if this process is not the chief."""
        return self._settings.read() if self.strategy.is_chief else [0.0] * self._settings.size

    def _follow_chief(self, table: np.ndarray) -> None:
        """Set the chief's settings, the first row of a table `[processes, settings]`."""
        if not self.strategy.is_chief:
            self._settings.write(table[0].tolist())

    def _step(self) -> None:
        """Step the lane or lanes of this tick, and store the transitions within the budget."""
        started = perf_counter()
        first = self.counters.steps + self._place + 1
        transitions = self.lanes.tick(first)
        stepped = perf_counter()
        self.loop.clock[self.lanes.stepping_clock] += stepped - started
        for position, transition in enumerate(transitions):
            if first + position * self._num_stepping > self.budget.last_step:
                self.discard(transitions[position:])
                break
            self.store(transition)
            self._own_steps += 1
        self.loop.clock["store"] += perf_counter() - stepped

    def _must_agree(self, before: int) -> bool:
        """Return whether the processes agree after this tick.

        The result is the same in all processes, except that a process agrees early if its rollout is complete. This
        process then waits in the agreement until the others agree.
        """
        after = self.counters.steps
        if self._countdown <= 0 or after >= self.budget.last_step:
            return True
        if self.learner.replay is None or self.learner.rollout is not None:
            return self.lanes.actions is None and self.learner.ready > 0
        # Not the schedule's: a callback of the chief may have changed it, and the others follow at an agreement.
        every = self._agreed_every
        starts = self.learner.schedule.learning_starts
        return not isinstance(every, str) and after > starts and after // every > max(before, starts) // every

    def _most_ticks(self) -> int:
        """Return after how many ticks at most the processes agree, so that the budget of episodes is not exceeded."""
        if self.lanes.waiting is not None:
            return 1  # how many lanes step in a tick depends on the ends of their episodes
        left = self.budget.last_episode - self.counters.episodes
        return max(1, int(min(left / self._processes, _MOST_TICKS)))

    def _agree(self) -> np.ndarray:
        """Exchange the state of this process with the others; set the counters, and whether training ends."""
        ended = self._own_episodes + len(self.over)
        ready = self.learner.ready
        numbers = [float(self.loop.stop.is_set), float(self._own_steps), float(ended), float(ready), *self._numbers()]
        started = perf_counter()
        table = self.strategy.agree(numbers)
        self.loop.clock["learn"] += perf_counter() - started
        self._follow_chief(table[:, _READY + 1 :])
        # Used until the next agreement, so that all processes agree after the same ticks.
        self._agreed_every = self.learner.schedule.update_every
        self.counters.steps = self._agreed_steps = self._agreed_steps + int(table[:, _STEPS].sum())
        self._count_episodes(table)
        if not isinstance(self.lanes, PoolLanes):  # whose workers count by themselves
            self.actor.explorer.skip(int(table[:, _STEPS].sum()) - self._own_steps)  # the steps of other processes
        self._own_steps = 0
        self._own_episodes = -len(self.over)  # the episodes in `over` are counted already
        if table[:, _STOP].any():
            self._stop_together(table)
        elif self._agreed_episodes >= self.budget.last_episode:
            self._reason = "episodes"
        if self.learner.rollout is not None:
            # Rollouts begin at different steps if the chief was restored, or a budget was not divisible.
            complete = table[:, _READY] > 0
            self._choose_stepping(~complete | complete.all())
        self._countdown = self._most_ticks()
        return table

    def _count_episodes(self, table: np.ndarray) -> None:
        """Set the number of episodes before the ends in this tick or elsewhere are fired.

        Episodes beyond the budget do not count. The processes with the lowest ranks keep theirs.
        """
        left = self.budget.last_episode - self._agreed_episodes
        kept = np.diff(np.minimum(np.cumsum([0, *table[:, _EPISODES]]), left)).astype(int)
        for _ in range(int(table[self._rank, _EPISODES]) - int(kept[self._rank])):
            self._surplus.append(self.over.pop())
        table[:, _EPISODES] = kept
        self._agreed_episodes += int(kept.sum())
        elsewhere = int(kept.sum() - kept[0]) if self.strategy.is_chief else 0
        self.counters.episodes = self._agreed_episodes - len(self.over) - elsewhere

    def _stop_together(self, table: np.ndarray) -> None:
        """End training, for the reason of the first process that has stopped."""
        reason = (self.loop.stop.reason or "") if self.loop.stop.is_set else ""
        reasons = self.strategy.gather(reason.encode())
        first = int(np.flatnonzero(table[:, _STOP])[0])
        self.loop.stop.is_set = True
        self.loop.stop.reason = reasons[first].decode() or None
        self._is_stopped = True
        self._reason = self.loop.stop.reason

    def _finish_tick(self, table: np.ndarray | None) -> None:
        """Fire the ends of the episodes of this process, and on the chief the ends in the other processes."""
        self.end_episodes()  # first, because these ends add to `_outbox`
        # Episodes beyond the budget end as not complete.
        while self._surplus:
            self.loop.fire_episode_end(self._surplus.pop(0), False)
        # All processes know from the table whether they exchange messages now.
        if table is not None and table[1:, _EPISODES].any():
            messages = self.strategy.gather(json.dumps(self._outbox, default=float).encode() if self._rank else b"")
            self._outbox = []
            if self.strategy.is_chief:
                for message in messages[1:]:
                    for number, logs in json.loads(message):
                        self._fire_other(number, logs)

    def end_episode(self) -> None:
        """Count the next episode that is over, fire the end, and keep the logs for the chief."""
        number = self.lanes.ledger.numbers[self.over[0]]
        self._own_episodes += 1
        super().end_episode()
        if self._rank:
            self._outbox.append((number, self._last_logs))

    def complete_logs(self, logs: Logs) -> Logs:
        """Return the logs with the rank, and keep a copy, which `end_episode` sends to the chief."""
        logs = {**logs, "rank": self._rank}
        # What callbacks add to the logs of another process stays there; the chief's callbacks add their own.
        self._last_logs = dict(logs)
        return logs

    def _fire_other(self, number: int, logs: Logs) -> None:
        """Fire the begin and the end of an episode of another process."""
        self.counters.episodes += 1
        # All processes continue with the chief's count after a resume, and must not use a number again.
        self.counters.episodes_begun = max(self.counters.episodes_begun, number // self._processes + 1)
        self.loop.fire_between(self.loop.events.on_episode_begin, number, {})
        self.loop.fire_between(self.loop.events.on_episode_end, number, logs)
