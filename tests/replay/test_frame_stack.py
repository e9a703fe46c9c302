"""Frame stacks: each frame is stored once, and batches equal what the environment returned."""

from __future__ import annotations

import gc
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation

from noterl import envs
from noterl.envs import FrameStack, Reach2D
from noterl.replay import Hindsight, Prioritized, Replay, Triplets, bytes_needed
from tests.replay.test_state import stopped_at_line
from tests.support.doubles import CountingEnv, ImageEnv, StatefulEnv
from tests.support.replay_invariants import check_replay, next_indices
from tests.support.replay_model import assert_same, sample_batch

pytestmark = pytest.mark.backend_free

ATARI = spaces.Box(0, 255, (84, 84, 4), np.uint8)


def play(env: gymnasium.Env[Any, Any], replays: list[Replay], steps: int) -> None:
    """Store the same steps of two lanes in every memory."""
    env.action_space.seed(1)
    for lane in (0, 1):
        observation, _ = env.reset(seed=lane)
        for step in range(steps):
            action = env.action_space.sample()
            following, reward, terminated, truncated, _ = env.step(action)
            for replay in replays:
                replay.add(lane, observation, action, reward, following, terminated, truncated or step == steps - 1)
            observation = following
            if terminated or truncated:
                observation, _ = env.reset()


ENVIRONMENTS = {
    "image": lambda: FrameStack(ImageEnv(), 3),
    "vector": lambda: FrameStack(CountingEnv(7), 4),
    "one": lambda: FrameStack(CountingEnv(7), 1),
    "first axis": lambda: FrameStackObservation(CountingEnv(7), 4, padding_type="reset"),
    "goals": lambda: FrameStack(Reach2D(), 3),
    "triplets": lambda: FrameStack(CountingEnv(7), 3),
}


@pytest.mark.parametrize(
    ("name", "n_step"), [(name, n) for name in ENVIRONMENTS for n in (1, 3) if (name, n) != ("triplets", 3)]
)
@pytest.mark.parametrize("sampler", [None, Prioritized])
def test_batches_equal_those_of_a_memory_that_stores_whole_stacks(name: str, n_step: int, sampler: Any) -> None:
    env = ENVIRONMENTS[name]()
    frames = {"image": 3, "one": 1, "goals": 3, "triplets": 3}.get(name, 4)
    relabels = {"goals": Hindsight, "triplets": Triplets}
    replays = []
    for stack in (None, frames):
        relabel = relabels[name]() if name in relabels else None
        replay = Replay(200, sampler=sampler and sampler(), relabel=relabel, n_step=n_step, frame_stack=stack)
        if name == "goals":
            relabel.attach(env.unwrapped)
        replay.build(env.observation_space, env.action_space)
        replays.append(replay)
    play(env, replays, 90)
    plain, stacked = (sample_batch(replay, 4, 64) for replay in replays)
    assert_same(stacked._asdict(), plain._asdict())
    sizes = [replay._storage.observation.nbytes for replay in replays]
    assert name == "goals" or sizes[1] * frames == sizes[0]


def test_transitions_whose_frames_were_evicted_are_not_sampled() -> None:
    env = FrameStack(CountingEnv(100), 3)
    replay = Replay(5, frame_stack=3)
    replay.build(env.observation_space, env.action_space)
    play(env, [replay], 8)  # of the second lane's 8 steps, the last five (3 to 7) are stored
    assert shown(replay) == [[3, 4, 5], [4, 5, 6], [5, 6, 7]]
    replay.drop_oldest(2)
    assert shown(replay) == [[5, 6, 7]]
    other = Replay(5, frame_stack=3)
    other.build(env.observation_space, env.action_space)
    other.set_state(replay.get_state())
    assert shown(other) == [[5, 6, 7]]
    replay.drop_oldest(1)
    assert (len(replay), replay.num_sampleable()) == (2, 0)
    with pytest.raises(ValueError, match="batch_size"):
        replay.sample(1, 1, generator=np.random.default_rng(0))
    play(env, [replay], 3)
    assert shown(replay) == [[0, 0, 0], [0, 0, 1], [0, 1, 2]]


def shown(replay: Replay) -> Any:
    """Return the sampleable stacks of a memory of `CountingEnv`, the oldest first."""
    indices = replay.sample_pass(1, generator=np.random.default_rng(0)).indices.ravel()
    assert len(indices) == replay.num_sampleable()
    storage = replay._storage
    indices = indices[np.argsort(storage.insertion_numbers(indices))]
    following = storage.next_observations(indices)[:, 1::2].tolist()
    stacks = storage.observations(indices)[:, 1::2].tolist()
    assert following == [[*stack[1:], stack[-1] + 1] for stack in stacks]
    return stacks


LENGTH = 7  # of each episode; two lanes are stepped in turn


def stacks_at(step: int) -> list[list[int]]:
    """Return the stack and the next stack of a step; its number is the newest frame."""
    begin = step - step // 2 % LENGTH * 2
    return [[max(begin, step + 2 * (later - back)) for back in (2, 1, 0)] for later in (0, 1)]


def store_step(replay: Replay, step: int) -> None:
    stack, following = stacks_at(step)
    replay.add(step % 2, stack, 0, step, following, step // 2 % LENGTH == LENGTH - 1, False)


def assert_stacks(replay: Replay) -> None:
    """Check that every sampleable transition has the stacks it was added with."""
    check_replay(replay)
    storage = replay._storage
    indices = storage.stored_indices()
    indices = indices[storage.sampleable(indices)]
    expected = [stacks_at(int(step)) for step in storage.reward[indices]]
    seen = zip(storage.observations(indices).tolist(), storage.next_observations(indices).tolist(), strict=True)
    assert [list(pair) for pair in seen] == expected


@pytest.mark.parametrize(("count", "dropped"), [(3, 0), (9, 0), (13, 0), (15, 0), (15, 3), (30, 0), (30, 5)])
def test_ctrl_c_on_any_line_leaves_correct_stacks(count: int, dropped: int) -> None:
    def work() -> None:
        if dropped:
            replay.drop_oldest(dropped)
        else:
            store_step(replay, count)

    for stop_at in range(400):
        replay = Replay(8, frame_stack=3)
        replay.build(spaces.Box(0, 999, (3,)), spaces.Discrete(2))
        for step in range(count):
            store_step(replay, step)
        finished = not stopped_at_line(stop_at, work, ("storage.py", "frame_stack.py"))
        assert_stacks(replay)
        for step in range(count + 1, count + 10):
            store_step(replay, step)
            assert_stacks(replay)
        assert replay.num_sampleable() > 0
        if finished:
            break
    assert 15 < stop_at < 399


@pytest.mark.parametrize("through_a_state", [False, True])
def test_reset_without_interrupt_starts_new_episode_even_if_the_newest_frame_is_equal(
    through_a_state: bool,
) -> None:
    replay, other = Replay(9, frame_stack=2), Replay(9, frame_stack=2)
    for each in (replay, other):
        each.build(spaces.Box(0, 9, (2,)), spaces.Discrete(2))
    replay.add(0, [2, 2], 0, 0.0, [2, 3], False, False)
    if through_a_state:
        other.set_state(replay.get_state())
        replay = other
    replay.add(0, [3, 3], 0, 0.0, [3, 4], False, False)
    replay.add(0, [3, 4], 0, 0.0, [4, 5], False, False)
    storage = replay._storage
    assert storage.observations(storage.stored_indices()).tolist() == [[2, 2], [3, 3], [3, 4]]
    assert replay.num_sampleable() == 3
    assert next_indices(storage, storage.stored_indices()).tolist() == [-1, 2, -1]


def test_state_of_frame_stacks_raises_in_a_memory_without_them() -> None:
    replay, plain = Replay(5, frame_stack=3), Replay(5)
    replay.build(spaces.Box(0, 9, (6,)), spaces.Discrete(2))
    plain.build(spaces.Box(0, 9, (2,)), spaces.Discrete(2))
    for one, other in ((replay, plain), (plain, replay)):
        with pytest.raises(ValueError, match=r"\['columns'\]"):
            one.set_state(other.get_state())


def test_a_million_atari_stacks_need_at_most_7_5_gigabytes() -> None:
    needed = bytes_needed(1_000_000, ATARI, spaces.Discrete(18), frame_stack=4)
    # `Episodes` is allocated at sampling: at most 64 bytes per transition.
    assert 7.0e9 < needed + 1_000_000 * 64 <= 7.5e9
    assert bytes_needed(1_000_000, ATARI, spaces.Discrete(18)) > 28e9


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_a_hundred_thousand_atari_stacks_need_at_most_750_megabytes() -> None:
    gc.collect()
    before = resident()
    replay = Replay(100_000, frame_stack=4)
    replay.build(ATARI, spaces.Discrete(18))
    assert replay.nbytes == bytes_needed(100_000, ATARI, spaces.Discrete(18), frame_stack=4)
    frames = np.random.default_rng(0).integers(0, 255, (204, 84, 84), np.uint8)
    stacks = [frames[start : start + 4].transpose(1, 2, 0) for start in range(201)]
    for step in range(100_000):
        start = step % 200
        replay.add(0, stacks[start], 1, start, stacks[start + 1], False, start == 199)
    batch = sample_batch(replay, 1, 32)
    for start, observation in zip(batch.reward[0].astype(int), batch.observation[0], strict=True):
        np.testing.assert_array_equal(observation, stacks[start])
    assert 0.70e9 < replay.nbytes <= 0.75e9
    assert 0.65e9 < resident() - before <= 0.75e9


def resident() -> int:
    """Return the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_observations_that_are_not_stacks_raise() -> None:
    action = spaces.Discrete(2)
    for space in (spaces.Box(0, 1, (5, 7)), spaces.Discrete(4), spaces.Dict({"camera": ATARI})):
        with pytest.raises(ValueError, match="frame_stack=4 needs"):
            Replay(10, frame_stack=4).build(space, action)
    replay = Replay(10, frame_stack=4)
    replay.build(spaces.Box(0, 1, (8,)), action)
    with pytest.raises(ValueError, match=r"last 4 frames .*FrameStack"):
        replay.add(0, np.arange(8), 0, 0.0, np.arange(8), False, False)
    assert len(replay) == 0
    zeros = FrameStackObservation(CountingEnv(7), 4, padding_type="zero")
    replay = Replay(10, frame_stack=4)
    replay.build(zeros.observation_space, action)
    with pytest.raises(ValueError, match=r"padded with zeros.*padding_type='reset'"):
        observation = np.stack([np.zeros(2), np.zeros(2), np.zeros(2), np.ones(2)])
        replay.add(0, observation, 0, 0.0, np.roll(observation, -1, 0), False, False)
    for frames in (0, 1.5, True):
        with pytest.raises(ValueError, match="frame_stack must be a positive int"):
            Replay(10, frame_stack=frames)


@pytest.mark.parametrize("drop", ["interrupt", "drop_oldest"])
def test_zeros_in_the_middle_of_an_episode_are_no_padding(drop: str) -> None:
    env = FrameStack(CountingEnv(7), 3)
    replay = Replay(20, frame_stack=3, stack_axis=-1)
    replay.build(env.observation_space, env.action_space)
    frames = [np.zeros(2), np.zeros(2), *(np.full(2, number) for number in range(5))]
    stacks = [np.concatenate(frames[start : start + 3]) for start in range(5)]
    for step, (stack, following) in enumerate(pairwise(stacks)):
        if drop == "interrupt":
            replay.interrupt(0)
        replay.add(0, stack, 0, float(step), following, False, False)
        if drop == "drop_oldest":
            replay.drop_oldest(len(replay))
    assert len(replay) == (4 if drop == "interrupt" else 0)


def stack_of_squares(numbers: list[int], last: bool) -> Any:
    """Return a stack of three frames of 3 x 6: its shape fits both axes."""
    frames = [np.arange(18).reshape(3, 6) * number for number in numbers]
    return (np.concatenate(frames, -1) if last else np.stack(frames)).astype(np.uint8)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("last", "axis"), [(False, None), (False, 0), (True, -1)])
def test_first_axis_is_the_default_if_both_axes_fit(last: bool, axis: int | None, nested: bool) -> None:
    stacks = [stack_of_squares(list(range(start, start + 3)), last) for start in range(6)]
    stacks = [stack_of_squares([0, 0, number], last) for number in (0, 1)] + stacks
    box = spaces.Box(0, 255, stacks[0].shape, np.uint8)
    space = spaces.Dict({"observation": box, "place": spaces.Discrete(9)}) if nested else box
    replay = Replay(9, frame_stack=3, stack_axis=axis)
    wrong = Replay(9, frame_stack=3, stack_axis=0 if last else -1)
    for each in (replay, wrong):
        each.build(space, spaces.Discrete(2))
    for stack, following in pairwise(stacks):
        if (stack == following).all():
            continue
        pair = [{"observation": part, "place": 3} if nested else part for part in (stack, following)]
        replay.add(0, pair[0], 0, 0.0, pair[1], False, False)
    assert replay.num_sampleable() == len(replay)
    indices, storage = replay._storage.stored_indices(), replay._storage
    batches = storage.observations(indices), storage.next_observations(indices)
    for batch, wanted in zip(batches, (stacks[:-1], stacks[1:]), strict=True):
        assert_same(batch["observation"] if nested else batch, np.array(wanted))
    with pytest.raises(ValueError, match="stack_axis"):
        wrong.add(0, pair[0], 0, 0.0, pair[1], False, False)


@pytest.mark.parametrize(("frames", "axis"), [(3, 1), (3, "first"), (None, 0)])
def test_bad_stack_axis_raises(frames: int | None, axis: Any) -> None:
    with pytest.raises(ValueError, match="stack_axis must be"):
        Replay(9, frame_stack=frames, stack_axis=axis)


def test_environment_stacks_with_as_many_rows_as_frames_need_the_axis() -> None:
    env = FrameStack(gymnasium.wrappers.ReshapeObservation(CountingEnv(9), (2, 1)), 2)
    replay = Replay(20, frame_stack=2, stack_axis=-1)
    replay.build(env.observation_space, env.action_space)
    assert env.observation_space.shape == (2, 1, 2)
    play(env, [replay], 12)
    assert len(replay) == 20


def test_frame_stack_wrapper_returns_the_last_frames() -> None:
    env = FrameStack(CountingEnv(9), 3)
    assert env.observation_space == spaces.Box(0, np.inf, (6,), np.float32)
    first, _ = env.reset()
    assert first.tolist() == [0, 0, 0, 0, 0, 0]
    shown = [env.step(0)[0] for _ in range(4)]
    assert [each[1::2].tolist() for each in shown] == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    image = FrameStack(ImageEnv(), 2)
    height, width, channels = ImageEnv().observation_space.shape
    assert image.observation_space.shape == (height, width, 2 * channels)
    observation, _ = image.reset(seed=0)
    following = image.step(image.action_space.sample())[0]
    assert observation in image.observation_space and following in image.observation_space
    np.testing.assert_array_equal(following[..., :channels], observation[..., channels:])
    gray = FrameStack(gymnasium.wrappers.ReshapeObservation(CountingEnv(3), (2, 1)), 4)
    assert gray.observation_space.shape == (2, 1, 4)
    assert gray.reset()[0].shape == gray.step(0)[0].shape == (2, 1, 4)
    with pytest.raises(ValueError, match="env"):
        FrameStack(gymnasium.make("FrozenLake-v1"), 2)
    with pytest.raises(ValueError, match="frames must be a positive int"):
        FrameStack(CountingEnv(3), 0)


def test_frames_are_part_of_the_environment_state() -> None:
    env, other = FrameStack(StatefulEnv(), 3), FrameStack(StatefulEnv(), 3)
    env.reset(seed=3)
    for _ in range(2):
        env.step(np.zeros(1))
    envs.set_state(other, envs.get_state(env))
    for _ in range(4):
        np.testing.assert_array_equal(env.step(np.zeros(1))[0], other.step(np.zeros(1))[0])
    assert envs.check(lambda: FrameStack(CountingEnv(5), 2)).ok


def test_memory_of_a_restored_agent_may_begin_in_the_middle_of_an_episode() -> None:
    replay = Replay(20, frame_stack=3, stack_axis=-1)
    replay.build(spaces.Box(0, 9, (6,)), spaces.Discrete(2), allocate=False)
    replay.interrupt(0)  # as a restored state does
    replay.add(0, np.array([0, 0, 0, 0, 1, 1]), 0, 0.0, np.array([0, 0, 1, 1, 2, 2]), False, False)
    assert len(replay) == 1
