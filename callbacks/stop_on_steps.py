"""Stopping at a number of environment steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noterl.callback import Budget, Callback
from noterl.utils.checks import check_positive

if TYPE_CHECKING:
    from noterl.agent import Agent


class StopOnSteps(Callback):
    """End training at exactly so many environment steps of the agent, over all its `fit`s.

    `fit(steps=)` adds steps; this counts those that were made before, too, in whatever process. An agent that has
    made them already is not trained.

    Args:
        steps: in all, over all environments.

    Raises:
        ValueError: unless `steps` is a positive int.

    Example:
    >>> import noterl
    >>> from noterl.callbacks import StopOnSteps
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> for _ in range(2):
    ...     history = agent.fit(steps=30, callbacks=[StopOnSteps(50)], verbose=0)
    >>> agent.steps, history.stop_reason
    (50, 'steps')
    """

    stops_training = True

    def __init__(self, steps: int) -> None:
        self.steps = check_positive("steps", steps)

    def before_fit(self, agent: Agent, budget: Budget) -> None:
        """Let the budget of the fit end there at the latest."""
        budget.last_step = min(budget.last_step, self.steps)
