"""A callback that sets the learning rate by a schedule."""

from __future__ import annotations

from collections.abc import Callable

from .hyperparameter_scheduler import HyperparameterScheduler


class LearningRateScheduler(HyperparameterScheduler):
    """Set the learning rate to a function of the steps, updates or episodes so far.

    `HyperparameterScheduler` describes when the rate is set. The logs of each episode hold the rate as `learning_rate`,
    or `learning_rate/optimizer` for one of several optimizers.

    Args:
        schedule: a function of the count that returns the rate, such as one of `noterl.schedules`.
        unit: the count: environment "steps", gradient "updates" or finished "episodes".
        live: also set the rate before each update, which then runs as a separate compiled call.
        optimizer: the name of the optimizer; None for all.

    Raises:
        ValueError: if an argument is not one of the allowed values.

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
        self, schedule: Callable[[int], float], *, unit: str = "steps", live: bool = False, optimizer: str | None = None
    ) -> None:
        super().__init__("learning_rate", schedule, unit=unit, live=live, optimizer=optimizer)
