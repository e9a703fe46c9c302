"""What makes a transition worth learning from again: scores for prioritized sampling.

Owns the formulas from what a loss feeds back to one number a transition.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from noterl.registry import Configurable, register
from noterl.replay.columns import Array
from noterl.utils.checks import check_number


@register
class Score(Configurable):
    """The absolute temporal-difference error; subclass it for another score.

    Attributes:
        fields: what it needs of the loss's feedback, by name.
    """

    fields: tuple[str, ...] = ("td_error",)

    def __call__(self, values: Mapping[str, Array]) -> Array:
        """Return the scores `[n]`, at least 0, of `fields` `[n]`; what is not finite is passed over."""
        return np.abs(values["td_error"])

    def initial(self, td_error: float) -> float:
        """Return the score of a transition of which nothing is known but a guess of its error."""
        return td_error


@register
class RatioScore(Score):
    """lambda |td_error| + (1 - lambda) |ratio - 1|: how wrong the value is, and how far the policy has moved.

    For agents with a policy ratio, whose loss feeds back `td_error` and `ratio`; Note_rl's score for PPO.

    Args:
        lambda_: the share of the error, 0 to 1.
        initial_ratio: the ratio that is assumed of a transition until there is feedback.

    Raises:
        ValueError: if an argument is out of its range.

    Example:
    >>> from noterl.replay import RatioScore
    >>> RatioScore(0.5)({"td_error": np.array([-3.0, 0.0]), "ratio": np.array([1.0, 1.5])})
    array([1.5 , 0.25])
    """

    fields = ("td_error", "ratio")

    def __init__(self, lambda_: float = 0.5, initial_ratio: float = 1.0) -> None:
        self.lambda_ = check_number("lambda_", lambda_, low=0, high=1)
        self.initial_ratio = check_number("initial_ratio", initial_ratio, low=0)

    def __call__(self, values: Mapping[str, Array]) -> Array:
        """Return the scores `[n]` of errors and ratios `[n]`."""
        return self.lambda_ * np.abs(values["td_error"]) + (1 - self.lambda_) * np.abs(values["ratio"] - 1)

    def initial(self, td_error: float) -> float:
        """Return the score of a guessed error and the initial ratio."""
        return self.lambda_ * td_error + (1 - self.lambda_) * abs(self.initial_ratio - 1)
