"""Behavior cloning of an agent, with a progress display: what `Agent.pretrain` runs."""

from __future__ import annotations

import math
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from noterl import backends
from noterl.backends.common import GroupResult
from noterl.heads import Head
from noterl.learning.cloning import Cloning
from noterl.learning.expert_data import ExpertData
from noterl.learning.runner import UpdateRunner
from noterl.training.console import progress_bar
from noterl.training.dispatch import CallbackList, call_handlers
from noterl.training.episode_printer import INTERVAL
from noterl.training.fit import check_verbose
from noterl.training.parts import Parts
from noterl.types import Counters, StopRequest
from noterl.utils.checks import check_positive


def pretrain(
    parts: Parts,
    demonstrations: Any,
    updates: int,
    batch_size: int,
    optimizer: Any,
    verbose: int | str,
    callbacks: CallbackList,
) -> dict[str, list[float]]:
    """Clone the actions of demonstrations and return the losses; `Agent.pretrain` documents the arguments.

    Raises:
        ValueError: if an argument is not one of the allowed values; the agent is then unchanged.
    """
    algorithm = parts.algorithm
    session = parts.session
    session.refuse_while_training("pretrain")
    if algorithm.state_spec:
        raise ValueError(f"pretrain of an agent with a state_spec is not supported yet, got {algorithm.state_spec!r}")
    verbose = check_verbose(verbose)
    learner, actor = parts.build_to_train()
    check_positive("updates", updates)
    check_positive("batch_size", batch_size)
    data = ExpertData(algorithm, demonstrations)
    if type(algorithm.head).cloning_loss is Head.cloning_loss:
        raise ValueError(f"pretrain: the head {type(algorithm.head).__name__} defines no cloning_loss(values, action)")
    cloning = Cloning(learner, data, optimizer, updates, batch_size)
    learner.before_new_weights()  # the policy before the cloning has collected the rollout in progress
    statistics = getattr(algorithm.spaces.normalizers, "observation", None)
    if statistics is not None and not statistics.count:  # the statistics of observations start with the demonstrations
        statistics.update(np.asarray(data.observation, np.float32))
    callbacks.begin_fit(algorithm)
    session.stop = StopRequest()
    guard = session.guard
    progress = _Progress(updates, verbose)

    def receive(result: GroupResult) -> None:
        actor.mark_stale()
        progress.add(backends.current().fetch(result.logs["loss"])[: result.applied].tolist())

    runner = UpdateRunner(
        cloning,
        Counters(),  # the agent's counters do not change
        session.stop,
        on_batch_begin=callbacks.handlers("on_batch_begin"),
        on_batch_end=callbacks.handlers("on_batch_end"),
        fire=partial(call_handlers, call=guard.call),
        receive=receive,
        is_live=callbacks.needs_live_updates,
    )
    try:
        with guard.installed(), session.gate.owned(), session.training():
            while runner.counters.updates < updates and not session.stop.is_set:
                runner.run(min(cloning.call_size(updates), updates - runner.counters.updates))
                guard.check()
                session.gate.serve()
        algorithm.update_target()  # outside of an update, a hard copy
    finally:
        progress.close()
        actor.mark_stale()
    return {"loss": progress.losses}


class _Progress:
    """Shows the loss: 1 for a bar, 2 for a line every 10 seconds, both with a line at the end; 0 for nothing."""

    def __init__(self, updates: int, verbose: int) -> None:
        self._updates = updates
        self._verbose = verbose
        self._started = perf_counter()
        self._next_line = self._started + INTERVAL
        self._bar = progress_bar(total=updates, unit="update") if verbose == 1 else None
        self.losses: list[float] = []

    def add(self, losses: list[float]) -> None:
        """Show the mean loss of the last updates."""
        self.losses += losses
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {self._recent():.4g}", refresh=False)
            self._bar.update(len(losses))
        elif self._verbose == 2 and perf_counter() >= self._next_line:
            print(f"pretrain: update {len(self.losses)} of {self._updates} | loss {self._recent():.4g}", flush=True)
            self._next_line = perf_counter() + INTERVAL

    def close(self) -> None:
        """Close the bar, and print the last line."""
        if self._bar is not None:
            self._bar.close()
        if self._verbose and self.losses:
            number = len(self.losses)
            seconds = perf_counter() - self._started
            print(f"pretrain ended: {number:,} updates in {seconds:.1f} s, loss {self._recent():.4g}", flush=True)

    def _recent(self) -> float:
        """Return the mean loss of the last 100 updates."""
        return float(np.mean(self.losses[-100:] or [math.nan]))
