"""Trimming and masking, effective sample size, memories on disk, and prefetching."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from noterl.replay import Prioritized, Replay
from tests.support.prioritized_memory import feed_back
from tests.support.replay_invariants import check_replay
from tests.support.replay_model import assert_same, built, filled, sample_batch, store

pytestmark = pytest.mark.backend_free


def numbers(replay: Replay) -> list[int]:
    """Return the numbers (rewards) of the stored transitions, the oldest first."""
    return replay._storage.reward[replay._storage.stored_indices()].astype(int).tolist()


def test_dropped_transitions_make_room_for_new_ones() -> None:
    replay = filled(20, 33)
    replay.drop_oldest(0)
    replay.drop_oldest(np.int64(5))
    assert numbers(replay) == list(range(18, 33))
    for step in range(33, 36):
        store(replay, step)
    assert numbers(replay) == list(range(18, 36))
    replay.drop_oldest(1000)
    assert numbers(replay) == []
    replay.drop_oldest(1)
    check_replay(replay)
    store(replay, 36)
    assert numbers(replay) == [36]


@pytest.mark.parametrize("n", [-1, 1.5, True, None])
def test_number_of_dropped_transitions_must_be_an_int(n: Any) -> None:
    with pytest.raises(ValueError, match="n must be an int of at least 0"):
        filled(20, 7).drop_oldest(n)


def test_masked_transitions_still_provide_next_observations() -> None:
    replay = filled(20, 10)
    replay.keep([2, 7])
    assert (len(replay), replay.num_sampleable(), numbers(replay)) == (10, 2, list(range(10)))
    batch = sample_batch(replay, 50, 2)
    assert set(batch.reward.ravel()) == {2, 7}
    np.testing.assert_array_equal(batch.next_observation, batch.observation + 1)
    with pytest.raises(ValueError, match=r"batch_size must be .* 2, got 3"):
        sample_batch(replay, 1, 3)
    store(replay, 10)
    assert set(sample_batch(replay, 50, 3).reward.ravel()) == {
        2,
        7,
        10,
    }
    replay.keep(np.arange(11))
    assert replay.num_sampleable() == 11


def test_unmasked_transitions_are_sampled_equally_often() -> None:
    for kept in (np.arange(0, 200, 50), np.arange(0, 200, 2)):  # listed, and by rejection sampling
        replay = filled(200, 500)
        replay.keep(kept)
        batch = sample_batch(replay, 400, len(kept), np.random.default_rng(1))
        rows, times = np.unique(batch.index, return_counts=True)
        assert rows.tolist() == kept.tolist()
        assert ((times - 400) ** 2 / 400).sum() < 160  # chi square, at most 99 degrees of freedom: p = 1e-4


@pytest.mark.parametrize(
    ("indices", "message"),
    [([7], "got 7"), ([0, -1], "got -1"), ([20], "got 20"), ([[1]], r"int64\[1, 1\]"), ([0.5], r"float64\[1\]")],
)
def test_keep_raises_for_indices_that_are_not_stored(indices: Any, message: str) -> None:
    replay = filled(20, 7)
    with pytest.raises(ValueError, match=f"indices must be .*{message}"):
        replay.keep(indices)
    assert replay.num_sampleable() == 7


def test_effective_sample_size_of_known_probabilities() -> None:
    replay = built(20)
    assert replay.effective_sample_size() == 0
    replay = filled(20, 33, lanes=2)
    assert replay.effective_sample_size() == 20
    replay.keep([0, 1, 2])
    assert replay.effective_sample_size() == pytest.approx(3)
    replay = Replay(4, sampler=Prioritized(alpha=0.5))
    replay.build(spaces.Box(-1, 1, (3,)), spaces.Discrete(5))
    for step in range(4):
        store(replay, step, lanes=2)
    feed_back(replay, [9.0, 16.0, 1.0, 4.0])
    # Alpha takes the square roots of the scores.
    assert replay.effective_sample_size() == pytest.approx(10**2 / 30)
    assert replay.effective_sample_size(alpha=False) == pytest.approx(30**2 / (81 + 256 + 1 + 16), rel=1e-6)


def test_trims_wait_until_a_group_of_updates_is_gathered() -> None:
    replay, whole = (Replay(40, frame_stack=3, n_step=2) for _ in range(2))
    for each in (replay, whole):
        each.build(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
        for step in range(40):
            shown = np.maximum(np.arange(step - 2, step + 1), 0)
            following = np.maximum(np.arange(step - 1, step + 2), 0)
            each.add(0, shown, 0, step, following, False, False)
    sample = replay.sample(8, 16, generator=np.random.default_rng(0))
    expected = whole.gather(sample, gamma=0.9)
    with replay.gather_ahead(lambda part: replay.gather(part, gamma=0.9), [sample[:4], sample[4:]]) as batches:
        first = next(batches)
        replay.drop_oldest(30)
        replay.drop_oldest(30)  # like a callback that sees no change after the first call
        replay.keep([35, 39])
        assert (len(replay), replay.num_sampleable()) == (40, 40)
        second = next(batches)
    for ours, theirs in zip(zip(first, second, strict=True), expected, strict=True):
        if not isinstance(theirs, dict):
            np.testing.assert_array_equal(np.concatenate(ours), theirs)
    assert (len(replay), replay.num_sampleable()) == (10, 2)
    with pytest.raises(RuntimeError, match="stop"), replay.gather_ahead(len, [sample]):
        replay.drop_oldest(1)
        raise RuntimeError("stop")
    assert len(replay) == 9


@pytest.mark.parametrize("prefetch", [0, 1, 3, 100])
def test_batches_are_gathered_in_order_and_up_to_prefetch_ahead(prefetch: int) -> None:
    replay = Replay(20, prefetch=prefetch)
    replay.build(spaces.Box(-1, 1, (3,)), spaces.Discrete(5))
    threads, begun = set(), []

    def gather(part: int) -> int:
        begun.append(part)
        threads.add(threading.current_thread().name.partition("_")[0])
        return part * 10

    before = threading.active_count()
    with replay.gather_ahead(gather, range(8)) as batches:
        for position in range(8):
            assert next(batches) == position * 10
            time.sleep(0.002)  # long enough for the thread to gather ahead
            ahead = min(position + prefetch, 7)
            assert position <= max(begun) <= ahead
    assert threading.active_count() == before
    assert begun == list(range(8))
    assert threads == ({"noterl-prefetch"} if prefetch else {"MainThread"})


def test_error_of_the_thread_is_raised_in_order_and_the_thread_ends() -> None:
    replay = Replay(20, prefetch=2)
    replay.build(spaces.Box(-1, 1, (3,)), spaces.Discrete(5))
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), replay.gather_ahead(lambda part: 1 / part, [1, 2, 0, 3]) as batches:
        assert [next(batches), next(batches)] == [1, 0.5]
        next(batches)
    assert threading.active_count() == before
    for value in (-1, 1.5, None):
        with pytest.raises(ValueError, match="prefetch must be an int of at least 0"):
            Replay(20, prefetch=value)


def test_memory_on_disk_equals_the_one_in_memory(tmp_path: Path) -> None:
    replays = [Replay(50, memmap=folder) for folder in (None, tmp_path, str(tmp_path))]
    space = spaces.Dict({"camera": spaces.Box(0, 255, (8, 8), np.uint8), "arm": spaces.Box(-1, 1, (2,))})
    for replay in replays:
        replay.build(space, spaces.Box(-1, 1, (1,)), extra_spec={"value": ((), np.float32)})
        for step in range(130):
            now, then = ({"camera": np.full((8, 8), step + i), "arm": [step + i, 0]} for i in (0, 1))
            replay.add(step % 30, now, [0.5], step, then, step % 3 == 0, False, {"value": step})
        check_replay(replay)
    assert isinstance(replays[1]._storage.observation.tables["camera"].base, np.memmap)
    assert isinstance(replays[1]._storage.final_observations.tables["camera"].base, np.memmap)
    assert list(tmp_path.iterdir()) == []  # the files have no names
    batches = [sample_batch(each, 2, 9)._asdict() for each in replays]
    assert_same(batches[1], batches[0])
    assert_same(batches[2], batches[0])
    replays[2].clear()
    replays[2].set_state(replays[0].get_state())
    assert_same(replays[2].get_state(), replays[1].get_state())
    assert Replay.from_config(replays[1].get_config()).get_config() == {"capacity": 50, "memmap": str(tmp_path)}


def test_unusable_memmap_folder_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for memmap in (__file__, Path(__file__) / "inside", 3):
        with pytest.raises(ValueError, match="memmap must be"):
            Replay(50, memmap=memmap)
    replay = Replay(50, memmap=tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=100))
    with pytest.raises(ValueError, match=r"capacity=50 .*memmap=.*100 bytes"):
        replay.build(spaces.Box(-1, 1, (3,)), spaces.Discrete(5))
    assert len(replay) == 0


def test_missing_memmap_folder_is_created_by_build(tmp_path: Path) -> None:
    replay = Replay(50, memmap=tmp_path / "runs" / "memory")
    assert list(tmp_path.iterdir()) == []
    replay.build(spaces.Box(-99, 99, (3,)), spaces.Discrete(5))
    assert [store(replay, step) for step in range(3)] == [0, 1, 2]
    assert (tmp_path / "runs" / "memory").is_dir()


@pytest.mark.parametrize("sampler", [None, Prioritized])
def test_effective_sample_size_of_equal_probabilities_is_exact(sampler: Any) -> None:
    replay = Replay(100, sampler=sampler and sampler())
    replay.build(spaces.Box(-99, 99, (3,)), spaces.Discrete(5))
    for number in range(1, 50):
        store(replay, number)
        assert replay.effective_sample_size() == float(number)


def test_feedback_for_a_sample_before_a_restore_is_ignored() -> None:
    replay, other = (Replay(20, sampler=Prioritized()) for _ in range(2))
    for each, numbers in ((replay, range(9)), (other, range(50, 59))):
        each.build(spaces.Box(-99, 99, (3,)), spaces.Discrete(5))
        for number in numbers:
            store(each, number)
    sample = replay.sample(1, 4, generator=np.random.default_rng(0))
    replay.set_state(other.get_state())
    replay.feedback(sample, {"td_error": np.ones((1, 4))})
    assert_same(replay.get_state(), other.get_state())
    replay.feedback(replay.sample(1, 4, generator=np.random.default_rng(0)), {"td_error": np.ones((1, 4))})
    assert replay.get_state()["sampler"]["largest"] == 1
