"""A replay memory and a plain list that receive the same transitions, and memories with simple contents."""

from dataclasses import dataclass

import numpy as np
from gymnasium import spaces

from noterl.replay import Replay
from tests.support.replay_invariants import check_replay

SPACES = {
    "vector": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "double": spaces.Box(-np.inf, np.inf, (2,), np.float64),
    "image": spaces.Box(0, 255, (4, 5), np.uint8),
    "number": spaces.Discrete(1000),
    "dict": spaces.Dict(
        {"camera": spaces.Box(0, 255, (2, 2), np.uint8), "body": spaces.Dict({"arm": spaces.Box(-9, 9, (2,))})}
    ),
}


def make_observation(space, number):
    """Return an observation that depends on its number."""
    if isinstance(space, spaces.Dict):
        return {name: make_observation(part, number) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return number
    if number == 7 and space.dtype.kind == "f":
        return np.full(space.shape, np.nan, space.dtype)
    return np.arange(number, number + np.prod(space.shape)).reshape(space.shape).astype(space.dtype)


def expected_batch(space, observations):
    """Return the batch of these observations: for each leaf an array `[n, ...]`, with 32 bits instead of 64."""
    if isinstance(space, spaces.Dict):
        return {
            name: expected_batch(part, [each[name] for each in observations]) for name, part in space.spaces.items()
        }
    dtype = {"float64": "float32", "int64": "int32"}.get(str(space.dtype), space.dtype)
    return np.array(observations, space.dtype).reshape(-1, *space.shape).astype(dtype)


def assert_same(actual, expected):
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for name in expected:
            assert_same(actual[name], expected[name])
    elif isinstance(expected, list):
        assert len(actual) == len(expected)
        for pair in zip(actual, expected, strict=True):
            assert_same(*pair)
    elif isinstance(expected, np.ndarray):
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual, expected)
    else:
        assert actual == expected


@dataclass
class Stored:
    """One transition with all its fields."""

    row: int
    lane: int
    observation: int
    action: int
    reward: float
    next_observation: int
    terminated: bool
    truncated: bool
    priority: float
    linked: bool = False


class Model:
    """The memory as a plain list."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.transitions = []
        self.open = {}  # lane -> its newest transition, if the episode is running
        self.added = 0

    def add(self, stored):
        self.transitions = [*self.transitions, stored][-self.capacity :]
        before = self.open.pop(stored.lane, None)
        if before is not None and before in self.transitions:
            before.linked = before.next_observation == stored.observation
        if not (stored.terminated or stored.truncated):
            self.open[stored.lane] = stored
        self.added += 1


class Pair:
    """A memory and its model, which receive the same transitions."""

    def __init__(self, capacity, space):
        self.space = space
        self.replay = self.new_replay(capacity)
        self.model = Model(capacity)
        self.current = {}  # lane -> number of its current observation
        self.number = 0

    def new_replay(self, capacity):
        replay = Replay(capacity)
        replay.build(self.space, spaces.Discrete(5), extra_spec={"priority": ((), np.float64)})
        return replay

    def next_number(self, common):
        self.number += 1
        return common if common is not None else 10 + self.number % 200

    def add(self, lane, ending, unlinked, common):
        """Add a transition.

        With `unlinked`, its observation is not the next observation of the lane's previous transition. New observations
        have the number `common`, or an increasing one if it is None.
        """
        if lane not in self.current or unlinked:
            self.current[lane] = self.next_number(common)
        observation, next_observation = self.current[lane], self.next_number(common)
        stored = Stored(
            row=-1,
            lane=lane,
            observation=observation,
            action=self.number % 5,
            reward=self.number / 7,
            next_observation=next_observation,
            terminated=ending in ("terminated", "both"),
            truncated=ending in ("truncated", "both"),
            priority=self.number / 3,
        )
        stored.row = self.replay.add(
            lane,
            make_observation(self.space, observation),
            stored.action,
            stored.reward,
            make_observation(self.space, next_observation),
            stored.terminated,
            stored.truncated,
            {"priority": stored.priority},
        )
        self.model.add(stored)
        self.current[lane] = next_observation
        if ending:
            del self.current[lane]

    def interrupt(self, lane):
        self.replay.interrupt(lane)
        self.model.open.pop(lane, None)
        self.current.pop(lane, None)

    def clear(self):
        self.replay.clear()
        self.model.transitions, self.model.open = [], {}

    def restore(self, used):
        """Continue with another memory that restored the state; `used` if it held transitions before."""
        other = self.new_replay(self.replay.capacity)
        if used:
            for number in range(7):
                observation = make_observation(self.space, number)
                other.add(number % 3, observation, 0, 0.0, observation, number % 2 == 0, False, {"priority": 0.0})
        other.set_state(self.replay.get_state())
        assert_same(other.get_state(), self.replay.get_state())
        self.replay = other

    def compare(self):
        replay, stored = self.replay, self.model.transitions
        check_replay(replay)
        assert len(replay) == len(stored)
        storage = replay._storage
        rows = np.array([each.row for each in stored], np.int64)
        assert len(set(rows.tolist())) == len(rows)
        assert all(0 <= row < replay.capacity for row in rows)
        np.testing.assert_array_equal(
            storage.insertion_numbers(rows), np.arange(self.model.added - len(stored), self.model.added)
        )
        for method, field in ((storage.observations, "observation"), (storage.next_observations, "next_observation")):
            expected = expected_batch(
                self.space, [make_observation(self.space, getattr(each, field)) for each in stored]
            )
            assert_same(method(rows), expected)
        for field in ("action", "terminated", "truncated", "lane"):
            assert getattr(storage, field)[rows].tolist() == [getattr(each, field) for each in stored]
        np.testing.assert_array_equal(storage.reward[rows], np.array([each.reward for each in stored], np.float32))
        np.testing.assert_array_equal(storage.extra["priority"][rows], [each.priority for each in stored])
        # A next observation has a slot of its own only if it is not the observation of the next transition.
        assert storage.num_slots - len(storage.free_slots) == sum(not each.linked for each in stored)


def sample_batch(replay, updates, batch_size, generator=None, gamma=0.9):
    """Sample and gather a batch."""
    sample = replay.sample(updates, batch_size, generator=generator or np.random.default_rng(0))
    return replay.gather(sample, gamma=gamma)


def built(capacity, observation_space=SPACES["vector"], action_space=None, **keywords):
    replay = Replay(capacity)
    replay.build(observation_space, action_space or spaces.Discrete(5), **keywords)
    return replay


def store(replay, step, lanes=1, episode=9):
    """Add transition number `step`, whose reward and observation are its number."""
    observation, following = np.full(3, step, np.float32), np.full(3, step + lanes, np.float32)
    return replay.add(step % lanes, observation, step % 5, step, following, step % episode == episode - 1, False)


def filled(capacity, count, lanes=1):
    replay = built(capacity)
    for step in range(count):
        store(replay, step, lanes)
    return replay
