"""One `fit` under a strategy: its checks, and what is placed on devices or processes while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from noterl import distribute
from noterl.distribute import SINGLE, Strategy
from noterl.learning.learner import Learner


def resolve_strategy(strategy: Any) -> Strategy:
    """Return the strategy for the argument of `fit`; `SINGLE` for None.

    Raises:
        ValueError: if it is not a strategy, or belongs to another backend.
    """
    return distribute.resolve(strategy) or SINGLE


def check_strategy(strategy: Strategy, learner: Learner) -> None:
    """Check that the strategy supports the agent and its batches.

    Raises:
        ValueError: if it does not.
    """
    strategy.check(learner.algorithm.memory)
    size = learner.schedule.batch_size
    if not isinstance(size, str):
        strategy.share(size)


@contextmanager
def distributed(strategy: Strategy, learner: Learner) -> Iterator[None]:
    """Run the updates of a learner under a strategy inside the context.

    If an error ends the context, the strategy ends the connection to other processes, so that they fail too.
    """
    learner.use(strategy)
    with strategy.attached(learner.variables):
        try:
            yield
        except BaseException as error:
            strategy.fail(error)
            raise
