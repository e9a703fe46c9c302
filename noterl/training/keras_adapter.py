"""Keras callbacks, unmodified, in `Agent.fit`.

Owns: the adapter and the facade. A Keras callback talks to a model and counts epochs; here its model is a facade of the
agent, its epochs are completed episodes in the order they end, its train batches are gradient updates, and its tests
are evaluations.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl import backends, networks
from noterl.backends import keras
from noterl.callback import CHECKPOINT, LOGGER, USER, Callback
from noterl.learning import optimizers
from noterl.types import Logs

if TYPE_CHECKING:
    from noterl.agent import Agent

_LOGGERS = ("CSVLogger", "TensorBoard", "RemoteMonitor", "ProgbarLogger", "History")
_SAVERS = ("ModelCheckpoint", "BackupAndRestore", "OrbaxCheckpoint")

# Which of Keras's hooks each of our events becomes. Older names are aliases that Keras itself forwards to.
_BATCH_HOOKS = {
    "on_batch_begin": ("on_train_batch_begin", "on_batch_begin"),
    "on_batch_end": ("on_train_batch_end", "on_batch_end"),
}


class KerasCallback(Callback):
    """A `keras.callbacks.Callback` in the place of one of ours.

    Batch events are heard only if the callback overrides them: they cost a fetch from the device per update.

    Args:
        callback: an instance of a Keras callback.
    """

    def __init__(self, callback: Any) -> None:
        self.callback = callback
        kind = {base.__name__ for base in type(callback).__mro__}
        self.order = CHECKPOINT if kind & set(_SAVERS) else LOGGER if kind & set(_LOGGERS) else USER
        self.stops_training = "EarlyStopping" in kind
        self.needs_live_updates = False
        self._epoch, self._epoch_open, self._failed = 0, False, False
        self._keeps_backup = "BackupAndRestore" in kind
        for event, hooks in _BATCH_HOOKS.items():
            heard = [hook for hook in hooks if _overrides(callback, hook)]
            if heard:
                setattr(self, event, self._batch_hook(heard[0]))
        if self._keeps_backup:
            warnings.warn(
                "keras.callbacks.BackupAndRestore restores weights only: the optimizer, the replay memory and the "
                "environments start afresh. noterl.callbacks.BackupAndRestore brings "
                "back all of them, as Agent.restore does with a file of noterl.callbacks.Checkpoint(save_replay=True).",
                UserWarning,
                stacklevel=6,  # whoever calls fit
            )

    @property
    def state_key(self) -> str:
        """The name of the class that is adapted."""
        return type(self.callback).__name__

    def on_train_begin(self, logs: Logs) -> None:
        """Hand the callback its facade, then tell it."""
        self._epoch, self._epoch_open, self._failed = 0, False, False
        self.callback.set_params({"epochs": None, "steps": None, "verbose": 0})
        self.callback.set_model(Facade(self.agent))
        self.callback.on_train_begin({})

    def on_train_end(self, logs: Logs) -> None:
        """Tell the callback; an epoch that no completed episode ended stays open, as in an interrupted `Model.fit`.

        Keras says nothing when training fails. All but one callback do well to hear of it, and close their files; that
        one deletes the backup, which is there for this very case.
        """
        if not (self._failed and self._keeps_backup):
            self.callback.on_train_end({})

    def on_exception(self, error: BaseException) -> None:
        """Note that training failed."""
        self._failed = True

    def on_episode_begin(self, episode: int, logs: Logs) -> None:
        """Open the next epoch, unless one is open: with several lanes episodes overlap, epochs do not."""
        self._open_epoch()

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Close the epoch with the completed episode's logs; what the callback adds to them is passed on.

        A logger hears of a loss from the start, NaN before the first update: the columns of a table are those of its
        first row.
        """
        if not logs.get("complete", True):
            return
        self._open_epoch()
        heard = {name: value for name, value in logs.items() if name != "complete"}
        if self.order == LOGGER:
            heard.setdefault("loss", math.nan)
        known = set(heard)
        epoch, self._epoch, self._epoch_open = self._epoch, self._epoch + 1, False
        self.callback.on_epoch_end(epoch, heard)
        logs.update({name: value for name, value in heard.items() if name not in known})

    def on_evaluate_begin(self, logs: Logs) -> None:
        """Tell the callback that a test begins."""
        self.callback.on_test_begin({})

    def on_evaluate_end(self, logs: Logs) -> None:
        """Tell the callback that a test ended; arrays are left out."""
        self.callback.on_test_end({name: value for name, value in logs.items() if np.ndim(value) == 0})

    def _open_epoch(self) -> None:
        if not self._epoch_open:
            self._epoch_open = True
            self.callback.on_epoch_begin(self._epoch, {})

    def _batch_hook(self, name: str) -> Callable[[int, Logs], None]:
        hook = getattr(self.callback, name)

        def told(batch: int, logs: Logs) -> None:
            hook(batch, dict(logs))

        told.__name__ = f"{self.state_key}.{name}"  # what an error says of it
        return told


def _overrides(callback: Any, hook: str) -> bool:
    """Whether the hook does anything: overridden in the class, or set on the instance, as by Keras's LambdaCallback."""
    own = getattr(type(callback), hook, None) is not getattr(keras.callbacks.Callback, hook)
    return own or hook in vars(callback)


class Facade:
    """What a Keras callback sees as its model: what Keras's own callbacks ask of one, and no more.

    Args:
        agent: the agent behind it.
    """

    built = True
    _is_graph_network = False

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.name = type(agent).__name__
        self.train_function = agent.run_updates
        self._history: Any = None

    @property
    def optimizer(self) -> Any:
        """The agent's optimizer; of several, something whose `optimizers` they are."""
        if len(self.agent.optimizer_names) > 1:
            return _Optimizers(self.agent)
        optimizer = self.agent.optimizer
        is_keras = isinstance(optimizer, keras.optimizers.Optimizer)
        return optimizer if is_keras else _Optimizer(self.agent, self.agent.optimizer_names[0])

    @property
    def stop_training(self) -> bool:
        """Whether training is to stop; setting it stops the agent."""
        return self.agent.stop_training

    @stop_training.setter
    def stop_training(self, stop: bool) -> None:
        if stop:
            self.agent.stop("a Keras callback set stop_training")
        else:
            self.agent.stop_training, self.agent.stop_reason = False, None

    @property
    def history(self) -> Any:
        """The History of the running fit, or what a Keras callback put in its place; the agent keeps its own."""
        return self.agent.history if self._history is None else self._history

    @history.setter
    def history(self, history: Any) -> None:
        self._history = history

    @property
    def layers(self) -> list[Any]:
        """The layers of the agent's Keras networks."""
        found = []
        for network in self.agent.networks().values():
            found += list(getattr(network, "layers", [network] if isinstance(network, keras.layers.Layer) else []))
        return found

    @property
    def variables(self) -> list[keras.Variable]:
        """Every variable of every network."""
        return [v for network in self.agent.networks().values() for v in networks.variables(network)]

    weights = variables

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """The variables that are trained."""
        return self.agent.trained_variables()

    trainable_weights = trainable_variables

    @property
    def non_trainable_variables(self) -> list[keras.Variable]:
        """The variables that are not trained."""
        trained = {id(variable) for variable in self.trainable_variables}
        return [variable for variable in self.variables if id(variable) not in trained]

    def get_weights(self) -> list[np.ndarray]:
        """Return every network's weights as arrays."""
        return [backends.current().fetch(variable) for variable in self.variables]

    def set_weights(self, weights: list[np.ndarray]) -> None:
        """Set what `get_weights` returned."""
        for variable, weight in zip(self.variables, weights, strict=True):
            variable.assign(weight)
        self.agent.mark_stale()

    def save(self, filepath: str | Path, overwrite: bool = True, **kwargs: Any) -> None:
        """Save the agent, without its memory."""
        self._refuse_existing(filepath, overwrite)
        self.agent.save(filepath, replay=False)

    def save_weights(self, filepath: str | Path, overwrite: bool = True, **kwargs: Any) -> None:
        """Save the weights, in noterl's format whatever the ending."""
        self._refuse_existing(filepath, overwrite)
        self.agent.save_weights(filepath)

    def load_weights(self, filepath: str | Path, **kwargs: Any) -> None:
        """Load what `save_weights` saved."""
        self.agent.load_weights(filepath)

    def summary(self, *args: Any, **kwargs: Any) -> None:
        """Print the agent's summary."""
        self.agent.summary()

    def _refuse_existing(self, filepath: str | Path, overwrite: bool) -> None:
        if not overwrite and Path(filepath).exists():
            raise FileExistsError(f"{filepath} exists, and overwrite is False")


class _Optimizer:
    """One optimizer of the agent, behind the few names that Keras's callbacks use."""

    built = True

    def __init__(self, agent: Agent, name: str) -> None:
        self._agent, self.name = agent, name

    @property
    def learning_rate(self) -> float:
        """The learning rate; setting it takes effect with the next update."""
        return optimizers.get_rule(self._agent.optimizers[self.name], "learning_rate")

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self._agent.set_rule("learning_rate", float(value), self.name)

    lr = learning_rate


class _Optimizers:
    """Several optimizers, as Keras's callbacks find those of a model."""

    built = True

    def __init__(self, agent: Agent) -> None:
        self.optimizers = [_Optimizer(agent, name) for name in agent.optimizer_names]
