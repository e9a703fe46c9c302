"""A callback that logs episodes to MLflow."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noterl.callback import LOGGER, Callback
from noterl.types import Logs
from noterl.utils.checks import check_positive
from noterl.utils.optional import require
from noterl.utils.tables import plain_row

_LONGEST = 500  # characters of a parameter that older servers accept


class MLflowLogger(Callback):
    """Log the metrics of each finished episode to an MLflow run; the MLflow step is the number of environment steps.

    The agent's `configuration` gives the run's parameters. A restored agent continues the same run; episodes that are
    played again are not logged twice. MLflow's active run is not changed, so a script may log to its own run.

    If the run or its store is removed during training, the logger warns and continues in a new run. If MLflow cannot
    write, the logger warns once, keeps the rows, and tries again with the next rows; training goes on.

    Args:
        experiment: name of the experiment, which is created if necessary.
        name: name of the run; by default MLflow chooses one.
        parameters: further parameters of the run, in addition to the agent's `configuration`.
        tracking_uri: where runs are stored, such as "sqlite:///runs.db" or a server; None for MLflow's setting.
        flush_every: number of finished episodes between writes; a crash loses the episodes since the last write.

    Raises:
        ValueError: if `flush_every` is not a positive int.
        ImportError: if the extra `mlflow` is not installed.

    Example:
    >>> from noterl.callbacks import MLflowLogger
    >>> def local():
    ...     return MLflowLogger("cartpole", tracking_uri="sqlite:///runs.db")
    """

    order = LOGGER
    takes_epochs = True

    def __init__(
        self,
        experiment: str = "noterl",
        name: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        tracking_uri: str | None = None,
        flush_every: int = 10,
    ) -> None:
        self._mlflow = require("mlflow", "mlflow", "MLflowLogger")
        self.experiment: str = experiment
        self.name: str | None = name
        self.tracking_uri: str | None = tracking_uri
        self.parameters: dict[str, Any] = dict(parameters or {})
        self.flush_every: int = check_positive("flush_every", flush_every)
        self._client: Any = None
        self._id: str | None = None
        self._pending: list[Any] = []
        self._unwritten = 0
        self._logged = -1  # the last step in the run
        self._failed = False
        self._accepted = False  # whether the run accepted what was written last

    @property
    def state_key(self) -> str:
        """The class and the experiment's name."""
        return f"{type(self).__name__}:{self.experiment}"

    def on_train_begin(self, logs: Logs) -> None:
        """Create the run, or reopen the run of an earlier `fit`."""
        self._failed = False
        self._unwritten = 0
        self._client = self._mlflow.MlflowClient(tracking_uri=self.tracking_uri)
        logged: list[Any] = []
        if self._id is None:
            self._begin()
        else:
            try:
                self._client.update_run(self._id, status="RUNNING")
                logged = self._client.get_metric_history(self._id, "steps")
            except Exception as error:  # each store of MLflow has its own
                self._begin()
                self._warn(error)
        # A first failed write then starts a new run at once; a second one in turn does not.
        self._accepted = True
        self._logged = max((point.step for point in logged), default=-1)

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """Log a complete episode."""
        # The steps at the end of the episode, plus the updates that `log_step` counts too. Replayed episodes after a
        # restore are in the run already.
        step = logs["steps"] + self.agent.log_step - self.agent.steps
        if self._client is None or not logs.get("complete", True) or step <= self._logged:
            return
        now = int(time.time() * 1000)
        row = {"episode": episode, **plain_row(logs)}
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
        metric = self._mlflow.entities.Metric
        self._pending += [metric(_allowed(name), float(value), now, step) for name, value in numbers.items()]
        self._unwritten += 1
        if self._unwritten >= self.flush_every:
            self._flush()

    def on_exception(self, error: BaseException) -> None:
        """Mark the run as failed."""
        self._failed = True

    def on_train_end(self, logs: Logs) -> None:
        """Write the remaining metrics and close the run."""
        if self._client is not None and self._id is not None:
            self._flush()
            with contextlib.suppress(Exception):  # the flush has warned
                self._client.set_terminated(self._id, "FAILED" if self._failed else "FINISHED")
        self._client = None

    def get_state(self) -> dict[str, Any]:
        """Write the remaining metrics, because a restored agent continues after them; return the id of the run."""
        if self._client is not None:
            self._flush()
        return {"id": self._id}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self._pending = []
        self._id = state["id"]

    def _begin(self) -> None:
        """Create a run with the agent's parameters."""
        stored = self._client.get_experiment_by_name(self.experiment)
        experiment_id = self._client.create_experiment(self.experiment) if stored is None else stored.experiment_id
        run = self._client.create_run(experiment_id, run_name=self.name)
        parameters = {**self.agent.configuration, **self.parameters}
        # In a store of files, "network" and "network/q" would be a file and a folder.
        names = {name: _allowed(name).replace("/", ".") for name in parameters}
        parameter = self._mlflow.entities.Param
        values = [parameter(names[name], str(value)[:_LONGEST]) for name, value in parameters.items()]
        for start in range(0, len(values), 100):  # MLflow accepts at most 100 parameters per call
            self._client.log_batch(run.info.run_id, params=values[start : start + 100])
        self._id = str(run.info.run_id)

    def _flush(self) -> None:
        """Write the pending metrics; if that fails, continue in a new run, or keep the metrics."""
        self._unwritten = 0
        try:
            self._write()
        except Exception as error:  # each store of MLflow has its own
            if self._accepted:
                self._accepted = False
                with contextlib.suppress(Exception):
                    self._make_store()
                    self._begin()
                    self._write()
                self._warn(error)

    def _write(self) -> None:
        for start in range(0, len(self._pending), 1000):  # MLflow accepts at most 1,000 metrics per call
            self._client.log_batch(self._id, metrics=self._pending[start : start + 1000])
        self._pending = []
        self._accepted = True

    def _make_store(self) -> None:
        """Make a local store again if it was removed: MLflow keeps a removed SQLite file open."""
        uri = self._client.tracking_uri
        # MLflow keeps an engine for each store, so the removed file's engine is found again and must be closed.
        if uri.startswith("sqlite:"):
            stores = require("mlflow.store.tracking.sqlalchemy_store", "mlflow", "MLflowLogger")
            engine = stores.SqlAlchemyStore(uri, "mlruns").engine
            if not (file := Path(engine.url.database)).exists():
                engine.dispose()
                file.parent.mkdir(parents=True, exist_ok=True)
                stores.SqlAlchemyStore(uri, "mlruns")  # makes the tables
        elif uri.startswith("file:"):
            folder = self._mlflow.utils.file_utils.local_file_uri_to_path(uri)
            Path(folder, ".trash").mkdir(parents=True, exist_ok=True)  # MLflow looks into it

    def _warn(self, error: Exception) -> None:
        state = "Its rows are kept until it can" if self._pending else f"The run {self._id} continues"
        warnings.warn(f"MLflowLogger: MLflow could not write ({error!s:.300}). {state}", stacklevel=2)


def _allowed(name: str) -> str:
    """Return a name without the characters that MLflow rejects."""
    return "".join(character if character.isalnum() or character in "_-. /" else "_" for character in name)
