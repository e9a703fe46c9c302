"""One `fit` of an agent: the arguments, and the steps from the checks to the loop."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from noterl.callback import Budget, Callback
from noterl.collect import Lanes
from noterl.collect.info import check_info
from noterl.collect.workers.settings import check_actor, check_workers
from noterl.distribute import SINGLE
from noterl.history import COLUMNS, History
from noterl.learning.device_runner import runs_on_device
from noterl.random import check_seed
from noterl.training.console import can_show_progress_bar
from noterl.training.dispatch import CallbackList
from noterl.training.distribution import check_strategy, distributed, make_loop, resolve_strategy
from noterl.training.evaluation import STATISTICS
from noterl.training.loop import Loop
from noterl.training.parts import Parts
from noterl.types import StopRequest
from noterl.utils import words
from noterl.utils.checks import check_bool, check_positive, whole


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

    def run(self) -> History:
        """Train the agent, and return what happened."""
        session = self.parts.session
        session.refuse_while_training("fit")
        self.check_arguments()
        with session.guard.installed(), session.gate.owned(), self.loop(self.begin()) as loop:
            loop.run()
        history = loop.history
        if not self.parts.counters.updates and not session.stop.is_set:  # a stop has a reason of its own
            warnings.warn(
                f"fit ended without a gradient update, after {self.parts.counters.steps} environment steps: "
                f"{self.parts.learner.first_update}",
                UserWarning,
                stacklevel=4,  # the caller of fit, which `utils.words` wraps
            )
        return history

    @contextmanager
    def loop(self, budget: Budget) -> Iterator[Loop]:
        """Return a context in which the loop can run."""
        lanes = self._open(budget)
        history = self._attach(lanes, budget)
        with self.parts.session.training(), distributed(self.strategy, self.parts.learner):
            yield make_loop(self.strategy, self.parts, budget, history)

    def check_arguments(self) -> None:
        """Take arguments from a preset, and check and convert all arguments, before anything changes."""
        preset = self.parts.preset
        if preset is not None:
            preset.complete(self)
        self.vectorize = False if self.vectorize is None else self.vectorize
        self.episodes = whole(self.episodes)
        self.steps = whole(self.steps)
        if isinstance(self.env, numbers.Number):
            raise ValueError(
                f"env, the first argument of fit, must be an environment, got {self.env!r}: write fit(episodes="
                f"{self.env})"
            )
        for callback in self.callbacks.callbacks:
            words.warn_of_unknown_events(callback, Callback, stacklevel=5)  # the caller of fit
        for name in ("episodes", "steps", "num_envs", "log_every"):
            check_positive(name, getattr(self, name), none=True)
        ends = any(callback.stops_training for callback in self.callbacks.callbacks)
        if self.episodes is None and self.steps is None and not ends:
            raise ValueError(
                "episodes or steps must be given, or a callback that stops training, such as EarlyStopping"
            )
        self.verbose = check_verbose(self.verbose)
        check_seed(self.seed)
        self.workers = check_workers(self.workers)
        self.strategy = resolve_strategy(self.strategy)
        self.callbacks = self.callbacks.of_rank(self.strategy.rank)
        self.parts.session.verbose = self.verbose if self.strategy.is_chief else 0
        if check_bool("vectorize", self.vectorize) and self.workers is not None:
            raise ValueError(
                f"vectorize must be False with workers, which step single environments; got {self.workers!r}"
            )
        self.env = self.parts.session.find_source(self.env, self.vectorize)

    def begin(self) -> Budget:
        """Build the agent and check the arguments; then let callbacks restore the agent and change the budget."""
        session = self.parts.session
        counters = self.parts.counters
        if self.parts.preset is not None and self.steps is not None:
            self.parts.preset.span(counters.steps + self.steps)
        learner, actor = self.parts.build_to_train()
        self.info = self._check_info()
        check_strategy(self.strategy, learner)
        check_actor(actor, self.workers)
        budget = Budget(
            math.inf if self.episodes is None else counters.episodes + self.episodes,
            math.inf if self.steps is None else counters.steps + self.steps,
        )
        self.callbacks.begin_fit(self.parts.algorithm)
        for callback in self.callbacks.callbacks:
            session.guard.call(callback.before_fit, self.parts.algorithm, budget)
        # A callback that restored the agent may have moved `last_step`, but not the limit of another callback.
        budget.last_step = min(budget.last_step, budget.step_limit)
        return budget

    def _open(self, budget: Budget) -> Lanes:
        """Open the environments, or keep the open ones."""
        session = self.parts.session
        source = self.env
        workers = self.workers
        learner, actor = self.parts.build()  # a callback may have restored or compiled the agent
        learner.attach(source, session.count(source, self.num_envs, workers), self.strategy.processes)
        # `info` and some callbacks need every step on the host.
        needs_host = bool(self.info) or any(callback.needs_host for callback in self.callbacks.callbacks)
        is_single = workers is None and self.strategy is SINGLE
        return session.open(
            source,
            self.num_envs,
            restart=self._restarts(budget),
            workers=workers,
            info_spec=self.parts.algorithm.info_spec,
            on_device=is_single and not needs_host and runs_on_device(learner, actor, source),
        )

    def _attach(self, lanes: Lanes, budget: Budget) -> History:
        """Attach learner, actor and callbacks to the environments, and return the history, which the loop fills."""
        session = self.parts.session
        session.guard.check()  # the last check before training begins
        session.fits += 1
        session.info = self.info
        lanes.ledger.record_info(self.info)
        self.parts.learner.open(lanes.num_envs)
        self.parts.actor.attach(lanes)
        if self._restarts(budget):
            self.parts.reseed(self.seed)
        session.history = history = History()
        session.stop = StopRequest()
        progress = progress_callbacks(session.verbose, self.episodes, self.steps, self.log_every or 10)
        callbacks = CallbackList([*self.callbacks.callbacks, history, *progress])
        session.use_callbacks(callbacks, self.parts.algorithm)
        return history

    def _restarts(self, budget: Budget) -> bool:
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
