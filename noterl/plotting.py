"""Plot learning curves of several runs."""

from __future__ import annotations

import glob
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from noterl.history import History
from noterl.utils.checks import check_positive
from noterl.utils.files import naming
from noterl.utils.tables import read_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Axis labels of the columns for `against`.
_AXES = {"steps": "environment steps", "time": "seconds", "updates": "gradient updates", "episode": "episode"}


class Band(NamedTuple):
    """Quartiles of several curves, `[P]` each, at the points `x` `[P]`."""

    x: np.ndarray
    low: np.ndarray
    median: np.ndarray
    high: np.ndarray


def band(
    runs: Sequence[Any] | str | Path,
    what: str = "reward",
    *,
    against: str = "steps",
    window: int | None = None,
    points: int = 200,
) -> Band:
    """Return median and quartiles over runs with different seeds.

    Each run's curve is the mean of its last `window` values, or of fewer at the start, with linear interpolation. The
    result covers the range that all runs have in common.

    Args:
        runs: `History` objects, paths of logs (`.csv`, `.jsonl`, `.parquet`), or dicts of lists, one per seed; or a
            pattern of paths, such as "runs/*.csv".
        what: the quantity; missing entries are skipped.
        against: the quantity of the x axis: "steps", "updates", "time", "episode", or another column.
        window: number of values in the mean. By default 10, or 1 for a quantity that not every episode logs, such as
            `evaluation_reward_mean`.
        points: number of points of the result.

    Raises:
        ValueError: if an argument is not one of the allowed values, or a run does not have a quantity.

    Example:
    >>> from noterl.plotting import band
    >>> runs = [{"steps": [0, 10], "reward": [0.0, height]} for height in (10.0, 20.0, 30.0)]
    >>> middle = band(runs, window=1, points=3)
    >>> middle.x.tolist(), middle.median.tolist(), middle.high.tolist()
    ([0.0, 5.0, 10.0], [0.0, 10.0, 20.0], [0.0, 12.5, 25.0])
    """
    check_positive("window", window, none=True)
    check_positive("points", points)
    runs = _expand(runs)
    if isinstance(runs, str | Path | History | Mapping) or not isinstance(runs, Sequence) or not runs:
        raise ValueError(f"runs must be a list of histories, paths of logs or dicts of lists, got {runs!r}")
    curves = [_curve(run, what, against, window) for run in runs]
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if first > last:
        raise ValueError(f"runs have no {against} in common: one starts at {first:g}, another ends at {last:g}")
    x = np.linspace(first, last, points)
    low, median, high = np.percentile([np.interp(x, *curve) for curve in curves], [25, 50, 75], axis=0)
    return Band(x, low, median, high)


def compare(
    runs: Sequence[Any] | Mapping[str, Sequence[Any]] | str | Path,
    what: str = "reward",
    *,
    against: str = "steps",
    window: int | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Plot the median over runs and the band between the quartiles.

    Args:
        runs: the runs of one group, one per seed, as in `band`; or a dict of groups by name.
        what: the quantity.
        against: the quantity of the x axis: "steps", "updates", "time", "episode", or another column.
        window: number of values in the mean that smooths each run; by default as in `band`.
        path: also save the figure there; its suffix sets the format.

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
    groups = {name: _expand(group) for name, group in groups.items()}
    if not groups:
        raise ValueError(f"runs must hold at least one group of runs, got {runs!r}")
    bands = {name: band(group, what, against=against, window=window) for name, group in groups.items()}
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, middle in bands.items():
        count = len(groups[name])
        label = f"{name} ({count} runs)" if name else f"median of {count} runs"
        (line,) = axes.plot(middle.x, middle.median, label=label)
        axes.fill_between(middle.x, middle.low, middle.high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel=_AXES.get(against, against), ylabel=what.replace("_", " "))
    axes.legend()
    axes.grid(alpha=0.3)
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with naming(path):
            figure.savefig(path)
    return figure


def _expand(runs: Any) -> Any:
    """Return the paths that match a pattern, in order of their names; return anything else unchanged.

    Raises:
        ValueError: if no file matches.
    """
    if not isinstance(runs, str | Path):
        return runs
    paths = sorted(glob.glob(str(runs), recursive=True))
    if not paths:
        raise ValueError(f"runs: no file matches {str(runs)!r}")
    return paths


def _is_run(runs: Mapping[str, Any]) -> bool:
    """Return whether a dict holds the columns of one run: lists or arrays of numbers."""
    columns = [values for values in runs.values() if isinstance(values, list | tuple | np.ndarray)]
    return any(len(values) and isinstance(values[0], int | float | np.number) for values in columns)


def _columns(run: Any) -> Mapping[str, Sequence[Any]]:
    if isinstance(run, History):
        return {"episode": run.episode, **run.history}
    if isinstance(run, str | Path):
        return read_columns(run)
    if isinstance(run, Mapping):
        return run
    raise ValueError(f"runs must hold histories, paths of logs or dicts of lists, got {run!r}")


def _curve(run: Any, what: str, against: str, window: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the points `(x, smoothed values)` of one run, `[P]` each, with `x` in ascending order."""
    columns = _columns(run)
    for name, column in (("what", what), ("against", against)):
        if column not in columns:
            raise ValueError(f"{name}: a run has no {column!r}; it has {', '.join(columns)}")
    try:
        x, values = (np.asarray(columns[name], np.float64) for name in (against, what))
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"what, against: {what!r} and {against!r} of a run must be numbers: {error}") from error
    present = ~np.isnan(values)
    if not present.any():
        raise ValueError(f"what: a run has no value of {what!r}")
    if window is None:  # metrics of updates have no value before the first update, but one of each episode from then on
        window = 10 if present[np.argmax(present) :].all() else 1
    x, values = x[present], values[present]
    smooth = [math.fsum(values[max(0, end - window) : end]) / min(window, end) for end in range(1, len(values) + 1)]
    order = np.argsort(x, kind="stable")
    return x[order], np.asarray(smooth)[order]
