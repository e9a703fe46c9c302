"""`PoolLanes`: lanes whose environments run in worker processes.

Two modes have the same interface. If the network runs in NumPy and `forward` returns no further fields, each worker
chooses the actions of its lanes (`acts` is True). Otherwise the learner chooses the actions of each round, and workers
only step the environments.

Workers that act collect a *phase* of several rounds with the same weights. A phase begins when the loop has consumed
all rounds of the last one. So the weights of each round do not depend on the speed of the processes, and neither do the
results. With `overlap`, workers collect while the learner learns: see `noterl.collect.workers.schedule`.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from noterl.collect.base import Lanes, LanesLearner
from noterl.collect.env_calls import EnvCall
from noterl.collect.ledger import Ledger, is_ahead, joint_kind, warn_restarted
from noterl.collect.workers.process import Inbox
from noterl.collect.workers.schedule import EpisodePhases, Lead, Overlap, Phases
from noterl.collect.workers.settings import WorkerError, WorkerSettings
from noterl.collect.workers.shared_memory import ArraySpec, SharedMemory, SharedWeights
from noterl.collect.workers.supervisor import Supervisor
from noterl.collect.workers.transitions import (
    FIELDS,
    OBSERVATION,
    TEAM_FIELDS,
    Row,
    RowReader,
    info_at,
    observation_at,
    row_specs,
)
from noterl.collect.workers.weights import Publisher, block_shapes
from noterl.collect.workers.worker import (
    CONTROL_SIZE,
    WANTED,
    Acting,
    Job,
    exploration_name,
    ring_of,
)
from noterl.envs.multi_agent.parallel import rewards_to_learn_from
from noterl.envs.observation import ObservationEncoder, zeros
from noterl.heads import members
from noterl.types import Counters, InfoSpec, Transition

if TYPE_CHECKING:
    from noterl.acting.actor import Actor
    from noterl.callback import Budget
    from noterl.envs import EnvSource
    from noterl.envs.multi_agent.parallel import TeamReward
    from noterl.random import Generators
    from noterl.replay import Replay

# A worker waits when its ring is full. The rounds of a ring, and the bytes of a ring of large rows.
RING_ROUNDS, RING_BYTES = 256, 2**24

# After more calls of `env_call` in one `fit`, a failed worker cannot be replaced: its successor repeats all of them.
MAX_CALLS = 100_000

WORKERS = "workers"  # in the time split, the time in which the loop waits for worker processes


class PoolLanes(Lanes):
    """N lanes in P worker processes.

    Worker p has the lanes `p N // P` to `(p + 1) N // P - 1`. Seeds of a lane come from "environment/<lane>", so they
    do not depend on the number of workers. Exploration of worker p uses generators "worker/<p>/...".

    The processes run from `start` to `close`. Workers may have collected further than the loop has consumed; these rows
    are part of the state, and the next `fit` consumes them first.

    Args:
        source: makes the environments.
        num_envs: the number of lanes.
        generators: the agent's generators.
        workers: the number of processes and the policy for failures.
        team_reward: see `noterl.envs.multi_agent.parallel.TeamEnv`; None for one agent.
        info_spec: see `Lanes`.

    Attributes:
        ledger: the episodes in flight, as far as the loop has consumed them.
        cursor: the lane whose transition is next in the round.
        acts: whether workers choose the actions.
        info: the current value of each field of `info_spec`, `[N, ...]`, if the learner chooses the actions.
        overlaps: whether workers collect while the learner learns.

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
        super().__init__(source, num_envs, info_spec)
        self.settings: WorkerSettings = workers
        self.num_workers: int = workers.count
        self._detached = source.detached()
        self._generators, self._team_reward = generators, team_reward
        ends = [index * num_envs // self.num_workers for index in range(self.num_workers + 1)]
        self._own = [slice(*both) for both in pairwise(ends)]  # the lanes of each worker
        self._counts = [own.stop - own.start for own in self._own]
        self._worker_of = [index for index, own in enumerate(self._own) for _ in range(own.start, own.stop)]
        self.cursor: int = 0
        self._info_spec = self.fields.spec
        self.acts: bool = False
        self.overlaps: bool = False
        self._space: Any = source.observation_space
        self._encoder = ObservationEncoder(self._space)
        agents = 0 if source.team is None else len(source.team)
        self._earned = np.zeros((num_envs, agents))
        self._saved: dict[str, Any] | None = None  # restored at the start
        self._calls: list[EnvCall] = []  # all of this fit
        self._supervisor: Any = None  # the processes, between `start` and `close`
        self._phases: Any = None
        self._publisher: Any = None
        self._memory: Any = None
        self._lead: Any = None  # how far workers may be ahead of the loop

    @property
    def has_rounds(self) -> bool:
        """Whether each worker has rounds of its phase left, which an earlier policy may have begun; between rounds."""
        return self.acts and bool(self._phases.has_rounds())

    # Starting and ending

    def serves(self, source: EnvSource, num_envs: int, on_device: bool) -> bool:
        """Return False: the processes end with their `fit`, and the next one restores their state."""
        return False

    def set_sources(self, replay: Replay) -> None:
        """Set in the replay memory which lanes belong to which worker."""
        replay.set_sources(self._counts, balance=self.settings.balance)

    def look_for_masks(self) -> None:
        """Reset one more environment in this process; if it reports a mask, `fields` offers it.

        The arrays in shared memory have a fixed layout, so the masks must be known before. If the environment raises
        an exception, nothing is offered, and the workers report the exception when they start.
        """
        if not self.fields.watched:
            return
        with contextlib.suppress(Exception), contextlib.closing(self.source.make_evaluation()) as environment:
            self.fields.reset(0, environment.reset(seed=0)[1])

    def start(self, actor: Actor, rollout_steps: int | None = None) -> None:
        """Start the processes, and wait until their environments are made.

        Args:
            actor: chooses the actions.
            rollout_steps: rounds of a rollout, if the agent learns from rollouts.

        Raises:
            ValueError: if the environment, the policy or the noise cannot be sent to another process.
            WorkerError: if a worker raises an exception, such as one of the environment's constructor.
        """
        self._actor, forward = actor, actor.forward
        self.acts = forward.program is not None and not actor.forward_fields
        self.overlaps = self.settings.overlap and self.acts
        self.acting_clock = WORKERS if self.acts else "act"
        if not self.acts:
            reason = "forward returns further fields" if actor.forward_fields else "NumPy cannot run this network"
            reason = "forward has a state" if actor.start else reason
            overlap_note = ", and overlap has no effect" if self.settings.overlap else ""
            warnings.warn(
                f"workers: {reason}, so the learner chooses all actions, and the workers only step "
                f"environments{overlap_note}",
                RuntimeWarning,
                stacklevel=4,
            )
        self._shapes = block_shapes(actor) if self.acts else []
        self._specs = self._array_specs(rollout_steps if self.overlaps else None)
        self._memory = SharedMemory(self._specs)
        arrays = self._memory.arrays
        self._control = [arrays[f"control/{index}"] for index in range(self.num_workers)]
        counts = enumerate(self._counts)
        reader = RowReader(self._space, self.source.action_space)
        self._inboxes = [Inbox(ring_of(arrays, index), count, reader) for index, count in counts]
        self._resets = np.zeros(self.num_envs, np.int64)  # of each lane, since its generator was synchronized
        self._calls = []
        self._expected = np.zeros(self.num_envs, np.bool_)  # lanes whose next row starts an episode
        # Lanes whose reset the learner has requested and not used.
        self._requested = np.zeros(self.num_envs, np.bool_)
        self._lost: set[int] = set()  # workers that were replaced in the round in progress
        self._is_over = False  # whether all transitions of the round were returned, and its rows are not released
        self._step = self._updates = 0
        self._first: tuple[int, int] | None = None  # the steps and updates before the first round of this fit
        self._staleness = np.zeros(self.num_envs, np.int64)  # the largest of each lane's episode
        self._encoded = np.zeros((self.num_envs, *self._encoder.space.shape), self._encoder.space.dtype)
        block = SharedWeights(arrays["weights"], arrays["version"], self._shapes) if self.acts else None
        self._publisher = Publisher(actor, block, self._saved_pool().get("seen", []))
        phases: type[Phases] = Phases  # a phase is a rollout, or a number of rounds
        if rollout_steps is None and self.acts:
            phases = Overlap if self.overlaps else EpisodePhases if self.settings.collect == "episode" else Phases
        try:
            self._start_processes(phases)
        except BaseException:
            self.kill()
            raise
        self._saved = None

    def attach_loop(self, learner: LanesLearner, counters: Counters, budget: Budget) -> None:
        """Set what workers may collect ahead of the loop."""
        self._lead = Lead(learner, counters, budget, self.num_envs, self.settings.max_staleness)

    def _start_processes(self, phases: type[Phases]) -> None:
        saved = self._restore_inboxes()
        launcher = self.settings.launcher(self._memory, self._shapes)
        self._supervisor = supervisor = Supervisor(self.settings, self._own, launcher, self._control)
        self._phases = phases(
            supervisor, self._inboxes, self._control, self._publisher, self.num_envs, self.settings.collect
        )
        supervisor.successor_job, supervisor.on_replaced = self._successor_job, self._resume
        supervisor.check = self.guard.check
        running = self._supervisor.start([self._job(index, saved) for index in range(self.num_workers)])
        for own, inbox, runs_of_own in zip(self._own, self._inboxes, running, strict=True):
            for lane, runs in zip(range(own.start, own.stop), runs_of_own, strict=True):
                if not runs and not inbox.rows and lane not in self.ledger.over:
                    self.ledger.running[lane] = False  # it could not be restored
        self._lost.clear()  # a worker that was replaced meanwhile has restored its lanes too

    def _array_specs(self, rollout_steps: int | None) -> list[ArraySpec]:
        """Return the arrays in shared memory; a ring holds at least a rollout, if its number of rounds is given."""
        encoded: Any = self._encoder.space
        action: Any = self.source.action_space
        if self.acts:
            specs = SharedWeights.specs(self._shapes)
        else:
            dtype = np.int64 if isinstance(action, spaces.Discrete) else action.dtype
            specs = [
                ArraySpec("encoded", (self.num_envs, *encoded.shape), encoded.dtype),
                ArraySpec("actions", (self.num_envs, *(action.shape or ())), dtype),
                ArraySpec("fresh", (self.num_envs,), np.bool_),
            ]
            specs += [ArraySpec(f"current/{name}", values.shape, values.dtype) for name, values in self.info.items()]
        row = row_specs(self.source, self._info_spec, self.ledger.reductions)
        row_bytes = sum(int(np.prod(spec.shape)) * np.dtype(spec.dtype).itemsize for spec in row)
        for index, own in enumerate(self._own):
            count = own.stop - own.start
            rounds = min(RING_ROUNDS, max(2, RING_BYTES // (row_bytes * count)))
            if rollout_steps is not None:  # and the round whose transitions the loop returns
                rounds = max(rounds, rollout_steps + 1)
            specs += [ArraySpec(f"counters/{index}", (2,), np.int64)]
            specs += [ArraySpec(f"control/{index}", (CONTROL_SIZE,), np.int64)]
            specs += [ArraySpec(f"ring/{index}/{each.name}", (rounds * count, *each.shape), each.dtype) for each in row]
        return specs

    def _job(self, index: int, saved: Mapping[str, Any] | None) -> Job:
        own = self._own[index]
        names = [f"environment/{lane}" for lane in range(own.start, own.stop)]
        acting, lanes = None, None
        if self.acts:
            names += [exploration_name(index, name) for name in ("exploration", "random_actions")]
            acting = self._acting(index, None if saved is None else saved["explorers"][index])
        if saved is not None:
            ledger = saved["ledgers"][index]
            lanes = {
                "lanes": saved["lanes"][own],
                "ledger": ledger,
                "actions": None,
                "cursor": 0,
                "extra": {},
                "info": {name: values[own] for name, values in saved["info"].items()},
            }
        states = {name: self._generators(name).bit_generator.state for name in names}
        generators = {"seed": self._generators.seed, "states": states}
        count = own.stop - own.start
        lanes_of_worker = index, own.start, count, self.num_envs, self._detached
        info = self._info_spec, tuple(self.ledger.reductions)
        takes_mask = self._actor.head.takes_mask
        return Job(*lanes_of_worker, acting, generators, lanes, self._specs, *info, takes_mask=takes_mask)

    def _acting(self, index: int, explorer_state: Mapping[str, Any] | None) -> Acting:
        actor = self._actor
        own = actor.worker_explorers[index] if actor.worker_explorers else actor.explorer
        explorer = own.copy_with_generator(np.random.default_rng(0))  # the worker replaces the generator
        # After `compile` with another policy or noise, the state is of the one before.
        if explorer_state is not None and explorer_state.keys() == explorer.get_state().keys():
            explorer.set_state(explorer_state)
        program, normalizers = actor.forward.program, actor.normalizers
        return Acting(program, self._shapes, actor.head, explorer, actor.dtype, normalizers, actor.learning_starts)

    def end(self, *, hurry: bool) -> None:
        """End the processes, and keep their state, which `get_state` then returns."""
        try:
            self._saved = self.get_state(hurry=hurry)
        except BaseException:
            self.kill()
            raise
        self.close()

    def close(self) -> None:
        """Close the environments and end the processes."""
        try:
            if self._supervisor is not None:
                self._supervisor.close()
        finally:
            self._release()

    def kill(self) -> None:
        """End the processes at once."""
        try:
            if self._supervisor is not None:
                self._supervisor.kill()
        finally:
            self._release()

    def _release(self) -> None:
        self._supervisor = self._phases = self._publisher = self._lead = None
        self._inboxes, self._control = [], []
        self._encoded = np.zeros(0)
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    # The interface of lanes

    def observations(self) -> np.ndarray:
        """Return the observations of the round, encoded for networks, `[N, ...]`."""
        if not self.acts and self.actions is None:  # during a round, workers write the next observations
            self._encoded[:] = self._memory.arrays["encoded"]
            for name, values in self.info.items():
                values[:] = self._memory.arrays[f"current/{name}"]
        return self._encoded

    def idle(self) -> list[int]:
        """Return the lanes that need a reset."""
        self._end_round()
        return super().idle()

    def reset(self, lane: int, number: int, step: int) -> None:
        """Start episode `number` in a lane.

        A worker that acts resets its lanes itself, at the beginning of the next round. Otherwise all idle lanes are
        reset together when this is called for the first of them.
        """
        self._step = step
        self._earned[lane] = 0.0
        self._staleness[lane] = 0
        if self.acts:
            self._expected[lane] = True
        else:
            self._wait_for_resets(lane)
        self.ledger.begin(lane, number)

    def _wait_for_resets(self, lane: int) -> None:
        fresh = self._memory.arrays["fresh"]
        while not fresh[lane]:
            idle = super().idle()
            for index, own in enumerate(self._own):
                to_reset = [each for each in idle if own.start <= each < own.stop and not self._requested[each]]
                if to_reset:
                    self._requested[to_reset] = True
                    self._resets[to_reset] += 1
                    self._supervisor.send(index, "reset", [each - own.start for each in to_reset], self._step)
            self._supervisor.wait_until(lambda idle=idle: bool(fresh[idle].all()) or bool(self._lost))
            self._cut_lost()
        fresh[lane] = self._requested[lane] = False

    def reset_noise(self, actor: Actor, lane: int) -> None:
        """Reset the noise of a lane in which an episode starts; workers that act reset their own."""
        if not self.acts:
            super().reset_noise(actor, lane)

    def choose_actions(self, actor: Actor, step: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Begin a round, whose actions the workers or this process choose; see `Lanes.choose_actions`."""
        if not self.acts:
            return super().choose_actions(actor, step)
        actions = self.collect_round(step, self._lead.rounds(self.overlaps), self._lead.counters.updates)
        return None if actions is None else (self._encoded, actions)

    def collect_round(self, step: int, rounds: float | None, updates: int = 0) -> np.ndarray | None:
        """Return the actions `[N, ...]` of the next round, which workers have chosen; None if `interrupted` is set.

        Args:
            step: environment steps so far.
            rounds: how many rounds workers may be ahead of the loop, this one included; None for the number of the
                settings or, with overlap, for what a ring holds.
            updates: gradient updates so far.
        """
        self._step, self._updates = step, updates
        if self._first is None:
            self._first = max(step, self._actor.learning_starts), updates
        self._end_round()
        self._phases.prepare_round(step, updates, rounds)
        self._wait_for_rounds(range(self.num_workers))
        rounds_of = [inbox.round() for inbox in self._inboxes]
        if self.settings.collect == "episode":
            for index, own_rows in enumerate(rounds_of):
                ended = [terminated or truncated for *_, terminated, truncated, _ in own_rows]
                self._phases.receive(index, np.array(ended))
        rows = [row for own_rows in rounds_of for row in own_rows]
        begun = [row[-1] for row in rows]
        if any(begun):
            cut = begun & ~self._expected
            if cut.any():
                self._cut(np.flatnonzero(cut).tolist())
                return None
            self._expected[:] = False
            self._resets += begun
        chosen = self._gather_round()
        self._publisher.count_steps(self.num_envs)
        self.actions: Any = [row[2] for row in rows]
        self.cursor = 0
        return chosen

    def _gather_round(self) -> np.ndarray:
        """Update the observations and the staleness by the oldest round, and return its chosen actions, `[N, ...]`."""
        chosen = []
        for inbox, own in zip(self._inboxes, self._own, strict=True):
            fields, first = inbox.front()
            rows = slice(first, first + inbox.count)
            chosen.append(fields["chosen"][rows])
            observations = observation_at(fields, OBSERVATION, self._space, rows)
            if self._encoder.is_identity:
                self._encoded[own] = observations
            else:
                self._encoder.write(observations, self._encoded[own])
            behind = self._updates - int(fields["updates"][first])  # all lanes of a worker have the same weights
            if self.overlaps and behind > 0:
                np.maximum(self._staleness[own], behind, out=self._staleness[own])
        return np.concatenate(chosen)

    def before_updates(self, updates: int) -> None:
        """With overlap, let workers collect the next rollout with the weights from before these updates."""
        if self.overlaps and (rounds := self._lead.next_rollout(updates)):
            self._lead.learner.keep_acting_policy()
            self._end_round()
            self._phases.begin(self._lead.counters.steps, self._lead.counters.updates, rounds)

    def learned(self, updates: int) -> None:
        """Called after each compiled call, with the number of gradient updates so far."""
        self._updates = updates
        if self.acts:
            self._phases.publish(updates)

    def begin_round(self, actions: np.ndarray, extra: Mapping[str, np.ndarray] | None = None) -> None:
        """Send the actions of the round, which the learner has chosen, to the workers.

        `extra` holds further fields `[N, ...]` of these actions, which their transitions then have.
        """
        self._end_round()
        self._memory.arrays["actions"][:] = actions
        self.actions, self.cursor = members(actions, self.source.action_space), 0
        self._extra = dict(extra or {})
        for index in range(self.num_workers):
            self._supervisor.send(index, "step", self._step)

    def tick(self, step: int) -> tuple[Transition, ...]:
        """Return the next lane's transition of the round; () if its worker has failed in the round."""
        lane = self.cursor
        index = self._worker_of[lane]
        rows = self._inboxes[index].current or self._rows_of(index)
        self._step = step
        self.cursor += 1
        transitions = (self._transition(lane, index, rows),) if rows else ()
        if self.cursor == self.num_envs:
            self.actions, self._is_over = None, True
        return transitions

    def _end_round(self) -> None:
        """Between rounds, release the rows of the last one, and cut the episodes that failures of workers have ended.

        Transitions are views of these rows until then.
        """
        if self._is_over:
            self._is_over = False
            for inbox in self._inboxes:
                if inbox.rows:
                    inbox.release()
        if self.actions is None:
            self._cut_lost()

    def _transition(self, lane: int, index: int, rows: Sequence[Row]) -> Transition:
        """Return the transition of a lane of a worker, which has these rows in the round."""
        position = lane - self._own[index].start
        observation, next_observation, _, reward, earned, terminated, truncated, _ = rows[position]
        extra = None
        if self._extra or self._info_spec or self.ledger.reductions or self._team_reward is not None:
            fields, first = self._inboxes[index].front()
            extra = self._further_fields(lane, fields, first + position)
            if self._team_reward is not None:
                reward = earned = float(extra["reward"].mean())
        self.ledger.returns[lane] += earned
        self.ledger.lengths[lane] += 1
        action = self.actions[lane]
        return Transition(lane, observation, action, reward, next_observation, terminated, truncated, extra)

    def _further_fields(self, lane: int, fields: Mapping[str, Any], row: int) -> Any:
        """Return the further fields of a transition, None if there are none, and add its `info` to the episode's."""
        if self.ledger.reductions:
            self.ledger.info[lane].add(info_at(fields, self.ledger.reductions, row))
        if self._team_reward is not None:
            extra = {name: fields[f"team/{name}"][row] for name in TEAM_FIELDS}
            self._earned[lane] += extra["reward"]
            extra["reward"] = rewards_to_learn_from(self._team_reward, extra["reward"], extra["terminated"])
            return extra
        extra = {name: values[lane] for name, values in self._extra.items()}
        for name in self._info_spec:
            extra |= {each: fields[f"{FIELDS}{each}"][row] for each in (name, f"next_{name}")}
        return extra or None

    def logs(self, lane: int) -> dict[str, float]:
        """Return the number of the lane's worker and, with several agents, each agent's return.

        With overlap, also the largest staleness of the episode, and the ratio of updates to collected steps.
        """
        names = () if self.source.team is None else self.source.team.names
        returns = {f"reward/{name}": earned for name, earned in zip(names, self._earned[lane].tolist(), strict=True)}
        if not self.overlaps or self._first is None:
            return {"worker": self._worker_of[lane], **returns}
        first_step, first_update = self._first
        in_round = self.cursor if self.actions is not None or self._is_over else 0
        ahead = sum(inbox.rows for inbox in self._inboxes) - in_round
        ratio = (self._updates - first_update) / max(self._step + ahead - first_step, 1)
        return {
            "worker": self._worker_of[lane],
            "staleness": int(self._staleness[lane]),
            "update_ratio": ratio,
            **returns,
        }

    def call(self, call: EnvCall) -> list[Any]:
        """Call a method of every environment, or read an attribute; return the results of the lanes.

        Workers do so after their phase. So the rounds that they have collected ahead of the loop come before the call.

        Raises:
            ValueError: if the environments do not have it, or the arguments cannot be sent to another process.
            WorkerError: if the method raises.
        """
        results: list[Any] = self._supervisor.call(call, self._inboxes)
        if call.args is not None and len(self._calls) <= MAX_CALLS:
            self._calls.append(call)
        return results

    # Waiting

    def _rows_of(self, index: int) -> list[Row]:
        """Return a worker's rows of the round in progress; [] if it has failed, and the learner chose the actions."""
        inbox = self._inboxes[index]
        if not inbox.rows and index not in self._lost:
            self._wait_for_rounds([index])
        return inbox.round() if inbox.rows else []

    def _wait_for_rounds(self, indices: Sequence[int]) -> None:
        """Wait until these workers have a round; without an actor in the worker, also until one has failed."""
        for index in reversed(indices):  # the last one has received its command last
            inbox, control = self._inboxes[index], self._control[index]
            if inbox.rows:
                continue
            control[WANTED] = inbox.ring.published + self._phases.rows_to_wait_for(index)
            self._supervisor.wait_until(lambda inbox=inbox, index=index: inbox.rows or index in self._lost)
            control[WANTED] = 0

    # Failures

    def _successor_job(self, index: int) -> Job:
        """Return the job of a process that replaces another one; its lanes start new episodes."""
        if len(self._calls) > MAX_CALLS:
            raise WorkerError(
                index, f"worker {index} cannot be replaced after more than {MAX_CALLS:,} calls of env_call in one fit"
            )
        self._skip_used_seeds(index)
        return replace(self._job(index, None), calls=tuple(self._calls))

    def _resume(self, index: int) -> None:
        """Let the successor of a worker go on collecting; if the learner acts, its round is lost."""
        if self.acts:
            self._phases.resume(index, self._step)
        else:
            self._lost.add(index)

    def _skip_used_seeds(self, index: int) -> None:
        """Advance the generators of a failed worker, so that its successor does not repeat random numbers."""
        own, pending = self._own[index], self._pending_resets(index)
        for lane, ahead in zip(range(own.start, own.stop), pending.tolist(), strict=True):
            generator = self._generators(f"environment/{lane}")
            for _ in range(int(self._resets[lane]) + ahead + 1):  # it may have failed in a reset
                generator.integers(2**31)
            self._resets[lane] = -ahead
        for name in ("exploration", "random_actions") if self.acts else ():
            bits: Any = self._generators(exploration_name(index, name)).bit_generator
            bits.advance(2**64)

    def _pending_resets(self, index: int) -> np.ndarray:
        """Return how often each lane was reset in rows that the loop has not consumed, `[lanes of the worker]`."""
        inbox = self._inboxes[index]
        # If the learner requests each reset, it has counted them already.
        return inbox.begun() if self.acts else np.zeros(inbox.count, np.int64)

    def _cut_lost(self) -> None:
        """Cut the episodes of the workers that were replaced since the last round."""
        for index in self._lost:
            own = self._own[index]
            self._memory.arrays["fresh"][own] = self._requested[own] = False
            self._cut([lane for lane in range(own.start, own.stop) if self.ledger.running[lane]])
        self._lost.clear()

    def _cut(self, lanes: list[int]) -> None:
        for lane in lanes:
            self.ledger.finish(lane)
        self.interrupted += lanes

    # State

    def get_state(self, *, hurry: bool = False) -> dict[str, Any] | None:
        """Return the state of the lanes, with the rounds that the loop has not consumed.

        It has the entries of a state of `ScalarLanes`, and "pool".

        Args:
            hurry: whether workers end their phase early, because an error has ended the training. The episodes of
                workers that do not answer in time are lost. Only `close` may follow.
        """
        if self._supervisor is None:
            return self._saved  # before `start`
        self._end_round()
        states = self._supervisor.states(self._inboxes, hurry=hurry)
        self._end_round()  # it may have found that a worker has failed
        self._phases.pause()
        lanes: list[dict[str, Any]] = []
        ledgers, infos = [], []
        for index, state in enumerate(states):
            if state is None:
                state = self._lost_state(index)
            for name, values in state["generators"].items():
                self._generators(name).bit_generator.state = values
            self._resets[self._own[index]] = -self._pending_resets(index)
            lanes += state["lanes"]["lanes"]
            ledgers.append(state["lanes"]["ledger"])
            infos.append(state["lanes"]["info"])
        if self.source.team is not None:
            for lane, earned in zip(lanes, self._earned, strict=True):
                lane["earned"] = earned.copy()
        pool = {
            "rows": [inbox.get_state() for inbox in self._inboxes],
            "ledgers": ledgers,
            "explorers": [
                # An explorer is None if the learner acts, or if the worker has failed.
                None if state is None or not self.acts else {**state["explorer"], **self._phases.unsent(index)}
                for index, state in enumerate(states)
            ],
            "seen": [
                {name: list(value) if isinstance(value, tuple) else copy.copy(value) for name, value in each.items()}
                for each in self._publisher.seen
            ],
            "fresh": [] if self.acts else np.flatnonzero(self._memory.arrays["fresh"]).tolist(),
        }
        return {
            "lanes": lanes,
            "ledger": self.ledger.get_state(),
            "actions": None if self.actions is None else np.array(self.actions),
            "cursor": 0 if self.actions is None else self.cursor,
            "extra": {} if self.actions is None else {name: values.copy() for name, values in self._extra.items()},
            "info": {name: np.concatenate([each[name] for each in infos]) for name in self._info_spec},
            "pool": pool,
        }

    def _lost_state(self, index: int) -> dict[str, Any]:
        """Return the state of a worker that has failed: its lanes start new episodes."""
        count = self._inboxes[index].count
        lane = {"seed": 0, "actions": None, "environment": None, "observation": zeros(self._space)}
        lanes = {"lanes": [dict(lane) for _ in range(count)], "ledger": Ledger(count).get_state()}
        info = {name: values[self._own[index]] for name, values in self.info.items()}
        return {"lanes": {**lanes, "info": info}, "generators": {}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state of `get_state` at the next `start`, or that of `ScalarLanes`.

        A state of another number of lanes is ignored. If workers had collected further than the loop, all episodes
        restart with another number of workers, with a warning.
        """
        kind = joint_kind(state)
        if kind is not None:
            warn_restarted("the environments", f"the state is of {kind}", "Their episodes restart")
            return
        if len(state["lanes"]) != self.num_envs:
            return
        is_own = self._is_own(state)
        if not is_own and is_ahead(state):
            warn_restarted("the environments", "their workers had collected further", "Their episodes restart")
            return
        self._saved = state
        self.ledger.set_state(state["ledger"])
        if is_own and state["actions"] is not None:
            self.actions, self.cursor = members(state["actions"], self.source.action_space), state["cursor"]
            self._extra = {name: values.copy() for name, values in state["extra"].items()}
        if self.source.team is not None:
            self._earned[:] = [lane["earned"] for lane in state["lanes"]]

    def _is_own(self, state: Mapping[str, Any]) -> bool:
        """Return whether a state is of this number of workers."""
        return "pool" in state and len(state["pool"]["rows"]) == self.num_workers

    def _saved_pool(self) -> dict[str, Any]:
        """Return what the saved state holds about this number of workers; {} if nothing."""
        return {} if self._saved is None or not self._is_own(self._saved) else self._saved["pool"]

    def _restore_inboxes(self) -> dict[str, Any] | None:
        """Restore the rows of the saved state; return what the jobs of the workers need, or None."""
        saved = self._saved
        if saved is None:
            return None
        info = {"info": saved["info"]}
        if not self._is_own(saved):
            ledger = saved["ledger"]
            lists = {name: values for name, values in ledger.items() if name != "policy_state"}  # the learner's
            ledgers = [{name: values[own] for name, values in lists.items()} | {"over": []} for own in self._own]
            for ledger in ledgers:
                ledger["info"] = [{}] * len(ledger["running"])  # workers do not keep it
            return {"lanes": saved["lanes"], "ledgers": ledgers, "explorers": [None] * self.num_workers, **info}
        pool = saved["pool"]
        for inbox, rows in zip(self._inboxes, pool["rows"], strict=True):
            inbox.set_state(rows)
        if not self.acts:
            self._memory.arrays["fresh"][pool["fresh"]] = self._requested[pool["fresh"]] = True
        return {"lanes": saved["lanes"], "ledgers": pool["ledgers"], "explorers": pool["explorers"], **info}
