"""A learning rate that follows a function of how far training is."""

from __future__ import annotations

from collections.abc import Callable

from .hyperparameter_scheduler import HyperparameterScheduler


class LearningRateScheduler(HyperparameterScheduler):
    """Set the learning rate to a function of the steps, updates or episodes so far.

    See `HyperparameterScheduler` for when; the rate that an episode ended with stands in its logs as `learning_rate`.

    Args:
        schedule: a function of an int that gives the rate; those of `noterl.schedules` are such.
        unit: what the int counts: environment "steps", gradient "updates" or finished "episodes".
        live: set it before each single update, which then runs as a call of its own.
        optimizer: whose, by name, where the agent has several; None for all.

    Raises:
        ValueError: if an argument is not what it may be.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import LearningRateScheduler
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> halve = LearningRateScheduler(lambda episode: 0.01 * 0.5**episode, unit="episodes")
    >>> history = agent.fit(episodes=3, callbacks=[halve], verbose=0)
    >>> [round(rate, 4) for rate in history.history["learning_rate"]]
    [0.01, 0.005, 0.0025]
    """

    def __init__(
        self,
        schedule: Callable[[int], float],
        *,
        unit: str = "steps",
        live: bool = False,
        optimizer: str | None = None,
    ) -> None:
        super().__init__("learning_rate", schedule, unit=unit, live=live, optimizer=optimizer)
