"""One `fit` under a strategy: its checks, and what is placed on devices or processes while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from noterl import distribute
from noterl.callback import Budget
from noterl.collect import DeviceLanes, PoolLanes
from noterl.distribute import SINGLE, Strategy
from noterl.history import History
from noterl.learning.learner import Learner
from noterl.training.device_loop import DeviceLoop
from noterl.training.loop import Loop, accept_masks
from noterl.training.rank_loop import RankLoop
from noterl.training.ranks import statistics_merger, synchronize
from noterl.training.state import Parts


def resolve_strategy(strategy: Any) -> Strategy:
    """Return the strategy for the argument of `fit`; `SINGLE` for None.

    Raises:
        ValueError: if it is not a strategy, or belongs to another backend.
    """
    return distribute.resolve(strategy) or SINGLE


def check_strategy(strategy: Strategy, learner: Learner) -> None:
    """Check that the replicas of the strategy can share the agent's batches.

    Raises:
        ValueError: if they cannot.
    """
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
        finally:
            learner.merge_statistics = None


def make_loop(strategy: Strategy, parts: Parts, budget: Budget, history: History) -> Loop:
    """Start the workers, and return the loop of a `fit`; several processes start with the chief's state.

    Raises:
        StrategyError: if the processes have different settings.
        ValueError: if the environment or the exploration cannot be sent to a worker.
        WorkerError: if a worker fails at its start.
    """
    learner, session = parts.learner, parts.session
    arguments = learner, parts.actor, session, parts.counters, budget, history
    if strategy.processes == 1:
        _start_workers(parts)
        return (DeviceLoop if isinstance(session.lanes, DeviceLanes) else Loop)(*arguments)
    assert session.lanes is not None
    is_live = any(callback.needs_live_updates for callback in session.callbacks.callbacks)
    is_live = synchronize(strategy, parts, budget, session.lanes.num_envs, is_live)
    learner.merge_statistics = statistics_merger(strategy, learner)
    _start_workers(parts)  # with the weights of the chief
    return RankLoop(*arguments, strategy=strategy, is_live=is_live)


def _start_workers(parts: Parts) -> None:
    """Start the worker processes, if there are any, after the fields of their transitions are known."""
    learner, actor, session, lanes = parts.learner, parts.actor, parts.session, parts.session.lanes
    if isinstance(lanes, PoolLanes) and actor.head.takes_mask:
        lanes.look_for_masks()
        accept_masks(learner, actor, lanes)
    if learner.replay is not None and isinstance(lanes, PoolLanes):
        learner.replay.set_sources(lanes.lanes_of_workers, balance=lanes.settings.balance)
    elif learner.replay is not None and lanes is not None:
        learner.replay.set_sources([lanes.num_envs], balance=False)
    session.start_workers(actor, None if learner.rollout is None else learner.rollout.length)
