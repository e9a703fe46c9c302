"""Rollout learners on the device: which agents run there, the compiled program of an agent, and the calls."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl import backends
from noterl.backends import keras, ops
from noterl.backends.common import UpdateOptions
from noterl.backends.on_device import Carry, DeviceProgram, Report, Training
from noterl.envs import EnvSource
from noterl.envs.observation import ObservationEncoder
from noterl.envs.wrappers.masks import masks_in_observation
from noterl.hyperparameters import discount_factor
from noterl.learning import optimizers
from noterl.learning.device_exploration import Exploration, find_exploration
from noterl.learning.device_normalization import DeviceNormalizers
from noterl.learning.dry_run import learner_state_of, start_of
from noterl.learning.learner import Learner
from noterl.learning.rollout_learner import RolloutLearner
from noterl.learning.update import without_learner_state
from noterl.schedules import Schedule
from noterl.types import Batch, CallEvents

# Seconds of a call, and what they are estimated from: 2 cores, networks of 32 to 64 units. An estimate, not a
# measurement at run time, because the same seed must give the same run: a stop takes effect at the end of a call.
SECONDS = 0.2
PER_ROUND = 1e-5
PER_STEP = 7e-7
PER_UPDATE = 5e-5
PER_PRODUCT = 5e-11


def calls_are_possible(learner: Any, actor: Any, source: EnvSource) -> bool:
    """Return whether compiled calls can collect with any kind of memory.

    This needs the JAX backend, an environment of pure functions, and exploration that compiled calls can compute (see
    `find_exploration`); on the CPU also a network without convolutions. Reward models are computed, and action masks in
    observations are read, on the host.
    """
    device_programs = backends.current().capabilities.get("device_programs")
    return (
        source.functions is not None
        and device_programs is not None
        and learner.reward_model is None
        and not masks_in_observation(source.observation_space, source.action_space)
        and find_exploration(actor.head, actor.explorer) is not None
        and device_programs.loops_are_fast(learner.variables)
    )


def rollouts_run_on_device(learner: Any, actor: Any, source: EnvSource) -> bool:
    """Return whether an agent collects rollouts and learns in one compiled call.

    This needs `calls_are_possible`, and rollouts that are discarded after the updates. Fields of `forward` and of
    `info` are stored on the host; such agents step the environment as a vector environment.
    """
    is_plain = type(learner) is RolloutLearner and not (learner.forward_fields or learner.info_spec)
    return is_plain and calls_are_possible(learner, actor, source)


class DeviceRunner(ABC):
    """Makes the calls of an agent that trains on the device; `find_runner` makes the runner of a `fit`.

    Args:
        learner: the learner, open for a number of lanes.
        actor: chooses the actions on the host.
        program: the compiled program.
        normalizers: of the program.

    Attributes:
        program: the program.
    """

    def __init__(self, learner: Any, actor: Any, program: Any, normalizers: DeviceNormalizers) -> None:
        self.learner: Any = learner
        self.actor: Any = actor
        self.program: Any = program
        self._normalizers = normalizers
        self._schedules = scheduled(learner)

    def on_start(self) -> None:
        """Called when all episodes start."""
        self._normalizers.restart()

    def release(self) -> None:  # noqa: B027
        """Called when another runner follows, or the environments continue from a file."""

    @abstractmethod
    def adopt(self, carry: Carry) -> Carry:
        """Return the carry of another learner's call for this one; the episodes continue, a rollout does not."""

    def call(self, carry: Carry, begin: int, end: int, first_step: int) -> tuple[Carry, CallEvents]:
        """Make a call; return the carry for the next one, and the events.

        Args:
            carry: of `program.start` or the last call.
            begin: steps of the iteration in progress.
            end: the position at which the call ends, at most `program.size * program.iterations`.
            first_step: environment steps before the iteration in progress.
        """
        self._normalizers.load()
        result = self._call(carry, begin, end, first_step)
        self._normalizers.unload()
        return result

    @abstractmethod
    def _call(self, carry: Carry, begin: int, end: int, first_step: int) -> tuple[Carry, CallEvents]:
        """Make a call with the program; arguments and result as in `call`."""

    def _skip(self, first_step: int, position: int) -> None:
        """Advance the exploration on the host by the iterations before a position, and its schedules by the rounds."""
        explorer = self.actor.explorer
        num_envs = self.program.num_envs
        explorer.update_schedules(first_step + max(position - 1, 0) // num_envs * num_envs)
        explorer.skip(position // self.program.size * self.program.size)

    def scheduled(self, first_step: int) -> np.ndarray:
        """Return the values of scheduled variables after each iteration, float32 `[C, variables]`."""
        size = self.program.size
        count = self.program.iterations
        steps = range(first_step + size, first_step + size * count + 1, size)
        values = [[schedule(step) for step in steps] for _, schedule in self._schedules]
        return np.array(values, np.float32).reshape(len(self._schedules), count).T

    def events(self, carry: Carry, report: Report, place: tuple[int, int], due: np.ndarray) -> CallEvents:
        """Return the events of a call, and set the scheduled values of the host.

        Args:
            carry: that the call returned.
            report: of the call.
            place: `first_step` and `end` of the call.
            due: the updates after each iteration, `[C]`; the updates of an incomplete iteration are not made.
        """
        size = self.program.size
        first_step, end = place
        # The program stops after an iteration whose updates were not finite.
        end = min(end, int(report.iterations) * size)
        learned = np.flatnonzero(due[: end // size])  # the complete iterations with updates
        if len(learned):
            # The host's variables get the values that the last updates of the call have used.
            self.learner.updater.update_schedules(first_step + (int(learned[-1]) + 1) * size)
        ends = np.flatnonzero(report.ended)
        returns, lengths = report.sums.on_host()
        due = due[learned].astype(np.int64)
        return CallEvents(
            first_step,
            end,
            ends,
            returns[ends],
            lengths[ends],
            (learned + 1) * size - 1,
            due,
            report.applied[learned].astype(np.int64),
            np.array(report.stopped[learned]),
            {name: np.array(values[: due.sum()]) for name, values in report.logs.items()},
            *carry.sums.on_host(),
        )


class RolloutRunner(DeviceRunner):
    """Makes the calls of an agent that learns from rollouts; each call collects and learns.

    Args:
        learner: the learner, open for a number of lanes.
        actor: of the agent.
        source: the environments.
    """

    def __init__(self, learner: RolloutLearner, actor: Any, source: EnvSource) -> None:
        normalizers = DeviceNormalizers(learner.algorithm.spaces.normalizers, learner.rollout.num_envs)
        super().__init__(learner, actor, make_program(learner, actor, source, normalizers), normalizers)
        self._exploration: Exploration = self.program.training.exploration

    def scheduled(self, first_step: int) -> np.ndarray:
        """Return the scheduled values for each rollout, followed by the exploration's settings for each round.

        The result is float32 `[C, variables + T E]`. The schedules of a noise on the host are set too.
        """
        values = super().scheduled(first_step)
        if not self._exploration.num_settings:
            return values
        # The environment steps of this call before each round.
        passed_steps = range(0, self.program.size * self.program.iterations, self.program.num_envs)
        rounds = [self._exploration.settings(first_step + passed, passed) for passed in passed_steps]
        settings = np.array(rounds, np.float32)
        return np.concatenate([values, settings.reshape(self.program.iterations, -1)], axis=1)

    def adopt(self, carry: Carry) -> Carry:
        """Return the carry of another learner's call for this one: a new rollout begins."""
        # Only the empty rollout is used, so any key of random numbers will do.
        start = self.program.start(np.zeros(2, np.uint32))
        return carry._replace(memory=start.memory, learner_state=start.learner_state)

    def _call(self, carry: Carry, begin: int, end: int, first_step: int) -> tuple[Carry, CallEvents]:
        """Make a call."""
        carry, report = self.program(carry, begin, end, self.scheduled(first_step))
        return carry, self.events_of(carry, report, end, first_step)

    def events_of(self, carry: Carry, report: Report, end: int, first_step: int) -> CallEvents:
        """Return the events of a call, which may have run together with the calls of other members of a population."""
        due = np.full(self.program.iterations, self.program.num_updates)
        events = self.events(carry, report, (first_step, end), due)
        self._skip(first_step, events.last)
        return events


def make_training(
    learner: Any,
    source: EnvSource,
    num_envs: int,
    exploration: Exploration,
    normalizers: DeviceNormalizers,
    stop: Any = None,
) -> Training:
    """Return what the program of a learner collects and learns.

    Args:
        learner: the learner.
        source: the environments.
        num_envs: N.
        exploration: how actions are chosen.
        normalizers: of the program.
        stop: whether the update with these logs ends the group.
    """
    algorithm = learner.algorithm
    updater = learner.updater
    assert source.functions is not None
    # A hyperparameter is a variable of the program; a plain number is a constant.
    gamma = algorithm.hyperparameters.get("gamma")
    # A replay memory stores executed actions; a rollout stores the sampled ones, which have the log-probability.
    stores_executed = learner.rollout is None

    def act(observations: Any, numbers: Any, settings: Any, state: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        observations = normalizers.observations(observations)
        if state:
            outputs, state = algorithm._forward_with_state((observations, state))
        else:
            outputs = algorithm._joint_forward(observations)
        actions = exploration.select(outputs, numbers, settings)
        executed = algorithm.head.executed(actions)
        return executed if stores_executed else actions, executed, state

    def update(batch: Batch, index: int) -> Any:
        # The rows of a rollout are normalized already.
        return updater.step(normalizers.batch(batch) if stores_executed else batch, index)

    options: UpdateOptions = {"period": algorithm.update_period, "stop": stop, "jit_compile": learner.jit_compile}
    variables = [*learner.variables, *normalizers.variables]
    updates: Any = backends.current().compile_updates(updater.traced(update), variables, **options)
    return Training(
        functions=source.functions,
        encode=tensor_encoder(algorithm.spaces.encoder, algorithm.observation_dtype),
        exploration=exploration,
        act=updater.traced(act),
        policy_start=start_of(algorithm),
        discount=lambda: discount_factor(algorithm) if gamma is None else ops.convert_to_tensor(gamma),
        updates=updates,
        scheduled=[variable for variable, _ in scheduled(learner)],
        num_envs=num_envs,
        batch_size=learner.batch_size,
        on_trace=updater.trace_counter("device"),
    )


def make_program(
    learner: RolloutLearner, actor: Any, source: EnvSource, normalizers: DeviceNormalizers, members: int = 1
) -> DeviceProgram:
    """Return the `DeviceProgram` of a learner that is open for a number of lanes.

    A call is shorter by the factor `members`.
    """
    algorithm = learner.algorithm
    rollout = learner.rollout
    head = algorithm.head
    traced = learner.updater.traced
    exploration = find_exploration(head, actor.explorer)
    assert exploration is not None
    stop = traced(algorithm.stop_epochs) if learner.may_stop else None
    updates = algorithm.epochs * math.ceil(learner.num_rows / learner.batch_size)
    device_programs = backends.current().capabilities["device_programs"]
    training = make_training(learner, source, rollout.num_envs, exploration, normalizers, stop)

    def prepare(batch: Batch) -> tuple[Batch, dict[str, Any]]:
        return without_learner_state(learner._prepared_rows(normalizers.rollout(batch, training.discount())))

    return device_programs.DeviceProgram(
        training=training,
        iterations=max(1, rollouts_per_call(learner, updates) // members),
        act_best=traced(lambda observations: head.executed(head.deterministic(algorithm._joint_forward(observations)))),
        prepare=traced(prepare),
        learner_start={
            name: np.zeros((rollout.num_envs, *shape), dtype)
            for name, (shape, dtype) in learner_state_of(algorithm).items()
        },
        length=rollout.length,
        sequence_length=learner.sequence_length,
        epochs=algorithm.epochs,
    )


def rollouts_per_call(learner: RolloutLearner, updates: int) -> int:
    """Return the largest number of rollouts in one call, which takes about `SECONDS`.

    Args:
        learner: the learner; `steps_per_execution` is the number of gradient updates in one call.
        updates: gradient updates on one rollout.
    """
    if learner.steps_per_execution != "auto":
        return max(1, int(learner.steps_per_execution) // updates)
    # A row passes the networks once to act and twice in `prepare`.
    return max(1, round(SECONDS / estimate(learner, learner.rollout.length, learner.num_rows, 3, updates)))


def estimate(learner: Learner, rounds: int, steps: int, passes: int, updates: float) -> float:
    """Return the seconds of collecting and learning.

    Args:
        learner: the learner.
        rounds: rounds of all lanes.
        steps: environment steps in these rounds.
        passes: how often each step passes the networks before the updates.
        updates: gradient updates; a row of a batch passes the networks three times, with the gradients.
    """
    weights = sum(math.prod(variable.shape) for variable in learner.algorithm.trained_variables())
    products = weights * (passes * steps + 3 * updates * learner.batch_size)
    return PER_ROUND * rounds + PER_STEP * steps + PER_UPDATE * updates + PER_PRODUCT * products


def scheduled(learner: Learner) -> list[tuple[Any, Schedule]]:
    """Return the hyperparameters and learning rates that have a schedule, each with this schedule."""
    hyperparameters = learner.algorithm.hyperparameters.values()
    pairs = [(variable, variable.schedule) for variable in hyperparameters if variable.schedule is not None]
    for optimizer in learner.optimizers.values():
        schedule = optimizers.schedule_of(optimizer)
        if schedule is not None:
            pairs.append((optimizer._learning_rate, schedule))
    return pairs


def tensor_encoder(encoder: ObservationEncoder, dtype: Any) -> Callable[[Any], Any]:
    """Return what `ObservationEncoder` computes, for observations of tensors `[N, ...]`."""
    if encoder.is_identity:
        return lambda observations: ops.cast(observations, str(dtype))

    def encode(observations: Any) -> Any:
        columns = []
        for path, space, _ in encoder.parts:
            value = observations
            for name in path:
                value = value[name]
            columns += _columns(ops.convert_to_tensor(value), space)
        return ops.concatenate(columns, axis=-1)

    return encode


def _columns(value: Any, space: spaces.Space[Any]) -> list[Any]:
    """Return one leaf of observations, such as an entry of a Dict, as float32 matrices `[N, columns]`.

    Discrete values are one-hot, as `ObservationEncoder` encodes them on the host. The caller concatenates the matrices.
    """
    if isinstance(space, spaces.Discrete):
        return [keras.ops.one_hot(value, int(space.n), dtype="float32")]
    flat = ops.reshape(value, (value.shape[0], -1))
    if isinstance(space, spaces.MultiDiscrete):
        counts = space.nvec.reshape(-1).tolist()
        return [keras.ops.one_hot(flat[:, column], count, dtype="float32") for column, count in enumerate(counts)]
    return [ops.cast(flat, "float32")]
