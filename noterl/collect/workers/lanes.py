"""`PoolLanes`: lanes whose environments run in worker processes.

If the network runs in NumPy and `forward` returns no further fields, each worker chooses the actions of its lanes.
Otherwise the learner chooses the actions of each round, and workers only step the environments. `rounds.py` has a class
for each.

Workers that act collect a *phase* of several rounds with the same weights. A phase begins when the loop has consumed
all rounds of the last one. So the weights of each round do not depend on the speed of the processes, and neither do the
results. With `overlap`, workers collect while the learner learns: see `noterl.collect.workers.schedule`.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl.acting.actor import Actor
from noterl.acting.policy_state import NO_STATE
from noterl.collect.base import Chosen, LanesLearner
from noterl.collect.env_calls import EnvCall
from noterl.collect.workers.pool import Pool
from noterl.collect.workers.process import Inbox
from noterl.collect.workers.rounds import WORKERS, LearnerRounds, Rounds, make_rounds, why_learner_acts
from noterl.collect.workers.schedule import Lead
from noterl.collect.workers.settings import WorkerError, WorkerSettings
from noterl.collect.workers.shared_memory import ArraySpec, SharedMemory
from noterl.collect.workers.state import PoolState, join
from noterl.collect.workers.supervisor import Supervisor
from noterl.collect.workers.transitions import FIELDS, TEAM, TEAM_FIELDS, Row, RowReader, info_at, row_specs
from noterl.collect.workers.worker import CONTROL_SIZE, Job, exploration_name, ring_of
from noterl.envs import EnvSource
from noterl.envs.multi_agent.parallel import TeamReward, rewards_to_learn_from
from noterl.heads import members
from noterl.random import Generators
from noterl.types import Counters, InfoSpec, Transition

if TYPE_CHECKING:  # worker processes import this module, and would import more than they need
    from noterl.callback import Budget
    from noterl.replay import Replay

# A worker waits when its ring is full. The rounds of a ring, and the bytes of a ring of large rows.
RING_ROUNDS = 256
RING_BYTES = 2**24

# After more calls of `env_call` in one `fit`, a failed worker cannot be replaced: its successor repeats all of them.
MAX_CALLS = 100_000


class PoolLanes(Pool):
    """N lanes in P worker processes.

    Worker p has the lanes `p N // P` to `(p + 1) N // P - 1`. Seeds of a lane come from "environment/<lane>", so seeds
    do not depend on the number of workers. Exploration of worker p uses generators "worker/<p>/...".

    The processes run from `start` to `close`. Workers may have collected further than the loop has consumed; these rows
    are part of the state, and the next `fit` consumes these rows first.

    Args:
        source: makes the environments.
        num_envs: the number of lanes.
        generators: the agent's generators.
        workers: the number of processes and the policy for failures.
        team_reward: see `noterl.envs.multi_agent.parallel.TeamEnv`; None for one agent.
        info_spec: see `Lanes`.

    Attributes:
        ledger: the episodes in flight, as far as the loop has consumed the rows.
        info: the current value of each field of `info_spec`, `[N, ...]`, if the learner chooses the actions.

    Raises:
        ValueError: if there are fewer lanes than workers, or workers cannot make the environments.
    """

    stepping_clock = WORKERS

    def __init__(
        self,
        source: EnvSource,
        num_envs: int,
        generators: Generators,
        workers: WorkerSettings,
        team_reward: TeamReward | None = None,
        info_spec: InfoSpec | None = None,
    ) -> None:
        if num_envs < workers.count:
            raise ValueError(f"num_envs must be at least the number of workers, {workers.count}, got {num_envs}")
        super().__init__(source, num_envs, generators, workers, info_spec)
        self._detached = source.detached()
        self._team_reward = team_reward
        self._worker_of = [index for index, lanes in enumerate(self.own) for _ in range(lanes.start, lanes.stop)]
        self._state = PoolState(self.own)
        self._calls: list[EnvCall] = []  # all of this fit

    @property
    def has_rounds(self) -> bool:
        """Whether each worker has rounds of the phase left, which an earlier policy may have begun; between rounds."""
        return self.rounds.has_rounds

    # Starting and ending

    def serves(self, source: EnvSource, num_envs: int, on_device: bool) -> bool:
        """Return False: the processes end with the `fit`, and the next one restores the state."""
        return False

    def set_sources(self, replay: Replay) -> None:
        """Set in the replay memory which lanes belong to which worker."""
        replay.set_sources([lanes.stop - lanes.start for lanes in self.own])

    def look_for_masks(self) -> None:
        """Reset one more environment in this process; if `info` has a mask, `fields` offers the mask.

        The arrays in shared memory have a fixed layout, so the masks must be known before. If the environment raises
        an exception, nothing is offered, and the workers report the exception at the start.
        """
        if not self.fields.watched:
            return
        make = self.source.make_evaluation
        with contextlib.suppress(Exception), contextlib.closing(self.guard.call(make)) as environment:
            self.fields.reset(0, self.guard.call(partial(environment.reset, seed=0))[1])

    def start(self, actor: Actor, rollout_steps: int | None = None) -> None:
        """Start the processes, and wait until the environments are made.

        Args:
            actor: chooses the actions.
            rollout_steps: rounds of a rollout, if the agent learns from rollouts.

        Raises:
            ValueError: if the environment, the policy or the noise cannot be sent to another process.
            WorkerError: if a worker raises an exception, such as one of the environment's constructor.
        """
        rounds = self.rounds = make_rounds(self, actor, rollout_steps)
        self.acting_clock = rounds.clock
        self.copies_policy = not isinstance(rounds, LearnerRounds)
        if not self.copies_policy:
            if actor.worker_explorers:
                raise ValueError(f"workers: {why_learner_acts(actor)}, so policy and noise must be one each, not lists")
            overlap_note = ", and overlap has no effect" if self.settings.overlap else ""
            warnings.warn(
                f"workers: {why_learner_acts(actor)}, so the learner chooses all actions, and the workers only step "
                f"environments{overlap_note}",
                RuntimeWarning,
                stacklevel=4,
            )
        self._specs = self._array_specs(rounds)
        self.memory = SharedMemory(self._specs)
        self.control = [self.memory.arrays[f"control/{index}"] for index in range(len(self.own))]
        reader = RowReader(self.source.observation_space, self.source.action_space)
        self.inboxes = [
            Inbox(ring_of(self.memory.arrays, index), lanes.stop - lanes.start, reader)
            for index, lanes in enumerate(self.own)
        ]
        self.resets[:] = 0
        self._calls = []
        self.step = 0
        self._is_over = False
        try:
            self._start_processes(rounds)
        except BaseException:
            self.close(kill=True)
            raise
        self._state.saved = None

    def attach_loop(self, learner: LanesLearner, counters: Counters, budget: Budget) -> None:
        """Set what workers may collect ahead of the loop."""
        self.rounds.lead = Lead(learner, counters, budget, self.num_envs, self.settings.max_staleness)

    def _start_processes(self, rounds: Rounds) -> None:
        """Start the processes with the saved state, and make the lanes idle that could not be restored."""
        pool = self._state.pool
        for inbox, rows in zip(self.inboxes, pool.get("rows", ()), strict=False):  # without a saved pool, no rows
            inbox.set_state(rows)
        launcher = self.settings.launcher(self.memory, rounds.shapes)
        self.supervisor = Supervisor(self.settings, self.own, launcher, self.control)
        self.supervisor.successor_job = self._successor_job
        # Not a method of the rounds: rounds and processes hold no cycle of references.
        self.supervisor.on_replaced = lambda index: self.rounds.resume(index)
        self.supervisor.check = self.guard.check
        rounds.open(pool)
        running = self.supervisor.start([self._job(index, restores=True) for index in range(len(self.own))])
        for lanes, inbox, runs_of_worker in zip(self.own, self.inboxes, running, strict=True):
            for lane, runs in zip(range(lanes.start, lanes.stop), runs_of_worker, strict=True):
                if not runs and not inbox.rows and lane not in self.ledger.over:
                    self.ledger.running[lane] = False  # it could not be restored
        rounds.lost.clear()  # a worker that was replaced meanwhile has restored its lanes too
        if self.actions is not None:  # a worker that was lost has no row of the round in progress
            rounds.lost |= {index for index, inbox in enumerate(self.inboxes) if not inbox.rows}

    def _array_specs(self, rounds: Rounds) -> list[ArraySpec]:
        """Return the arrays in shared memory."""
        specs = rounds.specs()
        start = rounds.actor.start if self.copies_policy else NO_STATE
        row = row_specs(self.source, self.fields.spec, self.ledger.reductions, start, rounds.num_outputs)
        row_bytes = sum(int(np.prod(spec.shape)) * np.dtype(spec.dtype).itemsize for spec in row)
        for index, lanes in enumerate(self.own):
            count = lanes.stop - lanes.start
            capacity = count * max(rounds.least, min(RING_ROUNDS, RING_BYTES // (row_bytes * count)))
            specs += [ArraySpec(f"counters/{index}", (2,), np.int64)]
            specs += [ArraySpec(f"control/{index}", (CONTROL_SIZE,), np.int64)]
            specs += [ArraySpec(f"ring/{index}/{spec.name}", (capacity, *spec.shape), spec.dtype) for spec in row]
        return specs

    def _job(self, index: int, *, restores: bool) -> Job:
        """Return what a worker does; a job that does not restore the saved state starts new episodes."""
        lane_range = self.own[index]
        actor = self.rounds.actor_of(index, self._state.explorer_of(index) if restores else None)
        lanes = self._state.lanes_of(index) if restores else None
        names = [f"environment/{lane}" for lane in range(lane_range.start, lane_range.stop)]
        names += [exploration_name(index, name) for name in self.rounds.explorers]
        states = {name: self.generators(name).bit_generator.state for name in names}
        generators = {"seed": self.generators.seed, "states": states}
        count = lane_range.stop - lane_range.start
        lanes_of_worker = index, lane_range.start, count, self.num_envs, self._detached
        info = self.fields.spec, tuple(self.ledger.reductions)
        takes_mask = self.rounds.actor.head.takes_mask
        shapes = self.rounds.shapes
        return Job(*lanes_of_worker, actor, shapes, generators, lanes, self._specs, *info, takes_mask=takes_mask)

    def end(self, *, hurry: bool) -> None:
        """End the processes, and keep the state, which `get_state` then returns."""
        try:
            try:
                self._state.saved = self.get_state(hurry=hurry)
            except (KeyboardInterrupt, SystemExit):  # while an environment hangs
                self._state.saved = self.get_state(hurry=True)
                raise
        except BaseException:
            self.close(kill=True)
            raise
        self.close()

    def close(self, *, kill: bool = False) -> None:
        """Close the environments, end the processes, at once if `kill`, and release what the processes have shared."""
        try:
            if self.supervisor is not None:
                (self.supervisor.kill if kill else self.supervisor.close)()
        finally:
            self.rounds = self.supervisor = None
            self.inboxes = []
            self.control = []
            if self.memory is not None:
                self.memory.close()
                self.memory = None

    # The interface of lanes

    def observations(self) -> np.ndarray:
        """Return the observations of the round, encoded for networks, `[N, ...]`."""
        return self.rounds.observations()

    def idle(self) -> list[int]:
        """Return the lanes that need a reset."""
        self.end_round()
        return super().idle()

    def reset(self, lane: int, number: int, step: int) -> None:
        """Start episode `number` in a lane.

        A worker that acts resets the lanes itself, at the beginning of the next round. Otherwise all idle lanes are
        reset together when this is called for the first of these lanes.
        """
        self.step = step
        self.earned[lane] = 0.0
        self.rounds.reset(lane)
        self.ledger.begin(lane, number)

    def reset_noise(self, actor: Actor, lane: int) -> None:
        """Reset the noise of a lane in which an episode starts; workers that act reset the noise themselves."""
        self.rounds.reset_noise(actor, lane)

    def choose_actions(self, actor: Actor, step: int) -> Chosen:
        """Begin a round, whose actions the workers or this process choose; see `Lanes.choose_actions`."""
        return self.rounds.choose_actions(actor, step)

    def before_updates(self, updates: int) -> None:
        """With overlap, let workers collect the next rollout with the weights from before these updates."""
        self.rounds.before_updates(updates)

    def learned(self, updates: int) -> None:
        """Called after each compiled call, with the number of gradient updates so far."""
        self.rounds.learned(updates)

    def begin_round(self, actions: np.ndarray, extra: Mapping[str, np.ndarray] | None = None) -> None:
        """Send the actions of the round, which the learner has chosen, to the workers.

        `extra` holds further fields `[N, ...]` of these actions, which the transitions then have.
        """
        self.end_round()
        self.memory.arrays["actions"][:] = actions
        self.actions = members(actions, self.source.action_space)
        self.cursor = 0
        self._extra = dict(extra or {})
        for index in range(len(self.own)):
            self.supervisor.send(index, "step", self.step)

    def tick(self, step: int) -> tuple[Transition, ...]:
        """Return the next lane's transition of the round; () if the lane's worker has failed in the round.

        If the worker has no complete round yet, this method waits. The ledger counts the transition.
        """
        lane = self.cursor
        index = self._worker_of[lane]
        rows = self.inboxes[index].current or self._rows_of(index)
        self.step = step
        self.cursor += 1
        transitions = (self._transition(lane, index, rows),) if rows else ()
        if self.cursor == self.num_envs:
            self.actions = None
            self._is_over = True
        return transitions

    def _transition(self, lane: int, index: int, rows: Sequence[Row]) -> Transition:
        """Return the transition of a lane of a worker, which has these rows in the round, and count the step."""
        position = lane - self.own[index].start
        observation, next_observation, _, reward, earned, terminated, truncated, _ = rows[position]
        extra = None
        if self._extra or self.fields.spec or self.ledger.reductions or self._team_reward is not None:
            fields, first = self.inboxes[index].front()
            extra = self._further_fields(lane, fields, first + position)
            if self._team_reward is not None:
                reward = earned = float(extra["reward"].mean())
        self.ledger.returns[lane] += earned
        self.ledger.lengths[lane] += 1
        action = self.actions[lane]
        return Transition(lane, observation, action, reward, next_observation, terminated, truncated, extra)

    def _further_fields(self, lane: int, fields: Mapping[str, Any], row: int) -> Any:
        """Return the further fields of a transition, None for none, and add the step's `info` to the episode's."""
        if self.ledger.reductions:
            self.ledger.info[lane].add(info_at(fields, self.ledger.reductions, row))
        if self._team_reward is not None:
            extra = {name: fields[f"{TEAM}{name}"][row] for name in TEAM_FIELDS}
            self.earned[lane] += extra["reward"]
            extra["reward"] = rewards_to_learn_from(self._team_reward, extra["reward"], extra["terminated"])
            return extra
        extra = {name: values[lane] for name, values in self._extra.items()}
        for name in self.fields.spec:
            extra |= {key: fields[f"{FIELDS}{key}"][row] for key in (name, f"next_{name}")}
        return extra or None

    def logs(self, lane: int) -> dict[str, float]:
        """Return the number of the lane's worker and, with several agents, each agent's return.

        With overlap, also the largest staleness of the episode, and the ratio of updates to collected steps.
        """
        names = () if self.source.team is None else self.source.team.names
        returns = {f"reward/{name}": earned for name, earned in zip(names, self.earned[lane].tolist(), strict=True)}
        return {"worker": self._worker_of[lane], **self.rounds.logs(lane), **returns}

    def call(self, call: EnvCall) -> list[Any]:
        """Call a method of every environment, or read an attribute; return the results of the lanes.

        Workers do so after the phase. So the rounds that workers have collected ahead of the loop come before the call.

        Raises:
            ValueError: if the environments lack the method or attribute, or the arguments cannot be sent to another
                process.
            WorkerError: if the method raises.
        """
        results: list[Any] = self.supervisor.call(call, self.inboxes)
        if call.args is not None and len(self._calls) <= MAX_CALLS:
            self._calls.append(call)
        return results

    # Waiting

    def _rows_of(self, index: int) -> list[Row]:
        """Wait for and return a worker's rows of the round; [] after a failure if the learner chose the actions."""
        inbox = self.inboxes[index]
        if not inbox.rows and index not in self.rounds.lost:
            self.wait_for_rounds([index])
        return inbox.round() if inbox.rows else []

    # Failures

    def _successor_job(self, index: int) -> Job:
        """Return the job of a process that replaces another one; the lanes start new episodes."""
        if len(self._calls) > MAX_CALLS:
            raise WorkerError(
                index, f"worker {index} cannot be replaced after more than {MAX_CALLS:,} calls of env_call in one fit"
            )
        self._skip_used_numbers(index)
        return replace(self._job(index, restores=False), calls=tuple(self._calls))

    def _skip_used_numbers(self, index: int) -> None:
        """Advance the generators of a worker that has failed, so that its lanes do not repeat random numbers."""
        lanes = self.own[index]
        pending = self.rounds.pending_resets(index)
        for lane, ahead in zip(range(lanes.start, lanes.stop), pending.tolist(), strict=True):
            generator = self.generators(f"environment/{lane}")
            for _ in range(int(self.resets[lane]) + ahead + 1):  # it may have failed in a reset
                generator.integers(2**31)
            self.resets[lane] = -ahead  # the loop counts these resets when the rows are consumed
        for name in self.rounds.explorers:
            bits: Any = self.generators(exploration_name(index, name)).bit_generator
            bits.advance(2**64)  # more numbers than the failed worker can have drawn

    # State

    def get_state(self, *, hurry: bool = False) -> dict[str, Any] | None:
        """Return the state of the lanes, with the rounds that the loop has not consumed; see `PoolState`.

        The workers complete their phase first, and the generators of the agent receive the workers' states.

        Args:
            hurry: whether workers end the phase early, because an error has ended the training. The episodes of
                workers that do not answer in time are lost. Only `close` may follow.
        """
        if self.supervisor is None:
            return self._state.saved  # before `start`
        self.end_round()
        states = self.supervisor.states(self.inboxes, hurry=hurry)
        self.end_round()  # it may have found that a worker has failed
        self.rounds.phases.pause()
        for index in [index for index, worker_state in enumerate(states) if worker_state is None]:
            self._skip_used_numbers(index)
        return join(self, self.rounds, states)

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state of `get_state` at the next `start`, or a state of `ScalarLanes`; see `PoolState.accept`."""
        if not self._state.accept(state):
            return
        self.ledger.set_state(state["ledger"])
        if self._state.pool and state["actions"] is not None:
            self.actions = members(state["actions"], self.source.action_space)
            self.cursor = state["cursor"]
            self._extra = {name: values.copy() for name, values in state["extra"].items()}
        if self.source.team is not None:
            self.earned[:] = [lane["earned"] for lane in state["lanes"]]
