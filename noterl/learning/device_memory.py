"""A replay memory on the device, which is the agent's memory while its transitions are collected there.

The agent's `Replay` receives the transitions at the next use of the `Replay`, and not before (`Replay.load_later`). If
the `Replay` has changed since, such as by `drop_oldest` or a `fit` on the host, the device receives the contents of the
`Replay` before the next call.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from noterl.backends.on_device import ReplayProgram, Transitions
from noterl.envs.observation import at
from noterl.replay import Replay
from noterl.replay.columns import gather, map_leaves
from noterl.replay.state import distances
from noterl.replay.storage import Storage


class DeviceMemory:
    """The transitions of a `Replay` in the ring of a program; a `ReplayRunner` has one, for all calls of a program.

    Args:
        replay: the memory of the agent.
        program: the program.

    Attributes:
        ring: the ring of the program; None before the first call.
        table: the slots of the transitions that can be sampled and are older than the newest one that `Replay.keep` has
            excluded. All later transitions can be sampled and need no table.
        count: transitions ever inserted into the memory; a transition's insertion number counts those before it.
    """

    def __init__(self, replay: Replay, program: ReplayProgram) -> None:
        self.replay: Replay = replay
        self._program = program
        self.ring: Any = None
        self.table: np.ndarray = np.zeros(1, np.int32)
        self.count: int = 0
        self._begin = 0  # the oldest insertion number that the memory may hold
        self._older = np.empty(0, np.int64)  # the insertion numbers of `table`, ascending
        self._recent = 0  # all insertion numbers from this one on can be sampled
        self._offset = 0  # of slots: the transition with number n is in the slot `(n + offset) % slots`
        self._version: tuple[int, ...] = ()
        self._load = self._add_to_replay  # one object, which is compared

    def open(self, position: int, observations: Any) -> np.ndarray | None:
        """Copy the contents of the `Replay` to the device, unless the ring holds these contents already.

        Args:
            position: the steps that the lanes have taken in the round in progress.
            observations: the current observations of the lanes, as the memory stores them, `[N, ...]`.

        Returns:
            None if the ring holds the contents already. Otherwise, for each lane, whether the last transition is
            `num_envs` insertions before the next one, and the episode goes on, `[N]`.
        """
        # A call that failed may have destroyed the ring.
        if self.ring is not None and self._program.is_destroyed(self.ring):
            self.release()
        if self.replay.pending_load is self._load:
            return None
        storage = self.replay.storage
        if self.ring is None or self._version[1:] != _version(storage)[1:]:
            return self._copy(storage, position, observations)
        # `drop_oldest` changes only the oldest insertion number, so it needs no copy.
        self._version = _version(storage)
        self._begin = storage.begin
        return None

    def release(self) -> None:
        """Transfer pending transitions to the host and drop the ring; the next `open` copies the memory again."""
        if self.replay.pending_load is self._load:
            len(self.replay)  # receives the transitions
        self.ring = None

    def length(self, count: int) -> int:
        """Return how many transitions the memory holds when `count` have been inserted."""
        return count - max(self._begin, count - self.replay.capacity)

    def sampleable(self, count: int) -> tuple[int, int, int]:
        """Return which transitions can be sampled when `count` have been inserted.

        Returns:
            the number of newest transitions, the number of entries of `table`, and the first of these entries.
        """
        begin = max(self._begin, count - self.replay.capacity)
        first = int(self._older.searchsorted(begin))
        return count - max(begin, self._recent), len(self._older) - first, first

    def row(self, position: int) -> int:
        """Return the row of the ring that holds the round in progress."""
        return (self.count - position + self._offset) % self._program.slots // self._program.num_envs

    def advance(self, ring: Transitions, steps: int) -> None:
        """Hold a ring into which a call has inserted so many transitions; the `Replay` loads them when it is used."""
        self.ring = ring
        self.count += steps
        self.replay.load_later(self._load)

    def _copy(self, storage: Storage, position: int, observations: Any) -> np.ndarray:
        """Make a new ring and table with the contents of the storage; arguments and result as in `open`."""
        program = self._program
        indices = storage.stored_indices()
        num_envs = program.num_envs
        self.count = storage.count
        self._begin = storage.begin
        # A round then starts at a multiple of `num_envs`, because a row of the ring holds one round.
        self._offset = (position - self.count) % num_envs
        # To the next transition of each transition's episode, and from the one before, in insertions; 0 for none.
        distance = distances(storage, storage.successor[indices])
        linked = np.flatnonzero(distance)
        behind = np.zeros_like(distance)
        behind[linked + distance[linked]] = distance[linked]
        rows = {
            "observation": storage.observations(indices),
            "action": gather(storage.action, indices, storage.action_layout),
            "reward": storage.reward[indices],
            "next_observation": storage.next_observations(indices),
            "terminated": storage.terminated[indices],
            "truncated": storage.truncated[indices],
            "ahead": np.where(distance > 0, distance, num_envs),
            "behind": behind,
        }
        self.ring = program.make_ring(rows, self._slots(storage.insertion_numbers(indices)))
        masked = storage.masked
        self._recent = int(masked[-1]) + 1 if len(masked) else 0
        self._older = np.setdiff1d(np.arange(self._begin, self._recent), masked)
        self.table = np.zeros(storage.capacity if len(masked) else 1, np.int32)
        self.table[: len(self._older)] = self._slots(self._older)
        self._version = _version(storage)
        observations = map_leaves(np.asarray, observations)
        # Lanes step in order, so the last transition of each lane is among the last `num_envs`.
        last = self.count - num_envs + (np.arange(num_envs) - position) % num_envs
        return np.array([self._goes_on(storage, lane, last[lane], at(observations, lane)) for lane in range(num_envs)])

    def _goes_on(self, storage: Storage, lane: int, number: int, observation: Any) -> bool:
        """Return whether a lane's newest transition has this number, and leads to this observation."""
        index = storage.newest_index.get(lane)
        if index is None or storage.insertion_numbers(np.array(index)) != number:
            return False
        after = storage.next_observations(np.array([index]))
        equal: list[bool] = []
        map_leaves(lambda stored, current: equal.append(np.array_equal(stored[0], current)), after, observation)
        return all(equal)

    def _slots(self, numbers: np.ndarray) -> np.ndarray:
        """Return the slots of the transitions with these insertion numbers."""
        return (numbers + self._offset) % self._program.slots

    def _add_to_replay(self) -> None:
        """Add the transitions of the calls since the last copy to the `Replay`, in the order of their steps.

        The `Replay` calls this method at its next use after `advance`.

        A call that raises, such as one that runs out of memory, has destroyed the ring. The transitions since the last
        copy are then lost.
        """
        storage = self.replay.storage
        if self._program.is_destroyed(self.ring):
            lost = min(self.count - storage.count, storage.capacity)
            self.ring = None
            for lane in range(self._program.num_envs):
                storage.interrupt(lane)  # the next transition does not follow the last stored one
            warnings.warn(
                f"the call on the device that has failed destroyed the newest {lost} transitions of the replay memory",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        # Only the newest transitions fit, so older ones need not be added first.
        if self.count - storage.count > storage.capacity:
            storage.clear()
            storage.begin = storage.count = self.count - storage.capacity
        slots = self._slots(np.arange(storage.count, self.count))
        rows = self._program.read(self.ring, slots)
        ends = (rows[name].tolist() for name in ("terminated", "truncated"))
        lanes = (slots % self._program.num_envs).tolist()
        columns = zip(lanes, rows["action"], rows["reward"].tolist(), *ends, strict=True)
        for k, (lane, action, reward, terminated, truncated) in enumerate(columns):
            before = at(rows["observation"], k)
            after = at(rows["next_observation"], k)
            storage.add(lane, before, action, reward, after, terminated, truncated)
        self._version = _version(storage)
        self._begin = storage.begin


def _version(storage: Storage) -> tuple[int, ...]:
    """Return numbers that change if the contents change; the first is the oldest insertion number."""
    return storage.begin, storage.epoch, storage.count, storage.mask_version
