"""One gradient update of an agent, as backends compile it, and the random numbers it is given.

Owns: what happens around `Agent.update`. Random numbers come with the batch, drawn on the host by generators of the
agent: they are the same on every backend and however a group is split into calls, they are saved with the agent, and
what is compiled or traced stays a function of its arguments.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from noterl import backends, networks
from noterl.random import Generators
from noterl.types import Batch

import keras  # isort: skip  (noterl.backends has chosen by now)

if TYPE_CHECKING:
    from noterl.algorithm import Algorithm

DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda generator, shape: generator.standard_normal(shape, np.float32),
    "uniform": lambda generator, shape: generator.random(shape, np.float32),
}


class Returned(NamedTuple):
    """The names of what one of the updates within a period returns."""

    logs: frozenset[str]
    feedback: frozenset[str]


def check(agent: Algorithm) -> None:
    """Raise a ValueError if `random_spec`, `update_period` or `target_period` is not what it may be."""
    name, period, target_period = type(agent).__name__, agent.update_period, agent.target_period
    if isinstance(period, bool) or not isinstance(period, int) or period < 1:
        raise ValueError(f"update_period of {name} must be a positive int, got {period!r}")
    if isinstance(target_period, bool) or target_period not in range(1, period + 1) or period % target_period:
        raise ValueError(
            f"target_period of {name} must be an int that divides update_period, {period}, got {target_period!r}"
        )
    for field, spec in agent.random_spec.items():
        if not isinstance(spec, tuple) or len(spec) != 2 or spec[1] not in DISTRIBUTIONS:
            raise ValueError(
                f"random_spec of {name} must be name -> (shape, distribution), the distribution one of "
                f"{', '.join(DISTRIBUTIONS)}; {field!r} is {spec!r}"
            )


def compile_updates(agent: Algorithm) -> Callable[..., Any]:
    """Compile the updates of a built agent; see `noterl.backends`."""
    can_stop = agent.stop_epochs(defaultdict(float)) is not None
    return backends.current().compile_updates(
        agent.update_once,
        agent.all_variables,
        period=agent.update_period,
        stop=agent.stop_epochs if can_stop else None,
        report=agent.acting.packed,
        jit_compile=agent.jit_compile,
        on_trace=trace_counter(agent, "update"),
        log_names=log_names(agent),
        torch_seed=partial(torch_seed, agent),
    )


def trace_counter(agent: Algorithm, name: str) -> Callable[[], None]:
    """Return the function that counts a trace under this name in `agent.trace_counts`."""
    agent.trace_counts.setdefault(name, 0)

    def count() -> None:
        agent.trace_counts[name] += 1

    return count


def torch_seed(agent: Algorithm, advance: bool) -> int:
    """Return the next number of the generator "torch"; unless `advance`, leave the generator as it is."""
    generators = agent.generators
    if not advance:
        generators = Generators(agent.generators.seed)
        generators.set_state(agent.generators.get_state())
    return int(generators("torch").integers(2**63))


def with_random_numbers(agent: Algorithm, batch: Batch, count: int) -> Batch:
    """Return the batches `[K, B, ...]` with the numbers that `random_spec` asks for in `extra`.

    A generator for each name gives one number after another, so it does not matter how updates are put into groups.

    Args:
        agent: whose update it is.
        batch: K batches; numbers that are there already stay.
        count: how many of them are used; what is drawn for the others is 0.
    """
    missing = [name for name in agent.random_spec if name not in batch.extra]
    if not missing:
        return batch
    extra = dict(batch.extra)
    updates, rows = batch.reward.shape[:2]
    for name in missing:
        shape, distribution = agent.random_spec[name]
        drawn = DISTRIBUTIONS[distribution](agent.generators(f"update/{name}"), (count, rows, *shape))
        if count < updates:
            drawn = np.concatenate([drawn, np.zeros((updates - count, *drawn.shape[1:]), np.float32)])
        extra[name] = drawn
    return batch._replace(extra=extra)


def update_once(agent: Algorithm, batch: Batch, index: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make one update and, for Polyak averaging, move the target; what backends compile.

    Args:
        agent: whose update it is.
        batch: tensors `[B, ...]`.
        index: of the update within `update_period`, which Python knows while it is traced.

    Returns:
        `(logs, feedback)`; logs have at least "loss", feedback is what the memory asks for.
    """
    minimized: list[Any] = []
    agent._minimized = minimized
    try:
        logs, feedback = updated(agent, batch, index)
    finally:
        agent._minimized = None
    if agent.schedule.polyak and (index + 1) % agent.target_period == 0:
        with networks.averaging(agent.tau):
            agent.update_target()
    if "loss" not in logs:
        logs = {"loss": sum(minimized[1:], minimized[0]), **logs}
    if agent.update_period > 1:
        logs, feedback = _completed(agent, batch, logs, feedback or {})
    numbers = {
        name: keras.ops.convert_to_tensor(value, "float32")
        for name, value in logs.items()
        if isinstance(value, float | int)
    }
    wanted = agent.drawn_from.feedback_fields
    return {**logs, **numbers}, {name: value for name, value in (feedback or {}).items() if name in wanted}


def _completed(
    agent: Algorithm, batch: Batch, logs: dict[str, Any], feedback: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what every update within the period returns: NaN, which no memory takes, where this one is silent."""
    names = sorted(log_names(agent) - logs.keys())
    fields = sorted(frozenset[str]().union(*(each.feedback for each in agent._returned)) - feedback.keys())
    nothing = keras.ops.full_like(batch.weight, math.nan) if fields else None  # [B]
    return {**logs, **dict.fromkeys(names, math.nan)}, {**feedback, **dict.fromkeys(fields, nothing)}


def log_names(agent: Algorithm) -> frozenset[str]:
    """Return the names of all that updates log."""
    return frozenset({"loss"}).union(*(each.logs for each in agent._returned))


def spoken(agent: Algorithm, number: int, logs: dict[str, Any]) -> dict[str, Any]:
    """Return those of the logs that the update of this number returns; others stand for updates of other kinds."""
    if len(agent._returned) < 2:
        return logs
    own = agent._returned[number % agent.update_period].logs
    return {name: value for name, value in logs.items() if name in own}


def updated(agent: Algorithm, batch: Batch, index: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Call `update` and return what it returned, if it is what it should be."""
    update: Any = agent.update
    batch = agent.presented(batch)
    result = update(batch) if agent.update_period == 1 else update(batch, index)
    pair = isinstance(result, tuple) and len(result) == 2
    if pair and isinstance(result[0], dict) and isinstance(result[1], dict | None):
        return result
    raise ValueError(f"update must return (logs, feedback), two dicts; {type(agent).__name__}'s gave {result!r}")
