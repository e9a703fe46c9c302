"""Checkpoint: files of other runs with equal names, runs that move to another folder, and files without an identity."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

import noterl
from noterl import saving
from noterl.callbacks import Checkpoint
from noterl.callbacks.checkpoint import MANIFEST
from tests.callbacks.test_checkpoint import FileAgent, names, play, small
from tests.support.tape import rewarded

pytestmark = pytest.mark.backends("torch")


def contents(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in names(directory)}


def restored(state: dict[str, Any], directory: Path, rewards: list[float], **arguments: Any) -> Checkpoint:
    """Train with a restored state; the agent's episodes are numbered from 1 again."""
    checkpoint = Checkpoint(directory, **arguments)
    checkpoint.set_state(state)
    rewarded(rewards, FileAgent).fit(episodes=len(rewards), callbacks=[checkpoint], verbose=0)
    return checkpoint


class TestSameNames:
    @pytest.mark.parametrize("background", [False, True])
    @pytest.mark.parametrize("weights", [False, True])
    def test_two_runs_with_equal_scores_keep_their_files(self, tmp_path: Path, weights: bool, background: bool) -> None:
        arguments: dict[str, Any] = {"save_freq": 1, "max_save_files": 2, "save_weights_only": weights}
        play([500.0] * 3, tmp_path, **arguments)
        before = contents(tmp_path)
        second = play([500.0] * 3, tmp_path, background=background, **arguments)
        after = contents(tmp_path)
        assert {name: after[name] for name in before} == before
        ending = "safetensors" if weights else "noterl"
        assert [file.name for file in second.files] == [
            f"episode-00000{number}-reward-500.00-2.{ending}" for number in (2, 3)
        ]
        assert sorted(after) == sorted([*before, *(file.name for file in second.files)])
        third = play([500.0] * 3, tmp_path, **arguments)
        assert third.files[-1].name == f"episode-000003-reward-500.00-3.{ending}"
        assert Checkpoint.latest(tmp_path) == third.files[-1]

    def test_same_seed_twice_keeps_both_runs(self, tmp_path: Path) -> None:
        for episodes in (3, 5):
            checkpoint = Checkpoint(tmp_path, 1, max_save_files=2)
            small().fit(episodes=episodes, callbacks=[checkpoint], verbose=0)
            if episodes == 3:
                before = contents(tmp_path)
        assert before.items() <= contents(tmp_path).items()
        assert noterl.load(checkpoint.files[-1]).episodes == 5

    def test_two_checkpoints_in_one_folder_keep_their_files(self, tmp_path: Path) -> None:
        best = Checkpoint(tmp_path, 1, save_best_only=True, save_last=False, window=1)
        newest = Checkpoint(tmp_path, 1, max_save_files=1)
        rewarded([9, 1, 1, 1], FileAgent).fit(episodes=4, callbacks=[best, newest], verbose=0)
        assert [file.name for file in best.files] == ["episode-000001-reward-9.00.noterl"]
        assert all(file.exists() for file in [*best.files, *newest.files])

    def test_file_of_another_run_is_not_removed_when_it_takes_a_name(self, tmp_path: Path) -> None:
        agent, checkpoint = rewarded([0.0], FileAgent), Checkpoint(tmp_path, 1, max_save_files=1)
        agent.fit(episodes=1, callbacks=[checkpoint], verbose=0)
        first = checkpoint.files[0]
        first.write_bytes(b"from another run")
        assert checkpoint.files == []
        agent.fit(episodes=1, callbacks=[checkpoint], verbose=0)
        assert first.read_bytes() == b"from another run"

    @pytest.mark.parametrize("target", ["precious.txt", "missing"])
    def test_link_with_the_name_of_a_file_is_neither_followed_nor_removed(self, tmp_path: Path, target: str) -> None:
        (tmp_path / "precious.txt").write_text("precious")
        folder = tmp_path / "runs"
        folder.mkdir()
        link = folder / "episode-000001-reward-0.00.noterl"
        link.symlink_to(tmp_path / target)
        play([0.0] * 3, folder, save_freq=1, max_save_files=1)
        assert (tmp_path / "precious.txt").read_text() == "precious"
        assert link.is_symlink() and not (tmp_path / "missing").exists()

    def test_folder_or_pipe_with_the_name_of_a_file_is_kept(self, tmp_path: Path) -> None:
        (tmp_path / "episode-000001-reward-0.00.noterl").mkdir()
        if hasattr(os, "mkfifo"):
            os.mkfifo(tmp_path / "episode-000002-reward-0.00.noterl")
        play([0.0] * 2, tmp_path, save_freq=1)
        assert (tmp_path / "episode-000001-reward-0.00-2.noterl").is_file()

    def test_resumed_run_replaces_its_own_files(self, tmp_path: Path) -> None:
        state = play([0.0] * 2, tmp_path, save_freq=1).get_state()
        before = names(tmp_path)
        resumed = restored(state, tmp_path, [0.0] * 3, save_freq=1)
        assert names(tmp_path) == sorted({*before, "episode-000003-reward-0.00.noterl"})
        assert resumed.get_state()["run"] == state["run"]


class TestMoved:
    def test_run_in_another_runs_folder_removes_none_of_its_files(self, tmp_path: Path) -> None:
        play([500.0] * 3, tmp_path / "b", save_freq=1, max_save_files=None)
        state = play([500.0] * 3, tmp_path / "a", save_freq=1, max_save_files=3).get_state()
        before = contents(tmp_path / "b")
        moved = restored(state, tmp_path / "b", [500.0] * 4, save_freq=1, max_save_files=1)
        assert before.items() <= contents(tmp_path / "b").items()
        assert [file.exists() for file in moved.files] == [True]
        assert len(contents(tmp_path / "a")) == 3

    def test_two_branches_of_a_run_in_one_folder_keep_their_files(self, tmp_path: Path) -> None:
        """The second branch begins at a later file, whose list has the names of files of the first branch."""
        run, states = Checkpoint(tmp_path / "a", 1, max_save_files=None), []
        agent = rewarded([500.0], FileAgent)
        for _ in range(3):
            agent.fit(episodes=1, callbacks=[run], verbose=0)
            states.append(run.get_state())
        restored(states[0], tmp_path / "b", [500.0] * 3, save_freq=1, max_save_files=None)
        before = contents(tmp_path / "b")
        restored(states[2], tmp_path / "b", [500.0] * 3, save_freq=1, max_save_files=1)
        assert before.items() <= contents(tmp_path / "b").items()

    def test_absent_files_are_forgotten(self, tmp_path: Path) -> None:
        state = play([0.0] * 3, tmp_path / "a", save_freq=1).get_state()
        moved = restored(state, tmp_path / "b", [0.0], save_freq=1)
        assert [file.name for file in moved.files] == names(tmp_path / "b") == ["episode-000001-reward-0.00.noterl"]
        manifest = json.loads((tmp_path / "b" / MANIFEST).read_text())
        assert manifest == {"run": moved.get_state()["run"], "files": names(tmp_path / "b")}
        assert manifest["run"] != state["run"]

    @pytest.mark.parametrize("chosen", [{"save_best_only": True}, {"save_top_k": 1}], ids=str)
    def test_best_file_counts_only_in_its_folder(self, tmp_path: Path, chosen: dict[str, Any]) -> None:
        arguments: dict[str, Any] = {"save_freq": 1, "save_last": False, "window": 1, **chosen}
        state = play([9.0], tmp_path / "a", **arguments).get_state()
        moved = restored(state, tmp_path / "b", [3.0, 2.0, 5.0], **{**arguments, "max_save_files": 1})
        assert [file.name for file in moved.files] == names(tmp_path / "b") == ["episode-000003-reward-5.00.noterl"]
        here = restored(state, tmp_path / "a", [3.0, 2.0, 5.0], **arguments)
        assert [file.name for file in here.files] == names(tmp_path / "a") == ["episode-000001-reward-9.00.noterl"]

    def test_renamed_folder_is_the_same_run(self, tmp_path: Path) -> None:
        state = play([0.0] * 3, tmp_path / "a", save_freq=1).get_state()
        (tmp_path / "a").rename(tmp_path / "b")
        moved = restored(state, tmp_path / "b", [1.0], save_freq=1, max_save_files=1, window=1)
        assert names(tmp_path / "b") == ["episode-000001-reward-1.00.noterl"]
        assert moved.get_state()["run"] == state["run"]

    def test_run_that_is_resumed_before_its_first_file_replaces_later_files(self, tmp_path: Path) -> None:
        """A backup may be older than the first file, and a killed run goes on from the backup."""
        agent, checkpoint = rewarded([0.0], FileAgent), Checkpoint(tmp_path, 2)
        agent.fit(episodes=1, callbacks=[checkpoint], verbose=0)
        state = {**checkpoint.get_state(), "files": [], "scores": [], "chosen": []}
        restored(state, tmp_path, [0.0], save_freq=1)
        assert names(tmp_path) == ["episode-000001-reward-0.00.noterl"]


class TestIdentity:
    @pytest.mark.parametrize("weights", [False, True])
    def test_identity_is_in_state_manifest_and_file(self, tmp_path: Path, weights: bool) -> None:
        agent = small()
        checkpoint = Checkpoint(tmp_path, 1, save_weights_only=weights)
        agent.fit(episodes=1, callbacks=[checkpoint], verbose=0)
        run = checkpoint.get_state()["run"]
        assert re.fullmatch("[0-9a-f]{32}", run)
        assert json.loads((tmp_path / MANIFEST).read_text())["run"] == run
        assert saving.run_of(checkpoint.files[0]) == run
        if weights:
            agent.load_weights(checkpoint.files[0])
        else:
            assert noterl.load(checkpoint.files[0]).get_state()["callbacks"]["Checkpoint"]["run"] == run

    def test_identity_survives_fits_and_differs_between_agents(self, tmp_path: Path) -> None:
        agent, checkpoint, runs = rewarded([0.0], FileAgent), Checkpoint(tmp_path, 1), []
        for one in (agent, agent, rewarded([0.0], FileAgent)):
            one.fit(episodes=1, callbacks=[checkpoint], verbose=0)
            runs.append(checkpoint.get_state()["run"])
        assert runs[0] == runs[1] != runs[2]

    @pytest.mark.parametrize("old", ["file", "file and state"])
    def test_file_without_identity_is_never_removed(self, tmp_path: Path, old: str) -> None:
        """As files and states of versions before identities."""
        first = play([1.0, 2.0], tmp_path, save_freq=1)
        state = first.get_state()
        for file in first.files:
            saving.write(file, saving.read(file))
        if old == "file and state":
            del state["run"]
            (tmp_path / MANIFEST).write_text(json.dumps({"files": state["files"]}))
        before = contents(tmp_path)
        second = restored(state, tmp_path, [3.0, 4.0], save_freq=1, max_save_files=1, window=1)
        assert before.items() <= contents(tmp_path).items()
        assert [file.name for file in second.files] == ["episode-000002-reward-4.00.noterl"]

    @pytest.mark.parametrize("run", [None, 3, "", "short", ["a"]])
    def test_malformed_identity_counts_as_none(self, tmp_path: Path, run: Any) -> None:
        state = play([1.0], tmp_path, save_freq=1).get_state()
        before = contents(tmp_path)
        restored({**state, "run": run}, tmp_path, [2.0, 3.0], save_freq=1, max_save_files=1)
        assert before.items() <= contents(tmp_path).items()

    def test_manifest_that_is_another_file_is_not_replaced(self, tmp_path: Path) -> None:
        (tmp_path / MANIFEST).write_text('{"mine": 1}')
        with pytest.raises(saving.FileError, match=re.escape(MANIFEST)):
            play([0.0], tmp_path)
        assert (tmp_path / MANIFEST).read_text() == '{"mine": 1}'
