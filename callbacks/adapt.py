"""Adapting to whichever measure a target is given for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from noterl.callback import Budget, Callback
from noterl.types import Logs

from .ada_batch import AdaBatch
from .ess_adapt import ESSAdapt

if TYPE_CHECKING:
    from noterl.agent import Agent


class Adapt(Callback):
    """`AdaBatch` where a `target_noise` is given, else `ESSAdapt`: what Note_rl calls `adjust`.

    Args:
        target_ess: of `ESSAdapt`.
        target_noise: of `AdaBatch`; it decides.
        num_samples: of `AdaBatch`, needed there.
        smooth: weight of the new value in the moving average.
        every: how often it looks.
        unit: of `every`: "episodes", "steps" (of the environment), "updates" or "seconds".
        **adjusted: by name, a `Rate` or `Scale` for each; see `Adapting` for the names.

    Raises:
        ValueError: if an argument is not what it may be, or belongs to the other measure.

    Attributes:
        chosen: the `AdaBatch` or `ESSAdapt`.

    Example:
    >>> from noterl.callbacks import Adapt, Rate
    >>> type(Adapt(lr=Rate(1e-4, 1e-4, 1e-2)).chosen).__name__
    'ESSAdapt'
    >>> type(Adapt(target_noise=1e-3, num_samples=7, lr=Rate(1e-4, 1e-4, 1e-2)).chosen).__name__
    'AdaBatch'
    """

    def __init__(
        self,
        target_ess: float | None = None,
        target_noise: float | None = None,
        num_samples: int | None = None,
        smooth: float = 0.2,
        *,
        every: float = 1,
        unit: str = "episodes",
        **adjusted: Any,
    ) -> None:
        if target_noise is not None and target_ess is not None:
            raise ValueError(f"target_ess must be None where target_noise is given, got {target_ess!r}")
        self.chosen: AdaBatch | ESSAdapt
        if target_noise is None:
            if num_samples is not None:
                raise ValueError(f"num_samples must be None where target_noise is not given, got {num_samples!r}")
            self.chosen = ESSAdapt(target_ess, smooth, every=every, unit=unit, **adjusted)
        else:
            if num_samples is None:
                raise ValueError("num_samples must be given with target_noise, the number of batches to compare")
            self.chosen = AdaBatch(num_samples, target_noise, smooth, every=every, unit=unit, **adjusted)
        self.adds = self.chosen.adds

    def before_fit(self, agent: Agent, budget: Budget) -> None:
        """Tell the one that was chosen, and listen where it does."""
        self.chosen.before_fit(agent, budget)
        if "between_steps" in vars(self.chosen):
            self.between_steps = self.chosen.between_steps  # type: ignore[method-assign]

    def on_train_begin(self, logs: Logs) -> None:
        """Tell the one that was chosen."""
        self.chosen.agent = self.agent
        self.chosen.begin(logs)

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Tell the one that was chosen."""
        self.chosen.look(logs)

    def get_state(self) -> dict[str, Any]:
        """Return the state of the one that was chosen."""
        return self.chosen.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state` returned."""
        self.chosen.set_state(state)
