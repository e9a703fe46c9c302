"""The callback TensorBoard: its files as TensorBoard itself reads them."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from noterl.callbacks import Evaluate, TensorBoard

pytest.importorskip("tensorboardX")
pytestmark = pytest.mark.backend_free


def records(path: Path) -> list[bytes]:
    """Return the records of a file: a length of 8 bytes, its checksum, the record and its checksum."""
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert len(data) >= 16 + length
        found.append(data[12 : 12 + length])
        data = data[16 + length :]
    return found


# Runs in another process, because the module `notf` keeps TensorBoard from importing TensorFlow until the process ends.
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
    """Return a function that reads a folder with TensorBoard, without TensorFlow."""
    pytest.importorskip("tensorboard")

    def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
        result = subprocess.run([sys.executable, "-c", READ, str(folder)], capture_output=True, text=True, check=True)
        return {tag: [tuple(one) for one in values] for tag, values in json.loads(result.stdout).items()}

    return read


def agent(steps: int) -> Any:
    return SimpleNamespace(steps=steps, log_step=steps, configuration={"agent": "DQN", "batch_size": 32})


def write(folder: Path, start: int, steps: list[int], flush_every: int = 1) -> TensorBoard:
    """Log an episode at each of these steps; all but the first have a loss."""
    board = TensorBoard(folder, flush_every)
    board.agent = agent(start)
    board.on_train_begin({})
    for number, step in enumerate(steps):
        logs = {"reward": step / 2, "steps": step, "word": "a", "complete": True}
        board.on_episode_end(number, {**logs, "loss": 0.25} if number else logs)
    return board


def test_tensorboard_reads_the_numbers_of_completed_episodes(reader: Any, tmp_path: Path) -> None:
    board = write(tmp_path, 0, [100, 150, 400])
    board.on_episode_end(3, {"reward": 9.0, "steps": 500, "complete": False})
    board.on_train_end({})
    assert reader(tmp_path) == {
        "reward": [(100, 50.0), (150, 75.0), (400, 200.0)],
        "steps": [(100, 100.0), (150, 150.0), (400, 400.0)],
        "loss": [(150, 0.25), (400, 0.25)],
    }


def test_resumed_run_hides_the_steps_that_it_repeats(reader: Any, tmp_path: Path) -> None:
    write(tmp_path, 0, [100, 200, 300, 400]).on_train_end({})  # saved at step 200 and restored from there
    write(tmp_path, 200, [250, 300]).on_train_end({})
    assert [step for step, _ in reader(tmp_path)["reward"]] == [100, 200, 250, 300]


def test_file_names_sort_by_time_within_one_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1e9)
    paths: list[Path] = []
    for _ in range(8):
        write(tmp_path, 0, [1]).on_train_end({})
        paths += [path for path in tmp_path.iterdir() if path not in paths]
    assert paths == sorted(paths)


def test_crash_loses_at_most_the_last_interval(tmp_path: Path) -> None:
    board = write(tmp_path, 0, [1, 2, 3, 4, 5, 6, 7, 8], flush_every=3)
    (path,) = tmp_path.iterdir()
    assert len(records(path)) == 5 + 6
    board.on_train_end({})
    assert len(records(path)) == 5 + 8 + 1


def test_removed_folder_is_created_again(reader: Any, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    board = write(folder, 0, [1, 2, 3, 4], flush_every=3)
    shutil.rmtree(folder)
    for number, step in enumerate([5, 6, 7], 4):
        board.on_episode_end(number, {"reward": step / 2, "steps": step, "complete": True})
    board.on_train_end({})
    assert reader(folder)["steps"] == [(step, step) for step in (4, 5, 6, 7)]


def test_configuration_is_a_text(tmp_path: Path) -> None:
    write(tmp_path, 0, [1]).on_train_end({})
    (path,) = tmp_path.iterdir()
    (text,) = [record for record in records(path) if b"configuration/text_summary" in record]
    assert b"| agent | DQN |\n| batch_size | 32 |" in text


def events(folder: Path) -> list[Any]:
    from tensorboardX.proto.event_pb2 import Event

    return [Event.FromString(record) for path in sorted(folder.iterdir()) for record in records(path)]


def test_hyperparameters_are_a_row_of_a_table_with_rewards(tmp_path: Path) -> None:
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    write(tmp_path, 0, [1, 2]).on_train_end({})
    values = [value for event in events(tmp_path) for value in event.summary.value if "_hparams_" in value.tag]
    contents = [HParamsPluginData.FromString(value.metadata.plugin_data.content) for value in values]
    assert [metric.name.tag for metric in contents[0].experiment.metric_infos] == ["reward"]
    row = contents[1].session_start_info.hparams
    assert (row["agent"].string_value, row["batch_size"].number_value) == ("DQN", 32.0)
    assert contents[2].session_end_info.status == 1  # success


def test_evaluations_are_curves(reader: Any, tmp_path: Path) -> None:
    board = write(tmp_path, 0, [100])
    board.agent.steps = board.agent.log_step = 150
    board.agent.callbacks = [board]
    board.on_evaluate_end({"reward_mean": 3.0, "returns": np.array([2.0, 4.0])})  # of a call by the user
    board.agent.callbacks = [evaluate := Evaluate(), board]
    evaluate.is_evaluating = True
    board.on_evaluate_end({"reward_mean": 4.0})  # logged by the episode
    evaluate.is_evaluating = False
    logs = {"evaluation_reward_mean": 4.0, "evaluation_success_rate": 0.0, "test_reward_mean": 6.0}
    board.on_episode_end(1, {"steps": 160, "reward": 1.0, **logs})
    board.on_train_end({})
    read = reader(tmp_path)
    assert read["evaluation/reward_mean"] == [(150, 3.0), (160, 4.0)]
    assert read["evaluation/success_rate"] == [(160, 0.0)]
    assert read["test_reward_mean"] == [(160, 6.0)]
    assert "evaluation_reward_mean" not in read and "evaluation/returns" not in read


@pytest.mark.parametrize("flush_every", [0, 2.5, True])
def test_bad_argument_raises(flush_every: Any) -> None:
    with pytest.raises(ValueError, match=rf"flush_every must .*got {flush_every}"):
        TensorBoard("runs", flush_every)


def test_events_are_written_before_a_state_is_saved(tmp_path: Path) -> None:
    board = write(tmp_path, 0, [1, 2, 3, 4], flush_every=100)
    (path,) = tmp_path.iterdir()
    before = len(records(path))
    board.get_state()
    assert len(records(path)) == before + 4
    board.on_train_end({})
