"""The base class of the finders, which plots curves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noterl.finders.curves import derivative
from noterl.utils import words
from noterl.utils.checks import check_int, check_positive

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = tuple[list[float], list[float]]


def check_agent(agent: Any) -> Any:
    """Return the agent.

    Raises:
        ValueError: if `agent` is not an agent.
    """
    from noterl.agent import BaseAgent

    if not isinstance(agent, BaseAgent):
        raise ValueError(f"agent must be an agent, such as noterl.DQN(env), got {agent!r}")
    return agent


class Finder(ABC):
    """Base of the finders; a subclass defines the curves.

    Attributes:
        results: a table, with a dict for each row.
    """

    x_scale = "linear"

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []

    if not TYPE_CHECKING:  # otherwise every name would be an attribute for type checkers

        def __getattr__(self, name: str) -> Any:
            return words.find_again(self, name)

    @abstractmethod
    def curves(self, metric: str) -> dict[str, Curve]:
        """Return, by label, the points (x, value) of "reward" or "loss".

        Raises:
            ValueError: if there are no values of the metric.
        """

    @abstractmethod
    def x_label(self, metric: str) -> str:
        """Return the label of the horizontal axis in a plot of the metric."""

    def marked(self) -> float | None:
        """Return a value on the horizontal axis to mark in plots; None for no mark."""
        return None

    def plot_reward(self, n_skip_beginning: int = 0, n_skip_end: int = 0, *, path: str | Path | None = None) -> Figure:
        """Plot the reward.

        Args:
            n_skip_beginning: number of points left out at the start.
            n_skip_end: number of points left out at the end.
            path: also write the plot there; the ending decides the format.

        Raises:
            ValueError: if a number is negative, or `find` has not been called.
        """
        return self._draw("reward", n_skip_beginning, n_skip_end, path)

    def plot_loss(self, n_skip_beginning: int = 0, n_skip_end: int = 0, *, path: str | Path | None = None) -> Figure:
        """Plot the loss; arguments and errors are the same as for `plot_reward`."""
        return self._draw("loss", n_skip_beginning, n_skip_end, path)

    def plot_reward_change(
        self,
        sma: int = 1,
        n_skip_beginning: int = 0,
        n_skip_end: int = 0,
        y_lim: tuple[float, float] | None = None,
        *,
        path: str | Path | None = None,
    ) -> Figure:
        """Plot the change of the reward per point.

        Args:
            sma: number of points over which the change is measured: (x[i] - x[i - sma]) / sma.
            n_skip_beginning: number of points left out at the start.
            n_skip_end: number of points left out at the end.
            y_lim: bounds of the vertical axis; by default the bounds of the values.
            path: also write the plot there; the ending decides the format.

        Raises:
            ValueError: if a number is not one of the allowed values, or `find` has not been called.
        """
        return self._draw("reward", n_skip_beginning, n_skip_end, path, check_positive("sma", sma), y_lim)

    def plot_loss_change(
        self,
        sma: int = 1,
        n_skip_beginning: int = 0,
        n_skip_end: int = 0,
        y_lim: tuple[float, float] | None = None,
        *,
        path: str | Path | None = None,
    ) -> Figure:
        """Plot the change of the loss per point; arguments and errors are the same as for `plot_reward_change`."""
        return self._draw("loss", n_skip_beginning, n_skip_end, path, check_positive("sma", sma), y_lim)

    def _draw(
        self,
        metric: str,
        n_skip_beginning: int,
        n_skip_end: int,
        path: str | Path | None,
        sma: int | None = None,
        y_lim: tuple[float, float] | None = None,
    ) -> Figure:
        """Plot a metric, or the change over `sma` points."""
        check_int("n_skip_beginning", n_skip_beginning, least=0)
        check_int("n_skip_end", n_skip_end, least=0)
        curves = self.curves(metric)
        from noterl.utils import figures

        with figures.drawing(path=path) as (axes,):
            for name, (places, values) in curves.items():
                kept = slice(n_skip_beginning, len(values) - n_skip_end)
                shown = values if sma is None else derivative(values, sma)
                axes.plot(places[kept], shown[kept], marker=".", label=name)
            label = metric if sma is None else f"change of the {metric} per point"
            axes.set(xlabel=self.x_label(metric), ylabel=label, xscale=self.x_scale)
            if self.x_scale == "linear":
                # Episodes and updates are counted, so ticks between two of them mean nothing.
                axes.locator_params(axis="x", integer=True)
            if (marked := self.marked()) is not None:
                axes.axvline(marked, color="tab:gray", linestyle="--", label=f"suggestion {marked:.2g}")
            if y_lim is not None:
                axes.set_ylim(*y_lim)
            # One curve is named by the label of the axis already.
            if len(axes.lines) > 1:
                axes.legend()
        return figures.figure_of([axes])
