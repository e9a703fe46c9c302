"""Dry runs on zeros: the fields that `forward` returns, and the variables that each optimizer trains in `update`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl import backends, networks
from noterl.acting.policy_state import read_spec, starting_state
from noterl.algorithm import Algorithm, running
from noterl.backends import keras
from noterl.learning import optimizers, update
from noterl.replay.columns import action_layout, extra_layout
from noterl.replay.state_sequences import SequenceSpec
from noterl.types import Batch
from noterl.utils.checks import check_int

if TYPE_CHECKING:
    from noterl.learning.updater import Updater


# What memories use of the feedback of an update, `[B]`.
FEEDBACK = ("td_error", "ratio")

# What the training loop itself logs of each episode.
EPISODE_LOGS = frozenset({"episode", "reward", "length", "steps", "updates", "time", "complete"})

# The rows of a sequence by default, without its burn-in.
SEQUENCE_LENGTH = 32

FieldShapes = Mapping[str, tuple[int, ...]]


def start_of(algorithm: Algorithm) -> dict[str, np.ndarray]:
    """Return the state of the policy before the first step of an episode, `[...]` by name."""
    return starting_state(algorithm.state_spec, getattr(algorithm, "initial_state", None), type(algorithm).__name__)


def learner_state_of(algorithm: Algorithm) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return `learner_state_spec` as name -> (shape, dtype)."""
    return read_spec(algorithm.learner_state_spec, type(algorithm).__name__)


def sequence_spec(algorithm: Algorithm) -> SequenceSpec:
    """Return the sequences that an agent with a state learns from.

    Raises:
        ValueError: if `sequence_length`, `burn_in` or `state_every` is not allowed.
    """
    default = SEQUENCE_LENGTH if algorithm.sequence_length is None else algorithm.sequence_length
    length = check_int("sequence_length", default)
    burn_in = check_int("burn_in", algorithm.burn_in, least=0)
    every = max(1, length // 2) if algorithm.state_every is None else algorithm.state_every
    state = {name: (value.shape, value.dtype) for name, value in start_of(algorithm).items()}
    return SequenceSpec(burn_in + length, burn_in, check_int("state_every", every), state)


def find_trained(algorithm: Algorithm, by_name: Mapping[str, Any]) -> list[Any]:
    """Return the variables that the default `update` trains, with the first optimizer.

    Args:
        algorithm: the agent.
        by_name: the optimizers by name.

    Raises:
        ValueError: if there is nothing to train.
    """
    trained = algorithm.trained_variables()
    if not trained:
        raise ValueError(f"{type(algorithm).__name__} has no network to train: keep it as an attribute of the agent")
    # A torch optimizer that holds parameters of a network trains this network, so that a target need not be frozen.
    groups = [networks.trainable_variables(network) for network in algorithm.networks().values()]
    optimizer = by_name[algorithm.optimizer_names[0]]
    chosen = [group for group in groups if optimizers.variables_in(optimizer, group)]
    return networks.unique(variable for group in chosen for variable in group) or trained


def find_forward_fields(
    algorithm: Algorithm, jit_compile: bool | str, start: Mapping[str, np.ndarray]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the fields that `forward` returns beside the output, by name.

    Args:
        algorithm: the agent.
        jit_compile: the argument of `Agent.compile`.
        start: the state of the policy before the first step of an episode, `[...]` by name.

    Raises:
        ValueError: if `forward` returns a tuple, but not the fields that `extra_spec` declares.
    """
    shapes: dict[str, tuple[int, ...]] = {}

    def call() -> None:
        observation = _zeros((2, *algorithm.spaces.encoder.space.shape), algorithm.observation_dtype)
        if start:
            state = {name: _zeros((2, *value.shape), value.dtype) for name, value in start.items()}
            *_, fields = algorithm._output_state_and_fields(observation, state)
        else:
            _, fields = algorithm._output_and_fields(observation)
        shapes.update({name: tuple(value.shape[1:]) for name, value in fields.items()})

    # Without declared fields, `forward` returns only the output.
    if algorithm.extra_spec:
        with naming_network(algorithm):
            backends.current().dry_run(call, algorithm._variables(), jit_compile)
    return shapes


def run_update(updater: Updater, forward_fields: FieldShapes) -> Sequence[update.Returned]:
    """Run `update` on zeros for each index within `update_period`; the weights do not change.

    Args:
        updater: of the agent; records the variables that `minimize` receives.
        forward_fields: the shapes of the fields that `forward` returns, by name.

    Returns:
        the names that `update` returned, for each index.

    Raises:
        ValueError: if `update` does not return logs and feedback, or `forward` does not fit the head.
    """
    returned: list[update.Returned] = []
    with naming_network(updater.algorithm), running(updater):
        call = partial(_call_updates, updater, forward_fields, returned)
        backends.current().dry_run(call, updater.find_variables(), updater.jit_compile)
    return returned[-updater.algorithm.update_period :]  # backends may call the function more than once


def check_networks(updater: Updater) -> None:
    """Run `update` on zeros before the agent is compiled; the updater is used for this only.

    Raises:
        ValueError: if a network of the user does not fit; the message names the argument `network`.
    """
    # `Learner.declare` sets these for a compiled agent.
    updater.trained = updater.algorithm.trained_variables()
    updater.recorded = {}
    run_update(updater, {})


def _call_updates(updater: Updater, forward_fields: FieldShapes, returned: list[update.Returned]) -> None:
    """Call `forward` and each `update` of a period on zeros, check the results, and add the names to `returned`."""
    algorithm = updater.algorithm
    observations = _zeros((2, *algorithm.spaces.encoder.space.shape), algorithm.observation_dtype)
    if algorithm.state_spec:
        state = {name: _zeros((2, *value.shape), value.dtype) for name, value in start_of(algorithm).items()}
        outputs, _ = algorithm._forward_with_state((observations, state))
    else:
        outputs = algorithm._joint_forward(observations)
    rows, *axes = outputs.shape
    # The fields of `forward` are the last columns of the outputs; the head checks the others.
    added = sum(math.prod(shape) for shape in forward_fields.values())
    algorithm.head.check((rows, *axes[:-1], axes[-1] - added) if added else (rows, *axes))
    for index in range(algorithm.update_period):
        logs, feedback = updater.call(example_batch(algorithm, forward_fields), index)
        bad = [name for name in logs if not isinstance(name, str)]
        if bad:
            raise ValueError(f"update must return logs whose names are str, {type(algorithm).__name__} returns {bad!r}")
        taken = sorted(EPISODE_LOGS & logs.keys())
        if taken:
            names = ", ".join(map(repr, taken))
            raise ValueError(f"update: the logs of an episode already have {names}; give the metric another name")
        unused = [name for name in feedback if name not in {*FEEDBACK, *updater.memory.feedback_fields, *logs}]
        if unused:
            warnings.warn(
                f"feedback: {type(algorithm).__name__} returns {', '.join(map(repr, unused))}, which its memory does "
                f"not use and nothing logs; memories use {' and '.join(map(repr, FEEDBACK))} [B]. To log, return "
                "a scalar: `loss` in its feedback, `update` in its logs",
                stacklevel=2,
            )
        returned.append(update.Returned(frozenset({*logs, "loss"}), frozenset(feedback)))


@contextmanager
def naming_network(algorithm: Algorithm) -> Iterator[None]:
    """Raise errors of a dry run again, as ValueErrors about the argument `network`, if the user gave this argument.

    Errors of agents that noterl does not provide pass unchanged.
    """
    try:
        yield
    except Exception as error:
        name = type(algorithm).__name__
        if not type(algorithm).__module__.startswith("noterl.") or algorithm.get_config().get("network") is None:
            raise
        raise ValueError(f"network does not fit {name} on {algorithm.observation_space}: {error}") from error


def _zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    return keras.ops.convert_to_tensor(np.zeros(shape, dtype))


def example_batch(algorithm: Algorithm, forward_fields: Iterable[str]) -> Batch:
    """Return a batch of zeros as tensors with two rows; for rollouts and sequences, two prepared steps of one lane.

    For a replay agent with a state, these are two sequences.
    """
    is_rollout = algorithm.memory != "replay"
    rows: tuple[int, ...] = (2, 1) if is_rollout else (2,)
    leading = rows
    if algorithm.state_spec and not is_rollout:
        leading = 2, sequence_spec(algorithm).length

    def zeros(shape: tuple[int, ...], dtype: Any) -> Any:
        return _zeros((*leading, *shape), dtype)

    spaces = algorithm.spaces
    observation = zeros(spaces.encoder.space.shape, spaces.network_dtype)
    number = zeros((), np.float32)
    layout = action_layout(spaces.source.action_space)
    action = zeros(layout.shape, layout.batch_dtype)
    extra = {name: zeros(shape, np.float32) for name, (shape, _) in algorithm.random_spec.items()}
    names = forward_fields if is_rollout else dict.fromkeys((*forward_fields, *algorithm.actor_fields))
    fields = extra_layout(update.stored_fields(algorithm, names))
    extra.update({name: zeros(leaf.shape, leaf.batch_dtype) for name, leaf in fields.items()})
    if algorithm.next_actions:
        extra.update(next_action=action, has_next_action=number)
    if spaces.team is not None:
        # Rewards and discounts of several agents have an axis of agents.
        per_agent = zeros((len(spaces.team),), np.float32)
        extra.update(present=per_agent, remaining=per_agent)
        return Batch(observation, action, per_agent, observation, per_agent, number, zeros((), np.int32), extra)
    if is_rollout:
        extra.update(continues=number, ended=number)
    if algorithm.state_spec:
        extra.update(continues=number, starts=number)
        start = start_of(algorithm)
        extra["state"] = {name: _zeros((*rows, *value.shape), value.dtype) for name, value in start.items()}
    batch = Batch(observation, action, number, observation, number, number, _zeros(rows, np.int32), extra)
    if not is_rollout:
        return batch
    if algorithm.memory == "sequences":
        return update.prepared(algorithm, batch)
    if not algorithm.state_spec:
        return update.flatten_prepared(algorithm, batch)
    spec = learner_state_of(algorithm)
    extra["learner_state"] = {name: _zeros((1, *shape), dtype) for name, (shape, dtype) in spec.items()}
    return update.without_learner_state(update.cut_prepared(algorithm, batch, 2))[0]
