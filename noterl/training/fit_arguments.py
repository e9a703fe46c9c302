"""Checks of the arguments of `fit`, and the budget and progress callbacks that follow from them."""

from __future__ import annotations

import math
import numbers
from typing import Any

from noterl.callback import Budget, Callback
from noterl.collect.info import check_info
from noterl.history import COLUMNS
from noterl.learning.learner import Learner
from noterl.training.dispatch import CallbackList
from noterl.training.evaluation import STATISTICS
from noterl.types import Counters
from noterl.utils import words
from noterl.utils.checks import check_bool, check_positive
from noterl.utils.console import can_show_progress_bar


def check_fit_arguments(
    env: Any, episodes: Any, steps: Any, num_envs: Any, verbose: Any, log_every: Any, callbacks: CallbackList
) -> int:
    """Check the arguments of `fit` and return the verbosity as a number.

    Raises:
        ValueError: if an argument is not one of the allowed values.
    """
    if isinstance(env, numbers.Number):
        raise ValueError(
            f"env, the first argument of fit, must be an environment, got {env!r}: write fit(episodes={env})"
        )
    for callback in callbacks.callbacks:
        words.warn_of_unknown_events(callback, Callback, stacklevel=4)  # the caller of fit
    for name, value in (("episodes", episodes), ("steps", steps), ("num_envs", num_envs), ("log_every", log_every)):
        if value is not None:
            check_positive(name, value)
    if episodes is None and steps is None and not any(each.stops_training for each in callbacks.callbacks):
        raise ValueError("episodes or steps must be given, or a callback that stops training, such as EarlyStopping")
    return check_verbose(verbose)


def check_verbose(verbose: Any) -> int:
    """Return the argument `verbose` as a number.

    Raises:
        ValueError: if it is neither "auto" nor 0, 1 or 2.
    """
    if isinstance(verbose, str) and verbose == "auto":
        return 1 if can_show_progress_bar() else 2
    if not isinstance(verbose, numbers.Integral) or isinstance(verbose, bool) or verbose not in (0, 1, 2):
        raise ValueError(f"verbose must be 'auto', 0, 1 or 2, got {verbose!r}")
    return int(verbose)


def check_vectorize(vectorize: Any, workers: Any) -> bool:
    """Return the argument `vectorize` of `fit`.

    Raises:
        ValueError: if it is not a bool, or there are workers, which step single environments.
    """
    if check_bool("vectorize", vectorize) and workers is not None:
        raise ValueError(f"vectorize must be False with workers, which step single environments; got {workers!r}")
    return bool(vectorize)


def check_info_of_fit(info: Any, learner: Learner, callbacks: CallbackList) -> dict[str, str]:
    """Return the reductions by key, from the argument `info` of `fit`.

    Raises:
        ValueError: if it is malformed, or a key is the name of another entry of the logs or of `evaluate`'s result.
    """
    team = learner.algorithm.spaces.team
    taken = {"episode", "complete", "worker", "rank", "staleness", "update_ratio"}
    taken |= {*COLUMNS, *STATISTICS, *learner.updater.metric_names}
    taken |= {name for callback in callbacks.callbacks for name in callback.adds}
    taken |= {f"{name}/{agent}" for agent in (() if team is None else team.names) for name in ("reward", "reward_mean")}
    return check_info(info, taken)


def budget_of(counters: Counters, episodes: float | None, steps: float | None) -> Budget:
    """Return where a `fit` with these arguments ends."""
    return Budget(
        math.inf if episodes is None else counters.episodes + episodes,
        math.inf if steps is None else counters.steps + steps,
    )


def progress_callbacks(verbose: int, log_every: int | None, episodes: Any, steps: Any) -> list[Callback]:
    """Return the callbacks that show progress at this verbosity."""
    if verbose == 1:
        from noterl.training.progress_bar import ProgressBar

        return [ProgressBar(episodes=episodes, steps=steps, always=True)]
    if verbose == 2:
        from noterl.training.episode_printer import EpisodePrinter

        return [EpisodePrinter(log_every or 10)]
    return []
