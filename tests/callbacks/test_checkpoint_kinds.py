"""Checkpoint: files chosen by score, units, `latest`, and writing in the background."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import noterl
from noterl import saving
from noterl.callbacks import Checkpoint, EarlyStopping, LambdaCallback
from noterl.callbacks.checkpoint import MANIFEST
from tests.callbacks.test_checkpoint import FileAgent, episodes_of, names, play, small
from tests.support.doubles import FakeClock
from tests.support.states import assert_same_state, one_lane
from tests.support.tape import rewarded

pytestmark = pytest.mark.backends("torch")


class TestChosen:
    @pytest.mark.parametrize(
        ("arguments", "episodes"),
        [
            ({"save_top_k": 1}, [5, 7]),
            ({"save_top_k": 2}, [3, 5, 7]),
            ({"save_top_k": 3}, [3, 5, 6, 7]),
            ({"save_top_k": 2, "save_last": False}, [3, 5]),
            ({"save_top_k": 2, "mode": "min", "save_last": False}, [2, 4]),
            ({"save_top_k": 1, "max_save_files": 1}, [5, 7]),
            ({"save_best_only": True, "max_save_files": None}, [1, 3, 5, 7]),
            ({"save_best_only": True, "max_save_files": 1}, [5, 7]),
            ({"save_best_only": True, "max_save_files": 1, "save_last": False}, [5]),
            ({"save_best_only": True, "mode": "min", "save_last": False}, [1, 2, 4]),
        ],
        ids=str,
    )
    def test_best_scores_and_the_newest_file_are_kept(
        self, tmp_path: Path, arguments: dict[str, Any], episodes: list[int]
    ) -> None:
        play([3, 2, 6, 1, 9, 5, 4], tmp_path, save_freq=1, window=1, **arguments)
        assert episodes_of(tmp_path) == episodes

    def test_first_of_equal_scores_is_kept(self, tmp_path: Path) -> None:
        play([1, 2, 2, 2], tmp_path, save_freq=1, window=1, save_top_k=1, save_last=False)
        assert episodes_of(tmp_path) == [2]

    def test_save_last_false_skips_the_end_of_training(self, tmp_path: Path) -> None:
        play([0.0] * 5, tmp_path, save_freq=2, save_last=False)
        assert episodes_of(tmp_path) == [2, 4]

    def test_stopped_training_is_always_saved(self, tmp_path: Path) -> None:
        checkpoint = Checkpoint(tmp_path, save_freq=100, save_best_only=True, save_last=False, window=1)
        agent = rewarded([1, 2, 3], FileAgent)
        agent.fit(episodes=3, callbacks=[EarlyStopping(1, criterion=2), checkpoint], verbose=0)
        assert names(tmp_path) == ["episode-000002-reward-2.00.noterl"]

    def test_save_best_only_with_save_top_k_raises(self) -> None:
        with pytest.raises(ValueError, match=r"^save_top_k .*got 2"):
            Checkpoint("runs", save_best_only=True, save_top_k=2)

    def test_metric_may_be_missing_in_some_episodes(self, tmp_path: Path) -> None:
        adder = LambdaCallback(
            on_episode_end=lambda episode, logs: logs.update(score=float(episode)) if episode == 2 else None
        )
        adder.adds = ("score",)
        checkpoint = Checkpoint(tmp_path, 1, monitor="score", window=1, save_best_only=True, save_last=False)
        rewarded([0.0], FileAgent).fit(episodes=4, callbacks=[adder, checkpoint], verbose=0)
        assert names(tmp_path) == ["episode-000003-score-2.00.noterl"]


class TestUnits:
    def test_steps_are_exact_within_episodes(self, tmp_path: Path) -> None:
        agent, steps = small(), []
        checkpoint = Checkpoint(tmp_path, 7, unit="steps", max_save_files=None)
        agent.fit(steps=30, num_envs=2, callbacks=[checkpoint], verbose=0)
        for file in checkpoint.files:
            saved = saving.read(file)["state"]["counters"]["steps"]
            assert f"-step-{saved:08d}-" in file.name
            steps.append(saved)
        assert steps == [7, 14, 21, 28, 30]

    def test_updates_save_after_the_group_that_reaches_them(self, tmp_path: Path) -> None:
        agent = rewarded([0.0], FileAgent, update_every=2, updates=3)
        updates = []
        checkpoint = Checkpoint(tmp_path, 4, unit="updates", max_save_files=None, save_last=False)
        agent.count_save = lambda: updates.append(agent.updates)
        agent.fit(steps=8, callbacks=[checkpoint], verbose=0)
        assert updates == [6, 9, 12]

    def test_seconds_are_counted_by_the_clock(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = FakeClock()
        monkeypatch.setattr("noterl.callback.perf_counter", clock)
        slow = LambdaCallback(on_episode_end=lambda episode, logs: clock.sleep(2))
        checkpoint = Checkpoint(tmp_path, 5, unit="seconds", max_save_files=None, save_last=False)
        rewarded([0.0], FileAgent).fit(episodes=10, callbacks=[slow, checkpoint], verbose=0)
        assert episodes_of(tmp_path) == [3, 6, 9]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"unit": "epochs"}, r"^unit must .*got 'epochs'$"),
            ({"unit": "seconds", "save_freq": 0}, r"^save_freq must .*got 0$"),
            ({"unit": "steps", "save_freq": 0.5}, r"^save_freq must .*int, got 0\.5$"),
            ({"save_top_k": 0}, r"^save_top_k must .*got 0$"),
            ({"mode": "best"}, r"^mode must .*got 'best'$"),
            ({"monitor": None}, r"^monitor .*, got None$"),
        ],
    )
    def test_bad_arguments_raise(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Checkpoint("runs", **arguments)

    def test_numpy_ints_are_accepted(self, tmp_path: Path) -> None:
        two = np.int64(2)
        checkpoint = play([0.0] * 5, tmp_path, save_freq=two, max_save_files=two, window=two, save_top_k=None)
        assert [int(file.name.split("-")[1]) for file in checkpoint.files] == [4, 5]
        saving.write(tmp_path / "state", checkpoint.get_state())


class TestLatest:
    def test_latest_is_the_newest_by_count(self, tmp_path: Path) -> None:
        for name in (
            "episode-000002-reward-9.00.noterl",
            "episode-1000000-reward-1.00.noterl",
            "episode-999999-reward-1.00.noterl",
            "episode-1000000-step-00000012-reward-1.00.safetensors",
            "episode-2000000-reward-1.00.txt",
            "other-3000000.noterl",
        ):
            (tmp_path / name).touch()
        assert Checkpoint.latest(tmp_path) == tmp_path / "episode-1000000-step-00000012-reward-1.00.safetensors"

    def test_latest_is_of_the_run_that_saved_last(self, tmp_path: Path) -> None:
        play([0.0] * 20, tmp_path, save_freq=10)
        checkpoint = play([0.0] * 10, tmp_path, save_freq=5)
        assert episodes_of(tmp_path) == [5, 10, 10, 20]
        assert Checkpoint.latest(tmp_path) == checkpoint.files[-1]
        assert Checkpoint.latest(tmp_path).name.startswith("episode-000010")

    def test_latest_is_none_until_a_new_run_has_saved(self, tmp_path: Path) -> None:
        play([0.0] * 20, tmp_path, save_freq=10)
        found = []
        look = LambdaCallback(on_episode_end=lambda *_: found.append(Checkpoint.latest(tmp_path)))
        agent, checkpoint = rewarded([0.0], FileAgent), Checkpoint(tmp_path, save_freq=2)
        agent.fit(episodes=3, callbacks=[look, checkpoint], verbose=0)
        assert found == [None, None, checkpoint.files[0]]
        assert 20 in episodes_of(tmp_path)

    def test_restored_run_keeps_its_files_in_the_manifest(self, tmp_path: Path) -> None:
        state = play([0.0] * 4, tmp_path, save_freq=2).get_state()
        play([0.0] * 9, tmp_path, save_freq=9)
        restored = Checkpoint(tmp_path, save_freq=2)
        restored.set_state(state)
        rewarded([0.0], FileAgent).fit(episodes=1, callbacks=[restored], verbose=0)
        assert Checkpoint.latest(tmp_path) == restored.files[-1]
        assert [int(file.name.split("-")[1]) for file in restored.files] == [2, 4, 1]

    def test_latest_skips_files_that_were_removed(self, tmp_path: Path) -> None:
        (tmp_path / "episode-000099-reward-1.00.noterl").touch()  # of an older run
        checkpoint = play([0.0] * 10, tmp_path, save_freq=5)
        first, last = checkpoint.files
        last.unlink()
        assert Checkpoint.latest(tmp_path) == first
        first.unlink()
        assert Checkpoint.latest(tmp_path) is None

    def test_latest_is_found_after_the_folder_was_moved(self, tmp_path: Path) -> None:
        play([0.0] * 10, tmp_path / "runs", save_freq=5)
        (tmp_path / "runs").rename(tmp_path / "old")
        assert Checkpoint.latest(tmp_path / "old").parent == tmp_path / "old"

    @pytest.mark.parametrize("text", ["", "[1]", "{}", '{"files": 3}', '{"files": [3]}', "nonsense"])
    def test_damaged_manifest_raises(self, tmp_path: Path, text: str) -> None:
        (tmp_path / MANIFEST).write_text(text)
        with pytest.raises(saving.FileError, match=re.escape(MANIFEST)):
            Checkpoint.latest(tmp_path)

    def test_manifest_names_no_other_files(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").touch()
        (tmp_path / MANIFEST).write_text('{"files": ["thesis.tex", "../thesis.tex"]}')
        assert Checkpoint.latest(tmp_path) is None

    def test_latest_is_none_without_files(self, tmp_path: Path) -> None:
        assert Checkpoint.latest(tmp_path) is None
        assert Checkpoint.latest(tmp_path / "nowhere") is None


class TestForeignNames:
    @pytest.mark.parametrize("name", ["thesis.tex", ".env", "episode-000001.noterl", "episode-1-notes.noterl"])
    def test_restored_checkpoint_removes_no_other_file(self, tmp_path: Path, name: str) -> None:
        checkpoint = play([1.0, 2.0], tmp_path, save_freq=1, max_save_files=1)
        state = checkpoint.get_state()
        (tmp_path / name).write_text("precious")
        restored = Checkpoint(tmp_path, 1, max_save_files=1)
        restored.set_state({**state, "files": [name, *state["files"]], "scores": [0.0, 1.0], "chosen": [True, True]})
        rewarded([0.0], FileAgent).fit(episodes=3, callbacks=[restored], verbose=0)
        assert (tmp_path / name).read_text() == "precious"
        assert len(restored.files) == 1

    def test_restored_checkpoint_removes_no_file_of_another_folder(self, tmp_path: Path) -> None:
        folder, other = tmp_path / "runs", tmp_path / "thesis-1.00.noterl"
        state = play([1.0, 2.0], folder, save_freq=1, max_save_files=1).get_state()
        (folder / "episode-1-x").mkdir()
        other.touch()
        names = ["episode-1-x/../../thesis-1.00.noterl", *state["files"]]
        restored = Checkpoint(folder, 1, max_save_files=1)
        restored.set_state({**state, "files": names, "scores": [0.0, 1.0], "chosen": [True, True]})
        rewarded([0.0], FileAgent).fit(episodes=3, callbacks=[restored], verbose=0)
        assert other.exists()


class Gate:
    """Replaces `saving.write`: waits for `open`, and raises at the writes in `failing`, from 0."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.failing, self.written = threading.Event(), set(), []
        self._write = saving.write
        monkeypatch.setattr(saving, "write", self.write)

    def write(self, path: Any, tree: Any, run: str | None = None) -> None:
        self.open.wait()
        number = len(self.written)
        self.written.append(tree["state"]["counters"]["episodes"])
        if number in self.failing:
            raise OSError(28, "No space left on device", str(path))
        self._write(path, tree, run)


class TestBackground:
    def test_training_continues_while_a_file_is_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        gate, agent, threads = Gate(monkeypatch), small(), threading.active_count()
        checkpoint = Checkpoint(tmp_path, 2, max_save_files=1, save_replay=True, background=True)
        listed = []

        def list_files(episode: int, logs: dict[str, Any]) -> None:
            listed.append(names(tmp_path))
            if episode == 2:  # the state of episode 2 waited to be written during episode 3
                gate.open.set()

        agent.fit(episodes=5, callbacks=[LambdaCallback(on_episode_end=list_files), checkpoint], verbose=0)
        assert listed[2] == []
        assert gate.written == [2, 4, 5]
        assert episodes_of(tmp_path) == [5]
        assert threading.active_count() == threads

    def test_background_file_holds_the_state_at_its_count(self, tmp_path: Path) -> None:
        whole = one_lane()
        whole.fit(episodes=8, callbacks=[Checkpoint(tmp_path / "a", 4, save_replay=True)], verbose=0)
        agent = one_lane()
        agent.fit(episodes=8, callbacks=[Checkpoint(tmp_path / "b", 4, save_replay=True, background=True)], verbose=0)
        assert_same_state(agent, whole)
        assert names(tmp_path / "a") == names(tmp_path / "b")
        for name in names(tmp_path / "a"):
            assert_same_state(*(saving.read(tmp_path / part / name)["state"] for part in "ab"))

    def test_background_writes_weights(self, tmp_path: Path) -> None:
        agent = small()
        agent.fit(episodes=1, callbacks=[Checkpoint(tmp_path, background=True, save_weights_only=True)], verbose=0)
        other = small(seed=9)
        other.load_weights(Checkpoint.latest(tmp_path))
        np.testing.assert_array_equal(*(noterl.networks.get_weights(each.q)[0] for each in (agent, other)))

    def test_failed_write_raises_and_keeps_older_files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        gate, agent = Gate(monkeypatch), small()
        gate.open.set()
        gate.failing = {1, 2}
        checkpoint = Checkpoint(tmp_path, 1, max_save_files=1, background=True)
        with pytest.raises(OSError, match="No space left"):
            agent.fit(episodes=5, callbacks=[checkpoint], verbose=0)
        assert episodes_of(tmp_path) == [1]
        assert checkpoint.files == [*tmp_path.glob("episode-*")]
        gate.failing = set()
        agent.fit(episodes=1, callbacks=[checkpoint], verbose=0)
        assert [int(file.name.split("-")[1]) for file in checkpoint.files] == episodes_of(tmp_path)

    def test_failed_last_write_raises(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        gate = Gate(monkeypatch)
        gate.open.set()
        gate.failing = {0}
        with pytest.raises(OSError, match="No space left"):
            small().fit(episodes=1, callbacks=[Checkpoint(tmp_path, background=True)], verbose=0)
        assert names(tmp_path) == []

    def test_copy_that_does_not_fit_is_skipped_with_a_message(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        agent = small()
        monkeypatch.setattr("noterl.callbacks.support.writer.available_bytes", lambda: 1000)
        monkeypatch.setattr("noterl.callbacks.support.writer.ThreadPoolExecutor", pytest.fail)
        checkpoint = Checkpoint(tmp_path, 2, save_replay=True, background=True)
        agent.fit(episodes=2, callbacks=[checkpoint], verbose=2)
        assert episodes_of(tmp_path) == [2]
        assert f"writing {checkpoint.files[0]} at once" in capsys.readouterr().err
