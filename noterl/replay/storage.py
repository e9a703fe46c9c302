"""The ring buffer of transitions, shared by all lanes in order of insertion.

Each observation is stored once. For the transition at an index, `successor` locates the next observation:

- `successor[index] >= 0`: the observation at that index, of the lane's next transition in the same episode.
- `successor[index] = -1 - slot`: `final_observations[slot]`. This is the last observation of an episode, the last one
  before an interruption, or the newest one of a running lane.

`Ring` describes the insertion numbers of transitions. A transition is evicted before its index is overwritten, so an
exception or Ctrl-C within `add` leaves a consistent memory, which lacks at most the oldest transition.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from noterl.registry import Configurable
from noterl.replay.columns import Allocate, Array, Layout, Leaf, Table, allocate, gather, map_leaves, scatter
from noterl.replay.episodes import Episodes
from noterl.utils import budget
from noterl.utils.files import user_path

_CHUNK = 2**12  # transitions of a data set that are copied at once
FIRST_SLOTS = 16  # initial number of final observations; the table doubles when all slots are used

Entries = TypeVar("Entries", bound="Ring")


class Ring:
    """The numbering of a ring buffer.

    Args:
        capacity: how many entries are stored.

    Attributes:
        begin: the oldest stored insertion number.
        count: entries ever inserted; the newest insertion number is one less.
        epoch: increases when the contents are cleared or replaced; insertion numbers of another epoch are meaningless.
        mask_version: increases when `mask` is called.
        frames: how many frames an observation stacks; 1 without stacks.
        spacing: environment steps between two entries of a lane.
        pending_load: adds entries that were collected elsewhere, and is called before the next use; see
            `Replay.load_later`.
    """

    frames = 1
    spacing: int = 1

    def __init__(self, capacity: int) -> None:
        self.capacity: int = capacity
        self.pending_load: Callable[[], None] | None = None
        self.begin: int = 0
        self.count: int = 0
        self.epoch: int = 0
        # Excluded by `Replay.keep`. New entries do not update the mask: later insertion numbers are not in `_masked`.
        self.mask_version: int = 0
        self._masked = np.empty(0, np.int64)  # insertion numbers, ascending
        self._unmasked: Array | None = None  # by index; None if nothing is masked
        self._unmasked_to = 0  # the first insertion number that `_unmasked` does not cover

    def loaded(self) -> Self:
        """Call and remove `pending_load`, which adds entries to this buffer, and return the buffer."""
        load = self.pending_load
        if load is not None:
            self.pending_load = None
            try:
                load()
            except BaseException:
                self.pending_load = load
                raise
        return self

    @property
    def length(self) -> int:
        """How many entries are stored."""
        return self.count - self.begin

    def mask(self, numbers: Array) -> None:
        """Mask these insertion numbers (ascending) and no others."""
        self._unmasked = None
        self._unmasked_to = self.count
        self.mask_version += 1
        self._masked = numbers
        if len(numbers):
            self._unmasked = np.ones(self.capacity, np.bool_)
            self._unmasked[numbers % self.capacity] = False

    @property
    def masked(self) -> Array:
        """The masked insertion numbers that are stored, ascending."""
        return self._masked[self._masked.searchsorted(self.begin) :]

    @property
    def unmasked(self) -> Array | None:
        """By index, whether a stored entry is not masked; None if no entry is masked.

        `add` does not update the mask, so this property first includes the new entries.
        """
        if self._unmasked is None or self._masked[-1] < self.begin:
            # All masked entries are evicted: without a mask, samplers take their faster path again.
            self._unmasked = None
            self._masked = self._masked[:0]
        elif self._unmasked_to < self.count:
            first = max(self._unmasked_to, self.count - self.capacity)
            self._unmasked[np.arange(first, self.count) % self.capacity] = True
            self._unmasked_to = self.count
        return self._unmasked

    @property
    def num_unmasked(self) -> int:
        """How many stored entries are not masked."""
        length = self.count - self.begin
        return length if self._unmasked is None else length - len(self.masked)

    def insertion_numbers(self, indices: Array) -> Array:
        """Return the insertion numbers of stored entries."""
        return self.begin + (indices - self.begin) % self.capacity

    def sample_stored(self, count: int, generator: np.random.Generator) -> Array:
        """Return `count` indices of stored entries, uniform and independent.

        Entries are sampled by age, so the ages do not depend on where in the ring the oldest entry is.
        """
        first = self.begin % self.capacity
        last = first + self.count - self.begin
        indices = generator.integers(first, last, count)
        if last > self.capacity:
            np.subtract(indices, self.capacity, out=indices, where=indices >= self.capacity)
        return indices

    def slices(self, start: int, stop: int) -> list[slice]:
        """Return the slices of the ring for the insertion numbers from `start` up to `stop`, at most `capacity`."""
        first = start % self.capacity
        last = first + stop - start
        # The range may wrap around the end of the ring.
        ranges = [slice(first, min(last, self.capacity)), slice(0, max(0, last - self.capacity))]
        return [part for part in ranges if part.start < part.stop]

    def stored_indices(self) -> Array:
        """Return the indices `[n]` of the stored entries, the oldest first."""
        first = self.begin % self.capacity
        indices = np.arange(first, first + self.length)
        indices[self.capacity - first :] -= self.capacity
        return indices

    def unmasked_indices(self) -> Array:
        """Return the indices `[n]` of the entries that are not masked, the oldest first."""
        indices = self.stored_indices()
        unmasked = self.unmasked
        return indices if unmasked is None else indices[unmasked[indices]]

    def sampleable(self, indices: Array) -> Array | None:
        """Return which of the stored entries `[n]` have complete observations (bool); None if all have."""
        return None


class StorageUser(Configurable, Generic[Entries]):
    """Base class of samplers and relabelings: the parts of a memory that use the entries."""

    _storage: Entries | None = None

    @property
    def storage(self) -> Entries:
        """The entries: the `Storage` of the memory or, for samplers, the sequences of an agent with a state.

        Raises:
            RuntimeError: if the memory is not built.
        """
        storage = self._storage
        if storage is None:
            raise RuntimeError(f"this {type(self).__name__} has no memory yet: call Replay.build first")
        return storage if storage.pending_load is None else storage.loaded()

    def _use(self, storage: Entries, argument: str) -> None:
        """Use this storage from now on, or raise a ValueError if this object belongs to another one."""
        if self._storage not in (None, storage):
            raise ValueError(f"{argument} must belong to one memory only, got the {type(self).__name__} of another")
        self._storage = storage


class Storage(Ring):
    """A ring buffer of transitions in preallocated arrays.

    Args:
        observation: layout of an observation.
        capacity: how many transitions are stored.
        action: layout of an action.
        extra: layouts of the extra fields, by name.
        empty: allocates the large arrays from a shape and a dtype.

    Attributes:
        next_actions: whether batches hold the action of the next transition; see `Replay.build`.
        newest_index: lane -> index of the lane's newest transition, if the episode is running.
        free_slots: slots of `final_observations` that can be used again.
        num_slots: how many slots of `final_observations` have been used so far.
    """

    # Columns that stay in RAM if the other columns are on disk. Rewards in batches are float32.
    BOOKKEEPING: ClassVar[dict[str, np.dtype[Any]]] = {
        "reward": np.dtype(np.float32),
        "terminated": np.dtype(np.bool_),
        "truncated": np.dtype(np.bool_),
        "lane": np.dtype(np.int32),
        "successor": np.dtype(np.int64),
    }
    begin: int
    count: int
    epoch: int
    reward: Array
    terminated: Array
    truncated: Array
    lane: Array
    successor: Array

    def __init__(
        self, observation: Layout, capacity: int, action: Leaf, extra: Mapping[str, Leaf], empty: Allocate = np.empty
    ) -> None:
        super().__init__(capacity)
        self._empty = empty
        self.observation_layout: Layout = observation
        self.action_layout: Leaf = action
        self.extra_layout: Mapping[str, Leaf] = extra
        self.next_actions: bool = False
        self.observation: Table = allocate(observation, capacity, empty)
        self.final_observations = self.allocate_slots(FIRST_SLOTS)
        self.action: Array = empty((capacity, *action.shape), action.dtype)
        self.extra: dict[str, Any] = {name: allocate(leaf, capacity, empty) for name, leaf in extra.items()}
        for name, dtype in self.BOOKKEEPING.items():
            setattr(self, name, np.zeros(capacity, dtype))
        self._episodes: Episodes | None = None
        self.newest_index: dict[int, int] = {}
        self.free_slots: list[int] = []
        self.num_slots: int = 0
        # Writing a scalar to a memoryview takes half the time that writing to the array takes.
        scalar_action = not action.shape and action.dtype.kind in "iu"
        self._action_cells: Any = self.action.data if scalar_action else self.action
        self._reward_cells: Any = self.reward.data
        self._terminated_cells: Any = self.terminated.data
        self._truncated_cells: Any = self.truncated.data
        self._lane_cells: Any = self.lane.data
        self._successor_cells: Any = self.successor.data

    @property
    def episodes(self) -> Episodes:
        """The position of each stored transition in its episode, up to date; allocated at the first use."""
        if self._episodes is None:
            self._episodes = Episodes(self)
        return self._episodes.update()

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        columns = [self.observation, self.final_observations, self.action, *self.extra.values()]
        columns += [getattr(self, name) for name in self.BOOKKEEPING]
        return sum(column.nbytes for column in columns) + (self._episodes.nbytes if self._episodes else 0)

    def add_fields(self, layouts: Mapping[str, Leaf], defaults: Mapping[str, Any]) -> None:
        """Add extra fields; all rows get the defaults."""
        columns = {name: self._empty((self.capacity, *leaf.shape), leaf.dtype) for name, leaf in layouts.items()}
        for name, column in columns.items():
            column[:] = defaults[name]
        self._set_extra({**self.extra, **columns}, {**self.extra_layout, **layouts})

    def remove_fields(self, names: Collection[str]) -> None:
        """Remove extra fields."""
        columns = {name: column for name, column in self.extra.items() if name not in names}
        self._set_extra(columns, {name: self.extra_layout[name] for name in columns})

    def _set_extra(self, columns: dict[str, Any], layouts: dict[str, Leaf]) -> None:
        """Replace the extra fields and their layouts."""
        # New dicts: an error while a state is restored brings the old ones back.
        self.extra = columns
        self.extra_layout = layouts

    def add(
        self,
        lane: int,
        observation: Any,
        action: Any,
        reward: float,
        next_observation: Any,
        terminated: bool,
        truncated: bool,
        extra: Mapping[str, Any] | None = None,
    ) -> int:
        """Store one transition in place of the oldest; see `Replay.add`."""
        count = self.count
        index = count % self.capacity
        successor = self._successor_cells
        if successor[index] < 0:
            self._evict(index)
        elif count - self.begin == self.capacity:
            self.begin += 1  # the same as `_evict`, but 0.1 µs faster
        self.observation[index] = observation
        self._action_cells[index] = action
        self._reward_cells[index] = reward
        self._terminated_cells[index] = terminated
        self._truncated_cells[index] = truncated
        self._lane_cells[index] = lane
        if extra is not None or self.extra:
            values = {} if extra is None else extra
            if values.keys() != self.extra.keys():
                raise ValueError(f"extra must have exactly the fields {sorted(self.extra)}, got {sorted(values)}")
            for name, column in self.extra.items():
                column[index] = values[name]
        # The slot leaves the list after the observation is written: if the write fails, the slot stays free.
        slot = self.free_slots[-1] if self.free_slots else self._new_slot()
        self.final_observations[slot] = next_observation
        self.free_slots.pop()
        successor[index] = -1 - slot
        newest_index = self.newest_index
        previous = newest_index.get(lane)
        # The transition is stored from here on. The link comes last: until then the previous one has its own slot.
        self.count = count + 1
        if terminated or truncated:
            newest_index.pop(lane, None)
        else:
            newest_index[lane] = index
        if previous is not None:
            # The observations differ if the lane was reset without `interrupt`. Bytes are compared, so that NaN equals
            # itself.
            slot = -1 - successor[previous]
            if self.observation[index].tobytes() == self.final_observations[slot].tobytes():
                successor[previous] = index
                self.free_slots.append(slot)
        return index

    def interrupt(self, lane: int) -> None:
        """End a lane's episode early: the next transition does not continue the newest one."""
        self.newest_index.pop(lane, None)

    def resume(self, lane: int) -> None:
        """Prepare for a lane whose next transition is in the middle of an episode that this memory does not hold."""
        self.interrupt(lane)

    def drop_before(self, begin: int) -> None:
        """Evict all transitions whose insertion number is less than `begin`."""
        indices = self.stored_indices()[: max(0, begin - self.begin)]
        if not len(indices):
            return
        evicted = set(indices.tolist())
        self.newest_index = {lane: index for lane, index in self.newest_index.items() if index not in evicted}
        self.begin = begin
        # The link to a slot is removed before the slot is free. An exception in between at worst loses the slot.
        final = indices[self.successor[indices] < 0]
        slots = -1 - self.successor[final]
        self.successor[final] = 0
        self.free_slots.extend(slots.tolist())

    def fill(self, data: Any) -> None:
        """Store a whole data set of `capacity` transitions in this empty storage: `add` takes 4 s for a million.

        Args:
            data: with the arrays of a `noterl.Dataset`; extra fields of this storage are not written.
        """
        episode = np.repeat(np.arange(len(data.lengths)), data.lengths)  # of each transition
        ends = np.cumsum(data.lengths) - 1
        # Each episode has one observation more than transitions.
        rows = np.arange(self.capacity) + episode
        starts = np.diff(episode, prepend=-1) > 0

        def seen(chunk: Array) -> Any:
            return map_leaves(lambda array: array[chunk], data.observations)

        for first in range(0, self.capacity, _CHUNK):
            part = slice(first, first + _CHUNK)
            before = seen(rows[part])
            after = seen(rows[part] + 1)
            self.fill_observations(part, before, after, starts[part])
        self.final_observations = self.allocate_slots(len(ends))
        self.final_observations[:] = self.newest(seen(rows[ends] + 1))
        self.num_slots = len(ends)
        self.action[:] = data.actions
        self.reward[:] = data.rewards
        self.terminated[ends] = data.terminated
        self.truncated[ends] = ~data.terminated
        self.successor[:] = np.arange(1, self.capacity + 1)
        self.successor[ends] = -1 - np.arange(len(ends))
        self.count = self.capacity

    def fill_observations(self, part: slice, before: Any, after: Any, starts: Array) -> None:
        """Write the observations of some transitions, of which `starts` are the first ones of episodes."""
        self.observation[part] = self.newest(before)

    def newest(self, observations: Any) -> Any:
        """Return what a row of `observation` holds of observations `[n, ...]`."""
        return observations

    def clear(self) -> None:
        """Evict every transition; insertion numbers continue."""
        self.epoch += 1
        self.mask(np.empty(0, np.int64))
        self.newest_index.clear()
        self.begin = self.count
        self.successor[self.successor < 0] = 0
        self.free_slots.clear()
        self.num_slots = 0

    def before(self, indices: Array) -> Array:
        """Return how many transitions with complete observations precede each transition `[n]` in the same episode."""
        return self.episodes.before(indices)

    def observations(self, indices: Array) -> Any:
        """Return the observations `[n, ...]`."""
        return gather(self.observation, indices, self.observation_layout)

    def next_observations(self, indices: Array) -> Any:
        """Return the true next observations `[n, ...]`."""
        successor = self.successor.take(indices, mode="clip")
        layout = self.observation_layout
        # `gather` clips: a negative successor fetches index 0, which the final observation then overwrites.
        observations = gather(self.observation, successor, layout)
        positions = (successor < 0).nonzero()[0]
        if positions.size:
            scatter(observations, positions, gather(self.final_observations, -1 - successor[positions], layout))
        return observations

    def observation_rows(self, indices: Array) -> Array:
        """Return the rows of the observations, `[n]`, or `[n, k]` for stacks of k frames.

        A row below `capacity` is one of `observation`; row `capacity + slot` is that slot of `final_observations`.
        """
        return indices

    def next_observation_rows(self, indices: Array) -> Array:
        """Return the rows of the true next observations; see `observation_rows`."""
        successor = self.successor.take(indices, mode="clip")
        return np.where(successor < 0, self.capacity - 1 - successor, successor)

    def join(self, gathered: Any) -> Any:
        """Return the observations `[n, ...]` of the rows in `observation_rows`, gathered in an array of any library."""
        return gathered

    def allocate_slots(self, count: int) -> Table:
        """Return a table for `count` final observations."""
        return allocate(self.observation_layout, count, self._empty)

    def _evict(self, index: int) -> None:
        """Evict the transition at `index`, if one is stored, before a new one replaces it; the slot is freed last."""
        successor = self._successor_cells[index]
        if successor < 0:
            lane = self._lane_cells[index]
            if self.newest_index.get(lane) == index:
                del self.newest_index[lane]
        self.begin = max(self.begin, self.count - self.capacity + 1)
        if successor < 0:
            self._successor_cells[index] = 0
            self.free_slots.append(-1 - successor)

    def _new_slot(self) -> int:
        """Append a new slot to `free_slots` and return the slot; if the table is full, double the table first."""
        slot = self.num_slots
        if slot == len(self.final_observations):
            larger = self.allocate_slots(2 * slot)
            larger[:slot] = self.final_observations
            self.final_observations = larger
        self.num_slots = slot + 1
        self.free_slots.append(slot)
        return slot


def check_folder(memmap: Any) -> str | None:
    """Return the folder `memmap` as a str; None stays None.

    A file may name a folder that exists, because loading a file must not create one. Otherwise the result is None.

    Raises:
        ValueError: if files cannot be written to the folder, or if the folder cannot be created.
    """
    if memmap is None:
        return None
    if not isinstance(memmap, str | os.PathLike):
        raise ValueError(f"memmap must be None or the path of a folder, got {memmap!r}")
    memmap = user_path(memmap)
    existing = _existing_folder(memmap)
    # A budget exists only while a file is loaded.
    if budget.current() and not (os.path.isdir(memmap) and os.access(memmap, os.W_OK | os.X_OK)):
        text = f"the memory of the file was in the folder {os.fspath(memmap)!r}, which is not here"
        warnings.warn(f"{text}: it will be in RAM. To use a folder, create it before loading", stacklevel=2)
        return None
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(f"memmap must be a folder that can be written to, got {os.fspath(memmap)!r}")
    return str(memmap)


def free_bytes(folder: str) -> int:
    """Return the free bytes on the disk of a folder, which need not exist yet."""
    return shutil.disk_usage(_existing_folder(folder)).free


def allocator_on_disk(folder: str) -> Allocate:
    """Return a function that allocates arrays in files of this folder; a missing folder is created.

    Each file is deleted once the file is mapped, so none remains, however the process ends. The blocks of a file are
    reserved: otherwise a full disk would kill the process at a later write. If a file cannot be allocated, the
    function raises a ValueError.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)

    def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        size = int(np.prod(shape)) * dtype.itemsize
        if not size:
            return np.empty(shape, dtype)
        with tempfile.TemporaryFile(dir=folder, prefix="noterl-") as file:
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                return np.asarray(np.memmap(file, dtype, "w+", shape=shape))
            except OSError as error:
                raise ValueError(f"memmap={folder!r}: {size} bytes cannot be allocated there: {error}") from error

    return empty


def _existing_folder(folder: str | os.PathLike[str]) -> Path:
    """Return the folder, or the nearest parent that exists."""
    return next(path for path in (Path(folder), *Path(folder).absolute().parents) if path.exists())
