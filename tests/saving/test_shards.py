"""Big arrays written side by side: the same file as ever, whole or not at all, and memories cut into pieces."""

from __future__ import annotations

import errno
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from noterl import saving
from noterl.replay import Replay
from noterl.saving import archive
from noterl.saving import shards as saving_shards
from tests.support.states import differences

pytestmark = pytest.mark.backend_free


def tree() -> dict[str, Any]:
    """Return a state with arrays of many forms, most of them shards once shards are small."""
    generator = np.random.default_rng(3)
    return {
        "bytes": generator.integers(0, 255, (50, 7, 3), np.uint8),
        "floats": generator.normal(size=(40, 5)),
        "bools": generator.random(200) < 0.5,
        "fortran": np.asfortranarray(generator.normal(size=(30, 4))),
        "strided": generator.normal(size=(60, 4))[::2],
        "empty": np.zeros((0, 3), np.float32),
        "scalar": np.array(2.5),
        "pieces": [np.arange(100), np.arange(100, 150)],
        "variables": [np.ones((20, 20), np.float32)],
    }


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving_shards, "SMALLEST", 100)


def test_what_is_written_side_by_side_is_read_as_ever(small_shards: None, tmp_path: Path) -> None:
    saving.write(tmp_path / "a", tree())
    assert not differences(saving.read(tmp_path / "a"), tree())
    with zipfile.ZipFile(tmp_path / "a") as archive:
        assert archive.testzip() is None
        assert sum(info.file_size > 100 for info in archive.infolist()) > 6


def test_the_same_tree_makes_the_same_bytes(small_shards: None, tmp_path: Path) -> None:
    for name in "ab":
        saving.write(tmp_path / name, tree())
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_each_is_written_by_a_thread_at_its_place(
    small_shards: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written, pwrite = [], os.pwrite

    def note(descriptor: int, data: Any, position: int) -> int:
        written.append((position, len(data)))
        return pwrite(descriptor, data[: max(1, len(data) // 2)], position)  # as a disk may, it takes only a part

    monkeypatch.setattr(os, "pwrite", note)
    saving.write(tmp_path / "a", tree())
    assert len(written) > 20
    assert not differences(saving.read(tmp_path / "a"), tree())


def test_a_full_disk_leaves_the_old_file(small_shards: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    saving.write(tmp_path / "a", {"old": 1})

    def full(descriptor: int, data: Any, position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left on device; not saved"):
        saving.write(tmp_path / "a", tree())
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert saving.read(tmp_path / "a") == {"old": 1}


def test_a_memory_is_cut_into_pieces_and_put_together(
    small_shards: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(saving_shards, "LARGEST", 300)

    def memory() -> Replay:
        replay = Replay(100)
        replay.build(spaces.Box(-1.0, 1.0, (5,), np.float32), spaces.Discrete(2))
        return replay

    replay, generator = memory(), np.random.default_rng(0)
    for step in range(130):
        replay.add(0, generator.random(5), step % 2, float(step), generator.random(5), step % 9 == 8, False)
    state = replay.get_state()
    assert len(state["columns"]["observation"]) == 7  # of 15 rows, on both sides of the ring's end
    saving.write(tmp_path / "a", state)
    other = memory()
    other.set_state(saving.read(tmp_path / "a"))
    other.check()
    samples = [each.sample(2, 8, generator=np.random.default_rng(1)) for each in (replay, other)]
    batches = [each.gather(sample, gamma=0.9) for each, sample in zip((replay, other), samples, strict=True)]
    for ours, theirs in zip(*batches, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_pieces_are_views_and_miss_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving_shards, "LARGEST", 64)
    array = np.arange(50.0).reshape(25, 2)
    parts = saving_shards.pieces(array)
    assert [len(part) for part in parts] == [4, 4, 4, 4, 4, 4, 1]
    assert all(np.shares_memory(part, array) for part in parts)
    np.testing.assert_array_equal(np.concatenate(parts), array)


@pytest.mark.parametrize("tree", [{"variables": [np.ones((2, 3), np.float32)], "steps": np.arange(5)}, {"steps": 1}])
def test_without_shards_the_bytes_are_the_same_put_together_in_memory_or_in_the_file(
    tree: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving.write(tmp_path / "memory", tree)
    monkeypatch.setattr(archive, "_GATHERED", 0)
    saving.write(tmp_path / "file", tree)
    assert (tmp_path / "memory").read_bytes() == (tmp_path / "file").read_bytes()
