"""Stacks of frames of which each frame is stored once.

Owns: how a stack lies in an observation, and putting it together again when rows are sampled. The environment stacks
what the agent sees (`noterl.envs.FrameStack`, or gymnasium's `FrameStackObservation`); here only the newest frame of
each observation is kept, and the older ones are those of the transitions before it in its episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from noterl.replay.columns import Array, Layout, Leaf
from noterl.replay.disk import Allocate
from noterl.replay.storage import Storage

CHECKED = 100  # first transitions whose stacks are looked at


class Stacking:
    """How k frames lie in an observation: along a first axis of k, oldest first, or else side by side in the last axis.

    In a Dict space the part "observation" is stacked.

    Args:
        layout: of the observation, with its stack.
        frames: k.

    Raises:
        ValueError: if it cannot be a stack of k frames.
    """

    def __init__(self, layout: Layout, frames: int) -> None:
        self.frames, self.nested = frames, isinstance(layout, Mapping)
        leaf = layout.get("observation") if isinstance(layout, Mapping) else layout
        shape = leaf.shape if isinstance(leaf, Leaf) else ()
        self.first = bool(shape) and shape[0] == frames
        if not isinstance(leaf, Leaf) or not shape or not (self.first or shape[-1] % frames == 0):
            raise ValueError(
                f"frame_stack={frames} needs observations that are stacks of {frames} frames, along a first axis or "
                f"side by side in the last one (noterl.envs.FrameStack makes them), got {layout}"
            )
        self.size = shape[-1] // frames  # of a frame, in the last axis
        frame = Leaf(shape[1:] if self.first else (*shape[:-1], self.size), leaf.dtype, leaf.delivered)
        self.layout: Layout = {**layout, "observation": frame} if isinstance(layout, Mapping) else frame

    def newest(self, observation: Any) -> Any:
        """Return the observation with the newest frame in place of the stack."""
        if self.nested:
            return {**observation, "observation": self._cut(observation["observation"], -1, None)}
        return self._cut(observation, -1, None)

    def check(self, observation: Any, next_observation: Any, starts: bool) -> None:
        """Raise a ValueError unless the one stack follows from the other, and a first one repeats its first frame."""
        if self.nested:
            observation, next_observation = observation["observation"], next_observation["observation"]
        if not np.array_equal(self._cut(observation, 1, None), self._cut(next_observation, 0, -1)):
            raise ValueError(
                f"frame_stack={self.frames}: an observation is not a stack of the last {self.frames} frames "
                f"{'along its first axis' if self.first else 'side by side in its last axis'}, the newest last; wrap "
                "the environment in noterl.envs.FrameStack"
            )
        older = self._cut(observation, 0, -1)
        if starts and self.frames > 1 and not older.any() and np.any(self._cut(observation, -1, None)):
            raise ValueError(
                f"frame_stack={self.frames}: a first observation is filled up with zeros; it must repeat its frame "
                "(noterl.envs.FrameStack does, and FrameStackObservation with padding_type='reset')"
            )

    def stacked(self, frame: Callable[[int], Array], count: int) -> Array:
        """Return stacks [n, ...] of what `frame(i)` returns for the i-th frame [n, ...], the oldest first."""
        newest = frame(self.frames - 1)
        if self.first:
            stack = np.empty((count, self.frames, *newest.shape[1:]), newest.dtype)
            for i in range(self.frames - 1):
                stack[:, i] = frame(i)
            stack[:, -1] = newest
            return stack
        stack = np.empty((*newest.shape[:-1], self.frames * self.size), newest.dtype)
        for i in range(self.frames - 1):
            stack[..., i * self.size : (i + 1) * self.size] = frame(i)
        stack[..., -self.size :] = newest
        return stack

    def _cut(self, stack: Any, start: int, stop: int | None) -> Array:
        """Return the frames from `start` to `stop`; a single one without the axis of frames."""
        stack = np.asarray(stack)
        if self.first:
            return stack[-1] if (start, stop) == (-1, None) else stack[start:stop]
        return stack[..., start * self.size : None if stop is None else stop * self.size]


class StackedStorage(Storage):
    """A storage that keeps one frame of every stack.

    Where the frames before a row's own were overwritten, or belong to transitions that were never stored here, the
    oldest that is there stands for them: the same as at the start of an episode.

    Args:
        stacking: how the observations are stacked.
        capacity: see `Storage`.
        action: see `Storage`.
        extra: see `Storage`.
        empty: see `Storage`.
    """

    def __init__(
        self, stacking: Stacking, capacity: int, action: Leaf, extra: Mapping[str, Leaf], empty: Allocate
    ) -> None:
        super().__init__(capacity, stacking.layout, action, extra, empty)
        self._stacking = stacking

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
        stacking = self._stacking
        if self.count < CHECKED:
            stacking.check(observation, next_observation, lane not in self.heads)
        frame, following = stacking.newest(observation), stacking.newest(next_observation)
        return super().add(lane, frame, action, reward, following, terminated, truncated, extra)

    def observations(self, rows: Array) -> Any:
        """Return the stacked observations of rows [n], as delivered."""
        episodes = self.episodes
        before, newest = episodes.before(rows), self._stacking.frames - 1
        return self._stacked(
            lambda i: episodes.shifted(rows, -np.minimum(before, newest - i)), super().observations(rows)
        )

    def next_observations(self, rows: Array) -> Any:
        """Return the true next observations of rows [n], stacked, as delivered."""
        episodes = self.episodes
        before, newest = episodes.before(rows), self._stacking.frames - 1
        return self._stacked(
            lambda i: episodes.shifted(rows, -np.minimum(before, newest - 1 - i)), super().next_observations(rows)
        )

    def _stacked(self, row_of: Callable[[int], Array], newest: Any) -> Any:
        """Return stacks of `newest` [n, ...] with, before it, the frames of the rows that `row_of(i)` names."""
        nested, last = self._stacking.nested, self._stacking.frames - 1
        table: Any = self.observation.tables["observation"] if nested else self.observation  # type: ignore[union-attr]
        frame = newest["observation"] if nested else newest

        def frame_of(i: int) -> Array:
            return frame if i == last else table.take(row_of(i), axis=0, mode="clip")

        stack = self._stacking.stacked(frame_of, len(frame))
        return {**newest, "observation": stack} if nested else stack
