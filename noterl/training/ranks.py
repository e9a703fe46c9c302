"""The start of a `fit` in several processes: equal settings, and the state of the chief everywhere."""

from __future__ import annotations

import contextlib
import copy
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from noterl import saving
from noterl.callback import Budget
from noterl.distribute import Strategy, StrategyError
from noterl.learning import optimizers
from noterl.learning.learner import Learner
from noterl.learning.schedule import SETTABLE
from noterl.training.parts import Parts
from noterl.training.state import set_shared_state, shared_state

_SHARED_RULES = ("learning_rate", "beta_1", "beta_2", "weight_decay")


def synchronize(strategy: Strategy, parts: Parts, budget: Budget, num_envs: int, is_live: bool) -> bool:
    """Give every process the chief's state and budget, and check that all settings are equal.

    Args:
        strategy: connected, with several processes.
        parts: of the agent.
        budget: of this `fit`; set to the chief's.
        num_envs: the lanes of this process.
        is_live: whether a callback of this process acts between updates.

    Returns:
        Whether a callback of any process acts between updates.

    Raises:
        StrategyError: if the processes have different settings.
    """
    learner = parts.learner
    settings = {
        "class": type(parts.algorithm).__name__,
        "num_envs": num_envs,
        "steps_per_execution": learner.steps_per_execution,
        **{name: getattr(learner.schedule, name) for name in SETTABLE},
    }
    sent = {"settings": settings, "live": is_live, "budget": [budget.last_episode, budget.last_step]}
    everyone = [json.loads(message) for message in strategy.gather(json.dumps(sent).encode())]
    for rank, other in enumerate(everyone):
        for name, value in settings.items():
            if other["settings"][name] != value:
                raise StrategyError(
                    f"{name} must be equal in all processes: it is {value!r} in rank {strategy.rank}, and "
                    f"{other['settings'][name]!r} in rank {rank}"
                )
    budget.last_episode, budget.last_step = everyone[0]["budget"]
    # Processes exchange bytes, so the state travels as a file's contents.
    with tempfile.TemporaryDirectory(prefix="noterl-") as folder:
        path = Path(folder, "state")
        if strategy.is_chief:
            saving.write(path, shared_state(parts))
        message = strategy.gather(path.read_bytes() if strategy.is_chief else b"")[0]
        if not strategy.is_chief:
            path.write_bytes(message)
            set_shared_state(parts, saving.read(path), strategy.rank)
    return any(received["live"] for received in everyone)


def statistics_merger(strategy: Strategy, learner: Learner) -> Callable[[], None] | None:
    """Return a function that merges the statistics of the normalizers over the processes; None without normalizers.

    Afterwards, all processes have the same statistics, of the values of all processes.
    """
    if learner.algorithm.spaces.normalizers is None:
        return None
    statistics = learner.algorithm.spaces.normalizers.statistics()
    # The statistics after the last merge: each process contributes only the values since then.
    bases = copy.deepcopy(statistics)

    def merge() -> None:
        moments = [current.moments_since(base) for current, base in zip(statistics, bases, strict=True)]
        table = strategy.agree(np.concatenate(moments).tolist())
        ends = np.cumsum([len(values) for values in moments])[:-1]
        for row in table:
            for base, part in zip(bases, np.split(row, ends), strict=True):
                base.add_moments(part)
        for current, base in zip(statistics, bases, strict=True):
            current.set_state(base.get_state())

    return merge


class ChiefSettings:
    """The numbers that callbacks of the chief may change during training, and that all processes must share.

    The numbers are hyperparameters, rules of the optimizers, and the schedule of updates.

    Args:
        learner: of this process.
    """

    def __init__(self, learner: Learner) -> None:
        # Functions that return and set each number, in a fixed order.
        self._numbers: list[tuple[Callable[[], float], Callable[[float], Any]]] = [
            (hyperparameter.__float__, hyperparameter.restore)
            for hyperparameter in learner.algorithm.hyperparameters.values()
        ]
        for optimizer in learner.optimizers.values():
            for rule in _SHARED_RULES:
                with contextlib.suppress(ValueError):  # of `get_rule`, if the optimizer does not have this rule
                    optimizers.get_rule(optimizer, rule)
                    write = partial(optimizers.set_rule, optimizer, rule)
                    self._numbers.append((partial(optimizers.get_rule, optimizer, rule), write))
        schedule = learner.schedule
        for name in SETTABLE:
            # A word such as "pass" is not a number; `synchronize` has checked that words are equal.
            if not isinstance(getattr(schedule, name), str):
                self._numbers.append((partial(getattr, schedule, name), partial(_set_int, schedule, name)))
        self.size: int = len(self._numbers)

    def read(self) -> list[float]:
        """Return the numbers, in a fixed order."""
        return [float(read()) for read, _ in self._numbers]

    def write(self, numbers: list[float]) -> None:
        """Set the numbers that differ."""
        for (read, write), number in zip(self._numbers, numbers, strict=True):
            if number != read():
                write(number)


def _set_int(schedule: Any, name: str, number: float) -> None:
    setattr(schedule, name, int(number))
