"""The learning half of an agent: memory, schedule, optimizers and compiled programs.

The loop uses `add` and `due`. The loop's `UpdateRunner` uses `call_size`, `sample`, `batches` and `update`.
`ReplayLearner`, `RolloutLearner`, `ReplayedRolloutLearner` and `SequenceLearner` implement `Learner`.
"""

from __future__ import annotations

import bisect
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl import networks
from noterl.backends.common import GroupResult
from noterl.distribute import SINGLE, Strategy
from noterl.learning import dry_run
from noterl.learning.optimizers import DeferredOptimizer
from noterl.learning.runner import UpdateSource
from noterl.learning.schedule import Due, UpdateSchedule
from noterl.learning.update import add_random_numbers
from noterl.learning.updater import Updater
from noterl.replay.relabel import Triplets
from noterl.types import Batch, Transition, map_arrays

if TYPE_CHECKING:
    from noterl.algorithm import Algorithm
    from noterl.envs import EnvSource
    from noterl.replay import Replay
    from noterl.replay.rollout import Rollout

# A larger group runs as several calls, because the batches of one call are in memory at the same time.
LARGEST_CALL = 256


class Learner(UpdateSource):
    """Base of the learners; `Agent.compile` makes a learner, and `Agent.fit` and `Agent.build` build the learner.

    A state can be restored after `declare`. Nothing is allocated before `build`.

    Args:
        algorithm: the agent.
        schedule: when updates and hard copies to the target are due.
        optimizers: optimizers by name, not built yet.
        steps_per_execution: see `Agent.compile`.
        **settings: the other arguments of `Updater`.

    Attributes:
        replay: the replay memory; None for an agent that discards each rollout.
        rollout: the rollout in progress; None for an agent that learns from a replay memory.
        updater: makes the gradient updates.
        reward_model: replaces the rewards of updates; None for the environment's rewards.
        optimizers: optimizers by name, which are built after `build`.
        deferred: the same optimizers, each with the variables that it trains, after `declare`.
        variables: every variable of networks, hyperparameters and optimizers, without duplicates; before `build`,
            the variables of optimizers are missing.
        trainable: the ids of the variables that could be trained when the learner was declared.
        is_declared: whether the layouts of the memory and the variables of each optimizer are known.
        is_built: whether the memory is allocated, and optimizers and programs are built.
        forward_fields: the shapes of the fields that `forward` returns beside the output, by name.
        info_spec: the fields of `info` that the memory stores; see `Algorithm.info_spec`.
        memory: the part that batches are sampled from, and that receives feedback: the replay memory or the rollout.
        strategy: how devices or processes share updates; `use` sets it.
        report: variables whose weights each call of updates returns, for acting.
        merge_statistics: merges the statistics of the normalizers with the statistics of other processes, or None.
        acting_policy: the digest of the policy that collects the rollout, if the weights may have changed since its
            begin; else None.
    """

    replay: Replay | None = None
    rollout: Rollout | None = None
    acting_policy: str | None = None
    memory: Any
    batch_axis = 0  # of a batch, along which replicas share it

    def __init__(
        self,
        algorithm: Algorithm,
        schedule: UpdateSchedule,
        optimizers: Mapping[str, Any],
        *,
        steps_per_execution: int | str = "auto",
        **settings: Any,
    ) -> None:
        self.algorithm: Algorithm = algorithm
        self.schedule: UpdateSchedule = schedule
        self.steps_per_execution: int | str = steps_per_execution
        self.updater: Updater = Updater(algorithm, optimizers, polyak=schedule.polyak, **settings)
        self.optimizers: dict[str, Any] = self.updater.optimizers
        self.reward_model: Any = self.updater.reward_model
        self.jit_compile: bool | str = self.updater.jit_compile
        self.variables: list[Any] = []
        self.forward_fields: dict[str, tuple[int, ...]] = {}
        self.info_spec: dict[str, tuple[tuple[int, ...], Any, Any]] = dict(algorithm.info_spec)
        self.deferred: dict[str, DeferredOptimizer] = {}
        self.trainable: set[int] = set()
        self.is_declared: bool = False
        self.is_built: bool = False
        self.device_runner: Any = None  # makes the calls of training on the device; see `find_runner`
        self.device_runner_key: tuple[Any, ...] = ()  # the sizes and constants for which it was made
        self.strategy: Strategy = SINGLE
        self.report: Sequence[Any] = ()
        self.merge_statistics: Callable[[], None] | None = None

    # Building

    def declare(self, forward_fields: Mapping[str, tuple[int, ...]]) -> None:
        """Find the layouts of the memory and the variables that each optimizer trains; allocate nothing.

        Args:
            forward_fields: the attribute of the actor.

        Raises:
            ValueError: if `update` never uses one of the optimizers, or there is nothing to train.
        """
        updater = self.updater
        updater.find_networks()
        self.forward_fields = dict(forward_fields)
        self.variables = updater.variables = updater.find_variables()
        self.declare_memory()
        trained: dict[str, list[Any]] = {}
        updater.recorded = trained
        try:
            # An own `update` may call the default one.
            updater.trained = dry_run.find_trained(self.algorithm, self.optimizers)
            if isinstance(getattr(self.replay, "relabel", None), Triplets):
                # `update` expects batches with a further axis
                trained.update(dict.fromkeys(self.optimizers, self.algorithm.trained_variables()))
            else:
                updater.returned = dry_run.run_update(updater, self.forward_fields)
            self.declare_prepared()  # `prepare` may call `minimize`, too
        finally:
            updater.recorded = None
        unused = [name for name in self.optimizers if name not in trained]
        if unused:
            raise ValueError(f"update never calls minimize with the optimizer {', '.join(unused)}")
        for name, variables in trained.items():
            self.deferred[name] = DeferredOptimizer(self.optimizers[name], networks.unique(variables))
            self.optimizers[name] = self.deferred[name].optimizer
        self.trainable = set(map(id, self.algorithm.trained_variables()))
        self.is_declared = True

    def build(self) -> None:
        """Allocate the memory and the slots of the optimizers, and restore the state that was kept for these slots.

        Raises:
            ValueError: if the memory needs more bytes than are available.
        """
        self.build_memory()
        layout = networks.keras_layout(self.algorithm.networks().values())
        for deferred in self.deferred.values():
            deferred.build(layout)  # needs the layout to restore slots, which files hold in Keras's layout
        if self.reward_model is not None:
            self.reward_model.build()
        self.variables = self.updater.variables = self.updater.find_variables()

    def compile(self, report: Sequence[Any]) -> None:
        """Compile the updates.

        Args:
            report: variables whose weights each call returns, for acting.
        """
        self.report = report
        self.compile_updates()
        self.is_built = True

    def use(self, strategy: Strategy) -> None:
        """Compile the updates for another strategy; the state of the agent does not change."""
        if strategy is self.strategy:
            return
        before = self.strategy
        self.strategy = strategy
        try:
            self.compile_updates()
        except BaseException:  # the strategy does not support the agent
            self.strategy = before
            raise

    @abstractmethod
    def declare_memory(self) -> None:
        """Set the layout of the memory for the algorithm's spaces."""

    def declare_prepared(self) -> None:
        """Set the layout of a memory that stores what `prepare` returns."""

    def build_memory(self) -> None:
        """Allocate the replay memory, if there is one."""
        if self.replay is not None:
            self.replay.allocate()

    def compile_updates(self, stop: Callable[..., Any] | None = None) -> None:
        """Compile what `update` runs, for the current strategy; see `Updater.compile`."""
        self._update = self.updater.compile(self.strategy, self.batch_axis, self.report, stop)
        self._version = self.algorithm._reads.version

    def _follow_attributes(self) -> None:
        """Compile the updates again if an attribute of the agent that the updates have read has changed."""
        if self.algorithm._reads.check() != self._version:
            self.compile_updates()

    # The protocol of the loop

    def attach(self, source: EnvSource, num_envs: int, processes: int = 1) -> None:
        """Check that the memory fits the environments of a `fit`, before `fit` opens the environments.

        Args:
            source: the environments.
            num_envs: the number of environments in each process.
            processes: the number of processes that learn together.

        Raises:
            ValueError: if the memory relabels transitions and cannot do so with this agent and these environments, or
                a rollout in so many environments is smaller than the batch that `compile` received.
        """

    def open(self, num_envs: int) -> None:
        """Prepare for a `fit` with this number of lanes."""

    @property
    def batch_size(self) -> int:
        """Transitions of one gradient update; a size that a callback has set is rounded down for the replicas."""
        replicas = self.strategy.replicas
        return max(int(self.schedule.batch_size) // replicas, 1) * replicas

    @property
    def share(self) -> int:
        """Transitions of a gradient update that this process samples."""
        return self.batch_size if self.strategy is SINGLE else self.strategy.share(self.batch_size)

    @property
    @abstractmethod
    def ready(self) -> float:
        """Transitions that can be sampled for an update; the transitions of a rollout, once the rollout is complete."""

    @property
    def actor_fields(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the further fields that the actor returns with actions, by name."""
        names = self.algorithm.actor_fields
        return {**self.forward_fields, **{name: tuple(self.algorithm.extra_spec[name][0]) for name in names}}

    @property
    def rounds_left(self) -> int | None:
        """Number of rounds until the next update; None if the workers' setting decides how many are collected."""
        return None

    def rounds_within(self, updates: int | None, step: int, num_envs: int) -> float:
        """Return how many rounds can begin before more than `updates` updates can be due; inf if there is no limit.

        Args:
            updates: a number of updates; None for no limit.
            step: environment steps so far, before the first of these rounds.
            num_envs: steps of a round.
        """
        return math.inf

    def keep_acting_policy(self) -> None:
        """Called before an update if workers collect the next rollout with the current weights meanwhile."""

    def before_new_weights(self) -> None:
        """Called before weights or statistics are set by other means than learning."""

    def discard_rollout(self) -> None:
        """Discard the rollout in progress."""

    def discard_old_rollout(self) -> bool:
        """Discard the rollout in progress if another policy has begun it; return whether this was so."""
        return False

    def begin_round(self, observations: np.ndarray, actions: np.ndarray, fields: Mapping[str, np.ndarray]) -> None:
        """Called with the observations, actions and further fields `[N, ...]` of all lanes before the lanes step."""

    def end_round(self) -> None:
        """Called when all lanes have stepped."""

    @abstractmethod
    def add(self, transition: Transition) -> None:
        """Store a transition."""

    @abstractmethod
    def interrupt(self, lane: int) -> None:
        """End a lane's episode in the memory: the lane's next transition does not follow from the last one."""

    @abstractmethod
    def due(self, before: int, after: int, ended: int, ready: float | None = None) -> Due:
        """Return what is due.

        Args:
            before: environment steps before this tick of the loop.
            after: environment steps after this tick.
            ended: episodes that ended in this tick.
            ready: the property `ready` that counts; by default the property of this learner. If several processes learn
                together, `ready` is the sum over these processes.
        """

    def update(self, batch: Any, count: int) -> GroupResult:
        """Make the first `count` updates of `batch` in one compiled call."""
        algorithm = self.algorithm
        # Arrays and dicts can change without an assignment, so they are compared before each call.
        if algorithm._reads.version != self._version or algorithm._reads.in_place:
            self._follow_attributes()
        if isinstance(batch, Batch):  # the rows of a rollout need no random numbers, and hold demonstrations already
            if algorithm.random_spec:
                batch = add_random_numbers(algorithm, batch, count, strategy=self.strategy)
            if self.reward_model is not None:
                batch = self.reward_model.add_demonstrations(batch, count)
        return self._update(batch, count, algorithm._counters.updates)

    def call_size(self, updates: int) -> int:
        """Return how many updates of a group run in one compiled call.

        By default, a group of the usual size is one call. For another group, the size is the next power of two, so that
        few sizes are compiled. A call has at most `LARGEST_CALL` updates.
        """
        if self.steps_per_execution != "auto":
            return int(self.steps_per_execution)
        is_usual = updates == self.schedule.compiled["updates"]
        return min(updates if is_usual else 1 << (updates - 1).bit_length(), LARGEST_CALL)

    def largest_batch(self, size: int) -> int:
        """Return the size of the largest batch, of at most `size` transitions, that the memory can sample now."""
        # A memory may say only whether it can fill a batch.
        return bisect.bisect_left(range(1, size + 1), True, key=lambda rows: self.memory.num_sampleable(rows) < rows)

    # State

    @property
    @abstractmethod
    def description(self) -> str:
        """One line about the memory, for `Agent.summary`."""

    @property
    @abstractmethod
    def first_update(self) -> str:
        """When the first update is made, for a warning."""


def pad(rows: Any, size: int) -> Any:
    """Return a `Batch` or array `[K, B, ...]`, padded with zeros to `size` batches, so that few shapes are compiled."""

    def extend(array: np.ndarray) -> np.ndarray:
        return np.concatenate([array, np.zeros((size - len(array), *array.shape[1:]), array.dtype)])

    length = len(rows.reward if isinstance(rows, Batch) else rows)
    return rows if length == size else map_arrays(extend, rows)
