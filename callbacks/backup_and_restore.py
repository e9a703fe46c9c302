"""A callback that resumes a crashed run when the same script runs again."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noterl import saving
from noterl.callback import CHECKPOINT, AgentView, Budget, Callback, Every
from noterl.types import Logs
from noterl.utils.checks import is_plain
from noterl.utils.files import user_path

from .support.claim import Claim
from .support.writer import Writer


class BackupAndRestore(Callback):
    """Keep a backup of everything in one file, and resume from the file when the same script runs again.

    The process may be killed at any moment. After Ctrl-C, SIGTERM or SIGHUP between two steps, a last backup is
    written; within an evaluation or another callback, the newest backup stays. When the script runs again, the
    interrupted `fit` trains the rest of its budget. If the environment passes `noterl.envs.check`, the run ends in the
    same state as an uninterrupted run, bit for bit except for wall-clock times. The backup holds the memory, the
    episodes in progress, all generators and callbacks, where the `fit` began, and the `History`.

    A backup identifies a `fit` by its number in the process. When the script runs again, earlier `fit` calls are
    skipped: their callbacks do not run, and their histories are empty. Code between two `fit` calls runs again, with
    the weights of the backup, so save and record in callbacks there, or only if the file is missing. A complete `fit`
    is not repeated. If the script passes a larger budget to such a `fit`, training continues, unless a callback has
    stopped training. If numbers or words in the script have changed, a warning names the changes. Hyperparameters such
    as `gamma` and the seed come from the backup; other settings such as `batch_size` come from the script.

    Args:
        path: the file, such as "runs/dqn/backup.noterl".
        save_freq: number of `unit` between backups, which is the most that a crash loses.
        unit: "episodes", "steps", "updates" or "seconds".
        background: write in a thread if a copy of the state fits in memory. Training then waits only for the copy, and
            for a previous backup that is still being written.

    Raises:
        ValueError: if an argument is not one of the allowed values, or the file does not fit this agent.
        noterl.saving.FileError: if the file is damaged or not one of noterl's.
        OSError: before training starts, if the file cannot be written; when a backup cannot be written.

    Example:
    >>> import tempfile, noterl
    >>> from noterl.callbacks import BackupAndRestore
    >>> def script(episodes):
    ...     agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    ...     history = agent.fit(episodes=episodes, callbacks=[BackupAndRestore(path)], verbose=0)
    ...     return agent.episodes, len(history)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = f"{directory}/backup.noterl"
    ...     script(episodes=2), script(episodes=2), script(episodes=5)
    ((2, 2), (2, 2), (5, 5))
    """

    order: int = CHECKPOINT + 1  # so that a backup holds what the checkpoints of the same step have saved

    def __init__(
        self, path: str | Path, save_freq: float = 60, *, unit: str = "seconds", background: bool = False
    ) -> None:
        self.every: Every = Every(save_freq, unit, at="step", name="save_freq")
        self.path: Path = user_path(path)
        self.background: bool = background
        # The numbers of the fits until this one, with the episodes, steps and updates at which each began.
        self._fits: list[list[int]] = []
        self._restored: dict[str, Any] | None = None  # what the backup holds about this fit, if it resumes
        self._over = False  # whether this fit writes no further backup
        self._writer = Writer()
        self._claim = Claim(self.path)

    def before_fit(self, agent: AgentView, budget: Budget) -> None:
        """Restore the agent if the backup is of this fit or a later one."""
        saving.check_writable(self.path)
        self._over = False
        self._restored = None
        self._fits = [[agent.fits, agent.episodes, agent.steps, agent.updates]]
        if not self.path.exists():
            return
        document = saving.read(self.path)
        saved = self._part_of(document)
        later = [fit for fit in saved["fits"] if fit[0] > agent.fits]
        if later:
            self._skip(agent, budget, document, later[0])
            return
        # If the backup is older than this fit, the fit has not begun yet.
        if saved["fits"][-1][0] < agent.fits:
            self._fits = [*saved["fits"], *self._fits]
            return
        changed = _changes(document, agent.get_document())
        try:
            agent.set_document(document)
        except ValueError as error:
            source = "; ".join(f"{name}={old}, not {new}" for name, (old, new) in changed.items()) or "another program"
            raise ValueError(
                f"the backup {self.path} does not fit this agent. It was made with {source}: {error}. Remove the file "
                "to start again."
            ) from error
        if changed:
            warnings.warn(
                f"{self.path} was made with other arguments.{_used(changed, document['state'], agent)} Remove the file "
                "to start again.",
                stacklevel=7,  # the caller of fit
            )
        budget.resumed = True
        # The budget counts from where the interrupted fit began, not from where this process stands.
        for unit, then, now in zip(
            ("episode", "step", "update"), saved["fits"][-1][1:], self._fits[0][1:], strict=True
        ):
            setattr(budget, f"last_{unit}", getattr(budget, f"last_{unit}") + then - now)
        self._restored = saved
        self._fits = saved["fits"]
        counts_now = f"{agent.episodes} episodes, {agent.steps} steps, {agent.updates} updates"
        agent.show_message(f"resuming from {self.path}: {counts_now}")

    def _skip(self, agent: Any, budget: Budget, document: Any, following: list[int]) -> None:
        """Let this fit end at once; the agent then has the counts at which the following fit began."""
        budget.skipped = True
        # The following fits restore the agent in any case, but code between them may read it.
        with contextlib.suppress(ValueError):
            agent.set_document(document)
        counters = agent._parts.counters
        _, counters.episodes, counters.steps, counters.updates = following
        _, budget.last_episode, budget.last_step, budget.last_update = following
        agent.show_message(f"{self.path} is the backup of a later fit: skipping this one")

    def on_train_begin(self, logs: Logs) -> None:
        """Restore the history, and stop again if the interrupted fit was stopped. Warn if another process writes."""
        self._claim.take()
        if self._restored is None:
            return
        history = self.agent.history
        history.history = {name: list(column) for name, column in self._restored["columns"].items()}
        history.episode = list(self._restored["episode"])
        history.seconds = float(history.history["time"][-1]) if history.episode else 0.0
        if self._restored["stop_reason"] is not None:
            self.agent.stop(self._restored["stop_reason"])

    def on_due(self, logs: Logs) -> None:
        """Write a backup."""
        self._save()

    def on_exception(self, error: BaseException) -> None:
        """After Ctrl-C, SIGTERM or SIGHUP between two steps, write a backup; otherwise keep the last one.

        After another error, the current state may differ from the state of an uninterrupted run.
        """
        agent: Any = self.agent
        # Only a deferred signal leaves the agent between two steps; other errors may leave it within one.
        if not self._over and error is agent._parts.session.guard.deferred:
            self._save()
        self._over = True

    def on_train_end(self, logs: Logs) -> None:
        """Write the last backup, and wait for the end of the write."""
        try:
            if not self._over:
                self._save()
        finally:
            self._claim.release()
            self._writer.close()

    def _save(self) -> None:
        """Write a backup, once the previous one is written."""
        self._writer.wait()
        document = self.agent.get_document()
        history = self.agent.history
        document["state"]["callbacks"][self.state_key] = {
            "fits": self._fits,
            "stop_reason": self.agent.stop_reason if self.agent.stop_training else None,
            "columns": {name: list(column) for name, column in history.history.items()},
            "episode": list(history.episode),
        }
        background = self.background and self._writer.detach(document, self.path, self.agent)
        self._writer.write(lambda: saving.write(self.path, document), background=background)

    def _part_of(self, document: Any) -> dict[str, Any]:
        """Return what `_save` has added to a backup; raise a FileError if the file is not a backup."""
        try:
            part = document["state"]["callbacks"][self.state_key]
            fits = part["fits"]
            kinds = {tuple(map(type, fit)) for fit in fits}
            columns = part["columns"]
        except (KeyError, TypeError) as error:
            raise saving.FileError(f"cannot read {str(self.path)!r}: not a backup, {error!r} is missing") from error
        if not fits or kinds != {(int,) * 4} or not isinstance(columns, dict):
            raise saving.FileError(f"cannot read {str(self.path)!r}: its description of the fit is malformed")
        return dict(part)


def _changes(backup: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the numbers and words of the constructor and of `compile` that differ, by name: before and now."""
    changes = {}
    for part in ("config", "compile"):
        before = backup[part]
        now = current[part].values
        for name in {**before, **now}:
            values = [saved.get(name) for saved in (before, now)]
            if values[0] != values[1] and all(map(_is_comparable, values)):
                old, new = (repr(saved[name]) if name in saved else "its default" for saved in (before, now))
                changes[name] = old, new
    return changes


def _used(changed: Mapping[str, tuple[str, str]], state: Mapping[str, Any], agent: AgentView) -> str:
    """Return sentences about which values of changed arguments an agent uses whose state has been restored."""
    restored = {"seed", *state["hyperparameters"], *state["schedule"]}
    if state["polyak"] and agent.schedule.polyak:  # both are coefficients, not numbers of steps
        restored.add("target_update")
    kept = [f"{name}={old} (not {new})" for name, (old, new) in changed.items() if name in restored]
    others = [f"{name}={new} (not {old})" for name, (old, new) in changed.items() if name not in restored]
    used = {"the backup": kept, "the script": others}
    return "".join(f" Those of {which} are used: {', '.join(names)}." for which, names in used.items() if names)


def _is_comparable(value: Any) -> bool:
    return all(map(_is_comparable, value)) if isinstance(value, list | tuple) else is_plain(value)
