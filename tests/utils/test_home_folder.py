"""A leading `~` in a path is the home folder, wherever a path is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import noterl
from noterl.callbacks import (
    BackupAndRestore,
    Checkpoint,
    CSVLogger,
    Evaluate,
    Export,
    JSONLogger,
    ParquetLogger,
    RecordVideo,
    TensorBoard,
)
from noterl.imitation import Demonstrations
from noterl.plotting import band, compare

pytestmark = pytest.mark.backends("torch")


def fit(*callbacks: Any) -> noterl.History:
    return noterl.DQN("CartPole-v1", hidden=(4,), seed=1).fit(episodes=1, callbacks=callbacks, verbose=0)


def agent() -> noterl.Agent:
    return noterl.DQN("CartPole-v1", hidden=(4,), seed=1)


def memmap() -> None:
    made = agent()
    made.compile(replay=noterl.Replay(500, memmap="~/x"))
    made.build()


def loaded() -> None:
    agent().save("~/x.noterl")
    noterl.load("~/x.noterl").restore("~/x.noterl")
    agent().save_weights("~/x.safetensors")
    agent().load_weights("~/x.safetensors")


def demonstrations() -> None:
    Demonstrations.record(lambda observation: 0, "CartPole-v1", episodes=1, path="~/x.noterl")
    Demonstrations.load("~/x.noterl")


def logs() -> None:
    fit(CSVLogger("~/x/x.csv"))
    band("~/x/*.csv")
    band(["~/x/x.csv"])


WRITERS: dict[str, Callable[[], Any]] = {
    "save": loaded,
    "demonstrations": demonstrations,
    "memmap": memmap,
    "animate": lambda: agent().animate("~/x.gif", max_steps=2),
    "frames": lambda: agent().play(frame_dir="~/x", max_steps=2),
    "export": lambda: agent().export("~/x", "numpy"),
    "plot": lambda: fit().plot(path="~/x.png"),
    "to_csv": lambda: fit().to_csv("~/new/x.csv"),
    "compare": lambda: compare([fit()], path="~/x.png"),
    "logs": logs,
    "JSONLogger": lambda: fit(JSONLogger("~/x.jsonl")),
    "ParquetLogger": lambda: fit(ParquetLogger("~/x.parquet")),
    "TensorBoard": lambda: fit(TensorBoard("~/x")),
    "Checkpoint": lambda: fit(Checkpoint("~/x")) and Checkpoint.latest("~/x").stat(),
    "BackupAndRestore": lambda: fit(BackupAndRestore("~/x.noterl")),
    "Export": lambda: fit(Export("~/x", "numpy", window=1)),
    "Evaluate": lambda: fit(Evaluate(every=1, episodes=1, on_best="~/x.noterl")),
    "RecordVideo": lambda: fit(RecordVideo("~/x", every=1, max_steps=2)),
}


@pytest.mark.parametrize("name", WRITERS)
def test_it_is_the_home_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.chdir(work)
    WRITERS[name]()
    assert not list(work.iterdir())
    assert name == "memmap" or any(path.is_file() for path in home.rglob("*"))


def test_command_line_expands_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from noterl.cli import main

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    options = ["--env", "CartPole-v1", "--hidden", "4", "--episodes", "1", "--quiet", "--out", "~/run"]
    assert main(["train", "dqn", *options]) == 0
    assert main(["evaluate", "~/run", "--episodes", "1", "--quiet"]) == 0
    assert main(["compare", "~/run/log.csv", "--out", "~/x.png", "--quiet"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"run", "x.png"}
