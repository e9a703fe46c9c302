"""A replay memory on the device, which is the agent's memory while its transitions are collected there.

The agent's `Replay` receives the transitions when it is next used, and not before (`Replay.defer`). If the `Replay` has
changed since, such as by `drop_oldest` or a `fit` on the host, the device receives its contents before the next call.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from noterl.envs.observation import at
from noterl.replay import Replay
from noterl.replay.columns import gather
from noterl.replay.state import distances
from noterl.replay.storage import Storage


class DeviceMemory:
    """The transitions of a `Replay` in the ring of a program.

    Args:
        replay: the memory of the agent.
        program: a `ReplayProgram`.

    Attributes:
        ring: the ring of the program; None before the first call.
        count: transitions ever inserted into the memory; a transition's insertion number counts those before it.
    """

    def __init__(self, replay: Replay, program: Any) -> None:
        self.replay, self._program = replay, program
        self.ring: Any = None
        self.count = 0
        self._begin = 0  # the oldest insertion number that the memory may hold
        self._offset = 0  # of slots: the transition with number n is in the slot `(n + offset) % slots`
        self._version: tuple[int, ...] = ()
        self._load = self._add_to_replay  # one object, which is compared

    def open(self, position: int) -> np.ndarray | None:
        """Hold the contents of the `Replay`.

        Args:
            position: the steps that the lanes have taken in the round in progress.

        Returns:
            None if the ring holds them already. Otherwise, whether each lane's last transition is `num_envs` insertions
            before its next one, and its episode goes on, `[N]`.

        Raises:
            ValueError: if `Replay.keep` has excluded transitions.
        """
        if self.replay.deferred is self._load:
            return None
        storage = self.replay.sampler.storage
        if self.ring is not None and self._version == _version(storage):
            return None
        if len(storage.masked):
            raise ValueError(
                "replay: a memory on the device samples all of its transitions, but Replay.keep has excluded "
                f"{len(storage.masked)} of them; use drop_oldest, or a sampler other than Uniform, which trains on the "
                "host"
            )
        return self._copy(storage, position)

    def forget(self) -> None:
        """Copy the contents again in the next `open`."""
        if self.replay.deferred is self._load:
            self.replay.sampler.storage.loaded()
        self.ring = None

    def stored(self, count: int) -> int:
        """Return the number of transitions that can be sampled when `count` have been inserted."""
        return count - max(self._begin, count - self.replay.capacity)

    def row(self, position: int) -> int:
        """Return the row of the ring that holds the round in progress."""
        return (self.count - position + self._offset) % self._program.slots // self._program.num_envs

    def advance(self, ring: Any, steps: int) -> None:
        """Hold a ring into which a call has inserted so many transitions."""
        self.ring = ring
        self.count += steps
        self.replay.defer(self._load)

    def _copy(self, storage: Storage, position: int) -> np.ndarray:
        program, indices = self._program, storage.stored_indices()
        num_envs = program.num_envs
        self.count, self._begin = storage.count, storage.begin
        self._offset = (position - self.count) % num_envs
        rows = {
            "observation": storage.observations(indices),
            "action": gather(storage.action, indices, storage.action_layout),
            "reward": storage.reward[indices],
            "next_observation": storage.next_observations(indices),
            "terminated": storage.terminated[indices],
            "truncated": storage.truncated[indices],
            "distance": distances(storage, storage.successor[indices]),
        }
        self.ring = program.make_ring(rows, (storage.insertion_numbers(indices) + self._offset) % program.slots)
        self._version = _version(storage)
        last = self.count - num_envs + (np.arange(num_envs) - position) % num_envs
        newest = (storage.newest_index.get(lane, -1) for lane in range(num_envs))
        numbers = [storage.insertion_numbers(np.int64(index)) if index >= 0 else -1 for index in newest]
        return np.asarray(numbers) == last

    def _add_to_replay(self) -> None:
        """Add the transitions of the calls since the last copy to the `Replay`, in the order of their steps."""
        storage = self.replay.sampler.storage
        if self.count - storage.count > storage.capacity:
            storage.clear()
            storage.begin = storage.count = self.count - storage.capacity
        numbers = np.arange(storage.count, self.count)
        slots = (numbers + self._offset) % self._program.slots
        rows = self._program.read(self.ring, slots)
        ends = (rows[name].tolist() for name in ("terminated", "truncated"))
        columns = zip(
            (slots % self._program.num_envs).tolist(), rows["action"], rows["reward"].tolist(), *ends, strict=True
        )
        for k, (lane, action, reward, terminated, truncated) in enumerate(columns):
            before, after = at(rows["observation"], k), at(rows["next_observation"], k)
            storage.add(lane, before, action, reward, after, terminated, truncated)
        self._version = _version(storage)
        self._begin = storage.begin


def _version(storage: Storage) -> tuple[int, ...]:
    """Return numbers that change if the contents change."""
    return storage.epoch, storage.begin, storage.count, storage.mask_version
