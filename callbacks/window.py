"""Forgetting the oldest transitions of a replay memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from noterl.callback import Callback
from noterl.learning.schedule import batch_size_of
from noterl.replay import Replay
from noterl.types import Logs
from noterl.utils.checks import check_positive

from .cadence import Cadence

Size = int | float | Callable[[Any], int | float]


class Window(Callback):
    """Keep a window of the newest transitions, and forget what is older.

    A memory forgets one transition for each new one when it is full. This forgets many at once: when the memory is
    full, down to `size`, or every so often, whatever is beyond `size`. What stays in the window is never less than a
    batch. The number of transitions held stands in the logs of each episode as `window`.

    Args:
        size: what stays: an int, of transitions; a float below 1, the share of those that are held; or a function of
            the agent that returns either.
        every: how often; None for when the memory is full, looked at as episodes end.
        unit: of `every`: "steps" (of the environment), "episodes", "updates" or "seconds".

    Raises:
        ValueError: if an argument is not what it may be; as training begins, for an agent without a replay memory; when
            a function returns no such size.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import Window
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> agent.compile(replay=noterl.Replay(1000), batch_size=16, learning_starts=16)
    >>> history = agent.fit(steps=500, callbacks=[Window(100, every=50, unit="steps")], verbose=0)
    >>> len(agent.replay)
    100
    """

    def __init__(self, size: Size, every: float | None = None, unit: str = "steps") -> None:
        if not callable(size):
            _check_size("size", size)
        self.size = size
        self._cadence = None if every is None else Cadence("every", every, unit)
        if self._cadence is not None and unit != "episodes":
            self.between_steps = self._look  # type: ignore[method-assign]

    def on_train_begin(self, logs: Logs) -> None:
        """Count from here; there must be a memory."""
        replay_of(self.agent, "Window")
        if self._cadence is not None:
            self._cadence.begin(self.agent)

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Forget, if it is time, before others save what there is; tell how much is held."""
        if not logs.get("complete", True):
            return
        self._look()
        logs["window"] = len(self.agent.replay)

    def _look(self) -> None:
        replay = self.agent.replay
        full = len(replay) == replay.capacity
        if full if self._cadence is None else self._cadence.due(self.agent):
            size = self.size(self.agent) if callable(self.size) else self.size
            wanted = _check_size("what the function size returns", size)
            kept = int(wanted * len(replay)) if isinstance(wanted, float) else wanted
            replay.drop_oldest(max(len(replay) - max(kept, batch_size_of(self.agent)), 0))


def replay_of(agent: Any, name: str) -> Replay:
    """Return the agent's replay memory.

    Raises:
        ValueError: if it has another kind, or none.
    """
    if not isinstance(agent.replay, Replay):
        raise ValueError(f"callbacks: {name} needs an agent with a replay memory, {type(agent).__name__} has none")
    return agent.replay


def _check_size(name: str, value: Any) -> int | float:
    if isinstance(value, float | np.floating) and 0 < value < 1:
        return float(value)
    try:
        return check_positive(name, value)
    except ValueError:
        raise ValueError(f"{name} must be a positive int or a float between 0 and 1, got {value!r}") from None
