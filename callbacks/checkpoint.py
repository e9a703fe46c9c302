"""Saving the agent while it trains."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from noterl import saving
from noterl.callback import CHECKPOINT, Callback
from noterl.types import Logs
from noterl.utils.checks import check_bool, check_positive

from .cadence import Cadence
from .monitor import Monitor
from .writer import Writer

_NAME = re.compile(r"episode-(\d+)-(?:step-(\d+)-)?.+\.(?:noterl|safetensors)")


class _File(NamedTuple):
    """A file that stays: its name, its score, and whether the score is why it was written."""

    name: str
    score: float
    chosen: bool


class Checkpoint(Callback):
    """Save the agent every so many episodes, steps, updates or seconds, and once more when training ends.

    Files are named after episode and score, `<path>/episode-000120-reward-187.30.noterl` (`.safetensors` for weights
    alone; with another unit than episodes the step comes second). An older file is removed only when the new
    one is whole. It hears an episode's end last, so that a file holds what all other callbacks learned from it.

    Without `save_best_only` and `save_top_k` the newest `max_save_files` stay. With one of them those stay that were
    chosen by their score, and beside them the newest as it was when it was last due: `save_last=False` leaves that one
    out. What training ended with is saved too, unless `save_last=False`; and even then when a callback stopped it, so
    that the weights that reach a target are always there.

    Args:
        path: the directory of the files; made if need be.
        save_freq: how many of `unit` between files. Steps, updates and seconds are exact: the agent is saved with its
            episodes in flight.
        unit: "episodes" (finished ones), "steps" (of the environment), "updates" (of gradients) or "seconds".
        max_save_files: how many files stay, the newest; None for all.
        save_best_only: save only when the score is better than any before. The first is.
        save_top_k: let the files of the so many best scores stay, instead of the newest.
        save_last: whether the newest stays whatever its score, and what training ends with is saved.
        save_weights_only: save the networks' weights alone (`Agent.save_weights`).
        save_replay: save the memory too: exact resuming needs it, and large memories make large files.
        monitor: the quantity in an episode's logs that the score is the mean of. Before the first update there is no
            "loss", and the score is NaN.
        window: finished episodes in that mean, fewer at the start.
        mode: "max" if a higher score is better, "min" if a lower one is.
        background: write in a thread; training waits for the copy alone, and for the file before if that is still
            being written. A copy that does not fit in memory is not made, and the file written at once. A write that
            failed is raised by the next save, or at the end of training, which waits for the last.

    Raises:
        ValueError: if an argument is not what it may be; at an episode's end if its logs have no `monitor`.
        OSError: before training starts, if the directory cannot be written; when a file cannot be.

    Example:
    >>> import tempfile, noterl
    >>> from noterl.callbacks import Checkpoint
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     checkpoint = Checkpoint(directory, save_freq=2, max_save_files=1)
    ...     history = agent.fit(episodes=4, callbacks=[checkpoint], verbose=0)
    ...     len(checkpoint.files), Checkpoint.latest(directory) == checkpoint.files[-1]
    (1, True)
    """

    order = CHECKPOINT

    def __init__(
        self,
        path: str | Path,
        save_freq: float = 10,
        *,
        unit: str = "episodes",
        max_save_files: int | None = 5,
        save_best_only: bool = False,
        save_top_k: int | None = None,
        save_last: bool = True,
        save_weights_only: bool = False,
        save_replay: bool = False,
        monitor: str = "reward",
        window: int = 10,
        mode: str = "max",
        background: bool = False,
    ) -> None:
        self._cadence = Cadence("save_freq", save_freq, unit)
        self._monitor = Monitor(monitor, window, mode)
        self.max_save_files = check_positive("max_save_files", max_save_files, none=True)
        self.save_top_k = check_positive("save_top_k", save_top_k, none=True)
        if save_best_only and save_top_k is not None:
            raise ValueError(f"save_top_k must be None where save_best_only chooses the files, got {save_top_k!r}")
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise ValueError(f"path must be a directory, got {path!r}")
        self.path = Path(path)
        self.save_best_only = check_bool("save_best_only", save_best_only)
        self.save_last = check_bool("save_last", save_last)
        self.save_weights_only = check_bool("save_weights_only", save_weights_only)
        self.save_replay = check_bool("save_replay", save_replay)
        self.background = check_bool("background", background)
        self._kept: list[_File] = []
        self._best: float | None = None
        self._saved_at = -1  # the count that tells the newest file's name from others
        self._heard = False  # an episode's end, in this fit
        self._writer = Writer()
        if unit != "episodes":  # else nothing is to be done between steps
            self.between_steps = self._look  # type: ignore[method-assign]

    @staticmethod
    def latest(path: str | Path) -> Path | None:
        """Return the newest of the files that a `Checkpoint` left in a directory, or None if there is none."""
        found = [(match, file) for file in Path(path).glob("episode-*") if (match := _NAME.fullmatch(file.name))]
        order = [(int(match[1]), int(match[2] or 0), file) for match, file in found]
        return max(order)[2] if order else None

    @property
    def files(self) -> list[Path]:
        """The files that stay, oldest first."""
        return [self.path / file.name for file in self._kept]

    @property
    def _place(self) -> int:
        return self.agent.episodes if self._cadence.unit == "episodes" else self.agent.steps

    def on_train_begin(self, logs: Logs) -> None:
        """Find out now whether files can be written there."""
        self._heard = False
        self._cadence.begin(self.agent)
        saving.check_writable(self.path / "probe")

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Note the score, and save if it is time."""
        if not logs.get("complete", True):
            return
        self._monitor.hear(logs, self.agent)
        self._heard = True
        if self._cadence.unit == "episodes":
            self._look()

    def on_train_end(self, logs: Logs) -> None:
        """Save what training ended with, unless that is saved already, and wait until everything is written."""
        trained = self._heard or self._cadence.unit != "episodes"
        wanted = self.save_last or self.agent.stop_training
        choosing = self.save_best_only or self.save_top_k is not None
        try:
            if trained and self._saved_at != self._place and (wanted or choosing):
                self._save(last=wanted)
        finally:
            self._writer.close()

    def _look(self) -> None:
        if self._cadence.due(self.agent):
            self._save()

    def _save(self, last: bool = False) -> None:
        self._writer.drain()  # what stays depends on whether the file before was written
        score = self._monitor.mean
        chosen = self._chosen(score)
        if not (chosen or last or self.save_last):
            return
        file = _File(self._name(score), score, chosen)
        before = self._kept, self._best, self._saved_at
        kept = [*(other for other in self._kept if other.name != file.name), file]
        self._kept = self._staying(kept)  # the state in the file shall know the file
        self._saved_at = self._place
        if chosen and self.save_best_only:
            self._best = score

        def undo() -> None:
            self._kept, self._best, self._saved_at = *before[:2], -1

        surplus = [self.path / other.name for other in kept if other not in self._kept]
        try:
            self._write(self.path / file.name, surplus, undo)
        except BaseException:
            undo()
            raise

    def _chosen(self, score: float) -> bool:
        """Whether the score makes a file stay; without a choice all do."""
        if self.save_best_only:
            return self._monitor.better(score, self._best)
        if self.save_top_k is None:
            return True
        best = [file.score for file in self._kept if file.chosen]
        worst = (min if self._monitor.mode == "max" else max)(best, default=None)
        return self._monitor.better(score, worst if len(best) >= self.save_top_k else None)

    def _staying(self, files: list[_File]) -> list[_File]:
        """Return those of the files, oldest first, that stay when the newest is written."""
        chosen = [file for file in files if file.chosen]
        if self.save_top_k is not None:
            sign = -1 if self._monitor.mode == "max" else 1
            chosen = sorted(chosen, key=lambda file: sign * file.score)[: self.save_top_k]
        elif self.max_save_files is not None:
            chosen = chosen[-self.max_save_files :]
        return [file for file in files if file in chosen or file is files[-1]]

    def _name(self, score: float) -> str:
        agent = self.agent
        place = f"episode-{agent.episodes:06d}"
        if self._cadence.unit != "episodes":
            place += f"-step-{agent.steps:08d}"
        ending = "safetensors" if self.save_weights_only else "noterl"
        return f"{place}-{re.sub(r'[^A-Za-z0-9_.]+', '-', self._monitor.name)}-{score:.2f}.{ending}"

    def _write(self, file: Path, surplus: list[Path], undo: Any) -> None:
        job = self._job(file) if self.background else None
        if job is None:
            if self.save_weights_only:
                self.agent.save_weights(file)
            else:
                self.agent.save(file, replay=self.save_replay)
            _remove(surplus)
            return

        def write() -> None:
            job()
            _remove(surplus)

        self._writer.write(write, undo=undo)

    def _job(self, file: Path) -> Any:
        """Return what writes the agent as it is now, at any later time; None if its copy would not fit in memory."""
        from noterl.training import state as agent_state

        if self.save_weights_only:
            weights = agent_state.weights(self.agent)
            return lambda: saving.write_weights(file, weights)
        document = agent_state.document(self.agent, replay=self.save_replay)
        replay = self._writer.copied(document["state"]["replay"])
        if replay is None and document["state"]["replay"] is not None:
            self.agent.say(f"a copy of the memory does not fit in what is free: {file.name} is written at once")
            return None
        document["state"]["replay"] = replay  # of all the state, this alone is a view of what training changes
        return lambda: saving.write(file, document)

    def get_state(self) -> dict[str, Any]:
        """Return the files, the recent values and the best score."""
        return {
            "files": [file.name for file in self._kept],
            "scores": [file.score for file in self._kept],
            "chosen": [file.chosen for file in self._kept],
            "recent": list(self._monitor.recent),
            "best": self._best,
            "saved_at": self._saved_at,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Take what `get_state` returned; files are those of this directory."""
        columns = [Path(name).name for name in state["files"]], state["scores"], state["chosen"]
        self._kept = [_File(*row) for row in zip(*columns, strict=True)]
        self._monitor.set_recent(state["recent"])
        self._best, self._saved_at = state["best"], state["saved_at"]


def _remove(files: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)
