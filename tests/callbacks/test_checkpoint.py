"""Checkpoint: names and number of files, failures and resuming."""

from __future__ import annotations

import errno
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import noterl
from noterl import saving
from noterl.callbacks import Checkpoint, EarlyStopping, Export, LambdaCallback, RecordVideo
from noterl.callbacks.checkpoint import MANIFEST
from tests.support.states import assert_same_state, differences
from tests.support.tape import Recorder, Tape, TapeAgent, rewarded, taped

pytestmark = pytest.mark.backends("torch")


class FileAgent(TapeAgent):
    """Its files hold a line of text; the disk is full at the saves with the numbers in `failures`, from 1."""

    failures: tuple[int, ...] = ()
    saves = 0

    def count_save(self) -> None:
        self.saves += 1
        if self.saves in self.failures:
            raise OSError(errno.ENOSPC, "No space left on device")

    def get_document(self, *, replay=True):
        self.count_save()
        return {"text": f"all, replay={replay}", "state": {"replay": None}}

    def get_weights(self):
        self.count_save()
        return {"weights": np.zeros(1)}


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != MANIFEST)


def episodes_of(directory: Path) -> list[int]:
    return [int(name.split("-")[1]) for name in names(directory)]


def play(rewards: list[float], directory: Path, **arguments: Any) -> Checkpoint:
    checkpoint = Checkpoint(directory, **arguments)
    rewarded(rewards, FileAgent).fit(episodes=len(rewards), callbacks=[checkpoint], verbose=0)
    return checkpoint


class TestFiles:
    def test_files_are_written_every_save_freq_and_at_the_end(self, tmp_path: Path) -> None:
        play([0.0] * 11, tmp_path, save_freq=4, max_save_files=None)
        assert episodes_of(tmp_path) == [4, 8, 11]

    def test_last_state_is_saved_once(self, tmp_path: Path) -> None:
        agent = rewarded([0.0], FileAgent)
        agent.fit(episodes=8, callbacks=[Checkpoint(tmp_path, save_freq=4)], verbose=0)
        assert agent.saves == 2

    def test_steps_after_the_last_saved_episode_are_saved_too(self, tmp_path: Path) -> None:
        agent = small()
        agent.fit(steps=1, verbose=0)
        agent.fit(episodes=1, callbacks=[checkpoint := Checkpoint(tmp_path, save_freq=1)], verbose=0)
        at_end = agent.steps
        agent.fit(steps=2, callbacks=[checkpoint], verbose=0)
        assert episodes_of(tmp_path) == [1]
        assert noterl.load(checkpoint.files[-1]).steps == agent.steps == at_end + 2

    def test_restored_best_weights_are_saved_too(self, tmp_path: Path) -> None:
        agent = small()
        numbers = iter(range(1, 9))

        def change(episode: int, logs: dict[str, Any]) -> None:
            logs["reward"] = [5.0, 9.0, 1.0, 1.0][episode]
            number = next(numbers)
            agent.set_weights({name: np.full_like(array, number) for name, array in agent.get_weights().items()})

        stopper = EarlyStopping(1, patience=2, restore_best_weights=True)
        checkpoint = Checkpoint(tmp_path, save_freq=1, save_best_only=True, window=1, save_last=False)
        agent.fit(episodes=9, callbacks=[LambdaCallback(on_episode_end=change), stopper, checkpoint], verbose=0)
        assert agent.episodes == 4
        weights = noterl.load(checkpoint.files[-1]).get_weights()
        assert all((array == 2).all() for array in weights.values())

    def test_names_hold_episode_and_score(self, tmp_path: Path) -> None:
        checkpoint = play([1, 2, 6, 8], tmp_path, save_freq=1, window=2)
        assert names(tmp_path) == [
            "episode-000001-reward-1.00.noterl",
            "episode-000002-reward-1.50.noterl",
            "episode-000003-reward-4.00.noterl",
            "episode-000004-reward-7.00.noterl",
        ]
        assert checkpoint.files == [tmp_path / name for name in names(tmp_path)]

    @pytest.mark.parametrize("kept", [1, 2, 3, 5])
    def test_newest_files_are_kept(self, tmp_path: Path, kept: int) -> None:
        checkpoint = play([0.0] * 5, tmp_path, save_freq=1, max_save_files=kept)
        assert episodes_of(tmp_path) == [*range(6 - kept, 6)]
        assert checkpoint.files == [tmp_path / name for name in names(tmp_path)]

    def test_default_keeps_five_files_of_every_tenth_episode(self, tmp_path: Path) -> None:
        play([0.0] * 75, tmp_path)
        assert episodes_of(tmp_path) == [40, 50, 60, 70, 75]

    def test_other_files_are_not_removed(self, tmp_path: Path) -> None:
        (tmp_path / "episode-000000-reward-0.00.noterl").write_text("from another run")
        play([0.0] * 3, tmp_path, save_freq=1, max_save_files=1)
        assert episodes_of(tmp_path) == [0, 3]

    def test_missing_file_is_ignored(self, tmp_path: Path) -> None:
        remove = LambdaCallback(on_episode_begin=lambda *_: [path.unlink() for path in tmp_path.iterdir()])
        agent = rewarded([0.0], FileAgent)
        agent.fit(episodes=5, callbacks=[remove, Checkpoint(tmp_path, save_freq=1, max_save_files=2)], verbose=0)
        assert episodes_of(tmp_path) == [5]

    def test_next_fit_continues_the_count(self, tmp_path: Path) -> None:
        agent, checkpoint = rewarded([0.0], FileAgent), Checkpoint(tmp_path, save_freq=4, max_save_files=3)
        for episodes in (5, 2, 5):
            agent.fit(episodes=episodes, callbacks=[checkpoint], verbose=0)
        assert episodes_of(tmp_path) == [7, 8, 12]

    def test_incomplete_episode_is_neither_counted_nor_scored(self, tmp_path: Path) -> None:
        tape = Tape()
        agent = taped(tape, length=5)
        agent.__class__ = type("Agent", (FileAgent,), {})
        agent.fit(steps=14, callbacks=[Checkpoint(tmp_path, save_freq=1)], verbose=0)
        assert names(tmp_path) == ["episode-000001-reward-5.00.noterl", "episode-000002-reward-5.00.noterl"]

    def test_directories_are_created(self, tmp_path: Path) -> None:
        play([0.0], tmp_path / "runs" / "first")
        assert episodes_of(tmp_path / "runs" / "first") == [1]

    def test_arguments_decide_what_is_saved(self, tmp_path: Path) -> None:
        play([0.0], tmp_path / "a")
        play([0.0], tmp_path / "b", save_replay=True)
        play([0.0], tmp_path / "c", save_weights_only=True)
        assert saving.read(next((tmp_path / "a").glob("episode-*")))["text"] == "all, replay=False"
        assert saving.read(next((tmp_path / "b").glob("episode-*")))["text"] == "all, replay=True"
        [weights] = (tmp_path / "c").glob("episode-*")
        assert weights.suffix == ".safetensors" and list(saving.read_weights(weights)) == ["weights"]

    def test_checkpoints_run_last(self, tmp_path: Path) -> None:
        tape = Tape()
        agent = rewarded([0.0], FileAgent)
        agent.count_save = lambda: tape.write("save")
        agent.fit(
            episodes=1, callbacks=[Checkpoint(tmp_path, save_freq=1), Recorder(tape, order=2)], log_every=1, verbose=0
        )
        assert tape == ["train_begin", "episode_begin 0", "episode_end 0", "save", "train_end"]


class TestBestOnly:
    def test_save_best_only_saves_higher_scores_only(self, tmp_path: Path) -> None:
        play(
            [3, 2, 3, 4, 4, 1, 5],
            tmp_path,
            save_freq=1,
            max_save_files=None,
            save_best_only=True,
            save_last=False,
            window=1,
        )
        assert episodes_of(tmp_path) == [1, 4, 7]

    def test_first_score_is_the_best(self, tmp_path: Path) -> None:
        play([-500, -600, -700], tmp_path, save_freq=1, save_best_only=True, save_last=False, window=1)
        assert names(tmp_path) == ["episode-000001-reward-minus-500.00.noterl"]

    @pytest.mark.parametrize("chosen", [{"save_best_only": True}, {"save_top_k": 1}], ids=str)
    def test_lucky_first_episode_is_not_the_best(self, tmp_path: Path, chosen: dict[str, Any]) -> None:
        play([100, 20, 20, 40, 20, 20], tmp_path, save_freq=1, save_last=False, window=3, max_save_files=1, **chosen)
        assert names(tmp_path) == ["episode-000003-reward-46.67.noterl"]

    def test_no_file_is_chosen_before_the_window_is_full(self, tmp_path: Path) -> None:
        play([1, 2, 3], tmp_path, save_freq=1, save_last=False, window=4, save_best_only=True)
        assert names(tmp_path) == []

    def test_scores_are_compared_only_when_a_file_is_due(self, tmp_path: Path) -> None:
        play(
            [9, 1, 1, 5, 9], tmp_path, save_freq=2, max_save_files=None, save_best_only=True, save_last=False, window=1
        )
        assert episodes_of(tmp_path) == [2, 4, 5]

    def test_score_is_the_mean_of_the_window(self, tmp_path: Path) -> None:
        play(
            [4, 0, 5, 1, 6], tmp_path, save_freq=1, max_save_files=None, save_best_only=True, save_last=False, window=2
        )
        assert names(tmp_path) == [
            f"episode-00000{n}-reward-{score:.2f}.noterl" for n, score in [(2, 2), (3, 2.5), (4, 3), (5, 3.5)]
        ]

    def test_nan_score_does_not_block_later_scores(self, tmp_path: Path) -> None:
        agent = taped(Tape(), learning_starts=5)  # the first losses, 0 and 1, come with the third episode
        agent.__class__ = type("Agent", (FileAgent,), {})
        checkpoint = Checkpoint(
            tmp_path, save_freq=1, monitor="loss", window=1, save_best_only=True, save_last=False, max_save_files=None
        )
        agent.fit(episodes=5, callbacks=[checkpoint], verbose=0)
        assert names(tmp_path) == [
            f"episode-00000{n}-loss-{loss:.2f}.noterl" for n, loss in [(3, 0.5), (4, 2.5), (5, 4.5)]
        ]


class TestMonitor:
    def test_loss_is_nan_before_the_first_update(self, tmp_path: Path) -> None:
        play([0.0], tmp_path, save_freq=1, monitor="loss")
        assert names(tmp_path) == ["episode-000001-loss-nan.noterl"]

    def test_metric_of_another_callback_is_monitored(self, tmp_path: Path) -> None:
        add = LambdaCallback(on_episode_end=lambda episode, logs: logs.update({"eval/reward": 2.5}))
        agent = rewarded([0.0], FileAgent)
        agent.fit(episodes=1, callbacks=[Checkpoint(tmp_path, monitor="eval/reward"), add], verbose=0)
        assert names(tmp_path) == ["episode-000001-eval-reward-2.50.noterl"]

    def test_unknown_metric_raises(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"monitor: .*'score'"):
            play([0.0], tmp_path, monitor="score")
        assert names(tmp_path) == []


class TestFailures:
    def test_unwritable_path_raises_before_the_first_step(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("not a directory")
        tape = Tape()
        with pytest.raises(OSError, match=re.escape(str(tmp_path / "file"))):
            taped(tape).fit(episodes=2, callbacks=[Checkpoint(tmp_path / "file" / "runs")], verbose=0)
        assert tape == []

    def test_check_of_the_path_leaves_no_file(self, tmp_path: Path) -> None:
        tape = Tape()
        agent = taped(tape)
        tape.acts["reset 0", 1] = lambda: int("no number")
        with pytest.raises(ValueError, match="no number"):
            agent.fit(episodes=2, callbacks=[Checkpoint(tmp_path)], verbose=0)
        assert names(tmp_path) == []

    @pytest.mark.parametrize("best", [False, True])
    def test_failed_save_loses_no_file(self, tmp_path: Path, best: bool) -> None:
        agent = rewarded([1, 2, 3, 4], FileAgent)
        agent.failures = (2, 3)  # at the second episode's end, and at the end of training
        checkpoint = Checkpoint(tmp_path, save_freq=1, max_save_files=1, save_best_only=best, window=1)
        with pytest.raises(OSError, match="No space left"):
            agent.fit(episodes=4, callbacks=[checkpoint], verbose=0)
        assert episodes_of(tmp_path) == [1]
        assert [file.name for file in checkpoint.files] == names(tmp_path)
        # The state holds the existing files, and the next fit saves again.
        state = checkpoint.get_state()
        assert saving.run_of(checkpoint.files[0]) == state.pop("run")
        assert state == {
            "files": names(tmp_path),
            "scores": [1.0],
            "chosen": [True],
            "monitor": "reward",
            "recent": [2.0],
            "is_rare": False,
            "awaits_score": False,
            "saved_at": 1,
        }
        agent.fit(episodes=1, callbacks=[checkpoint], verbose=0)
        assert episodes_of(tmp_path) == [3]

    def test_state_is_saved_when_training_fails(self, tmp_path: Path) -> None:
        agent = rewarded([0.0], FileAgent)
        fail = LambdaCallback(on_episode_end=lambda episode, logs: int("no number") if episode == 2 else None)
        with pytest.raises(ValueError, match="no number"):
            agent.fit(episodes=9, callbacks=[Checkpoint(tmp_path), fail], verbose=0)
        assert episodes_of(tmp_path) == [3]

    def test_full_disk_keeps_the_older_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With the agent's own `save`: the older file stays readable, no other is left, and training can continue."""
        agent = small()
        checkpoint = Checkpoint(tmp_path, save_freq=1, max_save_files=1)
        agent.fit(episodes=1, callbacks=[checkpoint], verbose=0)
        before = names(tmp_path)

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            agent.fit(episodes=1, callbacks=[checkpoint], verbose=0)
        assert (agent.episodes, names(tmp_path)) == (1, before)
        monkeypatch.undo()
        assert noterl.load(tmp_path / before[0]).episodes == 1
        monkeypatch.setattr(saving, "write", lambda path, document, run: full(0))
        with pytest.raises(OSError, match="No space left"):
            agent.fit(episodes=1, callbacks=[checkpoint], verbose=0)
        monkeypatch.undo()
        assert (agent.episodes, names(tmp_path)) == (2, before)
        agent.fit(episodes=1, callbacks=[checkpoint], verbose=0)
        assert episodes_of(tmp_path) == [3]

    @pytest.mark.parametrize("value", [0, -1, 2.5, True, "many"])
    @pytest.mark.parametrize("name", ["save_freq", "max_save_files", "window"])
    def test_bad_arguments_raise(self, name: str, value: Any) -> None:
        with pytest.raises(ValueError, match=rf"^{name} must .*got {value!r}$"):
            Checkpoint("runs", **{name: value})

    @pytest.mark.parametrize("path", ["", 3, None])
    def test_bad_path_raises(self, path: Any) -> None:
        with pytest.raises(ValueError, match=rf"^path must .*got {path!r}$"):
            Checkpoint(path)

    def test_bad_flag_raises(self) -> None:
        with pytest.raises(ValueError, match=r"^save_replay must"):
            Checkpoint("runs", save_replay="no")


def small(seed: int = 3) -> noterl.DQN:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=seed)
    agent.compile(replay=noterl.Replay(200), batch_size=4, learning_starts=10**6)
    return agent


class TestResuming:
    @staticmethod
    def callbacks(directory: Path) -> list[Any]:
        return [
            EarlyStopping(3, 10**6),
            Checkpoint(directory, save_freq=2, max_save_files=2, save_best_only=True, save_replay=True, window=3),
        ]

    def test_every_file_resumes_exactly(self, tmp_path: Path) -> None:
        whole = small()
        kept = self.callbacks(tmp_path / "whole")
        whole.fit(episodes=12, callbacks=kept, verbose=0)
        first = small()
        first.fit(episodes=6, callbacks=self.callbacks(tmp_path / "parts"), verbose=0)
        newest = max((tmp_path / "parts").glob("episode-*"))
        second = small(seed=8)
        second.restore(newest)
        assert second.episodes < 12
        resumed = self.callbacks(tmp_path / "parts")
        second.fit(episodes=12 - second.episodes, callbacks=resumed, verbose=0)
        assert_same_state(second, whole)
        states = [{f"callbacks.{type(each).__name__}": each.get_state() for each in part} for part in (resumed, kept)]
        assert not differences(*states)
        assert names(tmp_path / "parts") == names(tmp_path / "whole")

    def test_file_holds_the_state_of_all_callbacks_after_the_event(self, tmp_path: Path) -> None:
        small().fit(
            episodes=2, callbacks=[Checkpoint(tmp_path, save_freq=2), stopper := EarlyStopping(9, 0)], verbose=0
        )
        [file] = tmp_path.glob("episode-*")
        states = noterl.load(file).get_state()["callbacks"]
        assert states["EarlyStopping"] == stopper.get_state()
        assert len(states["EarlyStopping"]["recent"]) == 2
        assert states["Checkpoint"]["files"] == [file.name]

    def test_save_weights_only_restores_weights(self, tmp_path: Path) -> None:
        agent = small()
        agent.fit(episodes=1, callbacks=[Checkpoint(tmp_path, save_weights_only=True)], verbose=0)
        other = small(seed=9)
        other.load_weights(next(tmp_path.glob("episode-*")))
        for ours, theirs in zip(
            noterl.networks.get_weights(agent.q), noterl.networks.get_weights(other.q), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)

    @pytest.mark.parametrize("save_replay", [False, True])
    def test_save_replay_decides_whether_the_memory_is_saved(self, tmp_path: Path, save_replay: bool) -> None:
        agent = small()
        agent.fit(episodes=2, callbacks=[Checkpoint(tmp_path, save_replay=save_replay)], verbose=0)
        restored = noterl.load(next(tmp_path.glob("episode-*")))
        restored.build()
        assert len(restored.replay) == (agent.steps if save_replay else 0)
        assert restored.steps == agent.steps


@pytest.mark.parametrize(
    "callback", [partial(Checkpoint, save_freq=1), RecordVideo, lambda folder: Export(folder / "policy", "numpy")]
)
def test_other_files_and_folders_in_the_directory_stay(callback: Any, tmp_path: Path) -> None:
    others = [Path("probe"), Path("policy.py.part", "note"), Path(".noterl-00000000-00000000.part", "note")]
    for other in others:  # the names that checks of a folder have used, or use with other digits
        (tmp_path / other).parent.mkdir(exist_ok=True)
        (tmp_path / other).write_text("mine")
    (tmp_path / "nested" / "probe").mkdir(parents=True)
    agent = small()
    for folder in (tmp_path, tmp_path / "nested"):
        agent.fit(episodes=1, callbacks=[callback(folder)], verbose=0)
    assert [(tmp_path / other).read_text() for other in others] == ["mine"] * len(others)
    assert (tmp_path / "nested" / "probe").is_dir()
    assert not [path for path in tmp_path.rglob("*.part") if path.is_file()]
