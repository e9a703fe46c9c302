"""TensorBoard's event files: to the byte, and as TensorBoard itself reads them."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from noterl.callbacks import TensorBoard
from noterl.utils.event_files import EventFile, crc32c, event, frame, scalars

pytestmark = pytest.mark.backend_free


def records(path: Path) -> list[bytes]:
    """Return the records of a file, whose lengths and checksums must agree."""
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        record = data[12 : 12 + length]
        assert data[: 16 + length] == frame(record)
        found.append(record)
        data = data[16 + length :]
    return found


# In a process of its own: who asks TensorBoard once to do without TensorFlow is not given it again.
READ = """
import json, sys, types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[1])
found.Reload()
print(json.dumps({tag: [(one.step, one.value) for one in found.Scalars(tag)] for tag in found.Tags()["scalars"]}))
"""


@pytest.fixture
def reader() -> Any:
    """Return TensorBoard's reader, which then does without TensorFlow."""
    pytest.importorskip("tensorboard")

    def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
        told = subprocess.run([sys.executable, "-c", READ, str(folder)], capture_output=True, text=True, check=True)
        return {tag: [tuple(one) for one in values] for tag, values in json.loads(told.stdout).items()}

    return read


@pytest.mark.parametrize(
    ("data", "checksum"),
    [(bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E), (b"123456789", 0xE3069283)],
)
def test_the_checksums_of_the_standard(data: bytes, checksum: int) -> None:
    assert crc32c(data) == checksum  # RFC 3720, B.4; the last is the check value of every catalogue of checksums


def test_a_scalar_to_the_byte() -> None:
    content = event(scalars({"loss": 0.5}), 300, 1.5)
    value = b"\x0a\x04loss" + b"\x15\x00\x00\x00\x3f"
    summary = b"\x2a" + bytes([len(value) + 2]) + b"\x0a" + bytes([len(value)]) + value
    assert content == b"\x09" + struct.pack("<d", 1.5) + b"\x10\xac\x02" + summary


def test_a_file_begins_with_its_version_and_the_session(tmp_path: Path) -> None:
    file = EventFile(tmp_path, step=7)
    version, session = records(file.path)
    file.close()
    assert version[9:] == b"\x10\x00\x1a\x0dbrain.Event:2"
    assert session[9:] == b"\x10\x07\x3a\x02\x08\x01"


def agent(steps: int) -> Any:
    return SimpleNamespace(steps=steps)


def write(folder: Path, start: int, steps: list[int], flush_every: int = 1) -> TensorBoard:
    """Log an episode at each of these steps; each but the first has a loss."""
    board = TensorBoard(folder, flush_every)
    board.agent = agent(start)
    board.on_train_begin({})
    for number, step in enumerate(steps):
        logs = {"reward": step / 2, "steps": step, "word": "a", "complete": True}
        board.on_episode_end(number, {**logs, "loss": 0.25} if number else logs)
    return board


def test_tensorboard_reads_it(reader: Any, tmp_path: Path) -> None:
    board = write(tmp_path, 0, [100, 150, 400])
    board.on_episode_end(3, {"reward": 9.0, "steps": 500, "complete": False})
    board.on_train_end({})
    assert reader(tmp_path) == {
        "reward": [(100, 50.0), (150, 75.0), (400, 200.0)],
        "steps": [(100, 100.0), (150, 150.0), (400, 400.0)],
        "loss": [(150, 0.25), (400, 0.25)],
    }


def test_a_run_that_goes_on_shows_no_step_twice(reader: Any, tmp_path: Path) -> None:
    write(tmp_path, 0, [100, 200, 300, 400]).on_train_end({})  # it was saved at step 200, and is restored from there
    write(tmp_path, 200, [250, 300]).on_train_end({})
    assert [step for step, _ in reader(tmp_path)["reward"]] == [100, 200, 250, 300]


def test_a_crash_loses_the_last_interval_at_most(tmp_path: Path) -> None:
    board = write(tmp_path, 0, [1, 2, 3, 4, 5, 6, 7, 8], flush_every=3)
    (path,) = tmp_path.iterdir()
    assert len(records(path)) == 2 + 6
    board.on_train_end({})
    assert len(records(path)) == 2 + 8


@pytest.mark.parametrize("flush_every", [0, 2.5, True])
def test_bad_arguments_are_named(flush_every: Any) -> None:
    with pytest.raises(ValueError, match=f"flush_every must be a positive int, got {flush_every}"):
        TensorBoard("runs", flush_every)
