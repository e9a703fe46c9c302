"""One `fit` of an agent on a data set, without an environment."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from noterl.callback import Budget, Callback, overrides
from noterl.learning.data_memory import DataMemory, with_rewards_of
from noterl.learning.data_updates import DataUpdates, validation_loss
from noterl.replay import Uniform
from noterl.training.data_loop import DataLoop
from noterl.training.distribution import distributed
from noterl.training.fit import Fit
from noterl.utils.checks import check_count

_OF_ENVIRONMENTS = ("env", "episodes", "steps", "num_envs", "vectorize", "workers", "info")


@dataclass(eq=False)
class DataFit(Fit):
    """One `fit(dataset=, updates=)`; `Agent.fit` documents the arguments and errors."""

    budgets: ClassVar[Sequence[str]] = ("updates",)
    unit: ClassVar[str] = "epoch"
    unused_events: ClassVar[Sequence[str]] = ()

    def check_arguments(self) -> None:
        """Check and convert all arguments; called by `run`, before `begin`."""
        for name in _OF_ENVIRONMENTS:
            if getattr(self, name):
                raise ValueError(
                    f"{name} must be None with updates={self.updates!r}, which trains on dataset= without an "
                    f"environment; got {getattr(self, name)!r:.80}"
                )
        if self.dataset is None:
            raise ValueError(
                f"updates must be None without dataset=, because episodes or steps limit the training in an "
                f"environment; got {self.updates!r}"
            )
        self.check_shared()
        self.updates_per_epoch = check_count("updates_per_epoch", self.updates_per_epoch)
        if self.strategy.processes > 1:
            raise ValueError(f"strategy must have one process with dataset=, got {self.strategy!r}")
        source = self.parts.algorithm.spaces.source
        self.dataset = with_rewards_of(source, self.check_data("dataset", self.dataset))
        if self.validation_data is not None:
            self.validation_data = with_rewards_of(source, self.check_data("validation_data", self.validation_data))
        self.workers = None
        for callback in self.callbacks.callbacks:
            _check_callback(callback)

    @contextmanager
    def loop(self, budget: Budget) -> Iterator[DataLoop]:
        """Return a context in which the loop can run."""
        parts = self.parts
        parts.build()  # a callback may have restored or compiled the agent
        learner: Any = parts.learner
        with self.data(budget):
            parts.session.guard.check()  # the last check before training begins
            history = self.attach_callbacks(budget)
            arguments = learner, parts.actor, parts.session, parts.counters, budget, history
            validate = None
            if self.validation_data is not None:
                held_out = DataMemory(learner, self.validation_data, sampler=Uniform())
                validate = validation_loss(learner, held_out.replay)
            with parts.session.training(), distributed(self.strategy, learner):
                source = DataUpdates(learner, self.updates_per_epoch)
                yield DataLoop(*arguments, source=source, updates_per_epoch=self.updates_per_epoch, validate=validate)

    def data(self, budget: Budget) -> AbstractContextManager[None]:
        """Return a context in which updates learn from the data set."""
        if budget.skipped:
            return nullcontext()
        learner: Any = self.parts.learner
        return learner.learning_from(self.parts.use_data(self.dataset, learner.batch_size, is_resumed=budget.resumed))


def _check_callback(callback: Callback) -> None:
    """Warn of a callback that counts episodes or environment steps, of which there are none.

    Raises:
        ValueError: if the callback acts on the agent's replay memory.
    """
    name = type(callback).__name__
    if callback.needs_memory:
        raise ValueError(f"callbacks: {name} needs a replay memory; fit(dataset=, updates=) samples only the data set")
    every = callback.every if overrides(callback, "on_due") else None
    unit = getattr(callback, "unit", None) if every is None else every.unit
    if unit == "steps" or (unit == "episodes" and not (every is not None and every.counts_epochs)):
        warnings.warn(
            f"{name} counts {unit}, and fit(dataset=, updates=) has none: use unit='updates'",
            stacklevel=6,  # the caller of fit
        )
