"""Using unmodified Keras callbacks in `Agent.fit`.

For a Keras callback, the model is a facade of the agent. An epoch is a completed episode, or an epoch of
`fit(dataset=, updates=)`; epochs are numbered in the order in which they end. A train batch is a gradient update, and a
test is an evaluation.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from noterl import backends, networks
from noterl.backends import keras
from noterl.callback import CHECKPOINT, LOGGER, USER, AgentView, Budget, Callback, overrides
from noterl.learning.optimizers import check_without_schedule
from noterl.types import Logs
from noterl.utils import codec, words
from noterl.utils.files import user_path

_LOGGERS = ("CSVLogger", "TensorBoard", "RemoteMonitor", "ProgbarLogger", "History")
# Attributes that each `fit` sets.
_SET_BY_FIT = ("_model", "params", "validation_data")
_SAVERS = ("ModelCheckpoint", "BackupAndRestore", "OrbaxCheckpoint")

# The hooks of Keras for each event. The second is the older name, which Keras still supports.
_BATCH_HOOKS = {
    "on_batch_begin": ("on_train_batch_begin", "on_batch_begin"),
    "on_batch_end": ("on_train_batch_end", "on_batch_end"),
}


class KerasCallback(Callback):
    """Adapts a `keras.callbacks.Callback` to noterl's events.

    Batch events are handled only if the callback overrides the hooks, because each update then costs a fetch from the
    device.

    Args:
        callback: an instance of a Keras callback.
    """

    takes_epochs = True

    def __init__(self, callback: Any) -> None:
        self.callback = callback
        class_names = {base.__name__ for base in type(callback).__mro__}
        self.order: int = CHECKPOINT if class_names & set(_SAVERS) else LOGGER if class_names & set(_LOGGERS) else USER
        self.stops_training: bool = "EarlyStopping" in class_names
        self.restore_best_weights: bool = getattr(callback, "restore_best_weights", False)
        self._keeps_backup = "BackupAndRestore" in class_names
        self._saves_network = "ModelCheckpoint" in class_names
        self._budget = Budget()
        self._epoch = 0
        self._epoch_open = False
        self._restored: dict[str, Any] = {}
        # The callback swaps the weights at the end of an epoch, and back at the begin of the next one. So the next
        # epoch begins at the end of the step, before an update of another environment could use swapped weights.
        self._swaps_weights = "SwapEMAWeights" in class_names and callback.swap_on_epoch
        words.warn_of_unknown_events(callback, keras.callbacks.Callback, stacklevel=6)  # the caller of fit
        if self._keeps_backup:
            warnings.warn(
                "keras.callbacks.BackupAndRestore restores only the weights: the optimizer, the replay memory and the "
                "environments start again. noterl.callbacks.BackupAndRestore restores all of them, and so does "
                "Agent.restore with a file of noterl.callbacks.Checkpoint(save_replay=True).",
                stacklevel=6,  # the caller of fit
            )

    def get_state(self) -> dict[str, Any]:
        """Return the number of the epoch, whether the epoch has begun, and the attributes that a file can hold.

        Arguments of the constructor are not among them, because a script that resumes passes the arguments again.
        """
        attributes = {}
        missing = []
        arguments = inspect.signature(type(self.callback).__init__).parameters
        for name, value in vars(self.callback).items():
            if name in arguments or name in _SET_BY_FIT or callable(value):
                continue
            try:
                attributes[name] = codec.copy(value)
            except (TypeError, ValueError):
                missing.append(name)
        return {"epoch": self._epoch, "open": self._epoch_open, "attributes": attributes, "missing": missing}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned; `on_train_begin` sets the attributes of the callback."""
        self._epoch = state["epoch"]
        self._epoch_open = state["open"]
        self._restored = dict(state["attributes"])
        missing = [name for name in state["missing"] if type(self.callback).__module__.partition(".")[0] != "keras"]
        if missing:
            warnings.warn(
                f"a file cannot hold the attributes {', '.join(map(repr, missing))} of the Keras callback "
                f"{type(self.callback).__name__}, so a resumed run may differ from an uninterrupted one. Keep numbers, "
                "strings, arrays, and lists and dicts of them in attributes, or write a noterl.Callback with get_state "
                "and set_state.",
                RuntimeWarning,
                stacklevel=2,
            )

    def before_fit(self, agent: Any, budget: Budget) -> None:
        """Store the budget, and check that the callback can save the agent's network, or set the learning rate.

        Raises:
            ValueError: if a ModelCheckpoint would save several networks, one that is not a Keras model, or one without
                the agent's normalization; if a learning rate that the callback sets has a schedule.
        """
        self._budget = budget
        if {"ReduceLROnPlateau", "LearningRateScheduler"} & {base.__name__ for base in type(self.callback).__mro__}:
            for optimizer in agent.optimizers.values():
                check_without_schedule(optimizer)
        if self._saves_network:
            _saved_network(agent)

    def on_train_begin(self, logs: Logs) -> None:
        """Set the callback's model and parameters, and forward the event; `epochs` is infinite without a budget."""
        if not self._budget.resumed:  # as in `Model.fit`; `get_state` keeps the epoch for a fit that was interrupted
            self._epoch = 0
            self._epoch_open = False
        self._failed = False
        epochs = self._epoch + self._budget.last_episode - self.agent.episodes  # of the whole fit, also if it resumes
        self.callback.set_params({"epochs": epochs, "steps": None, "verbose": 0})
        network = _saved_network(self.agent) if self._saves_network else None
        self.callback.set_model(Facade(self.agent, type(self.callback).__name__, network))
        self.callback.on_train_begin({})
        attributes = vars(self.callback)
        if self._budget.resumed:  # after `on_train_begin`, which resets Keras's callbacks
            restored = self._restored.items()
            attributes.update({name: value for name, value in restored if not callable(attributes.get(name))})
        self._restored = {}

    def on_train_end(self, logs: Logs) -> None:
        """Forward the event. An epoch without a completed episode stays open, as in an interrupted `Model.fit`.

        Keras does not call the hook when training fails. Here the hook is called, so that callbacks close open files.
        The exception is BackupAndRestore, which would delete the backup.
        """
        if not (self._failed and self._keeps_backup):
            self.callback.on_train_end({})

    def on_exception(self, error: BaseException) -> None:
        """Store that training failed."""
        self._failed = True

    def on_episode_begin(self, episode: int, logs: Logs) -> None:
        """Begin an epoch unless one is open: with several lanes, episodes overlap, but epochs do not."""
        self._open_epoch()

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """End the epoch with the logs of a completed episode; entries that the callback adds are copied to `logs`.

        Loggers always receive the metrics of updates, NaN before the first update, because a logger's table has
        the columns of the first row.
        """
        if not logs.get("complete", True):
            return
        self._open_epoch()
        metrics = {name: value for name, value in logs.items() if name != "complete"}
        if self.order == LOGGER:
            metrics = {**dict.fromkeys(sorted(self.agent.metric_names), math.nan), **metrics}
        names = set(metrics)
        epoch = self._epoch
        # Before the hook, which may save the state of this callback.
        self._epoch = epoch + 1
        self._epoch_open = False
        self.callback.on_epoch_end(epoch, metrics)
        logs.update({name: value for name, value in metrics.items() if name not in names})

    def on_evaluate_begin(self, logs: Logs) -> None:
        """Forward the event."""
        self._set_model()
        self.callback.on_test_begin({})

    def on_evaluate_end(self, logs: Logs) -> None:
        """Forward the event with the scalars of the result."""
        self.callback.on_test_end({name: value for name, value in logs.items() if np.ndim(value) == 0})

    def on_step_end(self) -> None:
        """Begin an epoch unless one is open."""
        self._open_epoch()

    def _handler(self, event: str) -> Callable[..., None] | None:
        for name in _BATCH_HOOKS.get(event, ()):
            if overrides(self.callback, name, keras.callbacks.Callback):
                return self._batch_hook(name)
        return None if event == "on_step_end" and not self._swaps_weights else super()._handler(event)

    def _open_epoch(self) -> None:
        """Begin an epoch unless one is open."""
        if not self._epoch_open:
            self._epoch_open = True
            self.callback.on_epoch_begin(self._epoch, {})

    def _set_model(self) -> None:
        """Set the callback's model, if no `fit` of this agent has set it: in `evaluate` and `pretrain`."""
        if getattr(getattr(self.callback, "_model", None), "agent", None) is not self.agent:
            self.callback.set_model(Facade(self.agent, type(self.callback).__name__))

    def _batch_hook(self, name: str) -> Callable[[int, Logs], None]:
        """Return a function that calls a hook with a copy of the logs, which Keras's callbacks may change."""
        hook = getattr(self.callback, name)

        def forward(batch: int, logs: Logs) -> None:
            self._set_model()
            hook(batch, dict(logs))

        forward.__name__ = f"{type(self.callback).__name__}.{name}"  # for error messages
        return forward


def _saved_network(agent: AgentView) -> keras.Model:
    """Return the one network that the agent trains, for files in Keras's format.

    Raises:
        ValueError: if the agent trains several networks, or one that is not a Keras model.
    """
    trained = {name: network for name, network in agent.networks().items() if networks.trainable_variables(network)}
    candidates = list(trained.values())
    if agent.spaces.normalizes_observation:
        raise ValueError(
            "callbacks: keras.callbacks.ModelCheckpoint would save the network without normalize_observation=True; use "
            "noterl.callbacks.Export(path, 'keras'), whose model normalizes, or noterl.callbacks.Checkpoint, which "
            "saves the whole agent"
        )
    if len(candidates) != 1 or not isinstance(candidates[0], keras.Model):
        which = ", ".join(trained) + (", a module of torch" if len(candidates) == 1 else "")
        raise ValueError(
            f"callbacks: keras.callbacks.ModelCheckpoint saves one Keras network, but {type(agent).__name__} trains "
            f"{which}; noterl.callbacks.Checkpoint saves the whole agent"
        )
    return candidates[0]


class Facade:
    """The model of a Keras callback, with the attributes that Keras's own callbacks use.

    Args:
        agent: the agent.
        callback: the name of the callback's class, for the reason of a stop.
        network: the network that `save` and `save_weights` write in Keras's format; None to write noterl's files.
    """

    built = True
    train_function = None

    def __init__(self, agent: AgentView, callback: str = "Callback", network: keras.Model | None = None) -> None:
        self.agent: AgentView = agent
        self.name: str = type(agent).__name__
        self.history: Any = agent.history  # a Keras callback may assign another one
        self._callback = callback
        self._network = network

    @property
    def optimizer(self) -> Any:
        """The agent's optimizer; if there are several, an object with the attribute `optimizers`."""
        if len(self.agent.optimizer_names) == 1 and isinstance(self.agent.optimizer, keras.optimizers.Optimizer):
            return self.agent.optimizer
        optimizers = [_Optimizer(self.agent, name) for name in self.agent.optimizer_names]
        return optimizers[0] if len(optimizers) == 1 else SimpleNamespace(built=True, optimizers=optimizers)

    @property
    def stop_training(self) -> bool:
        """Whether `Agent.stop` was called; a value of True ends training."""
        return self.agent.stop_training

    @stop_training.setter
    def stop_training(self, stop: bool) -> None:
        if stop:
            self.agent.stop(f"the Keras callback {self._callback} set stop_training")
        else:
            self.agent.stop_training = False

    @property
    def layers(self) -> list[Any]:
        """The layers of the agent's Keras networks."""
        layers: list[Any] = []
        for network in self.agent.networks().values():
            layers += list(getattr(network, "layers", [network] if isinstance(network, keras.layers.Layer) else []))
        return layers

    @property
    def variables(self) -> list[keras.Variable]:
        """Every variable of every network."""
        return [variable for network in self.agent.networks().values() for variable in networks.variables(network)]

    weights = variables

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """The variables that are trained."""
        return self.agent.trained_variables()

    def get_weights(self) -> list[np.ndarray]:
        """Return the weights of all networks as arrays."""
        return [backends.current().fetch(variable) for variable in self.variables]

    def set_weights(self, weights: list[np.ndarray]) -> None:
        """Set weights that `get_weights` returned."""
        for variable, weight in zip(self.variables, weights, strict=True):
            variable.assign(weight)

    def save(self, filepath: str | Path, overwrite: bool = True, **kwargs: Any) -> None:
        """Save the network in Keras's format; without one, save the agent without the memory."""
        self._refuse_existing(filepath, overwrite)
        if self._network is not None:
            self._network.save(filepath, **kwargs)
        else:
            self.agent.save(filepath, replay=False)

    def save_weights(self, filepath: str | Path, overwrite: bool = True, **kwargs: Any) -> None:
        """Save the weights of the network in Keras's format; without one, the agent's weights in noterl's."""
        self._refuse_existing(filepath, overwrite)
        if self._network is not None:
            self._network.save_weights(filepath, **kwargs)
        else:
            self.agent.save_weights(filepath)

    def load_weights(self, filepath: str | Path, **kwargs: Any) -> None:
        """Load weights from a file of `save_weights`."""
        if self._network is not None:
            self._network.load_weights(filepath, **kwargs)
        else:
            self.agent.load_weights(filepath)

    def _refuse_existing(self, filepath: str | Path, overwrite: bool) -> None:
        if not overwrite and user_path(filepath).exists():
            raise FileExistsError(f"{filepath} exists and overwrite is False")


class _Optimizer:
    """One optimizer of the agent, with the attributes that Keras's callbacks use."""

    built = True

    def __init__(self, agent: AgentView, name: str) -> None:
        self._agent = agent
        self.name = name

    @property
    def learning_rate(self) -> float:
        """The learning rate; a new value takes effect with the next update."""
        return self._agent.get_rule("learning_rate", self.name)

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self._agent.set_rule("learning_rate", float(value), self.name)

    lr = learning_rate

    @property
    def use_ema(self) -> bool:
        """Whether the optimizer keeps a moving average of the weights."""
        return getattr(self._agent.optimizers[self.name], "use_ema", False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent.optimizers[self.name], name)
