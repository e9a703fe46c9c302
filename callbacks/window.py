"""A callback that drops the oldest transitions of a replay memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from noterl.callback import AgentView, Callback, Every
from noterl.replay.samplers import Sampler, Uniform
from noterl.types import Logs
from noterl.utils.checks import check_positive

Size = int | float | Callable[..., int | float]


class Window(Callback):
    """Keep a window of the newest transitions in a replay memory and drop the older ones.

    A full memory evicts one transition for each new one. This callback drops many together, down to `size`: when
    the memory is full, or at a fixed frequency. At least one batch of transitions, or of sequences, is kept. The logs
    of each episode hold the number of stored transitions as `window`.

    Args:
        size: how many transitions are kept. An int is the number; a float below 1 is a fraction of the stored ones. A
            function receives the agent and returns an int or a float.
        every: number of `unit` between trims; None to trim at the end of an episode if the memory is full.
        unit: "steps" (of the environment), "episodes", "updates" or "seconds".
        by: "worker" for a window of each worker process: `size` is then for the transitions of the worker's
            environments, and a function also receives the number of the worker. At least one batch of each worker is
            kept. Transitions that are older than the window of the same worker, but newer than the window of another,
            are excluded from sampling. None for one window.

    Raises:
        ValueError: if an argument is not one of the allowed values; when training begins, if the agent has no replay
            memory; at a trim, if the function `size` returns a value that is not allowed.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import Window
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> agent.compile(replay=noterl.Replay(1000), batch_size=16, learning_starts=16)
    >>> history = agent.fit(steps=500, callbacks=[Window(100, every=50, unit="steps")], verbose=0)
    >>> len(agent.replay)
    100
    """

    all_ranks = True  # each process has its own memory
    needs_memory = True

    def __init__(self, size: Size, every: float | None = None, unit: str = "steps", *, by: str | None = None) -> None:
        if not callable(size):
            _check_size("size", size)
        self.by: str | None = check_by(by)
        self.size: Any = size
        self._when_full = every is None
        self.every: Every = Every(1, "episodes") if every is None else Every(every, unit, name="every")

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Log the number of stored transitions, without the transitions that the windows of workers exclude."""
        if logs.get("complete", True):
            logs["window"] = self._stored()

    def on_due(self, logs: Logs) -> None:
        """Drop the oldest transitions and log the number of remaining ones."""
        replay = self.agent.replay
        if len(replay) < replay.capacity and self._when_full:
            return
        if self.by is None:
            replay.drop_oldest(len(replay) - self._kept(len(replay)))
        else:
            windows = [rows[len(rows) - self._kept(len(rows), n) :] for n, rows in enumerate(replay.sources.split())]
            keep_only(replay, np.concatenate(windows))
        logs["window"] = self._stored()

    def _stored(self) -> int:
        replay = self.agent.replay
        return len(replay) if self.by is None else window_size(replay)

    def _kept(self, stored: int, *worker: int) -> int:
        """Return how many of the stored transitions are kept."""
        size = self.size(self.agent, *worker) if callable(self.size) else self.size
        size = _check_size("the return value of size", size)
        kept = int(size * stored) if isinstance(size, float) else size
        # A window below one batch would stop learning until the memory has grown again.
        return min(max(kept, least_window(self.agent)), stored)


def check_by(by: Any) -> str | None:
    """Return the argument `by` of the callbacks for windows.

    Raises:
        ValueError: if `by` is neither None nor "worker".
    """
    if by not in (None, "worker"):
        raise ValueError(f"by must be None or 'worker', got {by!r}")
    return by


def least_window(agent: AgentView) -> int:
    """Return the number of newest transitions that hold a batch."""
    replay = agent.replay
    if replay.sequences is not None:
        return int(replay.sequences.rows_of(agent.update_batch_size))
    # The oldest transitions of each lane lack frames of their stacks after a trim, so they are not sampled.
    return int(agent.update_batch_size + (replay.storage.frames - 1) * sum(replay.sources.lanes))


def window_size(replay: Any) -> int:
    """Return the number of stored transitions, without the transitions that are excluded from sampling."""
    return int(replay.storage.num_unmasked)


def keep_only(replay: Any, indices: np.ndarray) -> None:
    """Exclude all other stored transitions from sampling, and drop the transitions that are older than all of these."""
    if len(indices):
        storage = replay.storage
        ages = storage.insertion_numbers(indices) - storage.begin
        replay.keep(indices)
        replay.drop_oldest(int(ages.min()))


def has_priorities(replay: Any) -> bool:
    """Return whether the sampler of a replay memory prefers some transitions."""
    sampler = replay.sampler
    return not (isinstance(sampler, Uniform) or type(sampler).probabilities is Sampler.probabilities)


def warn_without_priorities(agent: AgentView, name: str) -> None:
    """Warn if the agent's replay memory has no priorities, whose effective sample size the callback `name` uses."""
    if not has_priorities(agent.replay):
        warnings.warn(
            f"callbacks: {name} uses priorities, but the memory has none, so its effective sample size is always the "
            "number of transitions, whatever was learned: compile the agent with "
            "replay=noterl.Replay(..., sampler=noterl.replay.Prioritized()), or omit the callback",
            stacklevel=2,
        )


def _check_size(name: str, value: Any) -> int | float:
    """Return the size of a window; raise a ValueError unless it is a positive int or a float between 0 and 1."""
    if isinstance(value, float | np.floating) and 0 < value < 1:
        return float(value)
    try:
        return check_positive(name, value)
    except ValueError:
        raise ValueError(f"{name} must be a positive int or a float between 0 and 1, got {value!r}") from None
