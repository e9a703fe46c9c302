"""Saving the agent while it trains."""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path
from typing import Any

from noterl import saving
from noterl.callback import CHECKPOINT, Callback
from noterl.types import Logs


class Checkpoint(Callback):
    """Save the agent every so many finished episodes, and once more when training ends.

    Files are named after episode and score, `<path>/episode-000120-reward-187.30.noterl` (`.safetensors` for weights
    alone). An older file is removed only when the new one is whole. It hears an episode's end last, so that a file
    holds what all other callbacks learned from it.

    Args:
        path: the directory of the files; made if need be.
        save_freq: finished episodes between files.
        max_save_files: how many files stay, the newest; None for all.
        save_best_only: save only when the score is higher than any before. The first is.
        save_weights_only: save the networks' weights alone (`Agent.save_weights`).
        save_replay: save the memory too: exact resuming needs it, and large memories make large files.
        monitor: the quantity in an episode's logs that the score is the mean of. Before the first update there is no
            "loss", and the score is NaN.
        window: finished episodes in that mean, fewer at the start.

    Raises:
        ValueError: if an argument is not what it may be; at an episode's end if its logs have no `monitor`.
        OSError: before training starts, if the directory cannot be written.

    Attributes:
        files: the files that stay, oldest first.

    Example:
    >>> import tempfile, noterl
    >>> from noterl.callbacks import Checkpoint
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     checkpoint = Checkpoint(directory, save_freq=2, max_save_files=1)
    ...     history = agent.fit(episodes=4, callbacks=[checkpoint], verbose=0)
    ...     len(checkpoint.files)
    1
    """

    order = CHECKPOINT

    def __init__(
        self,
        path: str | Path,
        save_freq: int = 10,
        *,
        max_save_files: int | None = 5,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        save_replay: bool = False,
        monitor: str = "reward",
        window: int = 10,
    ) -> None:
        for name, value in (("save_freq", save_freq), ("max_save_files", max_save_files), ("window", window)):
            if name == "max_save_files" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive int, got {value!r}")
        self.path = Path(path)
        self.save_freq, self.max_save_files, self.save_best_only = save_freq, max_save_files, save_best_only
        self.save_weights_only, self.save_replay, self.monitor = save_weights_only, save_replay, monitor
        self.files: list[Path] = []
        self._recent: deque[float] = deque(maxlen=window)
        self._best: float | None = None
        self._saved_at = -1
        self._heard = False  # an episode's end, in this fit

    def on_train_begin(self, logs: Logs) -> None:
        """Find out now whether files can be written there."""
        self._heard = False
        saving.check_writable(self.path / "probe")

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Save if it is time."""
        if not logs.get("complete", True):
            return
        if self.monitor in logs:
            self._recent.append(float(logs[self.monitor]))
        elif self.monitor != "loss":  # there is none before the first update
            raise ValueError(
                f"monitor: the episode's logs have no {self.monitor!r}; they have {', '.join(sorted(logs))}"
            )
        self._heard = True
        if self.agent.episodes % self.save_freq == 0:
            self._save()

    def on_train_end(self, logs: Logs) -> None:
        """Save what training ended with, unless that is saved already."""
        if self._heard and self._saved_at != self.agent.episodes:
            self._save()

    def _save(self) -> None:
        score = math.fsum(self._recent) / len(self._recent) if self._recent else math.nan
        best = self._best
        if self.save_best_only:
            if math.isnan(score) or (best is not None and score <= best):
                return
            self._best = score
        ending = "safetensors" if self.save_weights_only else "noterl"
        name = self.monitor.replace("/", "-")
        file = self.path / f"episode-{self.agent.episodes:06d}-{name}-{score:.2f}.{ending}"
        self._saved_at = self.agent.episodes
        old = [*self.files, file] if file not in self.files else list(self.files)
        keep = len(old) if self.max_save_files is None else self.max_save_files
        before, self.files = self.files, old[-keep:]  # the state in the file shall know the file
        try:
            if self.save_weights_only:
                self.agent.save_weights(file)
            else:
                self.agent.save(file, replay=self.save_replay)
        except BaseException:
            self.files, self._best, self._saved_at = before, best, -1
            raise
        for surplus in old[:-keep]:
            surplus.unlink(missing_ok=True)

    def get_state(self) -> dict[str, Any]:
        """Return the files, the recent values and the best score."""
        return {
            "files": [file.name for file in self.files],
            "recent": list(self._recent),
            "best": self._best,
            "saved_at": self._saved_at,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state` returned; files are those of this directory."""
        self.files = [self.path / Path(name).name for name in state["files"]]
        self._recent = deque(state["recent"], maxlen=self._recent.maxlen)
        self._best, self._saved_at = state["best"], state["saved_at"]
