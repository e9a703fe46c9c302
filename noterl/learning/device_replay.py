"""Agents with a replay memory on the device: which agents run there, and the compiled calls of an agent."""

from __future__ import annotations

from typing import Any

import numpy as np

from noterl import backends
from noterl.acting.actor import Actor
from noterl.backends import ops
from noterl.backends.on_device import Carry, Place, Plan, ReplayProgram
from noterl.envs import EnvSource
from noterl.learning import device, device_exploration
from noterl.learning.device import DeviceRunner, make_training
from noterl.learning.device_exploration import Exploration, find_exploration
from noterl.learning.device_memory import DeviceMemory
from noterl.learning.device_normalization import DeviceNormalizers
from noterl.learning.replay_learner import ReplayLearner
from noterl.replay import Replay, Uniform
from noterl.replay.columns import Leaf, map_leaves, observation_layout
from noterl.types import CallEvents

# The most environment steps of one call: its report and the additional room in the ring grow with them.
MOST_STEPS = 2**17


def replay_runs_on_device(learner: Any, actor: Any, source: EnvSource) -> bool:
    """Return whether an agent collects into a replay memory on the device, and learns there from this memory.

    This needs `device.calls_are_possible`, and a memory that samples all transitions uniformly. Updates must be due by
    steps, with a fixed number of updates. Relabelling, stacks of frames, memories on disk and further stored fields
    stay on the host; such agents step a vector environment.
    """
    algorithm = learner.algorithm
    schedule = learner.schedule
    # Exact types of learner and actor, because subclasses may behave differently.
    return (
        type(learner) is ReplayLearner
        and type(actor) is Actor
        and device_exploration.has_uniform_actions(algorithm.action_space)
        and isinstance(schedule.update_every, int)
        and isinstance(schedule.updates, int)
        and not (learner.actor_fields or learner.info_spec or algorithm.extra_spec or algorithm.next_actions)
        and _is_plain(learner.replay)
        and device.calls_are_possible(learner, actor, source)
    )


def _is_plain(replay: Replay) -> bool:
    """Return whether a memory stores single transitions in RAM, and samples all transitions uniformly."""
    config = replay.get_config()
    others = [config.get(name) for name in ("relabel", "frame_stack", "memmap")]
    return type(replay) is Replay and type(replay.sampler) is Uniform and others == [None, None, None]


class ReplayRunner(DeviceRunner):
    """Makes the calls of an agent with a replay memory.

    Args:
        learner: the learner.
        actor: chooses the actions on the host.
        source: the environments.
        num_envs: N.
    """

    def __init__(self, learner: ReplayLearner, actor: Actor, source: EnvSource, num_envs: int) -> None:
        exploration = find_exploration(actor.head, actor.explorer)
        assert exploration is not None
        self._exploration: Exploration = exploration
        normalizers = DeviceNormalizers(learner.algorithm.spaces.normalizers, num_envs)
        program = _make_program(learner, exploration, source, normalizers, num_envs)
        super().__init__(learner, actor, program, normalizers)
        self.memory: DeviceMemory = DeviceMemory(learner.replay, self.program)

    def on_start(self) -> None:
        """Interrupt the episodes in flight in the memory, because all episodes start."""
        for lane in range(self.program.num_envs):
            self.learner.interrupt(lane)
        self.release()

    def release(self) -> None:
        """Release the ring; the next call copies the memory to the device."""
        self.memory.release()

    def adopt(self, carry: Carry) -> Carry:
        """Return the carry of another learner's call for this one."""
        self.release()
        return carry

    def _call(self, carry: Carry, begin: int, end: int, first_step: int) -> tuple[Carry, CallEvents]:
        """Make a call."""
        learner = self.learner
        memory = self.memory
        program = self.program
        linked = memory.open(begin, carry.observations)
        # After a copy, the program needs the links between the lanes' last transitions and the next ones.
        if linked is not None:
            carry = carry._replace(memory=linked)
        plan = self._plan(begin, end, first_step)
        # The position within the periods of updates and of hard copies.
        number = learner.algorithm.updates % (learner.algorithm.update_period * (program.copy_every or 1))
        place = Place(memory.row(begin), begin, end, number)
        carry, ring, report = program(carry, memory.ring, memory.table, place, plan)
        events = self.events(carry, report, (first_step, end), plan.updates)
        memory.advance(ring, events.last - begin)
        self._skip(first_step, events.last)
        return carry, events

    def _plan(self, begin: int, end: int, first_step: int) -> Plan:
        """Return the plan of a call: settings and due updates of each round.

        No updates are due after a round that the call does not complete. Arguments as in `call`.
        """
        learner = self.learner
        memory = self.memory
        size = self.program.size
        rounds = self.program.iterations
        random, updates, copies, recent, older, first = (np.zeros(rounds, np.int32) for _ in range(6))
        settings = np.zeros((rounds, self._exploration.num_settings), np.float32)
        # Rounded up, because the last round may be incomplete. The other rounds of the arrays stay 0.
        for t in range(-(-end // size)):
            before = first_step + t * size
            after = first_step + (t + 1) * size
            settings[t] = self._exploration.settings(before, t * size)
            # Actions are random until `learning_starts`, as the actor chooses them on the host.
            random[t] = min(max(self.actor.learning_starts - before, 0), size)
            if (t + 1) * size <= end:
                # `memory.count` includes the `begin` steps of the round in progress.
                count = memory.count - begin + (t + 1) * size
                recent[t], older[t], first[t] = memory.sampleable(count)
                ready = int(recent[t] + older[t]) if learner.is_refilled(memory.length(count)) else 0
                updates[t], copies[t] = learner.schedule.due(before, after, 0, lambda ready=ready: ready)
        return Plan(settings, random, updates, copies, recent, older, first, self.scheduled(first_step))


def _make_program(
    learner: ReplayLearner, exploration: Exploration, source: EnvSource, normalizers: DeviceNormalizers, num_envs: int
) -> ReplayProgram:
    """Return the program of a learner for a number of lanes."""
    algorithm = learner.algorithm
    space = learner.algorithm.action_space
    schedule: Any = learner.schedule
    layout = observation_layout(source.observation_space)
    rounds = rounds_per_call(learner, num_envs)
    device_programs = backends.current().capabilities["device_programs"]
    return device_programs.ReplayProgram(
        training=make_training(learner, source, num_envs, exploration, normalizers),
        iterations=rounds,
        store=lambda observations: map_leaves(_stored, layout, observations),
        act_randomly=lambda numbers: device_exploration.uniform_actions(space, numbers),
        num_random=device_exploration.num_uniform(space),
        observe=learner.updater.traced(normalizers.round) if normalizers.variables else None,
        update_target=learner.updater.traced(algorithm.update_target),
        copy_every=schedule.hard_copy_updates,
        random_spec=algorithm.random_spec,
        n_step=learner.replay.n_step,
        capacity=learner.replay.capacity,
        # The most updates that can be due in one call.
        num_updates=(rounds * num_envs // schedule.update_every + 1) * schedule.updates,
    )


def rounds_per_call(learner: ReplayLearner, num_envs: int) -> int:
    """Return the largest number of rounds in one call, which takes about `device.SECONDS`.

    Args:
        learner: the learner; `steps_per_execution` is the number of gradient updates in one call.
        num_envs: steps of a round.
    """
    schedule: Any = learner.schedule
    updates = num_envs * schedule.updates / schedule.update_every  # of a round
    if learner.steps_per_execution != "auto":
        rounds = int(int(learner.steps_per_execution) / updates)
    else:
        rounds = round(device.SECONDS / device.estimate(learner, 1, num_envs, 1, updates))
    return max(1, min(rounds, MOST_STEPS // num_envs))


def _stored(leaf: Leaf, observation: Any) -> Any:
    """Return a part of observations `[N, ...]` in the dtype that batches have."""
    return ops.reshape(ops.cast(observation, str(leaf.batch_dtype)), (-1, *leaf.shape))
