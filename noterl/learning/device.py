"""Rollout learners on the device: which agents run there, and their compiled program."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from noterl import backends
from noterl.backends import keras, ops
from noterl.envs.observation import ObservationEncoder
from noterl.learning import optimizers
from noterl.learning.rollout_learner import RolloutLearner
from noterl.schedules import Schedule

if TYPE_CHECKING:
    from noterl.envs import EnvSource

# Seconds of a call, and what they are estimated from: 2 cores, networks of 32 to 64 units. An estimate, not a
# measurement at run time, because the same seed must give the same run: a stop takes effect at the end of a call.
SECONDS, PER_ROUND, PER_STEP, PER_UPDATE, PER_PRODUCT = 0.2, 1e-5, 7e-7, 5e-5, 5e-11


def runs_on_device(learner: Any, source: EnvSource) -> bool:
    """Return whether an agent collects and learns in one compiled call.

    It needs the JAX backend, an environment of pure functions, rollouts that are discarded after their updates, a head
    that can sample tensors, and on the CPU a network without convolutions. Normalization, a replay memory, a reward
    model and fields of `forward` are computed on the host; such agents step the environment as a vector environment.
    """
    return (
        source.functions is not None
        and backends.name() == "jax"
        and type(learner) is RolloutLearner
        and learner.reward_model is None
        and not learner.forward_fields
        and learner.algorithm._normalizers is None
        and learner.algorithm.head.sampled_from is not None
        and backends.current().loops_are_fast(learner.variables)
    )


def find_program(learner: RolloutLearner, source: EnvSource) -> Any:
    """Return the `DeviceProgram` of a learner that is open for a number of lanes; it is made once."""
    key = (source.functions, learner.rollout.num_envs, learner.batch_size, learner.algorithm.epochs)
    if learner.device is None or learner.device[0] != key:
        learner.device = key, make_program(learner, source)
    return learner.device[1]


def make_program(learner: RolloutLearner, source: EnvSource, members: int = 1) -> Any:
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
    return backends.current().DeviceProgram(
        reset=functions.reset,
        step_environment=functions.step,
        act_best=lambda observations: head.executed(head.deterministic(algorithm._joint_forward(observations))),
        encode=encoder(algorithm._encoder, algorithm.observation_dtype),
        act=act,
        sampled_from=head.sampled_from,
        num_sampled=head.num_sampled,
        discount=lambda: learner.gamma if gamma is None else ops.convert_to_tensor(gamma),
        prepare=learner._prepared_rows,
        step=learner.step,
        stop=stop if learner.may_stop else None,
        variables=learner.variables,
        scheduled=[variable for variable, _ in scheduled(learner)],
        length=rollout.length,
        num_envs=rollout.num_envs,
        epochs=algorithm.epochs,
        batch_size=batch_size,
        rollouts=max(1, rollouts_per_call(learner, updates) // members),
        jit_compile=learner.jit_compile,
        on_trace=learner.trace_counter("device"),
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


def scheduled(learner: RolloutLearner) -> list[tuple[Any, Schedule]]:
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


def encoder(encoder: ObservationEncoder, dtype: Any) -> Callable[[Any], Any]:
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
