"""A callback that ends training without an error if a loss is not finite."""

from __future__ import annotations

import math

from noterl.backends.common import NonFiniteError
from noterl.callback import Callback
from noterl.types import Logs


class TerminateOnNaN(Callback):
    """End training at the first loss or gradient that is not finite, and keep the last finite state.

    Without this callback, `fit` raises `NonFiniteError`. In both cases the agent holds the state before that update.
    With the callback, training ends normally, and `stop_reason` names the update and the step. The callback checks
    every gradient update, which costs one fetch from the device per group of updates.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import TerminateOnNaN
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> agent.compile(optimizer="sgd", learning_starts=10, batch_size=4)
    >>> agent.set_rule("learning_rate", 1e30)
    >>> agent.fit(steps=200, callbacks=[TerminateOnNaN()], verbose=0).stop_reason
    'the loss (...), a gradient of it or the state after the step is not finite at update ... (environment step ...)'
    """

    all_ranks = True  # each process of a strategy would raise the error

    _counts = False  # whether the agent counts the updates, which `pretrain` does not

    def on_train_begin(self, logs: Logs) -> None:
        """Judge by the agent's count until training ends."""
        self._counts = True

    def on_train_end(self, logs: Logs) -> None:
        """Judge by the loss."""
        self._counts = False

    def on_batch_end(self, batch: int, logs: Logs) -> None:
        """Stop if the update was not finite, and therefore not applied."""
        # An update that was undone does not count, so the agent's count stays at the number of this batch.
        is_undone = self.agent.updates <= batch if self._counts else not math.isfinite(logs.get("loss", 0.0))
        if logs and is_undone and not self.agent.stop_epochs(logs):
            # Without the second half, that the agent keeps the last finite state: this holds for each stop.
            self.agent.stop(str(NonFiniteError(logs["loss"], update=batch, step=self.agent.steps)).partition(";")[0])
