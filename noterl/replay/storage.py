"""The ring in which transitions lie, shared by all lanes, in order of arrival.

Owns the arrays, and the links from each row to its next observation, so that every observation is stored once:

- `successor[row] >= 0` is the row that holds the next observation: the lane's next transition, of the same episode.
- `successor[row] = -1 - slot` says that the next observation is no row's observation and lies in `apart[slot]`: the
  true last observation of an episode, the last before an interruption, or the newest of a lane that is still running.

A transition's generation is the number of transitions added before it; it lies in row `generation % capacity`. Live are
the generations `begin <= generation < count`, so a row is dead while it is being overwritten, and whatever stops `add`
half way (a bad value, Ctrl-C) leaves a memory that is right: at worst it lacks the oldest transition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from noterl.replay.columns import Array, Layout, Leaf, Table, allocate, gather, row_bytes, scatter
from noterl.replay.disk import Allocate
from noterl.replay.episodes import Episodes
from noterl.replay.mask import Mask
from noterl.replay.past import Past

FIRST_SLOTS = 16

# A reward is delivered as float32 whatever it is stored as, and rounding it on entry gives the same number.
BOOKKEEPING = {
    "reward": np.dtype(np.float32),
    "terminated": np.dtype(np.bool_),
    "truncated": np.dtype(np.bool_),
    "lane": np.dtype(np.int32),
    "successor": np.dtype(np.int64),
}


def storage_bytes(capacity: int, observation: Layout, action: Leaf, extra: Mapping[str, Leaf]) -> int:
    """Return the bytes a new `Storage` allocates; each episode end kept apart costs one more observation."""
    row = row_bytes(observation) + row_bytes(action) + row_bytes(extra)
    return capacity * row + bookkeeping_bytes(capacity) + FIRST_SLOTS * row_bytes(observation)


def bookkeeping_bytes(capacity: int) -> int:
    """Return the part of `storage_bytes` that is in memory even where the columns of the spaces lie on disk."""
    return capacity * sum(dtype.itemsize for dtype in BOOKKEEPING.values())


class Storage:
    """Preallocated rows of transitions; see the module's words for how they hang together.

    Args:
        capacity: how many transitions are kept.
        observation: layout of an observation.
        action: layout of an action.
        extra: layout of further fields, by name.
        empty: what makes the large arrays, of a shape and a dtype.

    Attributes:
        begin: the oldest live generation.
        count: transitions ever added; the newest live generation is one less.
        epoch: grows when the rows are emptied or replaced, and generations say nothing of what was before.
        mask: the rows that must not be drawn.
        past: the older frames of stacks, where observations are stacks.
    """

    past: Past | None = None

    def __init__(
        self, capacity: int, observation: Layout, action: Leaf, extra: Mapping[str, Leaf], empty: Allocate = np.empty
    ) -> None:
        self.capacity, self._empty = capacity, empty
        self.observation_layout, self.action_layout, self.extra_layout = observation, action, extra
        self.observation = allocate(observation, capacity, empty)
        self.apart = self.new_slots(FIRST_SLOTS)
        self.action: Array = empty((capacity, *action.shape), action.dtype)
        self.extra: dict[str, Array] = {
            name: empty((capacity, *leaf.shape), leaf.dtype) for name, leaf in extra.items()
        }
        self.reward = np.empty(capacity, BOOKKEEPING["reward"])
        self.terminated = np.empty(capacity, BOOKKEEPING["terminated"])
        self.truncated = np.empty(capacity, BOOKKEEPING["truncated"])
        self.lane = np.empty(capacity, BOOKKEEPING["lane"])
        # Zeros, because a row that was never written must not look as if it had a slot.
        self.successor = np.zeros(capacity, BOOKKEEPING["successor"])
        self.begin = 0
        self.count = 0
        self.epoch = 0
        self.mask = Mask(capacity)
        self._episodes: Episodes | None = None
        self.heads: dict[int, int] = {}  # lane -> row of its newest transition, if the episode still runs
        self.free: list[int] = []  # slots given back
        self.slots = 0  # slots ever handed out; those above were never touched
        scalar_action = not action.shape and action.dtype.kind in "iu"
        self._action_cells: Any = _cells(self.action) if scalar_action else self.action
        self._reward_cells = _cells(self.reward)
        self._terminated_cells = _cells(self.terminated)
        self._truncated_cells = _cells(self.truncated)
        self._lane_cells = _cells(self.lane)
        self._successor_cells = _cells(self.successor)

    @property
    def length(self) -> int:
        """How many transitions are live."""
        return self.count - self.begin

    @property
    def eligible(self) -> Array | None:
        """By row whether a sampler may draw it, if it is live; None if all may. `mask.version` says when it changed."""
        return self.mask.eligible(self.begin, self.count)

    @property
    def drawable(self) -> int:
        """How many live rows may be drawn."""
        length = self.count - self.begin
        return length if self.mask.empty else length - len(self.mask.hidden(self.begin))

    @property
    def knows_episodes(self) -> bool:
        """Whether somebody has asked for `episodes`; until then they take no memory."""
        return self._episodes is not None

    @property
    def episodes(self) -> Episodes:
        """Where in its episode each row lies, as of now."""
        if self._episodes is None:
            self._episodes = Episodes(self)
        return self._episodes.update()

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        bookkeeping = sum(getattr(self, name).nbytes for name in BOOKKEEPING)
        extra = sum(column.nbytes for column in self.extra.values())
        found = self._episodes.nbytes if self._episodes else 0
        return int(self.observation.nbytes + self.apart.nbytes + self.action.nbytes + bookkeeping + extra + found)

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
        """Store one transition over the oldest; see `Replay.add`."""
        capacity, count = self.capacity, self.count
        row = count % capacity
        successor, ring = self._successor_cells, self.observation
        if successor[row] < 0:
            self._release(row)
        elif count - self.begin == capacity:
            self.begin += 1
        ring[row] = observation
        self._action_cells[row] = action
        self._reward_cells[row] = reward
        self._terminated_cells[row] = terminated
        self._truncated_cells[row] = truncated
        self._lane_cells[row] = lane
        if extra is not None or self.extra:
            self._write_extra(row, extra)
        slot = self.free[-1] if self.free else self._new_slot()
        self.apart[slot] = next_observation
        self.free.pop()
        successor[row] = -1 - slot
        heads = self.heads
        head = heads.get(lane)
        # From here on the row counts. The link comes last: until then the previous row has a slot of its own.
        self.count = count + 1
        if terminated or truncated:
            heads.pop(lane, None)
        else:
            heads[lane] = row
        if head is not None:
            self._link(head, row)
        return row

    def interrupt(self, lane: int) -> None:
        """Break a lane off: its next transition does not follow from its last."""
        self.heads.pop(lane, None)

    def drop_oldest(self, count: int) -> None:
        """Let the oldest `count` live transitions die; their places are free for those to come."""
        if not count:
            return
        rows = self.live_rows()[:count]
        dead = set(rows.tolist())
        self.heads = {lane: row for lane, row in self.heads.items() if row not in dead}
        self.begin += count
        # First none uses a slot, then it is free: what breaks off here costs a slot at worst.
        apart = rows[self.successor[rows] < 0]
        slots = -1 - self.successor[apart]
        self.successor[apart] = 0
        self.free.extend(slots.tolist())

    def clear(self) -> None:
        """Forget every transition; generations go on counting."""
        self.epoch += 1
        self.mask.hide(np.empty(0, np.int64), self.count)
        self.heads.clear()
        self.begin = self.count
        self.successor[self.successor < 0] = 0
        self.free.clear()
        self.slots = 0

    def generation(self, rows: Array) -> Array:
        """Return the generations of live rows: how many transitions had been added before each."""
        return self.begin + (rows - self.begin) % self.capacity

    def draw(self, count: int, generator: np.random.Generator) -> Array:
        """Return `count` live rows, uniformly and independently drawn by age, so that layout does not matter."""
        first = self.begin % self.capacity
        rows = generator.integers(first, first + self.length, count)
        if first + self.length > self.capacity:
            np.subtract(rows, self.capacity, out=rows, where=rows >= self.capacity)
        return rows

    def live_rows(self) -> Array:
        """Return the live rows [n], the oldest first."""
        first = self.begin % self.capacity
        rows = np.arange(first, first + self.length)
        rows[self.capacity - first :] -= self.capacity
        return rows

    def eligible_rows(self) -> Array:
        """Return the live rows [n] that may be drawn, the oldest first."""
        rows, allowed = self.live_rows(), self.eligible
        return rows if allowed is None else rows[allowed[rows]]

    def next_row(self, rows: Array) -> Array:
        """Return the rows of the transitions that follow rows [n] in their episodes, -1 where none does (yet)."""
        return np.maximum(self.successor.take(rows), -1)

    def saved_as(self, state: Mapping[str, Any]) -> tuple[Layout, Leaf | None]:
        """Return the layouts that observations, and the older frames of stacks, must have in a state."""
        return self.observation_layout, None

    def restore_as(self, state: Mapping[str, Any]) -> None:
        """Let observations lie as they do in a state; the storage is empty."""

    def restored(self, rows: Array, frames: Any) -> None:
        """Take the older frames of rows [n] that were saved, `past` has their layout; all else was taken."""

    def observations(self, rows: Array) -> Any:
        """Return the observations of rows [n], as delivered."""
        return gather(self.observation, rows, self.observation_layout)

    def next_observations(self, rows: Array) -> Any:
        """Return the true next observations of rows [n], as delivered."""
        successor = self.successor.take(rows, mode="clip")
        layout = self.observation_layout
        # The gathering clips: where the code is negative it fetches row 0, and the slot's content goes over it.
        observations = gather(self.observation, successor, layout)
        positions = (successor < 0).nonzero()[0]
        if positions.size:
            scatter(observations, positions, gather(self.apart, -1 - successor[positions], layout))
        return observations

    def _link(self, head: int, row: int) -> None:
        """Let `row` hold the next observation of `head`, if it truly does.

        Bytes are compared because a lane may have been reset without a word; NaN equals itself here.
        """
        slot = -1 - self._successor_cells[head]
        if self.observation[row].tobytes() == self.apart[slot].tobytes():
            self._successor_cells[head] = row
            self.free.append(slot)

    def _release(self, row: int) -> None:
        """Let the row that is overwritten next die: first no head of its lane, then not live, then without a slot."""
        lane = self._lane_cells[row]
        if self.heads.get(lane) == row:
            del self.heads[lane]
        self.begin = max(self.begin, self.count - self.capacity + 1)
        slot = -1 - self._successor_cells[row]
        self._successor_cells[row] = 0
        self.free.append(slot)

    def _new_slot(self) -> int:
        slot = self.slots
        if slot == len(self.apart):
            larger = self.new_slots(2 * slot)
            larger[:slot] = self.apart
            self.apart = larger
        self.slots = slot + 1
        self.free.append(slot)
        return slot

    def new_slots(self, count: int) -> Table:
        """Return a table for observations kept apart."""
        return allocate(self.observation_layout, count, self._empty)

    def _write_extra(self, row: int, extra: Mapping[str, Any] | None) -> None:
        given = {} if extra is None else extra
        if given.keys() != self.extra.keys():
            raise ValueError(f"extra must have exactly the fields {sorted(self.extra)}, got {sorted(given)}")
        for name, column in self.extra.items():
            column[row] = given[name]


def _cells(column: Array) -> Any:
    """Return a view that takes a scalar in half the time the array does."""
    return memoryview(column)  # type: ignore[arg-type]
