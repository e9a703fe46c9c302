"""History: the result of `fit`, with one list per quantity and one entry per finished episode or epoch."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noterl.callback import HISTORY, Callback
from noterl.types import Logs
from noterl.utils.checks import check_positive
from noterl.utils.files import write_bytes
from noterl.utils.notebook import table
from noterl.utils.optional import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("reward", "length", "loss", "steps", "updates", "time")


def check_logs(episode: int, logs: Logs) -> None:
    """Raise a ValueError if a callback has replaced a number that the log of a run needs by another value."""
    # The kinds of NumPy's dtypes: bools, ints and floats are numbers, only ints count steps and updates.
    for name, kinds in {"reward": "biuf", "time": "biuf", "steps": "iu", "updates": "iu"}.items():
        value = np.asarray(logs.get(name, 0))
        if value.ndim or value.dtype.kind not in kinds:
            raise ValueError(
                f"logs: {name!r} of episode {episode} must be {'an int' if kinds == 'iu' else 'a number'}, got "
                f"{logs[name]!r:.80}: a callback has changed it"
            )


class History(Callback):
    """The record of one `fit`.

    Args:
        unit: "episode", or "epoch" for `fit(dataset=, updates=)`, whose history has no `reward` and no `length`.

    Attributes:
        unit: what an entry of each list is about.
        history: one list per quantity, as in Keras: `reward` (returns), `length`, `loss` (NaN before the first update),
            `steps` and `updates` (the agent's totals), and `time` (seconds since the start of this `fit`). Every other
            scalar that updates return has a list of means, like `loss`. Values that callbacks add to the `logs` of an
            episode also have lists, with NaN for episodes without a value.
        episode: the number of each finished episode, in the order of their ends.
        stop_reason: why the fit ended.
        time_split: seconds spent in each part of the loop, by name.
        seconds: training time before the fit was interrupted and resumed, which `time` includes.

    Example:
    >>> from noterl import History
    >>> history = History()
    >>> history.on_episode_end(0, {"reward": 1.0, "length": 9, "complete": True})
    >>> history.history["reward"]
    [1.0]
    """

    order = HISTORY

    takes_epochs = True

    def __init__(self, unit: str = "episode") -> None:
        self.unit: str = unit
        self.history: dict[str, list[Any]] = {name: [] for name in (COLUMNS if unit == "episode" else ())}
        self.episode: list[int] = []
        self.stop_reason: str | None = None
        self.time_split: dict[str, float] = {}
        self.seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.episode)

    def __repr__(self) -> str:
        return f"<History of {len(self)} {self.unit}s: {', '.join(self.history)}>"

    def _repr_html_(self) -> str:
        ended = "" if self.stop_reason is None else f", ended by: {self.stop_reason}"
        # NaN differs from itself: the mean is over values that exist.
        recent = [(name, [value for value in values if value == value][-10:]) for name, values in self.history.items()]
        means = {f"{name} (last, mean of 10)": (ten[-1], math.fsum(ten) / len(ten)) for name, ten in recent if ten}
        return table(f"{len(self)} {self.unit}s{ended}", means)

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Append the logs of a finished episode; skip one that the end of training cut short."""
        if not logs.get("complete", True):
            return
        # A variable of the agent would change in all rows.
        logs.update({name: float(value) for name, value in logs.items() if hasattr(value, "assign")})
        check_logs(episode, logs)
        for name in logs:
            # Earlier episodes did not have this value.
            if name not in self.history and name != "complete":
                self.history[name] = [math.nan] * len(self.episode)
        self.episode.append(episode)
        for name, values in self.history.items():
            value = logs.get(name, math.nan)
            # A run that continues counts its time on; see `BackupAndRestore`.
            values.append(value + self.seconds if name == "time" else value)

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame with a row per episode and a column per quantity, as in `to_csv`.

        Raises:
            ImportError: if pandas is not installed.
        """
        pandas = require("pandas", "pandas", "History.to_dataframe")
        return pandas.DataFrame({"episode": self.episode, **self.history})

    def to_csv(self, path: str | Path) -> None:
        """Write a CSV file with a row per episode and a column per quantity; missing directories are created."""
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(["episode", *self.history])
        writer.writerows(zip(self.episode, *self.history.values(), strict=True))
        write_bytes(path, text.getvalue().encode())

    def plot(
        self,
        metrics: str | Sequence[str] | None = None,
        *,
        x: str | None = None,
        window: int | None = None,
        path: str | Path | None = None,
        ax: Any = None,
    ) -> Figure:
        """Plot quantities of the episodes, each in a separate panel.

        Thin lines show the values, thick lines the moving averages.

        Args:
            metrics: one or more quantities of `history`, such as "evaluation_reward_mean"; by default "reward" and
                "loss", for epochs "loss".
            x: the quantity of the x axis: "steps", "episode", "updates", "time", or another quantity; by default
                "steps", for epochs "updates".
            window: number of values in the moving average; by default 10, or 1 for a quantity that not every episode
                logs, such as the results of evaluations.
            path: also save the figure there; the suffix sets the format, such as `.pdf`, `.svg` or `.png`.
            ax: axes of Matplotlib to draw on instead of a new figure: one for each quantity.

        Raises:
            ValueError: if an argument is not one of the allowed values, or the history does not have a quantity.
        """
        usual = (("reward", "loss"), "steps") if self.unit == "episode" else (("loss",), "updates")
        metrics = usual[0] if metrics is None else metrics
        x = usual[1] if x is None else x
        names = [metrics] if isinstance(metrics, str) else list(metrics)
        if not names:
            raise ValueError("metrics must be one or more quantities, got none")
        columns = {"episode": self.episode, **self.history}
        for argument, name in (*(("metrics", name) for name in names), ("x", x)):
            if name not in columns:
                raise ValueError(f"{argument}: the history has no {name!r}; it has {', '.join(columns)}")
        check_positive("window", window, none=True)
        from noterl.utils import figures

        with figures.drawing(len(names), height=2.4, ax=ax, path=path) as panels:
            for axes, name in zip(panels, names, strict=True):
                values = np.asarray(columns[name], np.float64)
                width = figures.window_of(values, window)
                present = ~np.isnan(values)
                values = values[present]
                at = np.asarray(columns[x], np.float64)[present]
                # Among few values, a marker shows a value without neighbors, such as that of the first evaluation.
                (line,) = axes.plot(at, values, marker="." if len(values) < 50 else "", label=name.replace("_", " "))
                if 1 < width <= len(values):
                    line.set(alpha=0.35, linewidth=0.7)
                    # Without the first values, whose mean would be over fewer.
                    averages = figures.smooth(values, width)[width - 1 :]
                    at = at[width - 1 :]
                    axes.plot(at, averages, color=line.get_color(), linestyle="-", label=f"mean of {width}")
                    axes.legend()
                axes.set(xlabel=figures.AXES.get(x, x.replace("_", " ")), ylabel=name.replace("_", " "))
        return figures.figure_of(panels)
