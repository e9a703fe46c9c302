"""One `fit` of an agent: the arguments, and the steps from the checks to the loop."""

from __future__ import annotations

import math
import numbers
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from noterl.callback import Budget, Callback, overrides
from noterl.collect import Lanes
from noterl.collect.info import check_info
from noterl.collect.workers.settings import check_actor, check_workers
from noterl.data.dataset import Dataset
from noterl.distribute import SINGLE, resolve
from noterl.history import COLUMNS, History
from noterl.learning.data_memory import MixedMemory, check_learns_from_data, rows_of_data, with_rewards_of
from noterl.learning.device_runner import runs_on_device
from noterl.random import check_seed
from noterl.training.console import can_show_progress_bar
from noterl.training.dispatch import CallbackList
from noterl.training.distribution import check_strategy, distributed, make_loop
from noterl.training.evaluation import STATISTICS
from noterl.training.loop import EventLoop
from noterl.training.parts import Parts
from noterl.types import StopRequest
from noterl.utils import words
from noterl.utils.checks import check_bool, check_number, check_positive, whole


@dataclass(eq=False)
class Fit:
    """One `fit`; `Agent.fit` documents the arguments and errors.

    Attributes:
        parts: the parts of the agent.
    """

    parts: Parts
    env: Any
    episodes: Any
    steps: Any
    strategy: Any
    callbacks: CallbackList
    num_envs: Any
    vectorize: Any
    workers: Any
    verbose: Any
    log_every: Any
    seed: Any
    info: Any
    dataset: Any = None
    dataset_share: Any = 0.5
    updates: Any = None
    updates_per_epoch: Any = 1_000
    validation_data: Any = None

    # The arguments that limit the fit, of which one is needed unless a callback ends the training.
    budgets: ClassVar[Sequence[str]] = ("episodes", "steps")
    unit: ClassVar[str] = "episode"  # of the history
    unused_events: ClassVar[Sequence[str]] = ("on_epoch_begin", "on_epoch_end")

    def run(self) -> History:
        """Train the agent, and return what happened."""
        session = self.parts.session
        session.refuse_while_training("fit")
        self.check_arguments()
        with session.guard.installed(), session.gate.owned(), self.loop(self.begin()) as loop:
            loop.run()
        # A stop has a reason of its own.
        if not (self.parts.counters.updates or session.stop.is_set or loop.budget.skipped):
            warnings.warn(
                f"fit ended without a gradient update, after {self.parts.counters.steps} environment steps: "
                f"{self.parts.learner.first_update}",
                stacklevel=4,  # the caller of fit, which `utils.words` wraps
            )
        return loop.history

    @contextmanager
    def loop(self, budget: Budget) -> Iterator[EventLoop]:
        """Return a context in which the loop can run."""
        lanes = self._open(budget)
        self.parts.session.guard.check()  # the last check before training begins
        lanes.ledger.record_info(self.info)
        self.parts.learner.open(lanes.num_envs)
        self.parts.actor.attach(lanes)
        history = self.attach_callbacks(budget)
        with self.parts.session.training(), distributed(self.strategy, self.parts.learner), self.data(budget):
            yield make_loop(self.strategy, self.parts, budget, history)

    def data(self, budget: Budget) -> AbstractContextManager[None]:
        """Return a context in which updates learn from the data set, too, if there is one."""
        if self.dataset is None or budget.skipped:
            return nullcontext()
        learner: Any = self.parts.learner
        rows = rows_of_data(self.dataset_share, learner.batch_size)
        memory = self.parts.use_data(self.dataset, rows, is_resumed=budget.resumed)
        return learner.learning_from(MixedMemory(learner.replay, memory, self.dataset_share))

    def check_arguments(self) -> None:
        """Take arguments from a preset, and check and convert all arguments, before anything changes."""
        if self.parts.preset is not None:
            self.parts.preset.complete(self)
        self.vectorize = False if self.vectorize is None else self.vectorize
        if isinstance(self.env, numbers.Number):
            raise ValueError(
                f"env, the first argument of fit, must be an environment, got {self.env!r}: write fit(episodes="
                f"{self.env})"
            )
        if self.updates is not None or self.validation_data is not None:
            name = "validation_data" if self.updates is None else "updates"
            raise ValueError(
                f"{name} must be None unless fit trains on a dataset= without an env, episodes and steps, got "
                f"{getattr(self, name)!r:.80}"
            )
        self.check_shared()
        if self.dataset is not None:
            self.dataset = self.check_data("dataset", self.dataset)
            schedule = self.parts.learner.schedule
            values = {"dataset_share": self.dataset_share, "batch_size": schedule.batch_size}
            if not 0 < check_number("dataset_share", self.dataset_share) < 1 or schedule.batch_size < 2:
                raise ValueError(f"dataset needs 0 < dataset_share < 1 and a batch_size of at least 2, got {values}")
            if schedule.updates == "pass":
                raise ValueError("updates of compile must be an int with a dataset, got 'pass'")
        self.workers = check_workers(self.workers)
        if check_bool("vectorize", self.vectorize) and self.workers is not None:
            raise ValueError(
                f"vectorize must be False with workers, which step single environments; got {self.workers!r}"
            )
        self.env = self.parts.session.find_source(self.env, self.vectorize)
        if self.dataset is not None:
            self.dataset = with_rewards_of(self.env, self.dataset)

    def check_shared(self) -> None:
        """Check and convert the arguments of every kind of `fit`."""
        for callback in self.callbacks.callbacks:
            # A callback for both kinds of `fit` has methods for both.
            epochs = [event for event in self.unused_events if overrides(callback, event)]
            unused = [event for event in epochs if not overrides(callback, event.replace("epoch", "episode"))]
            words.warn_of_unknown_events(callback, Callback, 6, unused)  # at the caller of fit
        for name in self.budgets:
            setattr(self, name, whole(getattr(self, name)))
        for name in (*self.budgets, "num_envs", "log_every"):
            check_positive(name, getattr(self, name), none=True)
        stopping = [callback for callback in self.callbacks.callbacks if callback.stops_training]
        ends = any(self.unit == "episode" or getattr(callback, "unit", None) != "steps" for callback in stopping)
        if not ends and all(getattr(self, name) is None for name in self.budgets):
            raise ValueError(
                f"{' or '.join(self.budgets)} must be given, or a callback that stops training, such as EarlyStopping"
            )
        self.verbose = check_verbose(self.verbose)
        check_seed(self.seed)
        self.strategy = resolve(self.strategy) or SINGLE
        self.callbacks = self.callbacks.of_rank(self.strategy.rank)
        self.parts.session.verbose = self.verbose if self.strategy.is_chief else 0

    def check_data(self, argument: str, data: Any) -> Dataset:
        """Return a data set for an argument that may also be a path or a Minari id.

        Raises:
            ValueError: if the argument is something else, or the agent cannot learn from the data.
        """
        dataset = Dataset.load(data) if isinstance(data, str | os.PathLike) else data
        if not isinstance(dataset, Dataset):
            raise ValueError(f"{argument} must be a noterl.Dataset, a path or a Minari id, got {data!r:.80}")
        return check_learns_from_data(self.parts.algorithm, dataset, argument)

    def begin(self) -> Budget:
        """Build the agent and check the arguments; then let callbacks restore the agent and change the budget."""
        counters = self.parts.counters
        learner, actor = self.parts.build_to_train()
        self.info = self._check_info()
        check_strategy(self.strategy, learner)
        check_actor(actor, self.workers)
        for callback in self.callbacks.callbacks:
            if callback.needs_memory and learner.replay is None:
                agent = type(self.parts.algorithm).__name__
                raise ValueError(f"callbacks: {type(callback).__name__} needs a replay memory; {agent} has none")
        budget = Budget(
            math.inf if self.episodes is None else counters.episodes + self.episodes,
            math.inf if self.steps is None else counters.steps + self.steps,
            last_update=math.inf if self.updates is None else counters.updates + self.updates,
        )
        self.parts.session.stop = StopRequest()
        self.callbacks.begin_fit(self.parts.algorithm)
        for callback in self.callbacks.callbacks:
            self.parts.session.guard.call(callback.before_fit, self.parts.algorithm, budget)
        if budget.skipped:
            self.callbacks = CallbackList()  # which would change the files of this fit
        # A callback that restored the agent may have moved `last_step`, but not the limit of another callback.
        budget.last_step = min(budget.last_step, budget.step_limit)
        if self.parts.preset is not None:
            self.parts.preset.span(getattr(budget, f"last_{self.budgets[-1][:-1]}"))
        if not budget.skipped and counters.steps < budget.last_step:
            self.parts.warn_of_ended_rates(counters.steps if self.updates is None else counters.updates)
        return budget

    def _open(self, budget: Budget) -> Lanes:
        """Open the environments, or keep the open ones."""
        session = self.parts.session
        source = self.env
        learner, actor = self.parts.build()  # a callback may have restored or compiled the agent
        if not budget.skipped:
            learner.attach(source, session.count(source, self.num_envs, self.workers), self.strategy.processes)
        # Workers, `info`, a data set, a strategy and some callbacks need every step on the host.
        is_plain = self.workers is None and not self.info and self.dataset is None and self.strategy is SINGLE
        needs_host = any(callback.needs_host for callback in self.callbacks.callbacks)
        return session.open(
            source,
            self.num_envs,
            restart=budget.skipped or self._restarts(budget),
            workers=self.workers,
            info_spec=self.parts.algorithm.info_spec,
            on_device=is_plain and not needs_host and runs_on_device(learner, actor, source),
        )

    def attach_callbacks(self, budget: Budget) -> History:
        """Count the fit, seed the generators again if the episodes restart, bind the callbacks, and return the history.

        From here on, callbacks handle events.
        """
        session = self.parts.session
        session.fits += 1
        session.info = self.info
        if self._restarts(budget):
            self.parts.reseed(self.seed)
        session.history = history = History(self.unit)
        left = self._left("episodes", budget), self._left("steps" if self.updates is None else "updates", budget)
        progress = progress_callbacks(session.verbose, *left, self.log_every or 10)
        session.use_callbacks(CallbackList([*self.callbacks.callbacks, history, *progress]), self.parts.algorithm)
        return history

    def _left(self, name: str, budget: Budget) -> int | None:
        """Return how many of these units the budget leaves; None without a limit in this unit.

        They are fewer than the argument if the fit resumes an interrupted one, or a callback limits the steps.
        """
        limit = getattr(budget, f"last_{name[:-1]}") if getattr(self, name) is not None else None
        return None if limit is None else max(0, limit - getattr(self.parts.counters, name))

    def _restarts(self, budget: Budget) -> bool:
        """Return whether all episodes restart: with `seed`, unless this fit resumes an interrupted one."""
        return self.seed is not None and not budget.resumed

    def _check_info(self) -> dict[str, str]:
        """Return the reductions by key, whose names must differ from the names of other entries of the logs."""
        team = self.parts.algorithm.spaces.team
        taken = {"episode", "complete", "worker", "rank", "staleness", "update_ratio"}
        taken |= {*COLUMNS, *STATISTICS, *self.parts.learner.updater.metric_names}
        taken |= {name for callback in self.callbacks.callbacks for name in callback.adds}
        if team is not None:
            taken |= {f"{name}/{agent}" for agent in team.names for name in ("reward", "reward_mean")}
        return check_info(self.info, taken)


def progress_callbacks(verbose: int, episodes: int | None, steps: int | None, log_every: int) -> list[Callback]:
    """Return the callbacks that show progress at a verbosity, for a budget."""
    if verbose == 1:
        from noterl.training.progress_bar import ProgressBar

        return [ProgressBar(episodes=episodes, steps=steps, always=True)]
    if verbose == 2:
        from noterl.training.episode_printer import EpisodePrinter

        return [EpisodePrinter(log_every)]
    return []


def check_verbose(verbose: Any) -> int:
    """Return the argument `verbose` as a number.

    Raises:
        ValueError: if `verbose` is neither "auto" nor 0, 1 or 2.
    """
    if isinstance(verbose, str) and verbose == "auto":
        return 1 if can_show_progress_bar() else 2
    if not isinstance(verbose, numbers.Integral) or isinstance(verbose, bool) or verbose not in (0, 1, 2):
        raise ValueError(f"verbose must be 'auto', 0, 1 or 2, got {verbose!r}")
    return int(verbose)
