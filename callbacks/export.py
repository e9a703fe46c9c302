"""A callback that exports the best policy during training."""

from __future__ import annotations

from pathlib import Path

from noterl.callback import CHECKPOINT, Every
from noterl.export.names import export_path
from noterl.types import Logs
from noterl.utils.files import check_writable_folder

from .support.monitor import Monitor
from .support.stateful import MonitoringCallback


class Export(MonitoringCallback):
    """Export the policy whenever the score is better than all before; see `noterl.Agent.export`.

    The score is compared every `save_freq` episodes and when training ends. A new export replaces the last one. If
    training ends before there are `window` values, the last policy is exported, with a warning. A metric that not every
    episode logs, such as the metrics of `Evaluate`, is compared at the episodes that log the metric.

    Args:
        path: of the file; a missing ending of the format is added.
        format: "keras", "saved_model", "onnx", "torch" or "numpy".
        save_freq: number of finished episodes between comparisons.
        monitor: the metric whose mean is the score, a name in an episode's logs.
        window: number of values in the mean, one of each finished episode that logs the metric; there are fewer at the
            start. By default 10, or 1 for a metric that not every episode logs, such as `evaluation_reward_mean`.
        mode: "max" if a higher score is better, "min" if a lower one is better.

    Raises:
        ValueError: if an argument is not one of the allowed values; during training, if the logs of an episode do not
            hold `monitor`, or the agent cannot be exported.
        OSError: if the files cannot be written; before training starts, where possible.

    Attributes:
        best: the best score so far; None before the first export.

    Example:
    >>> import tempfile, noterl
    >>> from pathlib import Path
    >>> from noterl.callbacks import Export
    >>> agent = noterl.DQN("CartPole-v1", hidden=(8,), seed=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     history = agent.fit(episodes=4, callbacks=[Export(f"{folder}/policy", "numpy", window=2)], verbose=0)
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['policy.npz', 'policy.py']
    """

    order = CHECKPOINT
    saved = ("best",)

    def __init__(
        self,
        path: str | Path,
        format: str = "keras",
        *,
        save_freq: int = 1,
        monitor: str = "reward",
        window: int | None = None,
        mode: str = "max",
    ) -> None:
        self.path: Path = export_path(path, format)
        self.format: str = format
        self.every: Every = Every(save_freq, "episodes", name="save_freq", counts_epochs=True)
        self._monitor = Monitor(monitor, window, mode)
        self.best: float | None = None

    def on_train_begin(self, logs: Logs) -> None:
        """Check that the score is one of the agent that is exported, and that files can be written beside `path`."""
        self._monitor.check_choice(self)
        check_writable_folder(self.path.parent)

    def on_due(self, logs: Logs) -> bool:
        """Export if the score is the best so far.

        Return False, so that the call stays due, if the agent has been trained since the score was measured.
        """
        if not self._monitor.is_current(self.agent.log_step):
            return False
        if self._monitor.is_full and self._monitor.is_better(self._monitor.mean, self.best):
            self._export()
        return True

    def on_train_end(self, logs: Logs) -> None:
        """Export if the score is the best so far, or if there is no export."""
        self.on_due(logs)
        if self._monitor.recent and self.best is None:
            self._export()
        super().on_train_end(logs)

    def _export(self) -> None:
        self.agent.export(self.path, self.format)
        self.best = self._monitor.mean
