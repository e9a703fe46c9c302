"""The fields of `info` that the memories of a learner store; see `Algorithm.info_spec`."""

from __future__ import annotations

from collections.abc import Collection

from noterl.learning.learner import Learner
from noterl.types import InfoSpec


def with_next(spec: InfoSpec) -> InfoSpec:
    """Return the fields of `info` that a memory stores: of the step, and of the next observation."""
    return {**spec, **{f"next_{name}": entry for name, entry in spec.items()}}


def store_info(learner: Learner, spec: InfoSpec) -> None:
    """Store further fields of `info` from now on, and compile the updates again, which then receive these fields.

    `fit` calls this function when the environments turn out to report action masks.

    Transitions that are stored already get the defaults.
    """
    for memory in (learner.rollout, learner.replay, getattr(learner.memory, "data", None)):
        if memory is not None:
            memory.add_fields(with_next(spec))
    set_info_spec(learner, {**learner.info_spec, **spec})


def remove_info(learner: Learner, names: Collection[str]) -> None:
    """Remove fields of `info` from the memories, and compile the updates again without these fields."""
    for memory in (learner.rollout, learner.replay):
        if memory is not None:
            memory.remove_fields([field for name in names for field in (name, f"next_{name}")])
    set_info_spec(learner, {name: entry for name, entry in learner.info_spec.items() if name not in names})


def set_info_spec(learner: Learner, spec: InfoSpec) -> None:
    """Set the fields of `info` that the memories hold; compiled updates are compiled again."""
    learner.info_spec = dict(spec)
    learner.algorithm.info_spec = dict(spec)
    if learner.is_built:
        learner.compile(learner.report)
