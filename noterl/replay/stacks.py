"""Stacks of frames of which each frame is stored once.

Owns: keeping only the newest frame of each observation, and putting stacks together again when rows are sampled: the
older frames are those of the transitions before it in its episode, and `noterl.replay.past` has those of which the
transitions are gone. So each transition that may be drawn shows the stack it was added with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from noterl.replay.columns import Array, Layout, Leaf, Leaves, Table
from noterl.replay.disk import Allocate
from noterl.replay.frames import Stacking
from noterl.replay.past import Past, past_layout
from noterl.replay.storage import Storage

CHECKED = 100  # first transitions whose stacks are looked at


class StackedStorage(Storage):
    """A storage that keeps one frame of every stack.

    Args:
        stacking: how the observations are stacked.
        capacity: see `Storage`.
        action: see `Storage`.
        extra: see `Storage`.
        empty: see `Storage`.
    """

    past: Past

    def __init__(
        self, stacking: Stacking, capacity: int, action: Leaf, extra: Mapping[str, Leaf], empty: Allocate
    ) -> None:
        super().__init__(capacity, stacking.layout, action, extra, empty)
        self._stacking = self._built_for = stacking
        self.past = Past(capacity, past_layout(stacking.frame, stacking.frames), empty)
        self._expected: dict[int, bytes] = {}  # lane -> the next observation of its newest transition

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return super().nbytes + self.past.nbytes

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
        """Store one transition of stacked observations; see `Replay.add`."""
        heads = self.heads
        if self.count < CHECKED:
            self._look_at(observation, next_observation, lane not in heads)
        stacking = self._stacking
        frame, following = stacking.newest(observation), stacking.newest(next_observation)
        count = self.count
        row = count % self.capacity
        self._vacate(row)
        # What does not go on with the whole stack before it begins an episode, even if the newest frames are the same.
        expected = self._expected.pop(lane, None)
        if lane in heads and expected != _bytes(observation, stacking.whole):
            super().interrupt(lane)
        head = heads.get(lane)
        if head is None:
            older = stacking.older(stacking.part(observation))
            if older is not None:
                self.past.keep(row, older)
        try:
            super().add(lane, frame, action, reward, following, terminated, truncated, extra)
        except BaseException:
            self._mend(lane, row, head, expected, self.count > count)
            raise
        if not (terminated or truncated):
            self._expected[lane] = _bytes(next_observation, stacking.whole)
        return row

    def interrupt(self, lane: int) -> None:
        """Break a lane off: its next transition does not follow from its last."""
        super().interrupt(lane)
        self._expected.pop(lane, None)

    def drop_oldest(self, count: int) -> None:
        """Let the oldest `count` live transitions die, and keep the frames of theirs that others show."""
        rows = self.live_rows()[:count]
        following = self.successor[rows]
        following = following[following >= 0]
        following = following[self.generation(following) >= self.begin + count]
        if len(following) and self._stacking.frames > 1:
            frame_of = self._frames_before(following)
            older = np.stack([frame_of(back) for back in range(self._stacking.frames - 1, 0, -1)], 1)
            for row, frames in zip(following.tolist(), older, strict=True):
                self.past.keep(row, frames)
        super().drop_oldest(count)
        for row in rows[self.past.slot[rows] > 0].tolist():
            self.past.release(row)
        self._expected = {lane: self._expected[lane] for lane in self.heads if lane in self._expected}

    def clear(self) -> None:
        """Forget every transition; generations go on counting."""
        super().clear()
        self.past.clear()
        self._expected.clear()

    def saved_as(self, state: Mapping[str, Any]) -> tuple[Layout, Leaf | None]:
        """Return the layouts of observations and of older frames in a state: frames may lie in either axis there."""
        stacking = self._stacking_of(state)
        return stacking.layout, past_layout(stacking.frame, stacking.frames)

    def restore_as(self, state: Mapping[str, Any]) -> None:
        """Let frames lie as they do in a state; there are none here."""
        self._lie(self._stacking_of(state))

    def restored(self, rows: Array, frames: Array) -> None:
        """Take the frames `[n, k - 1, ...]` before those of rows `[n]`; all else was taken."""
        for row, older in zip(rows.tolist(), frames, strict=True):
            self.past.keep(row, older)
        lanes, heads = list(self.heads), np.array(list(self.heads.values()), np.int64)
        if not lanes:
            return
        stacking, apart = self._stacking, self.apart[-1 - self.successor[heads]]
        stacks = self._stacked(heads, stacking.part(apart), 1)
        for place, lane in enumerate(lanes):
            shown = {**apart[place].tables, "observation": stacks[place]} if stacking.nested else stacks[place]
            self._expected[lane] = _bytes(shown, stacking.whole)

    def observations(self, rows: Array) -> Any:
        """Return the stacked observations of rows [n], as delivered."""
        newest = super().observations(rows)
        return self._with_stacks(newest, self._stacked(rows, self._stacking.part(newest), 0))

    def next_observations(self, rows: Array) -> Any:
        """Return the true next observations of rows [n], stacked, as delivered."""
        newest = super().next_observations(rows)
        return self._with_stacks(newest, self._stacked(rows, self._stacking.part(newest), 1))

    def _with_stacks(self, newest: Any, stacks: Array) -> Any:
        return {**newest, "observation": stacks} if self._stacking.nested else stacks

    def _stacked(self, rows: Array, newest: Array, later: int) -> Array:
        """Return stacks of `newest` [n, ...], which come so much later than rows [n], with what was before."""
        frame_of, last = self._frames_before(rows), self._stacking.frames - 1
        return self._stacking.stacked(lambda i: newest if i == last else frame_of(last - later - i), len(newest))

    def _frames_before(self, rows: Array) -> Callable[[int], Array]:
        """Return what returns the frames [n, ...], as stored, so many steps before those of rows [n]: 0 to k - 1."""
        episodes, past, most = self.episodes, self.past, self._stacking.frames - 1
        table = self._stacking.part(self.observation)
        before = episodes.before(rows)
        short = (before < most).nonzero()[0]
        slot = past.slot[episodes.shifted(rows[short], -before[short])]
        short, slot = short[slot > 0], slot[slot > 0]
        missing = before[short]

        def frame_of(back: int) -> Array:
            # Where an episode begins its first frame stands for those before it.
            found: Array = table.take(episodes.shifted(rows, -np.minimum(before, back)), axis=0, mode="clip")
            gone = (missing < back).nonzero()[0]
            if gone.size:
                found[short[gone]] = past.table[slot[gone], most - (back - missing[gone])]
            return found

        return frame_of

    def _mend(self, lane: int, row: int, head: int | None, expected: bytes | None, counts: bool) -> None:
        """Put right what was broken off: a row that counts already finds its older frames through the link to it."""
        if counts:
            if head is not None and self._successor_cells[head] < 0:
                self._link(head, row)
            self.interrupt(lane)
        elif head is not None and expected is not None:
            self._expected[lane] = expected

    def _look_at(self, observation: Any, next_observation: Any, starts: bool) -> None:
        """Check one of the first transitions; what fits along both axes is settled by the first that fits along one."""
        part, other = self._stacking.part, self._stacking.other
        stack, following = part(observation), part(next_observation)
        if other is not None and not self._stacking.follows(stack, following):
            rows = self.live_rows()
            pairs = zip(part(self.observations(rows)), part(self.next_observations(rows)), strict=True)
            if other.follows(stack, following) and all(other.follows(*pair) for pair in pairs):
                self._turn(other)
        self._stacking.check(observation, next_observation, starts)

    def _turn(self, stacking: Stacking) -> None:
        """Let frames lie as `stacking` says, in the same memory, those of the few rows that there are as well."""
        rows, here = self.live_rows(), self._stacking
        apart = rows[self.successor[rows] < 0]
        slots = -1 - self.successor[apart]
        stacks = self._stacked(rows, here.part(self.observation)[rows], 0)
        following = self._stacked(apart, here.part(self.apart)[slots], 1)
        self._lie(stacking)
        stacking.part(self.observation)[rows] = stacking.newest_of(stacks)
        stacking.part(self.apart)[slots] = stacking.newest_of(following)
        for row, stack in zip(rows.tolist(), stacks, strict=True):
            older = stacking.older(stack)
            if older is not None:  # looked at where an episode begins with the row
                self.past.keep(row, older)

    def _lie(self, stacking: Stacking) -> None:
        """Let rows that are yet to be written, or written again, have frames as `stacking` says."""
        if stacking is not self._stacking:
            self.observation, self.apart = (_shaped(table, stacking) for table in (self.observation, self.apart))
            self._stacking, self.observation_layout = stacking, stacking.layout
            self.past = Past(self.capacity, past_layout(stacking.frame, stacking.frames), self._empty)

    def _stacking_of(self, state: Mapping[str, Any]) -> Stacking:
        """Return how frames lie in a state, as far as it can be told."""
        saved: Any = state.get("columns", {})
        saved = saved.get("observation") if isinstance(saved, Mapping) else None
        if self._stacking.nested and isinstance(saved, Mapping):
            saved = saved.get("observation")
        first = saved[0] if isinstance(saved, list | tuple) and saved else None
        choices = [each for each in (self._built_for, self._built_for.other) if each is not None]
        fitting = [each for each in choices if getattr(first, "shape", (0,))[1:] == each.frame.shape]
        return (fitting or choices)[0]

    def _vacate(self, row: int) -> None:
        """Let the transition that is overwritten next die, after what its successor shows of it was kept."""
        if self.count - self.begin == self.capacity:
            successor = self._successor_cells[row]
            if successor < 0:
                self._release(row)
            elif self._stacking.frames > 1:
                self.past.pass_on(row, successor, self._stacking.part(self.observation)[row])
            self.begin = max(self.begin, self.count - self.capacity + 1)
        self.past.release(row)


def _shaped(table: Table, stacking: Stacking) -> Table:
    """Return a table of the same memory in which frames lie as `stacking` says."""
    part: Array = stacking.part(table)
    part = part.reshape(len(part), *stacking.frame.shape)
    return Leaves({**table.tables, "observation": part}) if isinstance(table, Leaves) else part


def _bytes(observation: Any, layout: Layout) -> bytes:
    """Return an observation's bytes as they would be stored."""
    if isinstance(layout, Leaf):
        return np.asarray(observation, layout.dtype).tobytes()
    parts = observation.tables if isinstance(observation, Leaves) else observation
    return b"".join([_bytes(parts[name], part) for name, part in layout.items()])
