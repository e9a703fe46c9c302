"""Keras callbacks: those that only observe change nothing, and runs with the others resume exactly."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import noterl
import noterl.callbacks
from noterl.networks import get_weights
from tests.support.states import assert_same_state, one_lane
from tests.support.tape import Tape, taped

callbacks = keras.callbacks

OBSERVERS: dict[str, Callable[[Path], Any]] = {
    "CSVLogger": lambda folder: callbacks.CSVLogger(str(folder / "log.csv")),
    "EarlyStopping": lambda folder: callbacks.EarlyStopping("reward", mode="max", patience=100),
    "History": lambda folder: callbacks.History(),
    "LambdaCallback": lambda folder: callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: logs["loss"]),
    "ModelCheckpoint": lambda folder: callbacks.ModelCheckpoint(str(folder / "{epoch}.keras")),
    "ReduceLROnPlateau": lambda folder: callbacks.ReduceLROnPlateau("reward", mode="max", patience=100),
    "TerminateOnNaN": lambda folder: callbacks.TerminateOnNaN(),
}
if keras.backend.backend() == "torch":  # noterl's networks are torch modules, which Keras cannot save
    del OBSERVERS["ModelCheckpoint"]


@pytest.fixture(scope="module")
def agent() -> noterl.DQN:
    return one_lane()


@pytest.fixture(scope="module")
def beginning(agent: noterl.DQN) -> dict[str, Any]:
    return agent.get_state()


@pytest.fixture(scope="module")
def plain(agent: noterl.DQN, beginning: dict[str, Any]) -> dict[str, Any]:
    return run(agent, beginning)


def run(agent: noterl.DQN, start: dict[str, Any], *added: Any, episodes: int = 6) -> dict[str, Any]:
    agent.set_state(start)
    agent.fit(episodes=episodes, callbacks=added, verbose=0)
    return {**agent.get_state(), "callbacks": {}}


@pytest.mark.parametrize("name", sorted(OBSERVERS))
def test_observing_callback_changes_nothing(
    name: str, agent: noterl.DQN, beginning: dict[str, Any], plain: dict[str, Any], tmp_path: Path
) -> None:
    assert_same_state(run(agent, beginning, OBSERVERS[name](tmp_path)), plain)


@pytest.mark.filterwarnings("ignore:keras.callbacks.BackupAndRestore restores only the weights:UserWarning")
def test_backup_and_restore_changes_nothing(
    agent: noterl.DQN, beginning: dict[str, Any], plain: dict[str, Any], tmp_path: Path
) -> None:
    def backup() -> Any:
        return callbacks.BackupAndRestore(str(tmp_path / "backup"), delete_checkpoint=False)

    assert_same_state(run(agent, beginning, backup()), plain)


def test_several_callbacks_work_together(
    agent: noterl.DQN, beginning: dict[str, Any], plain: dict[str, Any], tmp_path: Path
) -> None:
    assert_same_state(run(agent, beginning, *(make(tmp_path) for make in OBSERVERS.values())), plain)
    assert isinstance(agent.history, noterl.History)
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["reward"]) for row in rows] == agent.history.history["reward"]
    if "ModelCheckpoint" in OBSERVERS:
        saved = keras.models.load_model(tmp_path / "6.keras").get_weights()
        for ours, theirs in zip(saved, get_weights(agent.q), strict=True):
            np.testing.assert_array_equal(ours, theirs)


class TestTensorBoard:
    """Keras's TensorBoard needs TensorFlow on every backend."""

    @pytest.fixture
    def tensorflow(self) -> Any:
        return pytest.importorskip("tensorflow")

    def charts(self, tensorflow: Any, folder: Path) -> dict[str, list[tuple[int, float]]]:
        """Return the points of each chart, read from the files."""
        found: dict[str, list[tuple[int, float]]] = {}
        for path in folder.rglob("events.out.tfevents.*"):
            for event in tensorflow.compat.v1.train.summary_iterator(str(path)):
                for value in event.summary.value:
                    if value.HasField("tensor"):
                        number = float(tensorflow.make_ndarray(value.tensor))
                        found.setdefault(value.tag, []).append((event.step, number))
        return found

    @pytest.mark.filterwarnings("ignore")
    def test_charts_have_a_point_per_episode(
        self, tensorflow: Any, agent: noterl.DQN, beginning: dict[str, Any], plain: dict[str, Any], tmp_path: Path
    ) -> None:
        board = callbacks.TensorBoard(str(tmp_path), write_graph=False)
        state = run(agent, beginning, board)
        assert_same_state(state, plain)
        charts, history = self.charts(tensorflow, tmp_path), agent.history.history
        for name in ("reward", "length", "steps", "updates"):
            assert charts[f"epoch_{name}"] == [(epoch, float(value)) for epoch, value in enumerate(history[name])]
        losses = [value for _, value in charts["epoch_loss"]]
        np.testing.assert_allclose(losses, history["loss"], rtol=1e-6)
        assert math.isnan(losses[0]) == math.isnan(history["loss"][0])

    @pytest.mark.filterwarnings("ignore")
    def test_charts_have_histograms_and_points_per_update(
        self, tensorflow: Any, agent: noterl.DQN, beginning: dict[str, Any], plain: dict[str, Any], tmp_path: Path
    ) -> None:
        board = callbacks.TensorBoard(str(tmp_path), histogram_freq=3, update_freq=20, write_graph=False)
        assert_same_state(run(agent, beginning, board), plain)
        tags = {
            value.tag
            for path in tmp_path.rglob("events.out.tfevents.*")
            for event in tensorflow.compat.v1.train.summary_iterator(str(path))
            for value in event.summary.value
        }
        assert "batch_loss" in tags
        assert any("histogram" in tag for tag in tags) == bool(getattr(agent.q, "layers", None))


@pytest.mark.parametrize("event", ["on_train_batch_begin", "on_train_batch_end", "on_batch_end"])
def test_error_in_a_batch_hook_names_the_callback(event: str) -> None:
    def fail(self: Any, batch: int, logs: Any) -> None:
        raise RuntimeError("no")

    failing = type("Failing", (keras.callbacks.Callback,), {event: fail})
    with pytest.raises(RuntimeError, match="no") as caught:
        taped(Tape()).fit(episodes=3, callbacks=[failing()], verbose=0)
    assert [note for note in caught.value.__notes__ if note.startswith(f"raised by the callback Failing.{event}")]


RESUMED: dict[str, Callable[[], list[Any]]] = {
    "those that adapt": lambda: [
        callbacks.EarlyStopping("reward", mode="max", patience=6, restore_best_weights=True),
        callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        callbacks.ReduceLROnPlateau("reward", mode="max", patience=1),
    ],
    "SwapEMAWeights": lambda: [callbacks.SwapEMAWeights(swap_on_epoch=True)],
}


def interrupted(path: Path, added: list[Any], at: int = 0) -> dict[str, Any]:
    """Train with a backup of every fifth step, and raise an error after a step; return the state."""
    agent = one_lane(optimizer=keras.optimizers.Adam(1e-3, use_ema=True))
    crash = noterl.callbacks.LambdaCallback()

    def raise_error() -> None:
        if agent.steps == at:
            raise RuntimeError("crash")

    crash.on_step_end = raise_error
    backup = noterl.callbacks.BackupAndRestore(path, 5, unit="steps")
    agent.fit(episodes=9, num_envs=2, callbacks=[*added, backup, crash], verbose=0)
    return {**agent.get_state(), "callbacks": {}}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", RESUMED)
def test_resumed_run_equals_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    whole = interrupted(tmp_path / "whole.noterl", RESUMED[name]())
    with pytest.raises(RuntimeError, match="crash"):
        interrupted(tmp_path / "backup.noterl", RESUMED[name](), at=93)
    assert_same_state(interrupted(tmp_path / "backup.noterl", RESUMED[name]()), whole)


class Sets(callbacks.Callback):
    """Keeps a set, which a file cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()


@pytest.mark.backends("torch")
def test_attribute_that_a_file_cannot_hold_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="crash"):
        interrupted(tmp_path / "backup.noterl", [Sets()], at=93)
    with pytest.warns(RuntimeWarning, match="'seen' of the Keras callback Sets"):
        interrupted(tmp_path / "backup.noterl", [Sets()])
