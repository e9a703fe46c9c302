"""One `fit` under a strategy: the checks, and what is placed on devices or processes during the `fit`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from noterl.acting.actor import Actor
from noterl.callback import Budget
from noterl.collect import DeviceLanes, Lanes
from noterl.distribute import Strategy
from noterl.history import History
from noterl.learning.learner import Learner
from noterl.training.device_stepping import DeviceStepping
from noterl.training.loop import Loop, Stepping, accept_masks
from noterl.training.parts import Parts
from noterl.training.rank_stepping import RankStepping
from noterl.training.ranks import statistics_merger, synchronize


def check_strategy(strategy: Strategy, learner: Learner) -> None:
    """Check that the replicas of the strategy can share the agent's batches.

    Raises:
        ValueError: if the replicas cannot share a batch.
    """
    if strategy.word and learner.algorithm.needs_whole_batch:
        reason = f"{type(learner.algorithm).__name__} needs the statistics of a whole batch, and replicas share a batch"
        raise ValueError(f"strategy must be None, because {reason}; got {strategy.word!r}")
    size = learner.schedule.batch_size
    if not isinstance(size, str):
        strategy.share(size)


@contextmanager
def distributed(strategy: Strategy, learner: Learner) -> Iterator[None]:
    """Run the updates of a learner under a strategy inside the context.

    If an error ends the context, the strategy ends the connection to other processes, so that these processes fail too.
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
    learner = parts.learner
    session = parts.session
    lanes = parts.session.lanes
    assert lanes is not None
    arguments = learner, parts.actor, session, parts.counters, budget, history
    if strategy.processes == 1:
        _start(lanes, learner, parts.actor)
        # The only check of the kind of lanes: only `DeviceLanes` need the events of a compiled call.
        return Loop(*arguments, DeviceStepping if isinstance(lanes, DeviceLanes) else Stepping)
    is_live = synchronize(strategy, parts, budget, lanes.num_envs, session.callbacks.needs_live_updates)
    learner.merge_statistics = statistics_merger(strategy, learner)
    _start(lanes, learner, parts.actor)  # with the weights of the chief
    return Loop(*arguments, partial(RankStepping, strategy=strategy, is_live=is_live))


def _start(lanes: Lanes, learner: Learner, actor: Actor) -> None:
    """Start the worker processes, if there are any, after the fields of transitions are known."""
    if actor.head.takes_mask:
        lanes.look_for_masks()
        accept_masks(learner, actor, lanes)
    if learner.replay is not None:
        lanes.set_sources(learner.replay)
    lanes.start(actor, None if learner.rollout is None else learner.rollout.length)
