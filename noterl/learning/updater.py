"""The gradient step of an agent: one update, which backends compile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from copy import deepcopy
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from noterl import backends, networks
from noterl.algorithm import running
from noterl.backends.common import NonFiniteError, Options, Program, UpdateOptions, split_loss
from noterl.distribute import Strategy
from noterl.learning import optimizers
from noterl.learning.update import Returned, fill_missing, has_code_of_user, log_names, rows_first
from noterl.networks import training_mode
from noterl.types import Batch

if TYPE_CHECKING:
    from noterl.algorithm import Algorithm
    from noterl.learning.reward_model import Discriminator


class Updater:
    """Makes the gradient updates of one agent; each learner has an updater.

    Args:
        algorithm: the agent.
        built: the optimizers by name, which are built later.
        polyak: whether updates move the target by Polyak averaging.
        jit_compile: see `Agent.compile`.
        precision: see `Agent.compile`.
        reward_model: replaces the rewards of updates; None for the environment's rewards.

    Attributes:
        optimizers: the optimizers by name.
        memory: receives feedback; see `Learner`.
        replaces_reward: whether `step` replaces the rewards. Rollouts already hold the rewards of the reward model,
            because `prepare` needs these rewards.
        trained: the variables that the default `update` trains.
        variables: every variable of networks, hyperparameters and optimizers, without duplicates.
        networks: the networks that compute differently in an update; see `networks.training_mode`.
        returned: the names that `update` returned in the dry run, for each index within `update_period`.
        recorded: during a dry run of `update`, the variables that each optimizer trains; otherwise None.
    """

    memory: Any

    def __init__(
        self,
        algorithm: Algorithm,
        built: Mapping[str, Any],
        *,
        polyak: bool,
        jit_compile: bool | str = "auto",
        precision: str = "float32",
        reward_model: Discriminator | None = None,
    ) -> None:
        self.algorithm: Algorithm = algorithm
        self.jit_compile: bool | str = jit_compile
        self.precision: str = precision
        self.optimizers: dict[str, Any] = dict(built)
        self.reward_model: Discriminator | None = reward_model
        self.replaces_reward: bool = False
        self.trained: list[Any] = []
        self.variables: list[Any] = []
        self.networks: list[Any] = []
        self.returned: Sequence[Returned] = ()
        self.recorded: dict[str, list[Any]] | None = None
        self._polyak = networks.PolyakAveraging(algorithm.tau) if polyak else None
        self._evaluates = False  # whether `minimize` returns the loss without an update
        self._losses: list[Any] = []  # of the update in progress, one for each `minimize`
        self._groups: dict[tuple[int, ...], tuple[list[Any], Sequence[Any]]] = {}  # variables of groups of networks
        self._scheduled: list[Callable[[int], None]] = []
        self._constants: list[tuple[Any, dict[str, Any]]] = []  # optimizers and their numbers in the programs

    def leave_scope(self) -> None:
        """Make variables and optimizers independent of a scope of TensorFlow in which the agent was made."""
        leave_scope = backends.current().capabilities.get("scopes")
        if leave_scope is not None:
            leave_scope(self.find_variables(), self.optimizers.values())

    def find_networks(self) -> None:
        """Set `networks`, which updates and behavioral cloning use; called when the learner is declared."""
        # A module of torch stores the training mode itself, so `training_mode` changes only the precision.
        includes_modules = self.precision != "float32"
        by_name = self.algorithm.networks()
        networks.check_parameters(vars(self.algorithm), by_name)
        self.networks = [
            network
            for network in by_name.values()
            if isinstance(network, backends.keras.layers.Layer) or (includes_modules and networks.is_module(network))
        ]

    def find_variables(self) -> list[Any]:
        """Return every variable of networks, hyperparameters and optimizers, each once."""
        variables = self.algorithm._variables()
        for optimizer in self.optimizers.values():
            variables += optimizers.variables(optimizer)
        variables += self.reward_model.all_variables() if self.reward_model else []
        return networks.unique(variables)

    def compile(self, strategy: Strategy, axis: int, report: Sequence[Any], stop: Callable[..., Any] | None) -> Program:
        """Return the compiled program of `step`; see `backends.compile_updates`.

        Also find what `update_schedules` sets before updates, and the numbers that `check_constants` compares.

        Args:
            strategy: how devices or processes share updates.
            axis: of a batch, along which replicas share the batch.
            report: variables whose weights each call returns, for acting.
            stop: whether the update with these logs ends the group.
        """
        self._scheduled = [
            hyperparameter.update_schedules
            for hyperparameter in self.algorithm.hyperparameters.values()
            if hyperparameter.schedule is not None
        ]
        trained_by = [*self.optimizers.values(), *([self.reward_model.optimizer] if self.reward_model else [])]
        with_rules = filter(optimizers.has_rules, trained_by)
        self._scheduled += [partial(optimizers.update_rules, optimizer) for optimizer in with_rules]
        # Eager updates read numbers of optimizers again, so only compiled programs need the check.
        if "live_numbers" not in backends.current().capabilities and self.jit_compile is not False:
            self._constants = [(optimizer, optimizers.constants(optimizer)) for optimizer in trained_by]
            self._scheduled.append(lambda step: self.check_constants())
        options: UpdateOptions = {
            **self.options("update"),
            "period": self.algorithm.update_period,
            "stop": None if stop is None else self.traced(stop),
            "report": report,
            "log_names": self.metric_names,
        }
        return strategy.compile_updates(self.traced(self.step), self.variables, options, axis)

    def options(self, name: str) -> Options:
        """Return the options of the agent's compiled programs; traces are counted under this name."""
        return Options(
            jit_compile=self.jit_compile,
            on_trace=self.trace_counter(name),
            torch_seed=self.torch_seed,
            recording=self.algorithm._reads.recording,
        )

    def traced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function for a traced program, which records the attributes of the agent that the function reads."""
        return self.algorithm._reads.traced(function, self.jit_compile)

    def check_constants(self) -> None:
        """Outdate the programs if the user has set numbers of Keras optimizers that they contain as constants.

        Called before each group of updates, and before the program of a device is looked up.
        """
        for optimizer, before in self._constants:
            if (after := optimizers.constants(optimizer)) != before:
                self.algorithm._reads.outdate(f"an attribute of the optimizer {optimizer.name!r}")
                before.clear()
                before.update(after)

    def trace_counter(self, name: str) -> Callable[[], None]:
        """Return a function that counts a trace of the program `name` in the agent's `trace_counts`."""
        return partial(self.algorithm.trace_counts.update, [name])

    def torch_seed(self, advance: bool) -> int:
        """Return the seed of torch's global generator for the next update.

        If `advance` is True, later calls return another seed, for the update after that one.
        """
        generators = self.algorithm.generators if advance else deepcopy(self.algorithm.generators)
        return int(generators("torch").integers(2**63))

    def update_schedules(self, step: int) -> None:
        """Set everything that has a schedule to its value at this step.

        Called before each group of updates, and after each call on the device.
        """
        for update in self._scheduled:
            update(step)

    @property
    def metric_names(self) -> frozenset[str]:
        """The names of everything that updates log; known after the dry run of `update`."""
        return log_names(self.returned) | self._model_metrics

    @property
    def _model_metrics(self) -> frozenset[str]:
        return frozenset() if self.reward_model is None else self.reward_model.metric_names

    def logs_of_update(self, number: int, logs: dict[str, Any]) -> dict[str, Any]:
        """Return the logs of the update with this number, without the names that only other updates of a period log."""
        names = self.returned[number % self.algorithm.update_period].logs | self._model_metrics
        return {name: value for name, value in logs.items() if name in names}

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
            # The discriminator trains first, so that the update uses the newest reward.
            batch, model_logs = self.reward_model.train(batch, self.apply_gradients)
            batch = self._with_model_reward(batch)
        self._losses = []
        logs, feedback = self.call(batch, index)
        if self._polyak is not None and (index + 1) % algorithm.target_period == 0:
            with networks.averaging(self._polyak):
                algorithm.update_target()
        if "loss" not in logs:
            # The sum starts with the first loss, because 0 + loss would be a further operation.
            logs = {"loss": sum(self._losses[1:], self._losses[0]), **logs}
        self._losses = []
        if algorithm.update_period > 1:
            logs, feedback = fill_missing(logs, feedback, self.returned, batch.weight)
        # A compiled update returns tensors only.
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

    def call(self, batch: Batch, index: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Call the agent's `update`, in training mode, and return the `(logs, feedback)`.

        Raises:
            ValueError: if `update` returns anything else.
        """
        algorithm = self.algorithm
        update: Any = algorithm.update
        if algorithm.multi_agent:
            batch = algorithm._per_agent_batch(batch)
        if algorithm.state_spec:
            batch = rows_first(batch)
        with running(self), training_mode(self.networks, self.precision) if self.networks else nullcontext():
            result = update(batch) if algorithm.update_period == 1 else update(batch, index)
        is_pair = isinstance(result, tuple) and len(result) == 2
        if is_pair and isinstance(result[0], dict) and isinstance(result[1], dict | None):
            return result[0], result[1] or {}
        raise ValueError(
            f"update must return (logs, feedback), two dicts; {type(algorithm).__name__} returned {result!r}"
        )

    def loss_of(self, batch: Batch) -> Any:
        """Return the loss of the last update within `update_period` on a batch `[B, ...]`, in evaluation mode."""
        recurring = self.networks
        self._losses = []
        self._evaluates = True
        self.networks = []  # which would be in training mode
        try:
            logs, _ = self.call(self._with_model_reward(batch), self.algorithm.update_period - 1)
        finally:
            self._evaluates = False
            self.networks = recurring
        return logs["loss"] if "loss" in logs else sum(self._losses[1:], self._losses[0])

    def record(self, batch: Batch, recorders: dict[str, Any]) -> None:
        """Call `update` for the last index within `update_period`, with objects that stand in for the optimizers.

        No weight changes. The measurement of gradient noise calls this method.
        """
        built = self.optimizers
        self.optimizers = recorders
        try:
            self.call(self._with_model_reward(batch), self.algorithm.update_period - 1)
        finally:
            self.optimizers = built

    def _with_model_reward(self, batch: Batch) -> Batch:
        """Return a batch `[B, ...]` with the rewards that updates use."""
        model = self.reward_model
        return batch if model is None or not self.replaces_reward else model.replace_reward(batch)

    def minimize(
        self, loss_fn: Callable[..., Any], trained: Any, optimizer: str, args: tuple[Any, ...]
    ) -> tuple[Any, Any]:
        """Take one gradient step; see `Algorithm.minimize`."""
        if optimizer not in self.optimizers:
            raise ValueError(f"optimizer must be {' or '.join(map(repr, self.optimizers))}, got {optimizer!r}")
        group = trained if isinstance(trained, list | tuple) else [trained]
        key = tuple(map(id, group))
        if key not in self._groups:
            unique = networks.unique(variable for part in group for variable in networks.trainable_variables(part))
            # Eager updates call this method each time, so the variables are found once. The reference to the group
            # keeps the group's ids from being used again.
            self._groups[key] = (unique, group)
        variables, _ = self._groups[key]
        if not variables:
            raise ValueError(f"trained must hold something trainable, in minimize with the optimizer {optimizer!r}")
        # `loss_of` only evaluates the loss.
        if self._evaluates:
            loss, aux = split_loss(loss_fn(*args))
            self._losses.append(loss)
            return loss, aux
        # A dry run records which optimizer trains which variables.
        if self.recorded is not None:
            self.recorded.setdefault(optimizer, []).extend(variables)
            # Whether a loss has a gradient need not be traced for agents of noterl. The stand-in for an optimizer
            # applies nothing.
            with suppress(NonFiniteError):  # the batch is zeros
                if has_code_of_user(self.algorithm):
                    stand_in = SimpleNamespace(apply=lambda *arguments: None)
                    return self.apply_gradients(loss_fn, variables, stand_in, args)
            return split_loss(loss_fn(*args))
        loss, aux = self.apply_gradients(loss_fn, variables, self.optimizers[optimizer], args)
        self._losses.append(loss)
        return loss, aux

    def apply_gradients(
        self, loss_fn: Callable[..., Any], variables: Sequence[Any], optimizer: Any, args: tuple[Any, ...]
    ) -> tuple[Any, Any]:
        """Apply an optimizer to the gradients of `loss_fn(*args)`, and return `(loss, aux)`."""
        owner = getattr(loss_fn, "__self__", None)
        algorithm = self.algorithm
        # A closure may hold tensors of this update, so only methods depend on nothing else than their arguments,
        # variables and attributes, whose changes are noticed.
        traceable = owner is not None and (owner is algorithm or owner is self.reward_model)
        traceable = traceable and not algorithm._reads.is_eager
        minimize = backends.current().minimize
        return minimize(loss_fn, variables, optimizer, args, known=self.variables, traceable=traceable)
