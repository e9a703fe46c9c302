"""Rollout learners on the device: which agents run there, their compiled program and its calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import spaces

from noterl import backends
from noterl.backends import keras, ops
from noterl.backends.on_device import Carry, DeviceProgram, Report
from noterl.envs.observation import ObservationEncoder
from noterl.hyperparameters import discount_factor
from noterl.learning import optimizers
from noterl.learning.rollout_learner import RolloutLearner
from noterl.schedules import Schedule

if TYPE_CHECKING:
    from noterl.envs import EnvSource
    from noterl.learning.learner import Learner

# Seconds of a call, and what they are estimated from: 2 cores, networks of 32 to 64 units. An estimate, not a
# measurement at run time, because the same seed must give the same run: a stop takes effect at the end of a call.
SECONDS, PER_ROUND, PER_STEP, PER_UPDATE, PER_PRODUCT = 0.2, 1e-5, 7e-7, 5e-5, 5e-11


def rollouts_run_on_device(learner: Any, source: EnvSource) -> bool:
    """Return whether an agent collects rollouts and learns from them in one compiled call.

    It needs the JAX backend, an environment of pure functions, rollouts that are discarded after their updates, a head
    that can sample tensors, and on the CPU a network without convolutions. Normalization, a reward model and fields of
    `forward` are computed on the host; such agents step the environment as a vector environment.
    """
    device_programs = backends.current().capabilities.get("device_programs")
    return (
        source.functions is not None
        and device_programs is not None
        and type(learner) is RolloutLearner
        and learner.reward_model is None
        and not learner.forward_fields
        and learner.algorithm.spaces.normalizers is None
        and learner.algorithm.head.sampled_from is not None
        and device_programs.loops_are_fast(learner.variables)
    )


class CallResult(NamedTuple):
    """The result of a call on the device; positions are those of `PendingEvents`.

    Attributes:
        carry: for the next call.
        end: the position at which the call ended.
        report: `ended`, `returns`, `compensation` and `lengths` of the steps, `[rounds, N]`.
        learns, due, applied, stopped, logs: the groups of updates; see `PendingEvents`.
    """

    carry: Any
    end: int
    report: Any
    learns: np.ndarray
    due: np.ndarray
    applied: np.ndarray
    stopped: np.ndarray
    logs: dict[str, np.ndarray]


class RolloutRunner:
    """Makes the calls of an agent that learns from rollouts.

    Args:
        learner: the learner, open for a number of lanes.
        source: the environments.

    Attributes:
        program: the compiled program.
        size: steps of an iteration, which is a rollout.
        iterations: the largest number of iterations in one call.
        start: key -> what the first call receives.
    """

    def __init__(self, learner: RolloutLearner, source: EnvSource) -> None:
        self.learner: RolloutLearner = learner
        self.program: DeviceProgram = make_program(learner, source)
        self.size: int = self.program.size
        self.iterations: int = self.program.rollouts
        self.start: Any = self.program.start
        self._schedules = scheduled(learner)

    def use(self, program: DeviceProgram) -> None:
        """Use the program that the members of a population share."""
        self.program, self.iterations, self.start = program, program.rollouts, program.start

    def on_start(self) -> None:
        """Called when all episodes start."""

    def on_continue(self) -> None:
        """Called when the environments continue from a file."""

    def adopt(self, carry: Carry) -> Carry:
        """Return the carry of another learner's call for this one: a new rollout begins."""
        return carry._replace(rollout=self.start(np.zeros(2, np.uint32)).rollout)

    def close(self) -> None:
        """Called when another runner follows."""

    def call(self, carry: Carry, begin: int, end: int, first_step: int) -> CallResult:
        """Make a call.

        Args:
            carry: of `start` or the last call.
            begin: steps of the iteration in progress.
            end: the position at which the call ends, at most `size * iterations`.
            first_step: environment steps before the iteration in progress.
        """
        carry, report = self.program(carry, begin, end, self.scheduled(first_step))
        return self.result(carry, report, end, first_step)

    def scheduled(self, first_step: int) -> np.ndarray:
        """Return the values of scheduled variables for each rollout of a call, `[C, variables]`."""
        steps = [first_step + self.size * (number + 1) for number in range(self.iterations)]
        return scheduled_values(self._schedules, steps)

    def result(self, carry: Carry, report: Report, end: int, first_step: int) -> CallResult:
        """Return the result of a call of the program, and set the scheduled values of the host."""
        program, size = self.program, self.size
        learned = end // size
        failed = [k for k in range(learned) if report.applied[k] < program.updates and not report.stopped[k]]
        if failed:
            learned, end = failed[0] + 1, (failed[0] + 1) * size
        if learned:
            self.learner.updater.update_schedules(first_step + size * learned)
        return CallResult(
            carry,
            end,
            report,
            (np.arange(learned) + 1) * size - 1,
            np.full(learned, program.updates),
            np.array(report.applied[:learned], np.int64),
            np.array(report.stopped[:learned]),
            {name: values[:learned].reshape(-1, *values.shape[2:]) for name, values in report.logs.items()},
        )


def make_program(learner: RolloutLearner, source: EnvSource, members: int = 1) -> DeviceProgram:
    """Return the `DeviceProgram` of a learner that is open for a number of lanes.

    A call is shorter by the factor `members`.
    """
    algorithm, rollout = learner.algorithm, learner.rollout
    head, functions = algorithm.head, source.functions
    assert functions is not None

    def act(observations: Any, numbers: Any) -> tuple[Any, Any]:
        actions = head.sample_actions(algorithm._joint_forward(observations), numbers)
        return actions, head.executed(actions)

    stop = algorithm.stop_epochs
    gamma = algorithm.hyperparameters.get("gamma")
    size, batch_size = learner.num_rows, learner.batch_size
    updates = algorithm.epochs * math.ceil(size / batch_size)
    traced = learner.updater.traced
    device_programs = backends.current().capabilities["device_programs"]
    return device_programs.DeviceProgram(
        reset=functions.reset,
        step_environment=functions.step,
        act_best=traced(lambda observations: head.executed(head.deterministic(algorithm._joint_forward(observations)))),
        encode=tensor_encoder(algorithm.spaces.encoder, algorithm.observation_dtype),
        act=traced(act),
        sampled_from=head.sampled_from,
        num_sampled=head.num_sampled,
        discount=lambda: discount_factor(algorithm) if gamma is None else ops.convert_to_tensor(gamma),
        prepare=traced(learner._prepared_rows),
        step=traced(learner.updater.step),
        stop=traced(stop) if learner.may_stop else None,
        variables=learner.variables,
        scheduled=[variable for variable, _ in scheduled(learner)],
        length=rollout.length,
        num_envs=rollout.num_envs,
        epochs=algorithm.epochs,
        batch_size=batch_size,
        rollouts=max(1, rollouts_per_call(learner, updates) // members),
        jit_compile=learner.jit_compile,
        on_trace=learner.updater.trace_counter("device"),
    )


def rollouts_per_call(learner: RolloutLearner, updates: int) -> int:
    """Return the largest number of rollouts in one call, which takes about `SECONDS`.

    Args:
        learner: the learner; `steps_per_execution` is the number of gradient updates in one call.
        updates: gradient updates on one rollout.
    """
    if learner.steps_per_execution != "auto":
        return max(1, int(learner.steps_per_execution) // updates)
    rollout, rows = learner.rollout, learner.num_rows
    weights = sum(math.prod(variable.shape) for variable in learner.algorithm.trained_variables())
    # A row passes the networks once to act, twice in `prepare`, and three times in each epoch, with the gradients.
    products = weights * (rows * 3 + 3 * updates * learner.batch_size)
    seconds = PER_ROUND * rollout.length + PER_STEP * rows + PER_UPDATE * updates + PER_PRODUCT * products
    return max(1, round(SECONDS / seconds))


def scheduled(learner: Learner) -> list[tuple[Any, Schedule]]:
    """Return the hyperparameters and learning rates that have a schedule, with it."""
    found = [(each, each.schedule) for each in learner.algorithm.hyperparameters.values() if each.schedule is not None]
    for optimizer in learner.optimizers.values():
        schedule = optimizers.schedule_of(optimizer)
        if schedule is not None:
            found.append((optimizer._learning_rate, schedule))
    return found


def check_learning_rate(by_name: Mapping[str, Any]) -> None:
    """Check that the learning rates can be set.

    Raises:
        ValueError: if one has a schedule.
    """
    for optimizer in by_name.values():
        optimizers.check_without_schedule(optimizer)


def scheduled_values(schedules: list[tuple[Any, Schedule]], steps: list[int]) -> np.ndarray:
    """Return the values of `scheduled` variables after these environment steps, float32 `[steps, variables]`."""
    values = [[schedule(step) for _, schedule in schedules] for step in steps]
    return np.array(values, np.float32).reshape(len(steps), len(schedules))


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
    """Return a part of observations `[N, ...]` as matrices `[N, columns]`."""
    if isinstance(space, spaces.Discrete):
        return [keras.ops.one_hot(value, int(space.n), dtype="float32")]
    flat = ops.reshape(value, (value.shape[0], -1))
    if isinstance(space, spaces.MultiDiscrete):
        counts = space.nvec.reshape(-1).tolist()
        return [keras.ops.one_hot(flat[:, column], count, dtype="float32") for column, count in enumerate(counts)]
    return [ops.cast(flat, "float32")]
