"""A progress bar: what `fit(verbose=1)` shows."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from tqdm import tqdm

from noterl.training.console import can_show_progress_bar, progress_bar
from noterl.training.episode_printer import FitCounter, mean
from noterl.types import Logs

# Seconds between two refreshes. A refresh takes a third of a millisecond.
_INTERVAL = 0.25


class ProgressBar(FitCounter):
    """Show the number of the agent's episodes, reward, loss, steps per second, the time left and where the time goes.

    The reward is the mean over the last ten finished episodes; the loss is the last episode's. The time since the
    start of training is split into environment, acting, learning (with sampling) and callbacks. If worker processes
    collect while the agent learns, the bar also shows how old the workers' weights were (`staleness`) and the gradient
    updates per environment step (`update_ratio`). A narrow terminal shows fewer of these values. At the end, a line
    summarizes the `fit`, as with `fit(verbose=2)`. If the output is neither a terminal nor a notebook, nothing is shown
    unless `always` is True.

    Args:
        episodes: the budget in episodes, or None.
        steps: the budget in steps, or in updates of `fit(dataset=, updates=)`; used if both are given.
        always: whether the bar is shown even without a terminal, as with `fit(verbose=1)`.

    Example:
    >>> from noterl.callbacks import ProgressBar
    >>> bar = ProgressBar(episodes=10)
    """

    def __init__(self, episodes: int | None = None, steps: int | None = None, *, always: bool = False) -> None:
        super().__init__(recent=10)
        self.always = always
        self._total = episodes if steps is None else steps
        self._counts_steps = steps is not None
        self._bar: Any = None
        self._loss: float | None = None
        self._overlap: list[str] = []  # what the logs of the last episode hold about workers with overlap

    def on_train_begin(self, logs: Logs) -> None:
        """Start the counts of this fit, and open the bar."""
        super().on_train_begin(logs)
        self._loss = None
        self._overlap = []
        self._shown = perf_counter()
        if not (self.always or can_show_progress_bar()):
            return
        self._bar = progress_bar(
            total=self._total,
            unit="step" if self._counts_steps else self._unit,
            bar_format="{desc}{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
            if self._total
            else "{desc}{n_fmt} {unit}s [{elapsed}{postfix}]",
        )

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Move the bar."""
        if self._bar is None or not logs.get("complete", True):
            return
        self._finished += 1
        if "reward" in logs:
            self._recent.append(logs["reward"])
        self._loss = logs.get("loss", self._loss)
        if "staleness" in logs and "update_ratio" in logs:
            self._overlap = [f"staleness {logs['staleness']}", f"ratio {logs['update_ratio']:.3g}"]
        self._move()
        if perf_counter() - self._shown >= _INTERVAL:
            self._show()

    def on_step_end(self) -> None:
        """Move the bar within a long episode."""
        if self._bar is not None and perf_counter() - self._shown >= _INTERVAL:
            self._move()
            self._show()

    def on_train_end(self, logs: Logs) -> None:
        """Show the final values, close the bar, and print the line that summarizes the fit."""
        if self._bar is not None:
            self._move()
            self._show()
            self._bar.close()
            self._bar = None
            super().on_train_end(logs)

    def _move(self) -> None:
        """Set the position of the bar; a budget may be exceeded, but not the bar."""
        count = self.agent.log_step - self._first_step if self._counts_steps else self._finished
        self._bar.n = count if self._total is None else min(count, self._total)

    def _show(self) -> None:
        """Redraw the bar with as many values as fit."""
        self._shown = perf_counter()
        seconds = max(self._shown - self._started, 1e-9)
        clock = self.agent.history.time_split if self.agent.history is not None else {}
        shares = {
            "env": clock.get("environment", 0.0),
            "act": clock.get("act", 0.0),
            "learn": clock.get("sample", 0.0) + clock.get("learn", 0.0),
            "callbacks": clock.get("callbacks", 0.0),
        }
        if "workers" in clock:  # the time in which the loop waited for them
            shares["workers"] = clock["workers"]
        self._bar.set_description_str(f"{self._unit} {self._first_episode + self._finished} ", refresh=False)
        reward = f"reward {mean(self._recent):.1f}" if self._recent else "reward -"
        rate = f"{(self.agent.log_step - self._first_step) / seconds:,.0f} {self._count}/s"
        split = " ".join(f"{name} {share / seconds:.0%}" for name, share in shares.items())
        loss = [] if self._loss is None else [f"loss {self._loss:.3g}"]
        least = [reward] if self._unit == "episode" else loss
        values = [*least, *(loss if self._unit == "episode" else []), rate]
        self._set_widest([[*values, *self._overlap, split], [*values, split], values, [*least, rate], least])
        self._bar.refresh()

    def _set_widest(self, choices: list[list[str]]) -> None:
        """Show the first choice that leaves 5 columns for the bar, or the last one."""
        for choice in choices:
            self._bar.set_postfix_str(", ".join(choice), refresh=False)
            meter = self._bar.format_dict
            width = meter["ncols"]
            # Without a width, tqdm draws a bar of 10 columns.
            if width is None or len(tqdm.format_meter(**{**meter, "ncols": None})) - 5 <= width:
                return
