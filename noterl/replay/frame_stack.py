"""Observations that are stacks of frames: each frame is stored once.

A stack is rebuilt from the frames of its episode when a batch is gathered. If some of these frames were evicted, the
transition is not sampleable, as in Dopamine. This affects at most k - 1 transitions of a lane at each of two places:
the oldest ones, and the first ones after an interruption without a reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from noterl.replay.columns import Allocate, Array, Layout, Leaf, Leaves
from noterl.replay.storage import Storage

CHECKED = 100  # `add` checks the stacks of this many first transitions


class StackLayout:
    """The arrangement of k frames in an observation, the newest last.

    In a Dict space, the part "observation" is the stack.

    Args:
        layout: of an observation with the whole stack.
        frames: k.
        axis: 0 for a first axis of size k, -1 for frames side by side in the last axis. None takes the first axis if
            that axis has size k, otherwise the last axis.

    Raises:
        ValueError: if the observation cannot be a stack of k frames along this axis.

    Attributes:
        layout: of an observation with one frame in place of the stack.
    """

    def __init__(self, layout: Layout, frames: int, axis: int | None = None) -> None:
        self.frames: int = frames
        self.nested: bool = isinstance(layout, Mapping)
        leaf = layout.get("observation") if isinstance(layout, Mapping) else layout
        shape = leaf.shape if isinstance(leaf, Leaf) else ()
        self.first: bool = shape[:1] == (frames,) if axis is None else axis == 0
        if not isinstance(leaf, Leaf) or not shape or (shape[0] != frames if self.first else shape[-1] % frames):
            raise ValueError(
                f"frame_stack={frames} needs observations that are stacks of {frames} frames, along a first axis or "
                f"side by side in the last one (noterl.envs.FrameStack makes them), got {layout}, stack_axis={axis}"
            )
        self._leaf = leaf
        self._size = shape[-1] // frames
        frame = Leaf(shape[1:] if self.first else (*shape[:-1], self._size), leaf.dtype, leaf.batch_dtype)
        self.layout: Layout = self.with_part(layout, frame)
        self._padding: Array | None = None  # of the last first observation that did not repeat its frame

    def part(self, observations: Any) -> Any:
        """Return the stacked part of an observation, of a batch of observations or of a table."""
        if not self.nested:
            return observations
        return (observations.tables if isinstance(observations, Leaves) else observations)["observation"]

    def split(self, stacks: Array) -> Array:
        """Return a view of the frames of one stack `[k, ...]`, or of stacks `[n, ...]` as `[k, n, ...]`."""
        if self.first:
            return np.moveaxis(stacks, -len(self._leaf.shape), 0)
        return np.moveaxis(stacks.reshape(*stacks.shape[:-1], self.frames, self._size), -2, 0)

    def frames_of(self, observation: Any) -> Array:
        """Return the frames `[k, ...]` of one observation."""
        return self.split(np.asarray(self.part(observation), self._leaf.dtype))

    def join(self, frames: Any) -> Any:
        """Return stacks `[n, ...]` of frames `[n, k, ...]`, which are an array of any library."""
        if self.first:
            return frames
        for axis in range(1, frames.ndim - 2):
            frames = frames.swapaxes(axis, axis + 1)  # torch has no `moveaxis` method
        return frames.reshape(*frames.shape[:-2], self.frames * self._size)

    def with_part(self, observation: Any, part: Any) -> Any:
        """Return an observation, or a batch of observations, with `part` in place of the stacked part."""
        return {**observation, "observation": part} if self.nested else part

    def check(self, frames: Array, following: Array, starts: bool) -> None:
        """Check the frames of one transition, and store the padding of a first stack that does not repeat its frame.

        Args:
            frames: of the observation, `[k, ...]`.
            following: frames of the next observation, `[k, ...]`.
            starts: whether the transition starts an episode.

        Raises:
            ValueError: if the next stack does not continue this one, or a first stack is padded with zeros, or twice
                in a row with the same other frame.
        """
        if not np.array_equal(frames[1:], following[:-1]):
            axis = "along its first axis" if self.first else "side by side in its last axis"
            raise ValueError(
                f"frame_stack={self.frames}: an observation is not a stack of the last {self.frames} frames {axis}, "
                "the newest last; wrap the environment in noterl.envs.FrameStack, or give the axis: stack_axis=0 or -1"
            )
        if not starts or _is_padded(frames) or not _is_padded(frames[:-1]):
            return
        # After an interrupted `add`, the second observation of an episode may look like a first one. Then the padding
        # is the episode's first frame. So a padding other than zeros is an error only if it comes twice in a row.
        is_known = self._padding is not None and np.array_equal(self._padding, frames[0])
        self._padding = frames[0].copy()
        if is_known or not frames[0].any():
            padding = "another frame" if frames[0].any() else "zeros"
            raise ValueError(
                f"frame_stack={self.frames}: a first observation is padded with {padding}; it must repeat its frame "
                "(noterl.envs.FrameStack does, and FrameStackObservation with padding_type='reset')"
            )

    def empty_stacks(self, count: int) -> Array:
        """Return `count` stacks `[n, ...]` that are not initialized, in the dtype of batches."""
        return np.empty((count, *self._leaf.shape), self._leaf.batch_dtype)


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
        next_padded: by index, the same for the next observation.
    """

    BOOKKEEPING = Storage.BOOKKEEPING | {"padded": np.dtype(np.bool_), "next_padded": np.dtype(np.bool_)}
    padded: Array
    next_padded: Array

    def __init__(
        self, stack: StackLayout, capacity: int, action: Leaf, extra: Mapping[str, Leaf], empty: Allocate = np.empty
    ) -> None:
        super().__init__(stack.layout, capacity, action, extra, empty)
        self._stack = stack
        self.frames: int = stack.frames
        self._running: set[int] = set()  # lanes whose next transition may not be the first one of an episode

    def add(
        self,
        lane: int,
        observation: Any,
        action: Any,
        reward: float,
        next_observation: Any,
        terminated: bool,
        truncated: bool,
        *rest: Any,
        **named: Any,
    ) -> int:
        """Store one transition of stacked observations; see `Replay.add`."""
        layout = self._stack
        previous = self.newest_index.get(lane)
        frames = layout.frames_of(observation)
        following = layout.frames_of(next_observation)
        if self.count < CHECKED:
            layout.check(frames, following, previous is None and lane not in self._running)
        if terminated or truncated:
            self._running.discard(lane)
        else:
            self._running.add(lane)
        padded = _is_padded(frames)
        next_padded = _is_padded(following)
        # After a reset without `interrupt`, the newest frame may equal the expected one, but the stack is padded.
        if previous is not None and self.next_padded[previous] != padded:
            self.interrupt(lane)
        frame = layout.with_part(observation, frames[-1])
        next_frame = layout.with_part(next_observation, following[-1])
        index = self.count % self.capacity
        # Before the columns change: an evicted transition must not be sampled with the new `padded`.
        self._evict(index)
        self.padded[index] = padded
        self.next_padded[index] = next_padded
        return super().add(lane, frame, action, reward, next_frame, terminated, truncated, *rest, **named)

    def fill_observations(self, part: slice, before: Any, after: Any, starts: Array) -> None:
        """Write the newest frames of stacks, and which stacks are padded; check the first stacks, as `add` does.

        `part` counts from the first transition of the data set, of which the first `CHECKED` transitions are checked.
        """
        layout = self._stack
        frames = layout.split(layout.part(before))  # [k, n, ...]
        following = layout.split(layout.part(after))
        for row in range(max(0, min(len(starts), CHECKED - part.start))):
            layout.check(frames[:, row], following[:, row], bool(starts[row]))
        super().fill_observations(part, before, after, starts)
        for column, stacks in ((self.padded, frames), (self.next_padded, following)):
            column[part] = (stacks == stacks[-1]).all(axis=(0, *range(2, stacks.ndim)))

    def newest(self, observations: Any) -> Any:
        """Return stacks `[n, ...]` with the newest frame alone in place of the stacked part."""
        layout = self._stack
        return layout.with_part(observations, layout.split(layout.part(observations))[-1])

    def resume(self, lane: int) -> None:
        """Called for a lane whose next transition is in the middle of an episode that this memory does not hold."""
        super().resume(lane)
        self._running.add(lane)

    def sampleable(self, indices: Array) -> Array | None:
        """Return which of the stored transitions `[n]` have all frames of the stack (bool); None if k is 1."""
        if self.frames == 1:
            return None
        episodes = self.episodes
        before = episodes.before(indices)
        # With fewer earlier frames, a stack is complete only if the episode's oldest stored observation is padded.
        return (before >= self.frames - 1) | self.padded[episodes.shifted(indices, -before)]

    def before(self, indices: Array) -> Array:
        """Return how many sampleable transitions precede each sampleable transition in the same episode."""
        episodes = self.episodes
        before = episodes.before(indices)
        return before - np.where(self.padded[episodes.shifted(indices, -before)], 0, self.frames - 1)

    def observations(self, indices: Array) -> Any:
        """Return the stacked observations `[n, ...]`."""
        return self._with_stacks(super().observations(indices), indices, 0)

    def next_observations(self, indices: Array) -> Any:
        """Return the stacked true next observations `[n, ...]`."""
        return self._with_stacks(super().next_observations(indices), indices, 1)

    def observation_rows(self, indices: Array) -> Array:
        """Return the rows of the frames, the newest last, `[n, k]`."""
        return np.stack([*self._older_frames(indices, 0), super().observation_rows(indices)], axis=1)

    def next_observation_rows(self, indices: Array) -> Array:
        """Return the rows of the frames of the true next observations, `[n, k]`."""
        return np.stack([*self._older_frames(indices, 1), super().next_observation_rows(indices)], axis=1)

    def join(self, gathered: Any) -> Any:
        """Return the observations `[n, ...]` of gathered frames `[n, k, ...]`."""
        return self._stack.join(gathered)

    def _with_stacks(self, newest: Any, indices: Array, later: int) -> Any:
        """Return the stacks that end `later` steps after `indices`; `newest` holds the last frames `[n, ...]`."""
        layout = self._stack
        table = layout.part(self.observation)
        stacks = layout.empty_stacks(len(indices))
        frames = layout.split(stacks)
        for frame, rows in zip(frames, self._older_frames(indices, later), strict=False):
            frame[...] = table.take(rows, axis=0, mode="clip")
        frames[-1] = layout.part(newest)
        return layout.with_part(newest, stacks)

    def _older_frames(self, indices: Array, later: int) -> list[Array]:
        """Return the indices `[n]` of each frame but the newest in the stacks that end `later` steps after `indices`.

        Where the episode has too few frames, the first frame of the episode is repeated.
        """
        episodes = self.episodes
        last = self.frames - 1
        before = episodes.before(indices)
        # Frame i of a stack is `last - i` steps older than the newest frame, which is `later` steps after the index.
        return [episodes.shifted(indices, -np.minimum(before, last - later - i)) for i in range(last)]


def _is_padded(frames: Array) -> bool:
    """Return whether all frames `[k, ...]` are the same, as in the first observation of an episode."""
    middle = frames[:, len(frames[0]) // 2] if frames.ndim > 2 else frames  # images mostly differ in their middle
    return np.array_equal(middle[1:], middle[:-1]) and np.array_equal(frames[1:], frames[:-1])
