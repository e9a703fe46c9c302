"""Figures in one style: as wide as a column of text, in colors that color-blind readers can tell apart."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.figure
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes

from noterl.utils.files import naming, user_path

# Okabe and Ito, "Color universal design" (2008), without the yellow, which is too light for lines.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLE: Any = {
    "axes.grid": True,
    "axes.prop_cycle": cycler(linestyle=["-", "--", ":"]) * cycler(color=PALETTE),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "grid.alpha": 0.3,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.title_fontsize": 8,
    "lines.linewidth": 1.4,
    "pdf.fonttype": 42,  # whole TrueType fonts, which many journals require
    "savefig.dpi": 300,
    "svg.fonttype": "none",  # text stays text, which editors can change
}
WIDTH = 5.5  # inches
# Labels of the quantities on the x axis.
AXES = {"steps": "environment steps", "time": "seconds", "updates": "gradient updates", "episode": "episode"}


class Figure(matplotlib.figure.Figure):
    """A figure in noterl's style that a notebook shows without pyplot."""

    # Matplotlib makes the ticks when it draws, so drawing needs the style too.
    def draw(self, renderer: Any) -> None:
        """Draw in the style."""
        with matplotlib.rc_context(STYLE):
            super().draw(renderer)

    def savefig(self, *arguments: Any, **options: Any) -> None:
        """Save in the style."""
        with matplotlib.rc_context(STYLE):
            super().savefig(*arguments, **options)

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=130)
        return file.getvalue()


@contextlib.contextmanager
def drawing(
    panels: int = 1, *, height: float = 3.2, ax: Any = None, path: str | Path | None = None
) -> Iterator[list[Axes]]:
    """Yield the axes to draw on: the caller's, or else the axes of a new figure, one above the other.

    Args:
        panels: number of axes.
        height: of each panel of a new figure, in inches.
        ax: the axes of the caller; None for a new figure.
        path: file to write the figure to at the end; the suffix sets the format.

    Raises:
        ValueError: if `ax` is not as many axes as there are panels, or no format has the suffix of `path`.
    """
    axes = [] if ax is None else list(np.ravel(ax))
    if ax is not None and not (len(axes) == panels and all(isinstance(axis, Axes) for axis in axes)):
        raise ValueError(f"ax must be {panels} axes of Matplotlib, one for each quantity, got {ax!r}")
    if path is not None:
        path = user_path(path)
        formats = sorted(matplotlib.figure.Figure().canvas.get_supported_filetypes())
        if path.suffix[1:].lower() not in formats:
            endings = ", ".join(f".{ending}" for ending in formats)
            raise ValueError(f"path must end in one of {endings}, got {str(path)!r}")
    with contextlib.nullcontext() if axes else matplotlib.rc_context(STYLE):
        if not axes:
            figure = Figure(figsize=(WIDTH, height * panels), layout="constrained")
            axes = list(figure.subplots(panels, squeeze=False)[:, 0])
        yield axes
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with naming(path):
            figure_of(axes).savefig(path)


def figure_of(axes: Sequence[Axes]) -> matplotlib.figure.Figure:
    """Return the figure of axes; that which holds the subfigure if there is one."""
    return axes[0].figure.figure


def smooth(values: Any, window: int) -> np.ndarray:
    """Return the mean of the last `window` values `[P]` at each point, or of fewer at the start.

    Sums are exact, so that no error of rounding moves along the curve.
    """
    ends = range(1, len(values) + 1)
    return np.array([math.fsum(values[max(0, end - window) : end]) / min(window, end) for end in ends])


def window_of(values: np.ndarray, window: int | None) -> int:
    """Return the window that smooths a column of the logs `[E]`, in which NaN stands for an episode without a value.

    By default 10, or 1 for a quantity that not every episode logs, such as `evaluation_reward_mean`. Metrics of updates
    have no value before the first update, but one of each episode from then on.
    """
    if window is not None:
        return window
    present = ~np.isnan(values)
    return 10 if present[present.argmax() if present.any() else 0 :].all() else 1
