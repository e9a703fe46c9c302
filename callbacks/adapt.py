"""A callback that adapts to gradient noise or to the effective sample size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from noterl.callback import AgentView, Budget, Callback, Every
from noterl.types import Logs

from .ada_batch import AdaBatch
from .ess_adapt import ESSAdapt


class Adapt(Callback):
    """Adapt tunables, such as the batch size, with `AdaBatch` if `target_noise` is given, otherwise with `ESSAdapt`.

    This class corresponds to `adjust` of Note_rl.

    Args:
        target_ess: argument of `ESSAdapt`.
        target_noise: argument of `AdaBatch`.
        num_samples: argument of `AdaBatch`; required with `target_noise`.
        smooth: weight of the new value in the moving average.
        every: number of `unit` between measurements.
        unit: "episodes", "steps" (of the environment), "updates" or "seconds".
        **adjusted: a `Rate` or `Scale` for each tunable, by name; `AdaptiveCallback` lists the names.

    Raises:
        ValueError: if an argument is not one of the allowed values, or is an argument of the other callback.

    Attributes:
        chosen: the `AdaBatch` or `ESSAdapt` that handles the events.

    Example:
    >>> from noterl.callbacks import Adapt, Rate
    >>> type(Adapt(lr=Rate(1e-4, 1e-4, 1e-2)).chosen).__name__
    'ESSAdapt'
    >>> type(Adapt(target_noise=1e-3, num_samples=7, lr=Rate(1e-4, 1e-4, 1e-2)).chosen).__name__
    'AdaBatch'
    """

    takes_epochs = True

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
            raise ValueError(f"target_ess must be None if target_noise is given, got {target_ess!r}")
        self.chosen: AdaBatch | ESSAdapt
        if target_noise is None:
            if num_samples is not None:
                raise ValueError(f"num_samples must be None unless target_noise is given, got {num_samples!r}")
            self.chosen = ESSAdapt(target_ess, smooth, every=every, unit=unit, **adjusted)
        else:
            if num_samples is None:
                raise ValueError("num_samples, the number of batches to compare, must be given with target_noise")
            self.chosen = AdaBatch(num_samples, target_noise, smooth, every=every, unit=unit, **adjusted)
        self.adds: Sequence[str] = self.chosen.adds
        self.every: Every | None = self.chosen.every
        self.needs_memory: bool = self.chosen.needs_memory

    def before_fit(self, agent: AgentView, budget: Budget) -> None:
        """Forward the call, and need the host if the chosen callback does."""
        self.chosen.before_fit(agent, budget)
        self.needs_host: bool = self.chosen.needs_host

    def on_train_begin(self, logs: Logs) -> None:
        """Forward the event."""
        # The loop knows only this callback, so the chosen one gets the agent from here.
        self.chosen.agent = self.agent
        self.chosen.on_train_begin(logs)

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Forward the event."""
        self.chosen.on_episode_end(episode, logs)

    def on_due(self, logs: Logs) -> bool | None:
        """Forward the call."""
        return self.chosen.on_due(logs)

    def get_state(self) -> dict[str, Any]:
        """Return the state of the chosen callback."""
        return self.chosen.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self.chosen.set_state(state)
