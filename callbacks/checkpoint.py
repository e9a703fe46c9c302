"""A callback that saves the agent during training."""

from __future__ import annotations

import itertools
import json
import os
import re
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from noterl import saving
from noterl.callback import CHECKPOINT, Callback, Every
from noterl.types import Logs
from noterl.utils.budget import LIMITS, parse
from noterl.utils.checks import check_bool, check_positive
from noterl.utils.files import reading, user_path, write_bytes

from .support.monitor import Monitor
from .support.writer import Writer

# Groups 1 and 2 are the episode and the step; `latest` sorts by them where no manifest lists the order.
_NAME = re.compile(
    r"episode-(\d+)-(?:step-(\d+)-)?[\w.-]+-(?:minus-)?(?:\d+\.\d\d|nan|inf)(?:-\d+)?\.(?:noterl|safetensors)", re.ASCII
)
# What is monitored instead of the reward if the agent trains on a data set, whose epochs have no reward.
_LOSS = "loss"
MANIFEST = ".checkpoints.json"  # lists the files of the run that saved last


class _File(NamedTuple):
    """A kept file: the name, the score, and whether `_is_chosen` returned True for the score."""

    name: str
    score: float
    chosen: bool


class Checkpoint(Callback):
    """Save the agent every `save_freq` episodes, steps, updates or seconds, and when training ends.

    Files are named by episode and score, such as `<path>/episode-000120-reward-187.30.noterl`. A score of -187.30 is
    written as `minus-187.30`. The ending is `.safetensors` for weights only. If `unit` is not "episodes", the step
    follows the episode. An older file is removed only after the new one is complete. Checkpoints run after all other
    callbacks, so a file holds the state of other callbacks after the episode.

    Which files are kept: by default, the newest `max_save_files`; with `save_best_only` or `save_top_k`, the
    best-scoring ones, plus the newest one unless `save_last=False`. The agent at the end of training is saved too,
    unless `save_last=False`. If a callback stopped training, the agent is always saved, so that weights that reach a
    target are kept. The file replaces a file of this run with the same name.

    Each run has a random identity, which the state, the files and the manifest contain. A file with another identity,
    or without one, is never removed or replaced. If such a file has the name of a new file, the new name gets a suffix:
    `episode-000120-reward-187.30-2.noterl`. A restored run keeps the identity. If none of the run's files is in the
    directory and the manifest is not of this run, the run has moved, and has another identity from then on.

    A manifest in the directory lists the files of the run that trained last. When training begins, the manifest lists
    only files of this run: files in the directory that a restored state contains. The scores of others do not count.

    Args:
        path: the directory of the files, created if necessary.
        save_freq: number of `unit` between files. Unless `unit` is "episodes", the agent is saved after the step at
            which a file is due, with the episodes in progress.
        unit: "episodes" (finished ones), "steps" (of the environment), "updates" (of gradients) or "seconds".
        max_save_files: number of newest files that are kept; None for all.
        save_best_only: keep the files whose score was better than all before, and the newest file.
        save_top_k: keep this number of files with the best scores, and the newest file.
        save_last: keep the newest file even with a low score, and save the agent at the end of training.
        save_weights_only: save only the weights (`Agent.save_weights`).
        save_replay: save the memory too, for exact resuming; large memories make large files.
        monitor: the metric whose mean is the score, a name in an episode's logs. The score of "loss" is NaN before
            the first update.
        window: number of values in the mean, one of each finished episode that logs the metric; there are fewer at the
            start. By default 10, or 1 for a metric that not every episode logs, such as `evaluation_reward_mean`. With
            `save_best_only` or `save_top_k`, no score is compared before there are that many. The score of a metric
            that not every episode logs is compared at the episode that logs the metric: at a file that is due later,
            the agent has changed. The agent is then saved again at the next episode that logs the metric.
        mode: "max" if a higher score is better, "min" if a lower one is better.
        background: write in a thread. Training waits only for the copy of the state, and for a previous file that is
            still being written. If the copy does not fit in memory, training waits for the file. An error of the thread
            is raised by the next save, or at the end of training.

    Raises:
        ValueError: if an argument is not one of the allowed values; at an episode's end, if the logs do not hold
            `monitor`.
        noterl.saving.FileError: before training starts, if a damaged or foreign file has the name of the manifest.
        OSError: before training starts, if the directory cannot be written; when a file cannot be written.

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
    takes_epochs = True

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
        window: int | None = None,
        mode: str = "max",
        background: bool = False,
    ) -> None:
        at = "episode" if unit == "episodes" else "step"
        self.every: Every = Every(save_freq, unit, at=at, name="save_freq", counts_epochs=True)
        self._monitor = Monitor(monitor, window, mode)
        self.max_save_files: Any = check_positive("max_save_files", max_save_files, none=True)
        self.save_top_k: Any = check_positive("save_top_k", save_top_k, none=True)
        if save_best_only and save_top_k is not None:
            raise ValueError(f"save_top_k must be None if save_best_only is set, got {save_top_k!r}")
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise ValueError(f"path must be a directory, got {path!r}")
        self.path: Path = user_path(path)
        self.save_best_only: bool = check_bool("save_best_only", save_best_only)
        self.save_last: bool = check_bool("save_last", save_last)
        self.save_weights_only: bool = check_bool("save_weights_only", save_weights_only)
        self.save_replay: bool = check_bool("save_replay", save_replay)
        self.background: bool = check_bool("background", background)
        self._run = ""  # the identity of the run in this directory; empty before its first `fit`
        self._kept: list[_File] = []
        self._awaits_score = False  # whether the last file that was due had no score of its own
        self._has_score = True  # False after an episode whose logs do not hold the metric
        # `log_step` of the agent at the last save, or at the start of training; a resumed run has that of its state.
        self._saved_at: int | None = None
        self._writer = Writer()

    @staticmethod
    def latest(path: str | Path) -> Path | None:
        """Return the newest file of the run that trained last in a directory; None if that run has saved none.

        To continue an interrupted run, call this before `fit`, which starts another run unless the agent is restored.
        Without the manifest that a `Checkpoint` writes, the newest file is the one with the highest episode and step.

        Raises:
            noterl.saving.FileError: if the manifest is damaged.
        """
        path = user_path(path)
        matches = {file.name: match for file in path.glob("episode-*") if (match := _NAME.fullmatch(file.name))}
        manifest = path / MANIFEST
        if manifest.exists():
            names = [name for name in _read_manifest(manifest)["files"] if name in matches]
        else:
            names = sorted(matches, key=lambda name: (int(matches[name][1]), int(matches[name][2] or 0), name))
        return path / names[-1] if names else None

    @property
    def files(self) -> list[Path]:
        """The kept files that are in the directory, oldest first."""
        return [self.path / file.name for file in self._kept if self._is_own(file.name)]

    def on_train_begin(self, logs: Logs) -> None:
        """Write the manifest, and set the identity of the run in this directory."""
        if self._is_by_score:
            self._monitor.check_choice(self)
        manifest = self.path / MANIFEST
        saving.check_writable(manifest)
        last_run = _read_manifest(manifest).get("run") if manifest.exists() else None
        # A run that resumes from a time before its first file has no file here, but the manifest is its own.
        if not self._run or not (self.files or last_run == self._run):
            self._run = secrets.token_hex(16)
        if self._saved_at is None:
            self._saved_at = self.agent.log_step
        self._has_score = True
        self._write_manifest([file.name for file in self.files])

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Update the score; save if a file that was due has waited for this score, and the score is chosen."""
        if logs.get("complete", True):
            # False until the update is complete: if it raises an error, `on_train_end` must not save a score of earlier
            # episodes.
            self._has_score = False
            if "reward" not in logs and self._monitor.name == "reward" and not self._is_by_score:
                self._monitor.follow(_LOSS)
            is_logged = self._monitor.update(logs, self)
            self._has_score = True
            is_due = self.every.is_due(self.agent, self._every_mark or 0)
            # If a file is due at this episode, `on_due` saves it, and saving here too would write it twice.
            if self._awaits_score and is_logged and not is_due and self._is_chosen(self._monitor.mean):
                self._save()

    def on_due(self, logs: Logs) -> None:
        """Save."""
        self._save()

    def on_train_end(self, logs: Logs) -> None:
        """Save if this state has no file yet, and wait until everything is written."""
        stopped = self.agent.stop_training
        last = self.save_last or stopped
        # The weights at the end may not be those of the last step.
        restores = any(getattr(callback, "restore_best_weights", False) for callback in self.agent.callbacks)
        try:
            changed = self._saved_at not in (None, self.agent.log_step) or stopped or restores
            if changed and self._has_score and (last or self._is_by_score):
                self._save(last=last)
        finally:
            self._writer.close()
        if self._is_by_score:
            self._monitor.end(self)

    @property
    def _is_by_score(self) -> bool:
        """Whether files are chosen by score."""
        return self.save_best_only or self.save_top_k is not None

    def _save(self, last: bool = False) -> None:
        """Save the agent, and remove files that are not kept; do nothing if the new file would not be kept.

        `last` is whether training ends, so that the file is kept whatever the score.
        """
        self._writer.wait()  # which files are kept depends on whether the previous one was written
        score = self._monitor.mean
        name = self._name(score)
        before = self._kept
        saved_at = self._saved_at
        chosen = self._is_chosen(score) or any(file.chosen for file in before if file.name == name)
        if not (chosen or last or self.save_last):
            return
        file = _File(name, score, chosen)
        kept = [*(other for other in self._kept if other.name != file.name), file]
        self._kept = self._files_to_keep(kept)  # before the save, so that the saved state includes this file
        self._saved_at = self.agent.log_step

        # If the write fails, perhaps later in the thread, the older files are still the kept ones.
        def undo() -> None:
            self._kept = before
            self._saved_at = saved_at

        surplus = [other.name for other in kept if other not in self._kept]
        try:
            self._write(file.name, surplus, undo)
        except BaseException:
            undo()
            raise

    def _is_chosen(self, score: float) -> bool:
        """Return whether the score is one of the best; True if files are not chosen by score.

        If the score belongs to an earlier agent, the result is False, and the next score decides in `on_episode_end`.
        """
        if not self._is_by_score:
            return True
        self._awaits_score = not self._monitor.is_current(self.agent.log_step)
        if self._awaits_score or not self._monitor.is_full:
            return False
        scores = [file.score for file in self._kept if file.chosen and self._is_own(file.name)]
        if self.save_best_only:
            return self._monitor.is_better(score, scores[-1] if scores else None)
        # The one that a new file has to beat is the worst of the kept ones, once there are `save_top_k`.
        worst = (min if self._monitor.mode == "max" else max)(scores, default=None)
        return self._monitor.is_better(score, worst if len(scores) >= self.save_top_k else None)

    def _files_to_keep(self, files: list[_File]) -> list[_File]:
        """Return the files, oldest first, that are kept once the newest is written."""
        chosen = [file for file in files if file.chosen]
        if self.save_top_k is not None:
            chosen = [file for file in chosen if file is files[-1] or self._is_own(file.name)]
            sign = -1 if self._monitor.mode == "max" else 1
            chosen = sorted(chosen, key=lambda file: sign * file.score)[: self.save_top_k]
        elif self.max_save_files is not None:
            chosen = chosen[-self.max_save_files :]
        return [file for file in files if file in chosen or file is files[-1]]

    def _name(self, score: float) -> str:
        """Return the name of a file of the current state, with a number at the end if another run has the name."""
        ending = "safetensors" if self.save_weights_only else "noterl"
        metric = re.sub(r"[^A-Za-z0-9_.]+", "-", self._monitor.name)
        episode = f"episode-{self.agent.episodes + self.agent.finished_epochs:06d}-"
        step = "" if self.every.unit == "episodes" else f"step-{self.agent.log_step:08d}-"
        stem = f"{episode}{step}{metric}-{f'{score:.2f}'.replace('-', 'minus-')}"
        names = itertools.chain([f"{stem}.{ending}"], (f"{stem}-{number}.{ending}" for number in itertools.count(2)))
        # A link whose target is missing does not exist, but writing would follow it.
        return next(name for name in names if not os.path.lexists(self.path / name) or self._is_own(name))

    def _is_own(self, name: str) -> bool:
        """Return whether this run has written a file."""
        return bool(self._run) and saving.run_of(self.path / name) == self._run

    def _write(self, name: str, surplus: list[str], undo: Callable[[], None]) -> None:
        """Write the current state, then remove the files that are not kept."""
        path = self.path / name
        background = self.background
        if self.save_weights_only:
            from noterl.training.state import without_shared  # imports Keras

            agent: Any = self.agent
            weights = without_shared(agent, self.agent.get_weights())
            save = partial(saving.write_weights, path, weights, run=self._run)
        else:
            document = self.agent.get_document(replay=self.save_replay)
            background = background and self._writer.detach(document, path, self.agent)
            save = partial(saving.write, path, document, run=self._run)

        listed = [file.name for file in self._kept if file.name == name or self._is_own(file.name)]

        def job() -> None:
            save()
            self._write_manifest(listed)
            for other in filter(self._is_own, surplus):  # the state may come from a run in another folder
                (self.path / other).unlink(missing_ok=True)

        self._writer.write(job, background=background, undo=undo)

    def _write_manifest(self, names: list[str]) -> None:
        write_bytes(self.path / MANIFEST, json.dumps({"run": self._run, "files": names}, indent=1).encode())

    def get_state(self) -> dict[str, Any]:
        """Return the identity of the run, the files and the recent values."""
        return {
            "run": self._run,
            "files": [file.name for file in self._kept],
            "scores": [file.score for file in self._kept],
            "chosen": [file.chosen for file in self._kept],
            "monitor": self._monitor.name,
            **self._monitor.get_state(),
            "awaits_score": self._awaits_score,
            "saved_at": self._saved_at,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned, without names that a `Checkpoint` does not give to files.

        The state of an older version has no identity, so the files count as files of another run.
        """
        run = state.get("run")
        self._run = run if isinstance(run, str) and re.fullmatch("[0-9a-f]{32}", run) else ""
        rows = zip(state["files"], state["scores"], state["chosen"], strict=True)
        # A file name comes from a document that may be damaged or hostile, and files with these names are removed.
        self._kept = [_File(*row) for row in rows if _NAME.fullmatch(row[0])]
        if state.get("monitor") == _LOSS and self._monitor.name == "reward":
            self._monitor.follow(_LOSS)
        self._monitor.set_state(state)
        self._awaits_score = state.get("awaits_score", False)
        self._saved_at = state.get("saved_at")


def _read_manifest(path: Path) -> dict[str, Any]:
    """Return a manifest, whose "files" are names, oldest first; raise a FileError for any other file."""
    with reading(path) as file:
        document = parse(file.read(LIMITS["bytes of JSON"] + 1), json.loads)
        names = document.get("files") if isinstance(document, dict) else None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise saving.FileError("it is not the manifest of a Checkpoint; remove it")
    return document
