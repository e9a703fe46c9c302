"""Bad arguments of the catalogue's callbacks raise before training."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from noterl import callbacks
from tests.callbacks.test_catalogue import Trial
from tests.support.tape import Tape, taped

pytestmark = pytest.mark.backends("torch")

# For each argument that is a frequency or a count: its name and a function that builds a callback with it.
FREQUENCIES: dict[str, tuple[str, Callable[..., Any]]] = {
    "AdaBatch": ("every", lambda n: callbacks.AdaBatch(2, every=n)),
    "Adapt": ("every", lambda n: callbacks.Adapt(every=n)),
    "BackupAndRestore": ("save_freq", lambda n: callbacks.BackupAndRestore("file", n)),
    "CSVLogger": ("flush_every", lambda n: callbacks.CSVLogger("file", n)),
    "Checkpoint": ("save_freq", lambda n: callbacks.Checkpoint("folder", n)),
    "Checkpoint, files": ("max_save_files", lambda n: callbacks.Checkpoint("folder", max_save_files=n)),
    "Checkpoint, best": ("save_top_k", lambda n: callbacks.Checkpoint("folder", save_top_k=n)),
    "Checkpoint, window": ("window", lambda n: callbacks.Checkpoint("folder", window=n)),
    "ESSAdapt": ("every", lambda n: callbacks.ESSAdapt(every=n)),
    "ESSWindow": ("every", lambda n: callbacks.ESSWindow(every=n)),
    "EarlyStopping": ("trial_count", lambda n: callbacks.EarlyStopping(n, 1.0)),
    "EarlyStopping, patience": ("patience", lambda n: callbacks.EarlyStopping(1, patience=n)),
    "EpisodePrinter": ("every", callbacks.EpisodePrinter),
    "Evaluate": ("every", lambda n: callbacks.Evaluate(every=n)),
    "Evaluate, episodes": ("episodes", lambda n: callbacks.Evaluate(episodes=n)),
    "FinderLogger": ("points", lambda n: callbacks.FinderLogger("loss", n)),
    "JSONLogger": ("flush_every", lambda n: callbacks.JSONLogger("file", n)),
    "MLflowLogger": ("flush_every", lambda n: callbacks.MLflowLogger(flush_every=n)),
    "OptunaPruning": ("every", lambda n: callbacks.OptunaPruning(Trial(), every=n)),
    "ParquetLogger": ("flush_every", lambda n: callbacks.ParquetLogger("file", n)),
    "RecordVideo": ("every", lambda n: callbacks.RecordVideo("folder", n)),
    "ReduceLROnPlateau": ("every", lambda n: callbacks.ReduceLROnPlateau(every=n)),
    "ReduceLROnPlateau, patience": ("patience", lambda n: callbacks.ReduceLROnPlateau(patience=n)),
    "StopOnSteps": ("steps", callbacks.StopOnSteps),
    "StopOnTime": ("seconds", callbacks.StopOnTime),
    "TensorBoard": ("flush_every", lambda n: callbacks.TensorBoard("folder", n)),
    "Window": ("every", lambda n: callbacks.Window(5, every=n)),
}
PACKAGES = {
    "MLflowLogger": "mlflow",
    "OptunaPruning": "optuna",
    "ParquetLogger": "pyarrow.parquet",
    "TensorBoard": "tensorboardX",
}


@pytest.mark.parametrize("value", [0, -1, "often"])
@pytest.mark.parametrize("name", FREQUENCIES)
def test_bad_frequency_raises(name: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name in PACKAGES:
        monkeypatch.setitem(sys.modules, PACKAGES[name], sys)
    argument, build = FREQUENCIES[name]
    with pytest.raises(ValueError, match=rf"^{argument} must .*got {value!r}$"):
        build(value)
    assert not list(tmp_path.iterdir())


PLACES: dict[str, Callable[[Path], Any]] = {
    "Animate": lambda path: callbacks.Animate(path / "a.gif"),
    "BackupAndRestore": lambda path: callbacks.BackupAndRestore(path / "backup.noterl"),
    "CSVLogger": lambda path: callbacks.CSVLogger(path / "log.csv"),
    "Checkpoint": callbacks.Checkpoint,
    "Evaluate": lambda path: callbacks.Evaluate(on_best=path / "best.noterl"),
    "JSONLogger": lambda path: callbacks.JSONLogger(path / "log.jsonl"),
    "ParquetLogger": lambda path: callbacks.ParquetLogger(path / "log.parquet"),
    "RecordVideo": callbacks.RecordVideo,
    "TensorBoard": callbacks.TensorBoard,
}


@pytest.mark.parametrize("name", PLACES)
def test_unwritable_path_raises_before_the_first_step(name: str, tmp_path: Path) -> None:
    if name in PACKAGES and importlib.util.find_spec(PACKAGES[name].split(".")[0]) is None:
        pytest.skip(f"{name} needs {PACKAGES[name]}")
    (tmp_path / "poem").write_text("no directory")
    tape = Tape()
    with pytest.raises(OSError, match="poem"):
        taped(tape).fit(episodes=2, callbacks=[PLACES[name](tmp_path / "poem" / "below")], verbose=0)
    assert not [entry for entry in tape if "step" in str(entry)]
    assert (tmp_path / "poem").read_text() == "no directory"


EXTRAS: dict[str, tuple[str, str, Callable[[], Any]]] = {
    "MLflowLogger": ("mlflow", "mlflow", callbacks.MLflowLogger),
    "OptunaPruning": ("optuna", "tune", lambda: callbacks.OptunaPruning(Trial())),
    "ParquetLogger": ("pyarrow.parquet", "parquet", lambda: callbacks.ParquetLogger("file")),
    "RecordVideo": ("imageio_ffmpeg", "mp4", lambda: callbacks.RecordVideo("folder", kind="mp4")),
    "TensorBoard": ("tensorboardX", "tensorboard", callbacks.TensorBoard),
    "TrackioLogger": ("trackio", "trackio", callbacks.TrackioLogger),
    "WandbLogger": ("wandb", "wandb", callbacks.WandbLogger),
}


@pytest.mark.parametrize("name", EXTRAS)
def test_missing_extra_raises(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, extra, build = EXTRAS[name]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"^{name}.*noterl\[{extra}\]"):
        build()


MONITORS: dict[str, Callable[[], Any]] = {
    "Checkpoint": lambda: callbacks.Checkpoint("folder", monitor="rewrad"),
    "EarlyStopping": lambda: callbacks.EarlyStopping(1, 1.0, monitor="rewrad"),
    "OptunaPruning": lambda: callbacks.OptunaPruning(Trial(), monitor="rewrad"),
    "ReduceLROnPlateau": lambda: callbacks.ReduceLROnPlateau(monitor="rewrad"),
}


@pytest.mark.parametrize("name", MONITORS)
def test_unknown_monitor_raises(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name in PACKAGES:
        monkeypatch.setitem(sys.modules, PACKAGES[name], sys)
    agent = taped(Tape())
    message = (
        r"^monitor: the episode's logs have no 'rewrad'; they have complete, length, loss, reward, steps, time, updates"
    )
    with pytest.raises(ValueError, match=message):
        agent.fit(episodes=3, callbacks=[MONITORS[name]()], verbose=0)
    assert agent.episodes == 1
