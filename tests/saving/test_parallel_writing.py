"""Large arrays are written in parallel to the same file, completely or not at all, and memories are cut into pieces."""

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
from noterl.saving import archive, arrays
from tests.support.replay_invariants import check_replay
from tests.support.states import differences

pytestmark = pytest.mark.backend_free


def tree() -> dict[str, Any]:
    """Return a state with arrays of many forms; most are written in parallel if small arrays are."""
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
def parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_MIN_PARALLEL", 100)


def test_arrays_written_in_parallel_are_read_unchanged(parallel: None, tmp_path: Path) -> None:
    saving.write(tmp_path / "a", tree())
    assert not differences(saving.read(tmp_path / "a"), tree())
    with zipfile.ZipFile(tmp_path / "a") as file:
        assert file.testzip() is None
        assert sum(info.file_size > 100 for info in file.infolist()) > 6


def test_equal_trees_make_equal_bytes(parallel: None, tmp_path: Path) -> None:
    for name in "ab":
        saving.write(tmp_path / name, tree())
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_partial_writes_are_continued(parallel: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written, pwrite = [], os.pwrite

    def write_half(descriptor: int, data: Any, position: int) -> int:
        written.append((position, len(data)))
        return pwrite(descriptor, data[: max(1, len(data) // 2)], position)

    monkeypatch.setattr(os, "pwrite", write_half)
    saving.write(tmp_path / "a", tree())
    assert len(written) > 20
    assert not differences(saving.read(tmp_path / "a"), tree())


def test_full_disk_leaves_the_old_file(parallel: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    saving.write(tmp_path / "a", {"old": 1})

    def full(descriptor: int, data: Any, position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left on device; not saved"):
        saving.write(tmp_path / "a", tree())
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert saving.read(tmp_path / "a") == {"old": 1}


def test_memory_saved_in_pieces_is_restored(parallel: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(arrays, "_MAX_PIECE", 300)

    def memory() -> Replay:
        replay = Replay(100)
        replay.build(spaces.Box(-1.0, 1.0, (5,), np.float32), spaces.Discrete(2))
        return replay

    replay, generator = memory(), np.random.default_rng(0)
    for step in range(130):
        replay.add(0, generator.random(5), step % 2, float(step), generator.random(5), step % 9 == 8, False)
    state = replay.get_state()
    assert len(state["columns"]["observation"]) == 7  # of 15 rows each, before and after the end of the ring
    saving.write(tmp_path / "a", state)
    other = memory()
    other.set_state(saving.read(tmp_path / "a"))
    check_replay(other)
    samples = [each.sample(2, 8, generator=np.random.default_rng(1)) for each in (replay, other)]
    batches = [each.gather(sample, gamma=0.9) for each, sample in zip((replay, other), samples, strict=True)]
    for ours, theirs in zip(*batches, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_pieces_are_views_of_the_whole_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_MAX_PIECE", 64)
    array = np.arange(50.0).reshape(25, 2)
    parts = arrays.pieces(array)
    assert [len(part) for part in parts] == [4, 4, 4, 4, 4, 4, 1]
    assert all(np.shares_memory(part, array) for part in parts)
    np.testing.assert_array_equal(np.concatenate(parts), array)


@pytest.mark.parametrize("tree", [{"variables": [np.ones((2, 3), np.float32)], "steps": np.arange(5)}, {"steps": 1}])
def test_small_file_has_the_same_bytes_assembled_in_memory_or_on_disk(
    tree: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving.write(tmp_path / "memory", tree)
    monkeypatch.setattr(archive, "_MAX_BUFFERED", 0)
    saving.write(tmp_path / "file", tree)
    assert (tmp_path / "memory").read_bytes() == (tmp_path / "file").read_bytes()
