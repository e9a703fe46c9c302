"""Plot learning curves of several runs."""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from noterl.history import History
from noterl.utils.checks import check_positive, check_word
from noterl.utils.files import user_path
from noterl.utils.tables import read_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_RESAMPLES = 2_000  # of the runs, for the interval of their mean


class Band(NamedTuple):
    """The middle of several curves and the bounds around the middle, `[P]` each, at the points `x` `[P]`."""

    x: np.ndarray
    low: np.ndarray
    middle: np.ndarray
    high: np.ndarray


def band(
    runs: Sequence[Any] | str | Path,
    what: str = "reward",
    *,
    against: str = "steps",
    window: int | None = None,
    band: str = "bootstrap",
    points: int = 200,
) -> Band:
    """Return the middle and the bounds of runs with different seeds.

    Each run's curve is the mean of the last `window` values, or of fewer at the start, with linear interpolation. The
    result covers the range that all runs have in common.

    Args:
        runs: `History` objects, paths of logs (`.csv`, `.jsonl`, `.parquet`), or dicts of lists, one per seed; or a
            pattern of paths, such as "runs/*.csv".
        what: the quantity; missing entries are skipped.
        against: the quantity of the x axis: "steps", "updates", "time", "episode", or another column.
        window: number of values in the mean. By default 10, or 1 for a quantity that not every episode logs, such as
            `evaluation_reward_mean`.
        band: "bootstrap" for the mean and a 95 % percentile bootstrap interval over runs, "std" for the mean and one
            standard deviation, "seeds" for the mean, the smallest and the largest value, "quartiles" for the median and
            the quartiles.
        points: number of points of the result.

    Raises:
        ValueError: if an argument is not one of the allowed values, or a run does not have a quantity.

    Example:
    >>> from noterl.plotting import band
    >>> runs = [{"steps": [0, 10], "reward": [0.0, height]} for height in (10.0, 20.0, 60.0)]
    >>> middle = band(runs, band="quartiles", window=1, points=3)
    >>> middle.x.tolist(), middle.middle.tolist(), middle.high.tolist()
    ([0.0, 5.0, 10.0], [0.0, 10.0, 20.0], [0.0, 20.0, 40.0])
    """
    _, bounds = _BANDS[check_word("band", band, tuple(_BANDS))]
    places, values, _ = _values(runs, what, against, window, points)
    return Band(places, *bounds(values))


def compare(
    runs: Sequence[Any] | Mapping[str, Sequence[Any]] | str | Path,
    what: str = "reward",
    *,
    against: str = "steps",
    window: int | None = None,
    band: str = "bootstrap",
    path: str | Path | None = None,
    ax: Any = None,
) -> Figure:
    """Plot the learning curve of each group of runs: the mean over the runs, with a band.

    Args:
        runs: the runs of one group, one per seed, as in `band`; or a dict of groups by name.
        what: the quantity.
        against: the quantity of the x axis: "steps", "updates", "time", "episode", or another column.
        window: number of values in the mean that smooths each run; by default as in `band`.
        band: "bootstrap" for the 95 % bootstrap interval of the mean, "std" for one standard deviation, "seeds" for
            a thin line for each run, "quartiles" for the quartiles around the median instead of the mean.
        path: also save the figure there; the suffix sets the format, such as `.pdf`, `.svg` or `.png`.
        ax: axes of Matplotlib to draw on instead of a new figure.

    Raises:
        ValueError: if an argument is not one of the allowed values, or a run does not have a quantity.

    Example:
    >>> import noterl
    >>> from noterl.plotting import compare
    >>> runs = {}
    >>> for double in (True, False):
    ...     agents = [noterl.DQN("CartPole-v1", double=double, hidden=(8,), seed=seed) for seed in range(2)]
    ...     runs[f"double={double}"] = [agent.fit(episodes=3, verbose=0) for agent in agents]
    >>> figure = compare(runs, path="double.png")
    """
    groups: dict[str, Any] = dict(runs) if isinstance(runs, Mapping) and not _is_run(runs) else {"": runs}
    if not groups:
        raise ValueError(f"runs must hold at least one group of runs, got {runs!r}")
    text, bounds = _BANDS[check_word("band", band, tuple(_BANDS))]
    curves = {name: _values(group, what, against, window) for name, group in groups.items()}
    from noterl.utils import figures

    with figures.drawing(ax=ax, path=path) as (axes,):
        counts = {len(values) for _, values, _ in curves.values()}
        title = text.format(_runs_text(*counts) if len(counts) == 1 else "runs")
        for name, (places, values, _) in curves.items():
            low, middle, high = bounds(values)
            label = name if len(counts) == 1 else f"{name} ({_runs_text(len(values))})"
            (line,) = axes.plot(places, middle, label=label or title)
            if band == "seeds":
                axes.plot(places, values.T, color=line.get_color(), linestyle="-", linewidth=0.6, alpha=0.4)
            else:
                axes.fill_between(places, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        axes.legend(title=None if "" in groups else title, alignment="left")
        width = max(width for _, _, width in curves.values())
        label = what.replace("_", " ") + ("" if width == 1 else f", mean of {width}")
        axes.set(xlabel=figures.AXES.get(against, against), ylabel=label)
    return figures.figure_of([axes])


def _bootstrap(values: np.ndarray) -> Any:
    """Return the bounds of the 95 % percentile interval and the mean of runs `[R, P]`: low, mean, high `[P]`."""
    # The same resamples in every call: a figure that is drawn again looks the same.
    # Weights instead of resampled curves: one product of matrices for all resamples.
    weights = np.random.default_rng(0).multinomial(len(values), [1 / len(values)] * len(values), size=_RESAMPLES)
    low, high = np.percentile(weights @ values / len(values), [2.5, 97.5], axis=0)
    return low, values.mean(axis=0), high


def _deviation(values: np.ndarray) -> Any:
    mean = values.mean(axis=0)
    # The deviation of a sample; a single run has 0 instead of NaN.
    deviation = values.std(axis=0, ddof=min(1, len(values) - 1))
    return mean - deviation, mean, mean + deviation


# For each band its text in the legend, and the function from the values of runs `[R, P]` to low, middle, high `[P]`.
_BANDS: dict[str, tuple[str, Callable[[np.ndarray], Any]]] = {
    "bootstrap": ("mean of {}, 95 % interval", _bootstrap),
    "std": ("mean of {}, ± 1 standard deviation", _deviation),
    "seeds": ("mean of {}, and each run", lambda values: (values.min(axis=0), values.mean(axis=0), values.max(axis=0))),
    "quartiles": ("median of {}, quartiles", lambda values: np.percentile(values, [25, 50, 75], axis=0)),
}


def _runs_text(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _values(
    runs: Any, what: str, against: str, window: int | None, points: int = 200
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the points `[P]` that all runs have in common, the smoothed values there `[R, P]`, and the window."""
    from noterl.utils import figures

    check_positive("window", window, none=True)
    check_positive("points", points)
    runs = _expand(runs)
    if isinstance(runs, str | Path | History | Mapping) or not isinstance(runs, Sequence) or not runs:
        raise ValueError(f"runs must be a list of histories, paths of logs or dicts of lists, got {runs!r}")
    curves = [_curve(run, what, against) for run in runs]
    first = max(at[0] for at, _, _ in curves)
    last = min(at[-1] for at, _, _ in curves)
    if first > last:
        raise ValueError(f"runs have no {against} in common: one starts at {first:g}, another ends at {last:g}")
    places = np.linspace(first, last, points)
    # One window for all curves, so that a short run is smoothed like the others.
    width = min(figures.window_of(column, window) for _, _, column in curves)
    return places, np.array([np.interp(places, at, figures.smooth(values, width)) for at, values, _ in curves]), width


def _expand(runs: Any) -> Any:
    """Return the paths that match a pattern, in order of the names; return anything else unchanged.

    Raises:
        ValueError: if no file matches.
    """
    if not isinstance(runs, str | Path):
        return runs
    paths = sorted(glob.glob(str(user_path(runs)), recursive=True))
    if not paths:
        raise ValueError(f"runs: no file matches {str(runs)!r}")
    return paths


def _is_run(runs: Mapping[str, Any]) -> bool:
    """Return whether a dict holds the columns of one run: lists or arrays of numbers."""
    columns = [values for values in runs.values() if isinstance(values, list | tuple | np.ndarray)]
    return any(len(values) and isinstance(values[0], int | float | np.number) for values in columns)


def _columns(run: Any) -> Mapping[str, Sequence[Any]]:
    """Return the columns of a run by name."""
    if isinstance(run, History):
        return {"episode": run.episode, **run.history}
    if isinstance(run, str | Path):
        return read_columns(run)
    if isinstance(run, Mapping):
        return run
    raise ValueError(f"runs must hold histories, paths of logs or dicts of lists, got {run!r}")


def _curve(run: Any, what: str, against: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the points `(x, values)` of one run `[P]`, with `x` in ascending order, and the column of the values."""
    columns = _columns(run)
    for argument, name in (("what", what), ("against", against)):
        if name not in columns:
            raise ValueError(f"{argument}: a run has no {name!r}; it has {', '.join(columns)}")
    try:
        places = np.asarray(columns[against], np.float64)
        column = np.asarray(columns[what], np.float64)
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"what, against: {what!r} and {against!r} of a run must be numbers: {error}") from error
    present = ~(np.isnan(column) | np.isnan(places))
    if not present.any():
        raise ValueError(f"what: a run has no value of {what!r}")
    # Stable, so that values at the same place keep their order.
    order = np.argsort(places[present], kind="stable")
    return places[present][order], column[present][order], column
