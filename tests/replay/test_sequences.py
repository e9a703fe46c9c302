"""Sequences of a replay memory: steps of one lane in order, across episodes, evictions and restores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from noterl.envs import FrameStack
from noterl.replay import Hindsight, Prioritized, Replay
from noterl.replay.sequences import Sequences
from tests.support.doubles import CountingEnv

pytestmark = pytest.mark.backend_free

BOX = spaces.Box(-1e6, 1e6, (2,), np.float32)
LENGTH = 4


def memory(capacity: int = 60, **settings: Any) -> Replay:
    replay = Replay(capacity, **settings)
    replay.build(BOX, spaces.Discrete(5))
    return replay


def store(replay: Replay, lane: int, step: int, *, every: int = 7) -> int:
    """Store a lane's step: the observation is [lane, step], the reward `100 * lane + step`.

    Each `every`-th step ends an episode, alternately by termination and truncation.
    """
    last, even = step % every == every - 1, step // every % 2 == 0
    after = np.array([lane, step + 1 if not last else -step])
    return replay.add(
        lane, np.array([lane, step]), step % 5, 100 * lane + step, after, last and even, last and not even
    )


def filled(steps: int, lanes: int = 3, **settings: Any) -> Replay:
    replay = memory(**settings)
    for step in range(steps):
        for lane in range(lanes):
            store(replay, lane, step)
    return replay


def gathered(sequences: Sequences, updates: int = 30, lanes: int = 4, seed: int = 0) -> Any:
    sample = sequences.sample(updates, lanes, generator=np.random.default_rng(seed))
    return sequences.gather(sample, gamma=0.5)


@pytest.mark.parametrize("steps", [10, 20, 71])
def test_sequences_hold_consecutive_steps_of_one_lane(steps: int) -> None:
    batch = gathered(Sequences(filled(steps), LENGTH))
    lane, step = batch.observation[..., 0], batch.observation[..., 1].astype(int)
    assert batch.observation.shape == (30, LENGTH, 4, 2) and batch.weight.min() == 1
    assert (lane == lane[:, :1]).all() and (np.diff(step, axis=1) == 1).all()
    np.testing.assert_array_equal(batch.reward, 100 * lane + step)
    last = step % 7 == 6
    np.testing.assert_array_equal(batch.discount, np.where(last & (step // 7 % 2 == 0), 0.0, 0.5))
    np.testing.assert_array_equal(batch.next_observation[..., 1], np.where(last, -step, step + 1))
    continues = batch.extra["continues"]
    np.testing.assert_array_equal(continues[:, :-1], ~last[:, :-1])
    assert not continues[:, -1].any()


def test_every_complete_sequence_is_sampled() -> None:
    replay = filled(40)  # the newest 20 steps of each lane are stored
    batch = gathered(Sequences(replay, LENGTH), updates=400)
    starts = set(map(tuple, batch.observation[:, 0].reshape(-1, 2).astype(int).tolist()))
    assert starts == {(lane, step) for lane in range(3) for step in range(20, 40 - LENGTH + 1)}


def test_starts_are_uniform() -> None:
    batch = gathered(Sequences(filled(40), LENGTH), updates=2_000)
    lane, step = batch.observation[:, 0].reshape(-1, 2).astype(int).T
    counts = np.unique(lane * 100 + step, return_counts=True)[1]
    assert len(counts) == 51 and abs(counts / counts.mean() - 1).max() < 0.4


def test_sequences_follow_what_is_stored_later() -> None:
    replay = memory()
    sequences = Sequences(replay, LENGTH)
    for step in range(100):
        for lane in range(1 + step % 3):  # lanes with different numbers of steps
            store(replay, lane, step)
        if step > 12:
            batch = gathered(sequences, updates=3, seed=step)
            lane = batch.observation[..., 0]
            assert (lane == lane[:, :1]).all() and (np.diff(batch.observation[..., 1], axis=1) > 0).all()
            stored = set(map(tuple, replay.sampler.storage.observations(replay.sampler.storage.stored_indices())))
            assert set(map(tuple, batch.observation.reshape(-1, 2))) <= stored


def test_links_of_a_restored_memory_are_the_same() -> None:
    replay, other = filled(47), memory()
    first, second = Sequences(replay, LENGTH), Sequences(other, LENGTH)
    store(other, 5, 0)
    second._update()
    other.set_state(replay.get_state())
    for left, right in zip(gathered(first), gathered(second), strict=True):
        if isinstance(left, np.ndarray) and left.dtype != np.int64:  # the indices differ
            np.testing.assert_array_equal(left, right)


def test_evicted_and_excluded_steps_do_not_start_sequences() -> None:
    replay = filled(20)
    sequences = Sequences(replay, LENGTH)
    replay.drop_oldest(30)
    assert gathered(sequences).observation[..., 1].min() == 10
    kept = replay.sampler.storage.stored_indices()[:6]
    replay.keep(kept)
    assert set(gathered(sequences).observation[:, 0, :, 1].reshape(-1)) == {10, 11}
    assert gathered(sequences).observation[..., 1].max() == 11 + LENGTH - 1


def test_sequences_may_be_shorter_if_there_are_no_complete_ones() -> None:
    batch = gathered(Sequences(filled(2), LENGTH))
    step = batch.observation[..., 1].astype(int)
    np.testing.assert_array_equal(batch.weight, np.cumsum(np.ones_like(step), axis=1) <= 2 - step[:, :1])
    assert batch.extra["continues"].sum() == (step[:, 0] == 0).sum()


def test_interrupted_lane_does_not_continue() -> None:
    replay = memory()
    for step in range(4):
        store(replay, 0, step)
        if step == 1:
            replay.interrupt(0)
    batch = gathered(Sequences(replay, LENGTH), updates=1, lanes=1)
    assert batch.extra["continues"][0, :, 0].tolist() == [1, 0, 1, 0]
    assert batch.next_observation[0, :, 0, 1].tolist() == [1, 2, 3, 4]


def test_length_one_has_single_steps() -> None:
    batch = gathered(Sequences(filled(3), 1))
    assert batch.reward.shape == (30, 1, 4) and not batch.extra["continues"].any() and batch.weight.all()


def test_steps_without_a_whole_stack_of_frames_have_weight_zero() -> None:
    env = FrameStack(CountingEnv(7), 4)
    replay = Replay(16, frame_stack=4)
    replay.build(env.observation_space, env.action_space)
    stacks = []
    for _ in range(5):
        observation, _ = env.reset()
        over = False
        while not over:
            after, reward, over, _, _ = env.step(0)
            replay.add(0, observation, 0, reward, after, over, False)
            stacks.append(np.array(observation))
            observation = after
    batch = gathered(Sequences(replay, 6))
    present = batch.weight > 0
    known = {stack.tobytes() for stack in stacks[-16:]}
    assert all(stack.tobytes() in known for stack in batch.observation[present])
    assert present[:, 0].all() and present.mean() > 0.9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampler": Prioritized()}, r"replay .*sampler"),
        ({"n_step": 2}, r"replay .*n_step=1"),
        ({"relabel": Hindsight()}, r"replay .*relabel"),
    ],
)
def test_unsupported_memory_raises(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sequences(Replay(10, **settings), LENGTH)
