"""One gradient update in the form that backends compile, and the random numbers of an update.

Random numbers come with the batch. The host samples the numbers from generators of the agent, which are saved with the
agent. So the numbers are the same on every backend and for every size of a compiled call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from noterl.backends import keras
from noterl.distribute import SINGLE, Strategy
from noterl.losses import rows_of
from noterl.random import SHARED
from noterl.types import ACTING_OUTPUTS, Batch, map_arrays

if TYPE_CHECKING:
    from noterl.algorithm import Algorithm

DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda generator, shape: generator.standard_normal(shape, np.float32),
    "uniform": lambda generator, shape: generator.random(shape, np.float32),
    "batch_normal": lambda generator, shape: generator.standard_normal(shape, np.float32),  # equal in all rows
}


class Returned(NamedTuple):
    """The names that `update` returned in a dry run, for one index within `update_period`."""

    logs: frozenset[str]
    feedback: frozenset[str]


def has_code_of_user(algorithm: Algorithm) -> bool:
    """Return whether the agent's class or its networks come from the user, and so may have errors."""
    if not type(algorithm).__module__.startswith("noterl."):
        return True
    config = algorithm.get_config()
    return config.get("network") is not None or callable(config.get("recurrent"))


def add_random_numbers(
    algorithm: Algorithm,
    batch: Batch,
    count: int,
    generators: Callable[[str], np.random.Generator] | None = None,
    strategy: Strategy = SINGLE,
) -> Batch:
    """Return the batches `[K, B, ...]`, or `[K, T, N, ...]`, with the random numbers of `random_spec` in `extra`.

    Each name has a generator, which advances by the numbers of the used batches, so the grouping of updates does not
    matter.

    Args:
        algorithm: the algorithm that is updated.
        batch: K batches; names that `extra` already holds are kept.
        count: how many batches are used; the numbers of the others are 0.
        generators: returns the generator of a name; by default the algorithm's generators.
        strategy: if it has several processes, each samples the numbers of the global batch and keeps its share.
    """
    missing = [name for name in algorithm.random_spec if name not in batch.extra]
    if not missing:
        return batch
    extra = dict(batch.extra)
    generators = generators or algorithm.generators
    updates, *steps, size = batch.reward.shape[:3] if algorithm.memory == "sequences" else batch.reward.shape[:2]
    rows = batch.reward.shape[2:3] if algorithm.state_spec else ()  # of sequences [K, S, T]
    for name in missing:
        shape, distribution = algorithm.random_spec[name]
        axes = *steps, size * strategy.processes, *rows
        drawn = (1,) * len(axes) if distribution == "batch_normal" else axes
        numbers = DISTRIBUTIONS[distribution](generators(f"{SHARED}{name}"), (count, *drawn, *shape))
        if drawn != axes:  # `np.array`, because the view of `broadcast_to` cannot be written
            numbers = np.array(np.broadcast_to(numbers, (count, *axes, *shape)))
        # Each process draws the numbers of the whole batch, so the number of processes changes no numbers.
        numbers = np.split(numbers, strategy.processes, axis=1 + len(steps))[strategy.rank]
        # Unused batches draw no numbers, so padding does not change later ones.
        if count < updates:
            numbers = np.concatenate([numbers, np.zeros((updates - count, *numbers.shape[1:]), np.float32)])
        extra[name] = numbers
    return batch._replace(extra=extra)


# Stands for a missing value of an update. NaN would stop healthy runs under `jax_debug_nans`, and 0 is a usual value.
# The mean over processes of a power of two is exact.
NO_VALUE = -(2.0**100)


def fill_missing(
    logs: dict[str, Any], feedback: dict[str, Any], returned: Sequence[Returned], weight: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return logs and feedback with the names of all updates within the period; NO_VALUE where this one has no value.

    Args:
        logs: of this update.
        feedback: of this update.
        returned: the names of each update within the period.
        weight: the batch's weights `[B]`, for the shape of feedback.
    """
    names = sorted(log_names(returned) - logs.keys())
    fields = sorted(frozenset[str]().union(*(entry.feedback for entry in returned)) - feedback.keys())
    missing = keras.ops.full_like(weight, NO_VALUE) if fields else None  # [B]
    return {**logs, **dict.fromkeys(names, NO_VALUE)}, {**feedback, **dict.fromkeys(fields, missing)}


def log_names(returned: Sequence[Returned]) -> frozenset[str]:
    """Return the names of everything that updates log."""
    return frozenset({"loss"}).union(*(entry.logs for entry in returned))


def stored_fields(algorithm: Algorithm, names: Iterable[str]) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Return name -> (shape, dtype) of the further fields that a replay memory stores for an agent.

    `names` are the fields of `extra_spec` that the actor returns.
    """
    fields = {name: algorithm.extra_spec[name] for name in names}
    info = {name: (shape, dtype) for name, (shape, dtype, _) in algorithm.info_spec.items()}
    return {**fields, **info, **{f"next_{name}": spec for name, spec in info.items()}}


def prepared(algorithm: Algorithm, rollout: Batch) -> Batch:
    """Return a rollout `[T, N, ...]` with the fields of `prepare` in `extra`.

    Raises:
        ValueError: if `prepare` does not return a dict of fields `[T, N, ...]`.
    """
    fields: Any = algorithm.prepare(rollout)
    learner_state: dict[str, Any] = {}
    if algorithm.learner_state_spec and isinstance(fields, dict):
        fields = dict(fields)  # a copy, because the dict belongs to the author of the agent
        learner_state = {"learner_state": _checked_state(algorithm, rollout, fields.pop("learner_state", None))}
    if not isinstance(fields, dict):
        raise ValueError(
            f"prepare must return a dict of fields [T, N, ...], {type(algorithm).__name__} returned {fields!r}"
        )
    shape = tuple(rollout.reward.shape)
    for name, field in fields.items():
        if tuple(getattr(field, "shape", ()))[:2] != shape:
            raise ValueError(
                f"prepare must return fields [T, N, ...], here [{shape[0]}, {shape[1]}, ...], but {name!r} of "
                f"{type(algorithm).__name__} has the shape {tuple(getattr(field, 'shape', ()))}"
            )
    extra = {**rollout.extra, **fields, **learner_state}
    extra.pop(ACTING_OUTPUTS, None)  # so that updates receive the same fields after each rollout
    return rollout._replace(extra=extra)


def _checked_state(algorithm: Algorithm, rollout: Batch, state: Any) -> dict[str, Any]:
    """Return the learner state `[N, ...]` by name that `prepare` returned.

    Raises:
        ValueError: if `prepare` returned anything else.
    """
    expected = {name: tuple(value.shape) for name, value in rollout.extra["learner_state"].items()}
    shapes = {name: tuple(value.shape) for name, value in state.items()} if isinstance(state, dict) else None
    if shapes != expected:
        raise ValueError(
            f"prepare of {type(algorithm).__name__} must return learner_state, the state after the last row, with the "
            f"names and shapes {expected}, got {shapes}"
        )
    return state


def cut_prepared(algorithm: Algorithm, rollout: Batch, length: int) -> Batch:
    """Return a rollout `[T, N, ...]` with the fields of `prepare`, cut into sequences; backends compile this.

    Args:
        algorithm: an agent with a `state_spec`.
        rollout: with the policy's state before each row in `extra["state"]`.
        length: L, the rows of a sequence; divides T.

    Returns:
        Sequences `[S, L, ...]`, of which `extra["state"]` holds the state before the first row, `[S, ...]` by name; and
        `extra["learner_state"]`, if the agent has one, after the last row of the rollout.
    """
    states = rollout.extra["state"]
    first = {name: value[0] for name, value in states.items()}
    extra = dict(prepared(algorithm, rollout._replace(extra={**rollout.extra, "state": first})).extra)
    learner_state = extra.pop("learner_state", None)
    lanes = rollout.reward.shape[1]

    def cut(array: Any) -> Any:
        # [T, N, ...] -> [T / L, L, N, ...] -> [T / L, N, L, ...] -> [S, L, ...]
        blocks = keras.ops.reshape(array, (-1, length, lanes, *array.shape[2:]))
        return keras.ops.reshape(keras.ops.swapaxes(blocks, 1, 2), (-1, length, *array.shape[2:]))

    sequences: Batch = map_arrays(cut, rollout._replace(extra={**extra, "state": states}))
    sequences = sequences._replace(index=sequences.index[:, 0])
    sequences.extra["state"] = {name: value[:, 0] for name, value in sequences.extra["state"].items()}  # type: ignore[index]
    if learner_state is not None:
        sequences.extra["learner_state"] = learner_state  # type: ignore[index]
    return sequences


def rows_first(batch: Batch) -> Batch:
    """Return sequences `[S, L, ...]` as `[L, S, ...]`, the form that `update` receives.

    State and index have no axis L.
    """
    others = batch._replace(index={}, extra={name: value for name, value in batch.extra.items() if name != "state"})
    turned: Batch = map_arrays(lambda array: keras.ops.swapaxes(array, 0, 1), others)
    return turned._replace(index=batch.index, extra={**turned.extra, "state": batch.extra["state"]})


def flatten_prepared(algorithm: Algorithm, rollout: Batch) -> Batch:
    """Return a rollout `[T, N, ...]` with the fields of `prepare`, as rows `[T N, ...]`; backends compile this."""
    return map_arrays(rows_of, prepared(algorithm, rollout))


def without_learner_state(batch: Batch) -> tuple[Batch, dict[str, Any]]:
    """Return a batch without the learner state that `prepare` has returned, and this state; {} if there is none."""
    extra = dict(batch.extra)
    state = extra.pop("learner_state", {})
    return batch._replace(extra=extra), state
