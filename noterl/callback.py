"""The base class of callbacks, the events of callbacks, and the parts of an agent that callbacks may use."""

from __future__ import annotations

import inspect
import math
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from noterl.random import Generators
from noterl.types import Logs
from noterl.utils import words
from noterl.utils.checks import check_count, check_number, check_word
from noterl.utils.notebook import table

Handlers = tuple[Callable[..., None], ...]


class Events(NamedTuple):
    """For each event, the bound methods that handle the event; an empty tuple for none."""

    on_train_begin: Handlers = ()
    on_train_end: Handlers = ()
    on_episode_begin: Handlers = ()
    on_episode_end: Handlers = ()
    on_epoch_begin: Handlers = ()
    on_epoch_end: Handlers = ()
    on_batch_begin: Handlers = ()
    on_batch_end: Handlers = ()
    on_evaluate_begin: Handlers = ()
    on_evaluate_end: Handlers = ()
    on_exception: Handlers = ()
    on_step_end: Handlers = ()


EVENTS = Events._fields

# Callbacks run in this order, and within a group in the user's order. Each one receives the entries that earlier
# ones added to `logs`.
USER, HISTORY, LOGGER, CHECKPOINT = range(4)

# noterl's own check with mypy sets it, so that callbacks of the catalogue use nothing but what `AgentView` lists.
IN_NOTERL = False


class AgentView(Protocol):
    """What a callback may use of the agent in `self.agent`; only `stop_training` may be assigned.

    Attributes:
        memory: the kind of memory that the agent learns from, "replay", "rollout" or "sequences".
        optimizer_names: the names of the optimizers, in order.
        generators: returns the random generator of a name.
        spaces: the `noterl.networks.Spaces` of the environments.
        stop_training: whether `stop` was called; True ends training.
        stop_reason: the reason passed to `stop`, or None.
        steps: environment steps so far.
        updates: gradient updates so far.
        episodes: finished episodes so far.
        finished_epochs: finished epochs of `fit(dataset=, updates=)` so far.
        log_step: environment steps, plus the updates of `fit(dataset=, updates=)` so far: the x axis of logs.
        fits: number of `fit` calls in this process that started training.
        history: the `History` of the `fit` in progress, or of the last one.
        callbacks: the callbacks of the `fit` in progress, or of the last one, in the order of running.
        replay: the replay memory, or None.
        policy: the exploration policy, or None.
        schedule: when updates are due, with `batch_size`, `update_every` and `updates`, which may be set.
        optimizer: the first optimizer.
        optimizers: the optimizers by name.
        hyperparameters: the hyperparameters by name.
        learning_rate: the learning rate of the first optimizer.
        update_batch_size: transitions of one gradient update.
        metric_names: the names of what updates log.
        configuration: what determines the run, with all defaults, as numbers and strings by name.
        recorded_info: the keys of the step's `info` that the last `fit` logged, with the reductions.
    """

    memory: str
    optimizer_names: tuple[str, ...]
    generators: Generators
    spaces: Any
    stop_training: bool
    stop_reason: str | None
    steps: int
    updates: int
    episodes: int
    finished_epochs: int
    log_step: int
    fits: int
    history: Any
    callbacks: Sequence[Callback]
    replay: Any
    policy: Any
    schedule: Any
    optimizer: Any
    optimizers: Mapping[str, Any]
    hyperparameters: Mapping[str, Any]
    learning_rate: float
    update_batch_size: int
    metric_names: Collection[str]
    configuration: Mapping[str, Any]
    recorded_info: Mapping[str, str]

    def get_rule(self, rule: str, optimizer: str | None = None) -> float:
        """Return a rule of one optimizer, by default of the first, such as `learning_rate`."""

    def set_rule(self, rule: str, value: float, optimizer: str | None = None) -> None:
        """Set a rule of one optimizer, or of all."""

    def gradient_noise(self, samples: int) -> Any:
        """Return an object that measures how much gradients differ between `samples` batches."""

    def largest_batch(self, size: int) -> int:
        """Return the size of the largest batch, of at most `size` transitions, that updates can sample now."""

    def stop(self, reason: str) -> None:
        """End training after the step in progress."""

    def env_call(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of every training environment between two steps."""

    def env_get(self, name: str) -> list[Any]:
        """Return an attribute of every training environment."""

    if TYPE_CHECKING and not IN_NOTERL:  # the agent of a user has further attributes, such as `gamma`

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def stop_epochs(self, logs: dict[str, Any]) -> Any:
        """Return whether an update with these logs ends the updates on a rollout, and is undone; None if none does."""

    def new_environment(self) -> Any:
        """Return a new copy of the training environment."""

    def show_message(self, message: str) -> None:
        """Write a line to standard error, unless `fit` was called with `verbose=0`."""

    def evaluate(
        self,
        env: Any = None,
        episodes: int = 10,
        *,
        seed: int | None = None,
        deterministic: bool = True,
        num_envs: int = 1,
        callbacks: Iterable[Any] = (),
        info: Mapping[str, str] | Sequence[str] | None = None,
        max_steps: int | None = None,
    ) -> dict[str, Any]:
        """Play whole episodes without learning."""

    def act(
        self,
        observation: Any,
        state: Any = None,
        *,
        starts: Any = None,
        deterministic: bool = True,
        action_mask: Any = None,
    ) -> Any:
        """Return the action for one observation or a batch."""

    def animate(
        self,
        path: str | Path,
        env: Any = None,
        max_steps: int | None = None,
        fps: int = 30,
        *,
        seed: int | None = None,
        deterministic: bool = True,
        overlay: bool = False,
    ) -> float:
        """Play an episode and write an animation; return the reward."""

    def export(self, path: str | Path, format: str = "keras") -> Path:
        """Write the acting function to files that do not need noterl; return the path of the first."""

    def save(self, path: str | Path, *, replay: bool = True) -> None:
        """Write everything into one file."""

    def get_document(self, *, replay: bool = True) -> dict[str, Any]:
        """Return the document that `save` writes; the arrays of the memory are views."""

    def set_document(self, document: Any) -> None:
        """Restore a document that `noterl.saving.read` returned for a file of `save`."""

    def save_weights(self, path: str | Path, *, layout: str = "keras") -> None:
        """Write the weights into a file."""

    def load_weights(self, path: str | Path, *, allow_nonfinite: bool = False) -> None:
        """Load the weights from a file."""

    def get_weights(self) -> dict[str, np.ndarray]:
        """Return the weights and the statistics of the normalizers."""

    def set_weights(self, weights: Mapping[str, np.ndarray], *, allow_nonfinite: bool = False) -> None:
        """Set weights that `get_weights` returned."""

    def networks(self) -> dict[str, Any]:
        """Return the networks by the names of their attributes."""

    def trained_variables(self) -> list[Any]:
        """Return the variables that the default `update` trains."""

    def summary(self) -> None:
        """Print backend, device, spaces, networks and memory."""


@dataclass
class Budget:
    """Where a `fit` ends, in the agent's own counts; `Callback.before_fit` may change the budget.

    Attributes:
        last_episode: total of finished episodes at which `fit` ends.
        last_step: total of environment steps at which `fit` ends.
        step_limit: another such total, which stays the same if a callback restores the agent and moves `last_step`.
        resumed: whether a callback has restored the agent, so that this fit continues an interrupted one.
        last_update: total of gradient updates at which `fit(dataset=, updates=)` ends.
        skipped: whether this fit ended in an earlier process, so that no other callback runs.
    """

    last_episode: float = math.inf
    last_step: float = math.inf
    step_limit: float = math.inf
    resumed: bool = False
    last_update: float = math.inf
    skipped: bool = False


UNITS = ("episodes", "steps", "updates", "seconds")


class Every:
    """How often a callback acts, such as `Every(10, "steps")`; the value of `Callback.every`.

    The counts are the agent's totals, so a resumed run acts at the same counts as an uninterrupted one. Seconds are
    counted from the start of `fit`. If several multiples of `count` are passed at once, the callback acts once.

    Args:
        count: a positive int, which may be written as 1e4; for seconds any positive number.
        unit: "episodes" (finished ones), "steps" (of the environment), "updates" (of gradients) or "seconds".
        at: the time of the check: at the end of an "episode", after a "step", or "both". By default "episode" for
            episodes, otherwise "both".
        name: the name of `count` in error messages.
        counts_epochs: whether an epoch of `fit(dataset=, updates=)` counts as an episode.

    Raises:
        ValueError: if an argument is not one of the allowed values.

    Example:
    >>> from types import SimpleNamespace
    >>> from noterl.callback import Every
    >>> every, mark = Every(10, "steps"), 0.0
    >>> for steps in (9, 10, 11, 32, 39, 40):
    ...     agent = SimpleNamespace(steps=steps)
    ...     due, mark = every.is_due(agent, mark), steps
    ...     print(due, end=" ")
    False True False True False True
    """

    def __init__(
        self, count: float, unit: str, *, at: str | None = None, name: str = "count", counts_epochs: bool = False
    ) -> None:
        self.counts_epochs: bool = counts_epochs
        self.unit: str = check_word("unit", unit, UNITS)
        self.count: float = (
            check_number(name, count, low=0, above=True) if unit == "seconds" else check_count(name, count)
        )
        default = "episode" if unit == "episodes" else "both"
        self.at: str = check_word("at", at or default, ("episode", "step", "both"))

    def now(self, agent: AgentView) -> float:
        """Return the current count of the unit."""
        if self.unit == "episodes" and self.counts_epochs:
            return agent.episodes + agent.finished_epochs
        return perf_counter() if self.unit == "seconds" else getattr(agent, self.unit)

    def is_due(self, agent: AgentView, mark: float) -> bool:
        """Return whether a multiple of `count` was reached or passed since the count was `mark`."""
        now = self.now(agent)
        # A clock has no multiples that mean anything, so seconds count from the mark.
        return now - mark >= self.count if self.unit == "seconds" else now // self.count > mark // self.count


class Callback:
    """Base of all callbacks: override the events that you want to handle.

    From `on_train_begin` on, `self.agent` is the agent that trains. `self.agent.stop("reason")` ends training. Episodes
    are numbered from 0 in the order of their starts. Batches are gradient updates, numbered from 0. Both numbers
    continue in the next `fit`, and so does the state of a callback. If another agent's `fit` receives the callback, the
    callback starts with the state from before its first `fit`. A value that a callback adds to the `logs` of
    `on_episode_end` becomes a column of `History`.

    Attributes:
        order: `USER`, `LOGGER` or `CHECKPOINT`: the group that the callback runs in.
        needs_live_updates: True for a callback that must act between two gradient updates. Updates then run one per
            compiled call. Otherwise the hooks of a group's updates run after the call that made all updates.
        needs_host: True for a callback that must act between all updates, or that reads the last rollout. `fit` then
            steps environments of JAX from the host. On the device, the hooks of a call run after all updates of the
            call.
        needs_memory: True for a callback that acts on the agent's replay memory. `fit` raises an error if the agent has
            none, and `fit(dataset=, updates=)` always, because only the data set is sampled.
        stops_training: True for a callback that can end training, so that `fit` needs no budget.
        adds: the names that the callback adds to the logs of some episodes. Callbacks that monitor such a name then
            wait for the name instead of failing.
        every: how often `on_due` is called.
        takes_epochs: whether the methods for the begin and the end of an episode also handle the epochs of
            `fit(dataset=, updates=)`, in which no episode event fires.
        all_ranks: whether the callback runs in every process of `fit(strategy=)`. Otherwise the callback runs in the
            chief only, which handles the ends of the episodes of all processes.

    Example:
    >>> from noterl.callbacks import Callback
    >>> class Shout(Callback):
    ...     def on_episode_end(self, episode, logs):
    ...         print(episode, logs["reward"])
    """

    order: int = USER
    needs_live_updates: bool = False
    needs_host: bool = False
    needs_memory: bool = False
    stops_training: bool = False
    adds: Sequence[str] = ()
    every: Every | None = None
    takes_epochs: bool = False
    all_ranks: bool = False
    agent: AgentView
    _passed: tuple[tuple[Any, ...], dict[str, Any]]
    _every_mark: float | None = None  # the count of the last call of `on_due`, or of the start of training
    _first_state: Any = None  # before the first `fit`; False if unknown

    def __init__(self) -> None:
        """Take no arguments, which `object` would accept beside `__new__`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.split(".")[:2] == ["noterl", "callbacks"] and "__init__" in vars(cls):
            # Only noterl's own callbacks: the words of another library are explained for their arguments.
            type.__setattr__(cls, "__init__", words.explain_arguments(cls.__init__))

    def __repr__(self) -> str:
        arguments = (f"{name}={reprlib.repr(value)}" for name, value in self._settings().items())
        return f"{type(self).__name__}({', '.join(arguments)})"

    def _repr_html_(self) -> str:
        return table(type(self).__name__, self._settings())

    def _settings(self) -> dict[str, Any]:
        """Return the arguments that were passed to the constructor, by name."""
        arguments, options = self._passed
        bound = inspect.signature(type(self).__init__).bind(self, *arguments, **options)
        return dict(list(bound.arguments.items())[1:])

    if not TYPE_CHECKING:  # otherwise every argument and every name would be allowed for type checkers

        def __new__(cls, *arguments: Any, **options: Any) -> Any:
            """Record the arguments, which the representation shows."""
            self = super().__new__(cls)
            self._passed = (arguments, options)
            return self

        # For a class without a constructor, `inspect.signature` reads that of `__new__`.
        __new__.__signature__ = inspect.Signature([inspect.Parameter("cls", inspect.Parameter.POSITIONAL_ONLY)])

        def __getattr__(self, name: str) -> Any:
            return words.find_again(self, name)

    @property
    def state_key(self) -> str:
        """The name under which a file keeps this callback's state; unique within a list.

        Callbacks of one class that keep the default are numbered by their order in the list.
        """
        return type(self).__name__

    def get_state(self) -> dict[str, Any]:
        """Return what a resumed run needs, as nested dicts of arrays, numbers and strings."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned, also if that is empty."""

    def before_fit(self, agent: Any, budget: Budget) -> None:
        """Called before the environments are opened; may restore the agent and change the budget of this `fit`."""

    def on_step_end(self) -> None:
        """Called after each environment step and the updates due then; must not change weights.

        With a vector environment, the method is called after each step of all lanes. In `fit(dataset=, updates=)`, the
        method is called after each group of updates.

        The agent is consistent here and can be saved. The event is not logged. The method is called so often that even
        a microsecond is a noticeable part of a run.
        """

    def on_due(self, logs: Logs) -> bool | None:
        """Called when `every` is due: after `on_episode_end` of a complete episode, or after a step.

        In `fit(dataset=, updates=)`, epochs take the place of episodes, and groups of updates the place of steps.
        `logs` are the episode's logs; after a step `logs` is empty and not logged. If the method returns False, `every`
        stays due and the method is called again at the next opportunity.
        """

    def start_counting(self) -> None:
        """Called by `fit`: count from the current count, or from the last mark if the run continues."""
        assert self.every is not None
        now = self.every.now(self.agent)
        # Seconds of another process mean nothing here; a mark above the count is of another agent.
        if self.every.unit == "seconds" or self._every_mark is None or self._every_mark > now:
            self._every_mark = now

    def call_if_due(self, episode: int = -1, logs: Logs | None = None) -> None:
        """Call `on_due` if `every` is due; handles the events that `every.at` names."""
        every = self.every
        mark = self._every_mark
        assert every is not None and mark is not None
        if (logs is None or logs.get("complete", True)) and every.is_due(self.agent, mark):
            self._every_mark = every.now(self.agent)  # before the call, which may save the state
            if self.on_due({} if logs is None else logs) is False:
                self._every_mark = mark

    def _handler(self, event: str) -> Callable[..., None] | None:
        """Return what handles an event: the method, if overridden by the class; else None."""
        if self.takes_epochs and not overrides(self, event):
            event = event.replace("epoch", "episode")
        return getattr(self, event) if overrides(self, event) else None

    def on_train_begin(self, logs: Logs) -> None:
        """Called when `fit` begins, before the first step."""

    def on_train_end(self, logs: Logs) -> None:
        """Called when `fit` ends, also after `stop`, an exception or Ctrl-C."""

    def on_episode_begin(self, episode: int, logs: Logs) -> None:
        """Called when an episode starts, and for each episode that continues from the previous `fit`."""

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Called when an episode ends.

        `logs` holds `reward` (the return), `length`, `steps`, `updates` and `time` (seconds since the start of `fit`).
        For several agents, `logs` also holds the return of each agent, such as `reward/speaker`. The values of
        `fit(info=)` are there, without the keys that no step of the episode had. So are `loss` and every other scalar
        that `Agent.update` returns, as means over the updates since the last episode's end. If there were none, the
        last means are repeated. Before the first update, these entries are absent. `logs["complete"]` is False for an
        episode that the end of training or a failed worker cuts short.
        """

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        """Called when an epoch of `fit(dataset=, updates=)` starts, or continues from the previous `fit`."""

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Called when an epoch of `fit(dataset=, updates=)` ends, after `updates_per_epoch` updates.

        `logs` holds `loss` and every other scalar that `Agent.update` returns, as means over the updates of the epoch;
        `steps`, `updates` and `time` (seconds since the start of `fit`); and `validation_loss` with `validation_data`.
        `logs["complete"]` is False for an epoch that the end of training cuts short.
        """

    def on_batch_begin(self, batch: int, logs: Logs) -> None:
        """Called when a gradient update begins."""

    def on_batch_end(self, batch: int, logs: Logs) -> None:
        """Called when a gradient update ends; `logs` holds the scalars that `Agent.update` returned, such as `loss`."""

    def on_evaluate_begin(self, logs: Logs) -> None:
        """Called when `Agent.evaluate` begins."""

    def on_evaluate_end(self, logs: Logs) -> None:
        """Called when `Agent.evaluate` ends; `logs` is a copy of the result."""

    def on_exception(self, error: BaseException) -> None:
        """Called with the error that ends training; `on_train_end` follows."""


def overrides(callback: Any, name: str, base: type = Callback) -> bool:
    """Return whether the callback's class overrides a method of `base`, or the instance has such a method."""
    # Compared as functions of the classes, because each access of an instance makes a new bound method.
    return name in vars(callback) or getattr(type(callback), name, None) is not getattr(base, name)


class LambdaCallback(Callback):
    """A callback made of functions.

    Args:
        **functions: a function for each event, by the name of the event.

    Raises:
        ValueError: if a name is not an event, or a value cannot be called.

    Example:
    >>> from noterl.callbacks import LambdaCallback
    >>> callback = LambdaCallback(on_episode_end=lambda episode, logs: print(logs["reward"]))
    """

    def __init__(self, **functions: Callable[..., None]) -> None:
        for name, function in functions.items():
            if name not in EVENTS:
                raise ValueError(f"LambdaCallback: {name!r} is not an event; {words.explain_name(name, EVENTS)}")
            if not callable(function):
                raise ValueError(f"LambdaCallback: {name} must be callable, got {function!r}")
            setattr(self, name, function)
