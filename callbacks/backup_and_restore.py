"""Going on after a crash, by running the same script again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from noterl import saving
from noterl.callback import CHECKPOINT, Budget, Callback
from noterl.types import Logs

from .cadence import Cadence
from .writer import Writer


class BackupAndRestore(Callback):
    """Keep a backup of everything in one file, and go on from it when the same script runs again.

    Kill the process at any moment and start it anew: the `fit` that was interrupted trains what its budget still lacks,
    and ends in the state of a run that was never interrupted, bit for bit (wall-clock times aside), for environments
    that pass `noterl.envs.check`. The backup holds the memory, the episodes in flight, all generators and callbacks,
    what the fit was to reach, and its `History`.

    A backup tells the calls of `fit` apart by their number in the process: those before the one it was made in are not
    made again. One that is complete stays complete until the file is removed, or the script asks for more.

    Args:
        path: the file, such as "runs/dqn/backup.noterl".
        save_freq: how many of `unit` between backups: what is lost at most.
        unit: "episodes", "steps", "updates" or "seconds".
        background: write in a thread, if there is memory for a copy of the state; training waits for the copy alone.

    Raises:
        ValueError: if an argument is not what it may be, or the file holds an agent that does not fit this one.
        noterl.saving.FileError: if the file is damaged or foreign.
        OSError: before training starts, if the file cannot be written; when a backup cannot be.

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

    order = CHECKPOINT

    def __init__(
        self, path: str | Path, save_freq: float = 60, *, unit: str = "seconds", background: bool = False
    ) -> None:
        self._cadence = Cadence("save_freq", save_freq, unit)
        self.path, self.background = Path(path), background
        self._fit: dict[str, Any] = {}  # which fit this is, and where it began
        self._restored: dict[str, Any] | None = None  # what the backup said of the fit that goes on
        self._over = False  # nothing is backed up any more
        self._writer = Writer()

    def before_fit(self, agent: Any, budget: Budget) -> None:
        """Bring the agent to where the backup is, if the backup is of this fit or a later one."""
        saving.check_writable(self.path)
        self._over, self._restored = False, None
        self._fit = {"number": agent.fits, "first_episode": agent.episodes, "first_step": agent.steps}
        if not self.path.exists():
            return
        document = saving.read(self.path)
        saved = self._part_of(document)
        if saved["fit"]["number"] < agent.fits:  # this process has come further
            return
        from noterl.training import state as agent_state

        agent_state.restore(agent, document)
        budget.resumed = True
        if saved["fit"]["number"] > agent.fits:
            self._over = True
            budget.last_episode, budget.last_step = agent.episodes, agent.steps
            agent.say(f"{self.path} is of a later fit: this one is not made again")
            return
        budget.last_episode += saved["fit"]["first_episode"] - self._fit["first_episode"]
        budget.last_step += saved["fit"]["first_step"] - self._fit["first_step"]
        self._restored, self._fit = saved, saved["fit"]
        agent.say(f"going on from {self.path}: {agent.episodes} episodes, {agent.steps} steps")

    def on_train_begin(self, logs: Logs) -> None:
        """Bring the history to where the backup is; stop again what had been stopped."""
        self._cadence.begin(self.agent)
        if self._restored is None:
            return
        history = self.agent.history
        if history is not None:
            history.history = {name: list(column) for name, column in self._restored["columns"].items()}
            history.episode = list(self._restored["episode"])
        if self._restored["stop_reason"] is not None:
            self.agent.stop(self._restored["stop_reason"])

    def between_steps(self) -> None:
        """Make a backup if it is time."""
        if self._cadence.due(self.agent):
            self._save()

    def on_exception(self, error: BaseException) -> None:
        """Note that the state may not be that of an undisturbed run: the backup stays as it is."""
        self._over = True

    def on_train_end(self, logs: Logs) -> None:
        """Make the last backup, and wait until it is written."""
        try:
            if not self._over:
                self._save()
        finally:
            self._writer.close()

    def _save(self) -> None:
        from noterl.training import state as agent_state

        self._writer.drain()
        document = agent_state.document(self.agent, replay=True)
        document["state"]["callbacks"][self.state_key] = self._part()
        if not self.background:
            saving.write(self.path, document)
            return
        replay = self._writer.copied(document["state"]["replay"])
        if replay is None:
            self.agent.say(f"a copy of the memory does not fit in what is free: {self.path} is written at once")
            saving.write(self.path, document)
            return
        document["state"]["replay"] = replay
        self._writer.write(lambda: saving.write(self.path, document), undo=lambda: None)

    def _part(self) -> dict[str, Any]:
        """Return what the backup says beside the agent's state, and no other file does."""
        history = self.agent.history
        columns = {} if history is None else {name: list(column) for name, column in history.history.items()}
        return {
            "fit": self._fit,
            "stop_reason": self.agent.stop_reason if self.agent.stop_training else None,
            "columns": columns,
            "episode": [] if history is None else list(history.episode),
        }

    def _part_of(self, document: Any) -> dict[str, Any]:
        try:
            part = document["state"]["callbacks"][self.state_key]
            number, columns = part["fit"]["number"], part["columns"]
        except (KeyError, TypeError) as error:
            raise saving.FileError(f"cannot read {str(self.path)!r}: it is no backup, {error!r} is missing") from error
        if type(number) is not int or not isinstance(columns, dict):
            raise saving.FileError(f"cannot read {str(self.path)!r}: what it says of its fit is malformed")
        return dict(part)
