"""History: the result of `fit`, with one list per quantity and one entry per finished episode."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noterl.callback import HISTORY, Callback
from noterl.types import Logs
from noterl.utils.checks import check_positive, check_word
from noterl.utils.files import naming
from noterl.utils.optional import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("reward", "length", "loss", "steps", "updates", "time")


class History(Callback):
    """The record of one `fit`.

    Attributes:
        history: one list per quantity, as in Keras: `reward` (returns), `length`, `loss` (NaN before the first update),
            `steps` and `updates` (the agent's totals), and `time` (seconds since the start of this `fit`). Every other
            scalar that updates return has a list of means, like `loss`. Values that callbacks add to the `logs` of an
            episode also have lists, with NaN for episodes without a value.
        episode: the number of each finished episode, in the order in which they ended.
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

    def __init__(self) -> None:
        self.history: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self.episode: list[int] = []
        self.stop_reason: str | None = None
        self.time_split: dict[str, float] = {}
        self.seconds = 0.0

    def __len__(self) -> int:
        return len(self.episode)

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Append the logs of a finished episode; skip one that the end of training cut short."""
        if not logs.get("complete", True):
            return
        for name in logs:
            if name not in self.history and name != "complete":
                self.history[name] = [math.nan] * len(self.episode)
        self.episode.append(episode)
        for name, values in self.history.items():
            value = logs.get(name, math.nan)
            values.append(value + self.seconds if name == "time" else value)

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame with a row per episode and a column per quantity, as in `to_csv`.

        Raises:
            ImportError: if pandas is not installed.
        """
        pandas = require("pandas", "pandas", "History.to_dataframe")
        return pandas.DataFrame({"episode": self.episode, **self.history})

    def to_csv(self, path: str | Path) -> None:
        """Write a CSV file with a row per episode and a column per quantity."""
        with naming(path), Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["episode", *self.history])
            writer.writerows(zip(self.episode, *self.history.values(), strict=True))

    def plot(self, what: str = "both", *, window: int = 10, path: str | Path | None = None) -> Figure:
        """Plot the learning curve.

        Args:
            what: "reward", "loss" or "both".
            window: number of episodes in the moving average of the rewards.
            path: also save the figure there; its suffix sets the format.

        Raises:
            ValueError: if `what` is another word, or `window` is not a positive int.
        """
        check_word("what", what, ("reward", "loss", "both"))
        check_positive("window", window)
        from matplotlib.figure import Figure

        names = ["reward", "loss"] if what == "both" else [what]
        figure = Figure(figsize=(8, 3.2 * len(names)), layout="constrained")
        for axes, name in zip(figure.subplots(len(names), squeeze=False)[:, 0], names, strict=True):
            values = self.history[name]
            axes.plot(values, linewidth=0.8, alpha=0.5 if name == "reward" else 1.0, label=name)
            if name == "reward" and len(values) >= window:
                axes.plot(range(window - 1, len(values)), _moving_average(values, window), label=f"mean of {window}")
                axes.legend()
            axes.set(xlabel="episode", ylabel=name)
            axes.locator_params(axis="x", integer=True)
            axes.grid(alpha=0.3)
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with naming(path):
                figure.savefig(path)
        return figure


def _moving_average(values: list[float], window: int) -> list[float]:
    return [math.fsum(values[end - window : end]) / window for end in range(window, len(values) + 1)]
