"""Observations that are stacks of frames: each frame is stored once.

A stack is put together from the frames of its episode when it is sampled. If some of these were evicted, the transition
is not sampleable, as in Dopamine. This concerns at most k - 1 transitions: the oldest ones of a lane, and the first
ones after an interruption without a reset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from noterl.replay.columns import Allocate, Array, Layout, Leaf, Leaves
from noterl.replay.storage import Storage

CHECKED = 100  # first transitions whose stacks are checked


class StackLayout:
    """How k frames lie in an observation, the newest last.

    In a Dict space the part "observation" is stacked.

    Args:
        layout: of an observation with its stack.
        frames: k.
        axis: 0 for a first axis of size k, -1 for frames side by side in the last axis. None takes the first axis if
            its size is k, otherwise the last axis.

    Raises:
        ValueError: if the observation cannot be a stack of k frames along this axis.

    Attributes:
        layout: of an observation with one frame in place of the stack.
    """

    def __init__(self, layout: Layout, frames: int, axis: int | None = None) -> None:
        self.frames, self.nested = frames, isinstance(layout, Mapping)
        leaf = layout.get("observation") if isinstance(layout, Mapping) else layout
        shape = leaf.shape if isinstance(leaf, Leaf) else ()
        self.first = shape[:1] == (frames,) if axis is None else axis == 0
        if not isinstance(leaf, Leaf) or not shape or (shape[0] != frames if self.first else shape[-1] % frames):
            raise ValueError(
                f"frame_stack={frames} needs observations that are stacks of {frames} frames, along a first axis or "
                f"side by side in the last one (noterl.envs.FrameStack makes them), got {layout}, stack_axis={axis}"
            )
        self._dtype, self._size = leaf.dtype, shape[-1] // frames
        # The distance in bytes from a value to that of the next frame, and which bytes are those of the newest frame.
        self._step = leaf.row_bytes // frames if self.first else self._size * leaf.dtype.itemsize
        places = np.arange(leaf.row_bytes - self._step) % (frames * self._step)
        self._newest_bytes = places >= (frames - 1) * self._step
        frame = Leaf(shape[1:] if self.first else (*shape[:-1], self._size), leaf.dtype, leaf.batch_dtype)
        self.layout: Layout = {**layout, "observation": frame} if isinstance(layout, Mapping) else frame

    def part(self, observations: Any) -> Any:
        """Return the stacked part of an observation, of a batch of observations or of a table."""
        if not self.nested:
            return observations
        return (observations.tables if isinstance(observations, Leaves) else observations)["observation"]

    def newest(self, observation: Any) -> Any:
        """Return the observation with the newest frame in place of the stack."""
        stack = np.asarray(self.part(observation))
        frame = stack[-1] if self.first else stack[..., -self._size :]
        return {**observation, "observation": frame} if self.nested else frame

    def is_padded(self, observation: Any) -> bool:
        """Return whether all frames are the same, as in the first observation of an episode."""
        stack = np.ascontiguousarray(self.part(observation), self._dtype)
        if stack.ndim > 1:  # 3 µs faster than comparing all bytes, since frames mostly differ in the middle
            oldest, newest = (
                (stack[0], stack[-1]) if self.first else (stack[..., : self._size], stack[..., -self._size :])
            )
            middle = slice(len(oldest) // 2, len(oldest) // 2 + 8)
            if oldest[middle].tobytes() != newest[middle].tobytes():
                return False
        data = stack.reshape(-1).view(np.uint8)  # bytes, so that NaN equals itself
        return bool((self._newest_bytes | (data[self._step :] == data[: -self._step])).all())

    def check(self, observation: Any, next_observation: Any, starts: bool) -> None:
        """Check one transition, which starts an episode or not.

        Raises:
            ValueError: if the next stack does not continue this one, or the first stack is padded with zeros.
        """
        frames, following = self._frames(observation), self._frames(next_observation)
        if not np.array_equal(frames[1:], following[:-1]):
            axis = "along its first axis" if self.first else "side by side in its last axis"
            raise ValueError(
                f"frame_stack={self.frames}: an observation is not a stack of the last {self.frames} frames {axis}, "
                "the newest last; wrap the environment in noterl.envs.FrameStack, or give the axis: stack_axis=0 or -1"
            )
        if starts and self.frames > 1 and not frames[:-1].any() and frames[-1].any():
            raise ValueError(
                f"frame_stack={self.frames}: a first observation is padded with zeros; it must repeat its frame "
                "(noterl.envs.FrameStack does, and FrameStackObservation with padding_type='reset')"
            )

    def stack(self, frame: Callable[[int], Array], count: int) -> Array:
        """Return stacks `[n, ...]`, where `frame(i)` returns the i-th frames `[n, ...]`, the oldest first."""
        newest = frame(self.frames - 1)
        shape = (
            (count, self.frames, *newest.shape[1:]) if self.first else (*newest.shape[:-1], self.frames * self._size)
        )
        stacks = np.empty(shape, newest.dtype)
        for i in range(self.frames):
            place = np.s_[:, i] if self.first else np.s_[..., i * self._size : (i + 1) * self._size]
            stacks[place] = frame(i)
        return stacks

    def _frames(self, observation: Any) -> Array:
        """Return a view of the frames of one observation, `[k, ...]`."""
        stack = np.asarray(self.part(observation), self._dtype)
        if self.first:
            return stack
        return np.moveaxis(stack.reshape(*stack.shape[:-1], self.frames, self._size), -2, 0)


class FrameStackStorage(Storage):
    """A storage that keeps one frame of each stack.

    Args:
        stack: how the frames lie in an observation.
        capacity: see `Storage`.
        action: see `Storage`.
        extra: see `Storage`.
        empty: see `Storage`.

    Attributes:
        padded: by index, whether all frames of the observation are the same.
        next_padded: the same of the next observation.
    """

    BOOKKEEPING = Storage.BOOKKEEPING | {"padded": np.dtype(np.bool_), "next_padded": np.dtype(np.bool_)}
    padded: Array
    next_padded: Array

    def __init__(
        self,
        stack: StackLayout,
        capacity: int,
        action: Leaf,
        extra: Mapping[str, Leaf],
        empty: Allocate = np.empty,
    ) -> None:
        super().__init__(stack.layout, capacity, action, extra, empty)
        self._stack, self.frames = stack, stack.frames

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
        stack, previous = self._stack, self.newest_index.get(lane)
        if self.count < CHECKED:
            stack.check(observation, next_observation, previous is None)
        padded, next_padded = stack.is_padded(observation), stack.is_padded(next_observation)
        # After a reset without `interrupt` the newest frame may be the expected one, but the stack is padded.
        if previous is not None and self.next_padded[previous] != padded:
            self.interrupt(lane)
        frame, next_frame = stack.newest(observation), stack.newest(next_observation)
        index = self.count % self.capacity
        self._evict(index)
        self.padded[index], self.next_padded[index] = padded, next_padded
        return super().add(lane, frame, action, reward, next_frame, terminated, truncated, extra)

    def sampleable(self, indices: Array) -> Array | None:
        """Return which of the stored transitions `[n]` have all frames of their stacks (bool)."""
        if self.frames == 1:
            return None
        episodes = self.episodes
        before = episodes.before(indices)
        return (before >= self.frames - 1) | self.padded[episodes.shifted(indices, -before)]

    def before(self, indices: Array) -> Array:
        """Return how many sampleable transitions precede each sampleable transition in its episode."""
        episodes = self.episodes
        before = episodes.before(indices)
        return before - np.where(self.padded[episodes.shifted(indices, -before)], 0, self.frames - 1)

    def observations(self, indices: Array) -> Any:
        """Return the stacked observations `[n, ...]`."""
        return self._with_stacks(super().observations(indices), indices, 0)

    def next_observations(self, indices: Array) -> Any:
        """Return the stacked true next observations `[n, ...]`."""
        return self._with_stacks(super().next_observations(indices), indices, 1)

    def _with_stacks(self, newest: Any, indices: Array, later: int) -> Any:
        """Return stacks of the newest frames `[n, ...]` and those before, which end `later` steps after `indices`."""
        stack, table, frames = self._stack, self._stack.part(self.observation), self._stack.part(newest)
        episodes, last = self.episodes, self.frames - 1
        before = episodes.before(indices)

        def frame(i: int) -> Array:
            if i == last:
                found: Array = frames
            else:  # before the start of an episode, its first frame is repeated
                back = np.minimum(before, last - later - i)
                found = table.take(episodes.shifted(indices, -back), axis=0, mode="clip")
            return found

        stacks = stack.stack(frame, len(indices))
        return {**newest, "observation": stacks} if stack.nested else stacks
