"""The learning half of an agent: memory, schedule, optimizers and compiled programs.

The loop uses these members in order: `add`, `due`, `sample`, `batches`, `update`, `feed_back`.
`ReplayLearner`, `RolloutLearner`, `ReplayedRolloutLearner` and `SequenceLearner` implement it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl import backends, networks
from noterl.backends.common import GroupResult, Program, UpdateOptions, split_loss
from noterl.distribute import SINGLE, Strategy
from noterl.hyperparameters import discount_factor
from noterl.learning import dry_run, optimizers
from noterl.learning.optimizers import DeferredOptimizer
from noterl.learning.schedule import Due, UpdateSchedule
from noterl.learning.update import Returned, add_random_numbers, call_update, fill_missing, log_names
from noterl.types import Batch, InfoSpec, Transition, map_arrays

if TYPE_CHECKING:
    from noterl.algorithm import Algorithm
    from noterl.envs import EnvSource
    from noterl.learning.acting_policy import ActingPolicy
    from noterl.learning.reward_model import Discriminator
    from noterl.replay import Replay
    from noterl.replay.rollout import Rollout

# A larger group runs as several calls, because the batches of one call are in memory at the same time.
LARGEST_CALL = 256


class Learner(ABC):
    """Base of the learners; `Agent.compile` makes one, and `Agent.fit` and `Agent.build` build it.

    A state can be restored after `declare`. Nothing is allocated before `build`.

    Args:
        algorithm: the agent.
        schedule: when updates and hard copies to the target are due.
        optimizers: optimizers by name, not built yet.
        jit_compile: see `Agent.compile`.
        steps_per_execution: see `Agent.compile`.
        reward_model: replaces the rewards of updates; None for those of the environment.
        precision: see `Agent.compile`.

    Attributes:
        replay: the replay memory; None for an agent that discards each rollout.
        rollout: the rollout in progress; None for an agent that learns from a replay memory.
        optimizers: optimizers by name; they are built after `build`.
        deferred: the same optimizers with their variables, after `declare`.
        trained: the variables that the default `update` trains.
        updated_networks: the networks that compute differently in an update; see `networks.training_mode`.
        variables: every variable of networks, hyperparameters and optimizers, without duplicates; before `build`,
            those of optimizers are missing.
        is_declared: whether the layouts of the memory and the variables of each optimizer are known.
        is_built: whether the memory is allocated, and optimizers and programs are built.
        forward_fields: the shapes of the fields that `forward` returns beside its output, by name.
        info_spec: the fields of `info` that the memory stores; see `Algorithm.info_spec`.
        memory: the part that batches are sampled from, and that receives feedback: the replay memory or the rollout.
        strategy: how devices or processes share updates; `use` sets it.
        merge_statistics: merges the statistics of the normalizers with those of other processes, or None.
        acting_policy: the policy that collects the rollout, if the weights have changed since it was begun; else None.
        dry_run_variables: during a dry run of `update`, the variables that each optimizer trains; otherwise None.
    """

    replay: Replay | None = None
    rollout: Rollout | None = None
    acting_policy: ActingPolicy | None = None
    memory: Any
    batch_axis = 0  # of a batch, along which replicas share it

    def __init__(
        self,
        algorithm: Algorithm,
        schedule: UpdateSchedule,
        optimizers: Mapping[str, Any],
        *,
        jit_compile: bool | str = "auto",
        steps_per_execution: int | str = "auto",
        reward_model: Discriminator | None = None,
        precision: str = "float32",
    ) -> None:
        self.precision = precision
        self.algorithm, self.schedule, self.reward_model = algorithm, schedule, reward_model
        self.optimizers: dict[str, Any] = dict(optimizers)
        self.jit_compile, self.steps_per_execution = jit_compile, steps_per_execution
        self.trained: list[Any] = []
        self.variables: list[Any] = []
        self.updated_networks: list[Any] = []
        self.dry_run_variables: dict[str, list[Any]] | None = None
        self.forward_fields: dict[str, tuple[int, ...]] = {}
        self.info_spec = dict(algorithm.info_spec)
        self.deferred: dict[str, DeferredOptimizer] = {}
        self.is_declared = self.is_built = False
        self.device_runner: Any = None  # makes the calls of training on the device; see `find_runner`
        self.device_runner_key: tuple[Any, ...] = ()  # the sizes and constants for which it was made
        self.strategy: Strategy = SINGLE
        self._report: Sequence[Any] = ()
        self.merge_statistics: Callable[[], None] | None = None
        self._returned: Sequence[Returned] = ()
        self._losses: list[Any] = []  # of the update in progress, one for each `minimize`
        self._groups: dict[tuple[int, ...], tuple[Sequence[Any], list[Any]]] = {}

    # Building

    def declare(self, forward_fields: Mapping[str, tuple[int, ...]]) -> None:
        """Find the layouts of the memory and the variables that each optimizer trains; allocate nothing.

        Args:
            forward_fields: the attribute of the actor.

        Raises:
            ValueError: if `update` never uses one of the optimizers, or there is nothing to train.
        """
        found = self.algorithm.networks().values()
        includes_modules = self.precision != "float32"
        self.updated_networks = [
            network
            for network in found
            if isinstance(network, backends.keras.layers.Layer) or (includes_modules and networks.is_module(network))
        ]
        self.forward_fields = dict(forward_fields)
        self.variables = self.find_variables()
        self.declare_memory()
        trained: dict[str, list[Any]] = {}
        self.dry_run_variables = trained
        try:
            if dry_run.uses_default_update(self.algorithm):
                self.trained = dry_run.find_trained(self.algorithm, self.optimizers)
                trained[self.algorithm.optimizer_names[0]] = self.trained
            else:
                self._returned = dry_run.run_update(self.algorithm, self.variables, self.jit_compile)
            self.declare_prepared()  # `prepare` may call `minimize`, too
        finally:
            self.dry_run_variables = None
        unused = [name for name in self.optimizers if name not in trained]
        if unused:
            raise ValueError(f"update never calls minimize with the optimizer {', '.join(unused)}")
        for name, variables in trained.items():
            self.deferred[name] = DeferredOptimizer(self.optimizers[name], networks.unique(variables))
            self.optimizers[name] = self.deferred[name].optimizer
        self.is_declared = True

    def leave_scope(self) -> None:
        """Make variables and optimizers independent of a scope of TensorFlow in which the agent was made."""
        leave_scope = backends.current().capabilities.get("scopes")
        if leave_scope is not None:
            leave_scope(self.find_variables(), self.optimizers.values())

    def build(self) -> None:
        """Allocate the memory and the slots of the optimizers, and restore the state that was kept for them.

        Raises:
            ValueError: if the memory needs more bytes than are available.
        """
        self.build_memory()
        layout = networks.keras_layout(self.algorithm.networks().values())
        for deferred in self.deferred.values():
            deferred.build(layout)
        if self.reward_model is not None:
            self.reward_model.build()
        self.variables = self.find_variables()

    def compile(self, report: Sequence[Any]) -> None:
        """Compile the updates.

        Args:
            report: variables whose weights each call returns, for acting.
        """
        self._report = report
        self.compile_updates(report)
        self._scheduled: list[Callable[[int], None]] = [
            each.update_schedules for each in self.algorithm.hyperparameters.values() if each.schedule is not None
        ]
        trained_by = [*self.optimizers.values(), *([self.reward_model.optimizer] if self.reward_model else [])]
        self._scheduled += [partial(optimizers.update_rules, one) for one in trained_by]
        self.is_built = True

    def store_info(self, spec: InfoSpec) -> None:
        """Store further fields of `info` from now on, and compile the updates again, which then receive them.

        Transitions that are stored already get the defaults. See `Algorithm.info_spec`.
        """
        both = {**spec, **{f"next_{name}": entry for name, entry in spec.items()}}
        for memory in (self.rollout, self.replay):
            if memory is not None:
                memory.add_fields(both)
        self.set_info_spec({**self.info_spec, **spec})

    def remove_info(self, names: Collection[str]) -> None:
        """Remove fields of `info` from the memory, and compile the updates again, which then do not receive them."""
        for memory in (self.rollout, self.replay):
            if memory is not None:
                memory.remove_fields([each for name in names for each in (name, f"next_{name}")])
        self.set_info_spec({name: entry for name, entry in self.info_spec.items() if name not in names})

    def set_info_spec(self, spec: InfoSpec) -> None:
        """Set the fields of `info` that the memory holds, and compile the updates again."""
        self.info_spec = dict(spec)
        self.algorithm.info_spec = dict(spec)
        if self.is_built:
            self.compile(self._report)

    def use(self, strategy: Strategy) -> None:
        """Compile the updates for another strategy; the state of the agent does not change."""
        if strategy is self.strategy:
            return
        before, self.strategy = self.strategy, strategy
        try:
            self.compile_updates(self._report)
        except BaseException:  # the strategy does not support the agent
            self.strategy = before
            raise

    @abstractmethod
    def declare_memory(self) -> None:
        """Set the layout of the memory for the algorithm's spaces."""

    def declare_prepared(self) -> None:  # noqa: B027  (optional)
        """Set the layout of a memory that stores what `prepare` returns."""

    def build_memory(self) -> None:
        """Allocate the replay memory, if there is one."""
        if self.replay is not None:
            self.replay.allocate()

    def compile_updates(self, report: Sequence[Any]) -> None:
        """Compile what `update` runs, for the current strategy."""
        self._update = self.program(report)

    def find_variables(self) -> list[Any]:
        """Return every variable of networks, hyperparameters and optimizers, each once."""
        found = self.algorithm._variables()
        found += [variable for one in self.optimizers.values() for variable in optimizers.variables(one)]
        found += self.reward_model.all_variables() if self.reward_model else []
        return networks.unique(found)

    def program(self, report: Sequence[Any], stop: Callable[..., Any] | None = None) -> Program:
        """Return the compiled program of `step`; see `Backend.compile_updates`."""
        options = UpdateOptions(
            period=self.algorithm.update_period,
            stop=stop,
            report=report,
            jit_compile=self.jit_compile,
            on_trace=self.trace_counter("update"),
            log_names=self.metric_names,
            torch_seed=self.torch_seed,
        )
        return self.strategy.compile_updates(self.step, self.variables, options, self.batch_axis)

    def trace_counter(self, name: str) -> Callable[[], None]:
        """Return a function that counts a trace of the program `name` in the agent's `trace_counts`."""
        return partial(self.algorithm.trace_counts.update, [name])

    def torch_seed(self, advance: bool) -> int:
        """Return the seed of torch's global generator for the next update.

        If `advance` is True, later calls return another seed: that of the update after it.
        """
        generators = self.algorithm.generators if advance else deepcopy(self.algorithm.generators)
        return int(generators("torch").integers(2**63))

    # The protocol of the loop

    def attach(self, source: EnvSource, num_envs: int, processes: int = 1) -> None:  # noqa: B027  (optional)
        """Check that the memory fits the environments of a `fit`, before they are opened.

        Args:
            source: the environments.
            num_envs: their number in each process.
            processes: the number of processes that learn together.

        Raises:
            ValueError: if the memory relabels transitions and cannot do so with this agent and these environments, or
                a rollout in so many environments is smaller than the batch that `compile` received.
        """

    def open(self, num_envs: int) -> None:  # noqa: B027  (optional)
        """Prepare for a `fit` with this number of lanes."""

    @property
    def batch_size(self) -> int:
        """Transitions of one gradient update."""
        return int(self.schedule.batch_size)

    @property
    def share(self) -> int:
        """Transitions of a gradient update that this process samples."""
        return self.strategy.share(self.batch_size)

    @property
    @abstractmethod
    def ready(self) -> float:
        """Transitions that can be sampled for an update; those of a rollout, once it is complete."""

    @property
    def actor_fields(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the further fields that the actor returns with actions, by name."""
        own = self.algorithm.actor_fields
        return {**self.forward_fields, **{name: tuple(self.algorithm.extra_spec[name][0]) for name in own}}

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

    def keep_acting_policy(self) -> None:  # noqa: B027  (optional)
        """Called before an update if workers collect the next rollout with the current weights meanwhile."""

    def before_new_weights(self) -> None:  # noqa: B027  (optional)
        """Called before weights or statistics are set by other means than learning."""

    def discard_rollout(self) -> None:  # noqa: B027  (optional)
        """Discard the rollout in progress."""

    def discard_old_rollout(self) -> bool:
        """Discard the rollout in progress if the current policy has not begun it; return whether it is discarded."""
        return False

    def begin_round(  # noqa: B027  (optional)
        self, observations: np.ndarray, actions: np.ndarray, fields: Mapping[str, np.ndarray]
    ) -> None:
        """Called with the observations, actions and further fields `[N, ...]` of all lanes before they step."""

    def end_round(self) -> None:  # noqa: B027  (optional)
        """Called when all lanes have stepped."""

    @abstractmethod
    def add(self, transition: Transition) -> None:
        """Store a transition."""

    @abstractmethod
    def interrupt(self, lane: int) -> None:
        """End a lane's episode in the memory: its next transition does not follow from its last one."""

    @abstractmethod
    def due(self, before: int, after: int, ended: int, ready: float | None = None) -> Due:
        """Return what is due.

        Args:
            before: environment steps before this tick of the loop.
            after: environment steps after it.
            ended: episodes that ended in it.
            ready: the property `ready` that counts; by default that of this learner. If several processes learn
                together, it is the sum over them.
        """

    @abstractmethod
    def sample(self, updates: int) -> Any:
        """Sample the transitions of a group of updates; the result can be sliced by updates."""

    @abstractmethod
    def batches(self, samples: Sequence[Any], size: int) -> AbstractContextManager[Iterator[Any]]:
        """Return a context manager that yields an iterator over the batches of each part of a sample.

        `update` receives these batches. Those of a part with fewer updates are padded to `size` updates.
        """

    def update(self, batch: Any, count: int) -> GroupResult:
        """Make the first `count` updates of `batch` in one compiled call."""
        if isinstance(batch, Batch):  # the rows of a rollout need no random numbers, and hold demonstrations already
            batch = add_random_numbers(self.algorithm, batch, count, strategy=self.strategy)
            if self.reward_model is not None:
                batch = self.reward_model.add_demonstrations(batch, count)
        result: GroupResult = self._update(batch, count, self.algorithm.updates)
        return result

    def feed_back(self, sample: Any, results: Sequence[GroupResult]) -> None:
        """Give the memory the feedback of a whole group of updates in one call."""
        fields = self.memory.feedback_fields
        if not fields:
            return
        fetch = backends.current().fetch
        # A call of fewer updates than usual is padded, and so is its feedback.
        values = {
            name: np.concatenate([fetch(result.feedback[name])[: result.applied] for result in results])
            for name in fields
        }
        self.memory.feedback(sample, values)

    def call_size(self, updates: int) -> int:
        """Return how many updates of a group run in one compiled call.

        By default, a group of the usual size is one call. For another group, the size is the next power of two, so that
        few sizes are compiled. A call has at most `LARGEST_CALL` updates.
        """
        if self.steps_per_execution != "auto":
            return int(self.steps_per_execution)
        is_usual = updates == self.schedule.updates
        return min(updates if is_usual else 1 << (updates - 1).bit_length(), LARGEST_CALL)

    def update_schedules(self, step: int) -> None:
        """Set everything that has a schedule to its value at this step."""
        for update in self._scheduled:
            update(step)

    @property
    def metric_names(self) -> frozenset[str]:
        """The names of everything that updates log; known after `build`."""
        return log_names(self._returned) | self._model_metrics

    @property
    def _model_metrics(self) -> frozenset[str]:
        return frozenset() if self.reward_model is None else self.reward_model.metric_names

    def logs_of_update(self, number: int, logs: dict[str, Any]) -> dict[str, Any]:
        """Return the logs of the update with this number, without the names that only other updates of a period log."""
        if len(self._returned) < 2:
            return logs
        own = self._returned[number % self.algorithm.update_period].logs | self._model_metrics
        return {name: value for name, value in logs.items() if name in own}

    # One update

    def step(self, batch: Batch, index: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make one update and, for Polyak averaging, move the target; backends compile this.

        Args:
            batch: tensors `[B, ...]`.
            index: of the update within `update_period`; a Python int while tracing.

        Returns:
            `(logs, feedback)`; logs hold at least "loss", feedback holds what the memory needs.

        Raises:
            ValueError: if `loss` or `update` does not return a field that the memory's sampler needs.
        """
        algorithm = self.algorithm
        model_logs: dict[str, Any] = {}
        if self.reward_model is not None:
            batch, model_logs = self.reward_model.train(batch, self._apply_gradients)
            batch = self.with_model_reward(batch)
        self._losses = []
        logs, feedback = call_update(algorithm, batch, index)
        if self.schedule.polyak and (index + 1) % algorithm.target_period == 0:
            with networks.averaging(algorithm.tau):
                algorithm.update_target()
        if "loss" not in logs:
            logs = {"loss": sum(self._losses[1:], self._losses[0]), **logs}
        self._losses = []
        if algorithm.update_period > 1:
            logs, feedback = fill_missing(logs, feedback, self._returned, batch.weight)
        numbers = {
            name: backends.ops.convert_to_tensor(value, "float32")
            for name, value in logs.items()
            if isinstance(value, float | int)
        }
        wanted = self.memory.feedback_fields
        missing = [name for name in wanted if name not in feedback]
        if missing:
            raise ValueError(
                f"feedback must hold {', '.join(missing)} [B] for {type(self.memory.sampler).__name__}, but "
                f"{type(algorithm).__name__} returns {', '.join(feedback) or 'nothing'}"
            )
        return {**logs, **numbers, **model_logs}, {name: value for name, value in feedback.items() if name in wanted}

    def with_model_reward(self, batch: Batch) -> Batch:
        """Return a batch `[B, ...]` with the rewards that updates use.

        Rollouts already hold them, because `prepare` needs them; `ReplayLearner` replaces them here.
        """
        return batch

    def minimize(
        self, loss_fn: Callable[..., Any], trained: Any, optimizer: str, args: tuple[Any, ...]
    ) -> tuple[Any, Any]:
        """Take one gradient step; see `Algorithm.minimize`."""
        if optimizer not in self.optimizers:
            raise ValueError(f"optimizer must be {' or '.join(map(repr, self.optimizers))}, got {optimizer!r}")
        variables = self._variables_of(trained if isinstance(trained, list | tuple) else [trained])
        if not variables:
            raise ValueError(f"trained must hold something trainable, in minimize with the optimizer {optimizer!r}")
        if self.dry_run_variables is not None:
            self.dry_run_variables.setdefault(optimizer, []).extend(variables)
            return split_loss(loss_fn(*args))
        loss, aux = self._apply_gradients(loss_fn, variables, self.optimizers[optimizer], args)
        self._losses.append(loss)
        return loss, aux

    def _apply_gradients(
        self, loss_fn: Callable[..., Any], variables: Sequence[Any], optimizer: Any, args: tuple[Any, ...]
    ) -> tuple[Any, Any]:
        owner = getattr(loss_fn, "__self__", None)
        traceable = owner is not None and (owner is self.algorithm or owner is self.reward_model)
        return backends.current().minimize(
            loss_fn, variables, optimizer, args, known=self.variables, traceable=traceable
        )

    def _variables_of(self, group: Sequence[Any]) -> list[Any]:
        """Return the trainable variables of networks; looked up once for each group of networks."""
        key = tuple(map(id, group))
        if key not in self._groups:
            found = networks.unique(variable for one in group for variable in networks.trainable_variables(one))
            self._groups[key] = (group, found)  # a reference to the group, so that its ids are not used again
        return self._groups[key][1]

    def largest_batch(self, size: int) -> int:
        """Return the size of the largest batch, of at most `size` transitions, that the memory can sample now."""
        return min(size, int(self.memory.num_sampleable(size)))

    # Gradient noise

    noise_population: float = math.inf  # the transitions of which a batch holds different ones; see `Spread`

    @abstractmethod
    def noise_batch(self, samples: int, generator: np.random.Generator) -> Batch | None:
        """Return `samples` batches `[K, B, ...]` for measuring gradient noise; None if there are no data yet."""

    # State

    @property
    @abstractmethod
    def description(self) -> str:
        """One line about the memory, for `Agent.summary`."""

    @property
    @abstractmethod
    def first_update(self) -> str:
        """When the first update is made, for a warning."""

    @property
    def gamma(self) -> float:
        """The discount factor of the memory: the agent's `gamma`, or 1 if it has none."""
        return discount_factor(self.algorithm)


def pad(rows: Any, size: int) -> Any:
    """Return a `Batch` or array `[K, B, ...]`, padded with zeros to `size` batches, so that few shapes are compiled."""

    def extend(array: np.ndarray) -> np.ndarray:
        return np.concatenate([array, np.zeros((size - len(array), *array.shape[1:]), array.dtype)])

    length = len(rows.reward if isinstance(rows, Batch) else rows)
    return rows if length == size else map_arrays(extend, rows)
