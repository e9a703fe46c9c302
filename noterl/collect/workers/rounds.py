"""The rounds of a pool: who chooses the actions, and what follows for observations, resets and logs."""

# Methods without a body are hooks: a kind of rounds overrides those that it needs.
# ruff: noqa: B027

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.acting.actor import Actor
from noterl.collect.base import Chosen, Lanes
from noterl.collect.workers.pool import Pool
from noterl.collect.workers.schedule import EpisodePhases, Lead, Overlap, Phases
from noterl.collect.workers.shared_memory import ArraySpec, Shapes, SharedWeights
from noterl.collect.workers.transitions import OBSERVATION, observation_at
from noterl.collect.workers.weights import Publisher, block_shapes
from noterl.collect.workers.worker import Forward
from noterl.explorer import Explorer
from noterl.random import Generators
from noterl.types import ACTING_OUTPUTS, STATE

WORKERS = "workers"  # in the time split, the time in which the loop waits for worker processes


class Rounds(ABC):
    """The rounds of a pool in one `fit`.

    Args:
        lanes: the pool.
        actor: chooses the actions, or is copied to the workers.

    Attributes:
        clock: the name of the clock that counts the time of choosing actions.
        explorers: the names of the random generators with which each worker explores.
        num_outputs: the size of the head's input, which workers that act for a rollout return; otherwise 0.
        least: the smallest number of rounds in the ring of a worker.
        encoded: the observations of the round, encoded for networks, `[N, ...]`.
        lead: how far workers may be ahead of the loop, which sets it.
        publisher: sends weights and the exploration's attributes to the workers.
        phases: when workers collect.
        shapes: shape and dtype of the arrays of the weights that workers read.
        lost: workers that were replaced in the round in progress, whose actions the learner has chosen.
    """

    clock = "act"
    explorers: tuple[str, ...] = ()
    num_outputs = 0
    least = 2
    lead: Lead
    _phases: type[Phases] = Phases

    def __init__(self, lanes: Pool, actor: Actor) -> None:
        self.lanes: Pool = lanes
        self.actor: Actor = actor
        space: Any = lanes.encoder.space
        self.encoded: np.ndarray = np.zeros((lanes.num_envs, *space.shape), space.dtype)
        self.lost: set[int] = set()
        self.shapes: Shapes = []

    @abstractmethod
    def specs(self) -> list[ArraySpec]:
        """Return the arrays in shared memory besides the arrays of each worker."""

    def open(self, pool: Mapping[str, Any]) -> None:
        """Called when the shared memory exists, before the processes start.

        Args:
            pool: the entry "pool" of the restored state; empty if nothing is restored.
        """
        self.publisher: Publisher = Publisher(self.actor, self.weights(), pool.get("seen", []))
        self.phases: Phases = self._phases(self.lanes, self.publisher)

    def weights(self) -> SharedWeights | None:
        """Return the weights that workers read; None if the learner chooses the actions."""
        return None

    def actor_of(self, index: int, explorer_state: Mapping[str, Any] | None) -> Actor | None:
        """Return the actor of a worker; None if the learner chooses the actions."""
        return None

    @property
    def has_rounds(self) -> bool:
        """Whether each worker has rounds left that an earlier policy may have begun."""
        return False

    def observations(self) -> np.ndarray:
        """Return the observations of the round, encoded for networks, `[N, ...]`."""
        return self.encoded

    @abstractmethod
    def reset(self, lane: int) -> None:
        """Start an episode in a lane."""

    def reset_noise(self, actor: Actor, lane: int) -> None:
        """Reset the noise of a lane in which an episode starts."""

    @abstractmethod
    def choose_actions(self, actor: Actor, step: int) -> Chosen:
        """Begin a round; see `Lanes.choose_actions`."""

    def before_updates(self, updates: int) -> None:
        """Called before a group of updates."""

    def learned(self, updates: int) -> None:
        """Called after each compiled call, with the number of gradient updates so far."""
        self.phases.publish(updates)

    def logs(self, lane: int) -> dict[str, float]:
        """Return the logs of a lane's episode that only these rounds have."""
        return {}

    # Failures and state

    @abstractmethod
    def resume(self, index: int) -> None:
        """Let the process that replaces another one go on."""

    def cut_lost(self) -> None:
        """Cut the episodes of the workers that were replaced since the last round."""

    @abstractmethod
    def pending_resets(self, index: int) -> np.ndarray:
        """Return how often each lane was reset in rows that the loop has not consumed, `[lanes of the worker]`."""

    def explorer_state(self, index: int, state: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the state of a worker's exploration; None if the learner explores.

        Args:
            index: the worker.
            state: what the worker has sent.
        """
        return None

    def fresh(self) -> list[int]:
        """Return the lanes whose reset is done and not used."""
        return []


class LearnerRounds(Rounds):
    """The learner chooses the actions of each round, and workers only step the environments."""

    def specs(self) -> list[ArraySpec]:
        """Return the arrays of observations, actions, finished resets and fields of `info`, `[N, ...]`."""
        lanes = self.lanes
        action: Any = lanes.source.action_space
        dtype = np.int64 if isinstance(action, spaces.Discrete) else action.dtype
        return [
            ArraySpec("encoded", self.encoded.shape, self.encoded.dtype),
            ArraySpec("actions", (lanes.num_envs, *(action.shape or ())), dtype),
            ArraySpec("fresh", (lanes.num_envs,), np.bool_),
            *(ArraySpec(f"current/{name}", values.shape, values.dtype) for name, values in lanes.info.items()),
        ]

    def open(self, pool: Mapping[str, Any]) -> None:
        """Restore which lanes have a first observation that the learner has requested and not used."""
        super().open(pool)
        self._arrays = self.lanes.memory.arrays
        self._requested = np.zeros(self.lanes.num_envs, np.bool_)
        restored = pool.get("fresh", [])
        self._arrays["fresh"][restored] = self._requested[restored] = True

    def observations(self) -> np.ndarray:
        """Copy the observations and the fields of `info` from shared memory, and return the observations.

        During a round, workers already write the next observations, so the last copy is returned.
        """
        if self.lanes.actions is None:
            self.encoded[:] = self._arrays["encoded"]
            for name, values in self.lanes.info.items():
                values[:] = self._arrays[f"current/{name}"]
        return self.encoded

    def reset(self, lane: int) -> None:
        """Wait for the reset of a lane; all idle lanes are reset together, when the first of these lanes is."""
        lanes = self.lanes
        fresh = self._arrays["fresh"]
        while not fresh[lane]:  # again if a worker was replaced, because its requests are lost
            idle = Lanes.idle(lanes)
            for index, lane_range in enumerate(lanes.own):
                in_worker = range(lane_range.start, lane_range.stop)
                to_reset = [other for other in idle if other in in_worker and not self._requested[other]]
                if to_reset:
                    self._requested[to_reset] = True
                    lanes.resets[to_reset] += 1
                    lanes.supervisor.send(index, "reset", [other - lane_range.start for other in to_reset], lanes.step)
            lanes.supervisor.wait_until(lambda idle=idle: bool(fresh[idle].all()) or bool(self.lost))
            self.cut_lost()
        fresh[lane] = self._requested[lane] = False

    def reset_noise(self, actor: Actor, lane: int) -> None:
        """Reset the learner's noise."""
        actor.reset_noise(lane)

    def choose_actions(self, actor: Actor, step: int) -> Chosen:
        """Choose the actions in this process, and send the actions to the workers."""
        return Lanes.choose_actions(self.lanes, actor, step)

    def resume(self, index: int) -> None:
        """Give up the round of the worker."""
        self.lost.add(index)

    def cut_lost(self) -> None:
        """Cut the episodes of the workers that were replaced since the last round."""
        for index in self.lost:
            lanes = self.lanes.own[index]
            self._arrays["fresh"][lanes] = self._requested[lanes] = False
            self.lanes.cut([lane for lane in range(lanes.start, lanes.stop) if self.lanes.ledger.running[lane]])
        self.lost.clear()

    def pending_resets(self, index: int) -> np.ndarray:
        """Return zeros: the learner requests each reset, and has counted the reset already."""
        return np.zeros(self.lanes.inboxes[index].count, np.int64)

    def fresh(self) -> list[int]:
        """Return the lanes whose reset is done and not used."""
        return np.flatnonzero(self._arrays["fresh"]).tolist()


class WorkerRounds(Rounds):
    """Workers choose the actions of the lanes, and collect the rounds of a phase with the same weights.

    Args:
        lanes: the pool.
        actor: copied to the workers.
        rollout_steps: rounds of a rollout, if the agent learns from rollouts.
    """

    clock = WORKERS
    explorers = ("exploration", "random_actions")
    _overlaps = False

    def __init__(self, lanes: Pool, actor: Actor, rollout_steps: int | None) -> None:
        super().__init__(lanes, actor)
        self.shapes = block_shapes(actor)
        if rollout_steps is not None:
            self.num_outputs = actor.head.size
        self._outputs = np.zeros((lanes.num_envs, self.num_outputs), np.float32)
        # A phase is a rollout, a number of rounds, or whole episodes.
        by_episode = rollout_steps is None and lanes.settings.collect == "episode"
        self._phases = EpisodePhases if by_episode else Phases
        self._expected = np.zeros(lanes.num_envs, np.bool_)  # lanes whose next row starts an episode

    def specs(self) -> list[ArraySpec]:
        """Return the arrays of the weights."""
        return SharedWeights.specs(self.shapes)

    def weights(self) -> SharedWeights:
        """Return the weights that workers read."""
        arrays = self.lanes.memory.arrays
        return SharedWeights(arrays["weights"], arrays["version"], self.shapes)

    def actor_of(self, index: int, explorer_state: Mapping[str, Any] | None) -> Actor:
        """Return the network in NumPy, and the exploration, which continues from the saved state."""
        actor = self.actor
        original: Explorer = actor.worker_explorers[index] if actor.worker_explorers else actor.explorer
        explorer = original.copy_with_generator(np.random.default_rng(0))  # the worker replaces the generator
        # After `compile` with another policy or noise, the state is of the one before.
        if explorer_state is not None and explorer_state.keys() == explorer.get_state().keys():
            explorer.set_state(explorer_state)
        forward = Forward(actor.forward.program, actor.forward.noise_places, actor.start)
        # The worker exchanges the generators, so that the job does not hold those of the learner.
        return replace(actor, forward=forward, explorer=explorer, generators=Generators(0), worker_explorers=())

    @property
    def has_rounds(self) -> bool:
        """Whether each worker has rounds of the phase left."""
        return self.phases.has_rounds()

    def reset(self, lane: int) -> None:
        """Expect that the worker resets the lane, at the beginning of the next round."""
        self._expected[lane] = True

    def choose_actions(self, actor: Actor, step: int) -> Chosen:
        """Take the next round that workers have collected."""
        actions = self.collect(step, self.lead.rounds(self._overlaps), self.lead.counters.updates)
        if actions is None:
            return None
        fields = {ACTING_OUTPUTS: self._outputs} if self.num_outputs else {}
        return self.encoded, actions, fields | (self.lanes.ledger.fields_of_state() if self.actor.start else {})

    def collect(self, step: int, rounds: float | None, updates: int = 0) -> np.ndarray | None:
        """Begin the next round: wait for the rows of all workers, and return the actions `[N, ...]`.

        The observations, the states of the policy, and `actions`, `cursor` and `resets` of the lanes are set. If
        workers were replaced, None is returned, and `interrupted` of the lanes is set.

        Args:
            step: environment steps so far.
            rounds: how many rounds workers may be ahead of the loop, this one included; None for the number of the
                settings or, with overlap, for what a ring holds.
            updates: gradient updates so far.
        """
        lanes = self.lanes
        lanes.step = step
        lanes.end_round()
        self.phases.prepare_round(step, updates, rounds)
        lanes.wait_for_rounds(range(len(lanes.own)))
        rows_of_workers = [inbox.round() for inbox in lanes.inboxes]
        if isinstance(self.phases, EpisodePhases):
            for index, rows in enumerate(rows_of_workers):
                ended = [terminated or truncated for *_, terminated, truncated, _ in rows]
                self.phases.receive(index, np.array(ended))
        rows = [row for rows in rows_of_workers for row in rows]
        begun = [row[-1] for row in rows]
        if any(begun):
            # A reset that the loop did not expect: the worker was replaced, and the lane's episode is lost.
            cut = begun & ~self._expected
            if cut.any():
                lanes.cut(np.flatnonzero(cut).tolist())
                return None
            self._expected[:] = False
            lanes.resets += begun
        chosen = self._gather_round(updates)
        self.publisher.count_steps(lanes.step, lanes.num_envs)
        lanes.actions = [row[2] for row in rows]
        lanes.cursor = 0
        return chosen

    def _gather_round(self, updates: int) -> np.ndarray:
        """Update the observations and the policy's states by the oldest round, and return the actions, `[N, ...]`."""
        lanes = self.lanes
        states = lanes.ledger.policy_state.values
        chosen = []
        for inbox, lane_range in zip(lanes.inboxes, lanes.own, strict=True):
            fields, first = inbox.front()
            rows = slice(first, first + inbox.count)
            chosen.append(fields["chosen"][rows])
            if self.num_outputs:
                self._outputs[lane_range] = fields[ACTING_OUTPUTS][rows]
            for name, values in states.items():
                values[lane_range] = fields[f"{STATE}{name}"][rows]
            observations = observation_at(fields, OBSERVATION, lanes.source.observation_space, rows)
            if lanes.encoder.is_identity:
                self.encoded[lane_range] = observations
            else:
                lanes.encoder.write(observations, self.encoded[lane_range])
        return np.concatenate(chosen)

    def resume(self, index: int) -> None:
        """Let the process that replaces another one collect the rest of the phase."""
        self.phases.resume(index, self.lanes.step)

    def pending_resets(self, index: int) -> np.ndarray:
        """Return how often each lane was reset in rows that the loop has not consumed."""
        return self.lanes.inboxes[index].begun()

    def explorer_state(self, index: int, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of a worker's exploration, with the changes that the worker has yet to receive."""
        return {**state["explorer"], **self.phases.unsent(index)}


class OverlappedRounds(WorkerRounds):
    """Workers go on collecting while the learner learns, so the rounds are of older weights.

    Args:
        lanes: the pool.
        actor: copied to the workers.
        rollout_steps: rounds of a rollout, if the agent learns from rollouts.
    """

    _overlaps = True

    def __init__(self, lanes: Pool, actor: Actor, rollout_steps: int | None) -> None:
        super().__init__(lanes, actor, rollout_steps)
        self._updates = 0
        self._first: tuple[int, int] | None = None  # the steps and updates before the first round of this fit
        self._staleness = np.zeros(lanes.num_envs, np.int64)  # the largest of each lane's episode
        if rollout_steps is None:
            self._phases = Overlap
        else:
            self.least = rollout_steps + 1  # and the round whose transitions the loop returns

    def reset(self, lane: int) -> None:
        """Expect the reset, and measure the staleness of the episode from zero."""
        super().reset(lane)
        self._staleness[lane] = 0

    def collect(self, step: int, rounds: float | None, updates: int = 0) -> np.ndarray | None:
        """Begin the next round, and return the actions; see `WorkerRounds.collect`."""
        self._updates = updates
        if self._first is None:
            self._first = max(step, self.actor.learning_starts), updates
        return super().collect(step, rounds, updates)

    def _gather_round(self, updates: int) -> np.ndarray:
        """Do the same as `WorkerRounds`, and measure how many updates older the weights of the round are."""
        for inbox, lanes in zip(self.lanes.inboxes, self.lanes.own, strict=True):
            fields, first = inbox.front()
            behind = updates - int(fields["updates"][first])  # all lanes of a worker have the same weights
            np.maximum(self._staleness[lanes], behind, out=self._staleness[lanes])
        return super()._gather_round(updates)

    def before_updates(self, updates: int) -> None:
        """Let workers collect the next rollout with the weights from before these updates."""
        if rounds := self.lead.next_rollout(updates):
            self.lead.learner.keep_acting_policy()
            self.lanes.end_round()
            self.phases.begin(self.lead.counters.steps, self.lead.counters.updates, rounds)

    def learned(self, updates: int) -> None:
        """Publish the newest weights."""
        self._updates = updates
        super().learned(updates)

    def logs(self, lane: int) -> dict[str, float]:
        """Return the largest staleness of the episode, and the ratio of updates to collected steps."""
        if self._first is None:
            return {}
        lanes = self.lanes
        first_step, first_update = self._first
        ahead = sum(inbox.rows for inbox in lanes.inboxes) - lanes.rows_in_round()
        ratio = (self._updates - first_update) / max(lanes.step + ahead - first_step, 1)
        return {"staleness": int(self._staleness[lane]), "update_ratio": ratio}


def make_rounds(lanes: Pool, actor: Actor, rollout_steps: int | None) -> Rounds:
    """Return the rounds of a `fit`: workers choose the actions if the network runs in NumPy and has no other outputs.

    Args:
        lanes: the pool.
        actor: chooses the actions.
        rollout_steps: rounds of a rollout, if the agent learns from rollouts.
    """
    if actor.forward.program is None or actor.forward_fields:
        return LearnerRounds(lanes, actor)
    return (OverlappedRounds if lanes.settings.overlap else WorkerRounds)(lanes, actor, rollout_steps)


def why_learner_acts(actor: Actor) -> str:
    """Return why the learner chooses the actions, for a warning."""
    return "forward returns further fields" if actor.forward_fields else "NumPy cannot run this network"
