"""A callback that ends training at a number of environment steps."""

from __future__ import annotations

from noterl.callback import AgentView, Budget, Callback
from noterl.utils.checks import check_count


class StopOnSteps(Callback):
    """End training at exactly this number of environment steps of the agent, over all `fit` calls.

    `fit(steps=)` counts the steps of one call. This callback also counts earlier steps, including the steps of a
    restored agent before the save. If the agent has already made enough steps, `fit` does not train it.

    Args:
        steps: the total, summed over all environments.

    Raises:
        ValueError: if `steps` is neither a positive int nor a positive float without a fraction.

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
    unit = "steps"

    def __init__(self, steps: float) -> None:
        self.steps: int = check_count("steps", steps)

    def before_fit(self, agent: AgentView, budget: Budget) -> None:
        """Limit the budget of the fit."""
        # Unlike `last_step`, this limit stays the same if another callback restores the agent.
        budget.step_limit = min(budget.step_limit, self.steps)
