"""How a stack of frames lies in an observation.

Owns: cutting it, and putting it together. The environment stacks what the agent sees (`noterl.envs.FrameStack`, or
gymnasium's `FrameStackObservation`); `noterl.replay.stacks` keeps each frame once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from noterl.replay.columns import Array, Layout, Leaf, Leaves


class Stacking:
    """How k frames lie in an observation: along a first axis of k, oldest first, or else side by side in the last axis.

    In a Dict space the part "observation" is stacked.

    Args:
        layout: of the observation, with its stack.
        frames: k.

    Raises:
        ValueError: if it cannot be a stack of k frames.

    Attributes:
        whole: the layout of an observation, with its stack.
        leaf: that of the stack alone.
        layout: the layout of an observation with one frame in place of the stack.
        frame: that of the frame alone.
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
        self.whole, self.leaf = layout, leaf
        self.frame = Leaf(shape[1:] if self.first else (*shape[:-1], self.size), leaf.dtype, leaf.delivered)
        self.layout: Layout = {**layout, "observation": self.frame} if isinstance(layout, Mapping) else self.frame

    def newest(self, observation: Any) -> Any:
        """Return the observation with the newest frame in place of the stack."""
        if self.nested:
            return {**observation, "observation": self._cut(observation["observation"], -1, None)}
        return self._cut(observation, -1, None)

    def frame_in(self, observations: Any) -> Any:
        """Return the frames of a table or of a batch of observations, which have a frame in place of the stack."""
        if not self.nested:
            return observations
        return (observations.tables if isinstance(observations, Leaves) else observations)["observation"]

    def older(self, observation: Any) -> Array | None:
        """Return the frames `[k - 1, ...]` before the newest, as stored; None if all are like the newest."""
        stack = np.asarray(observation["observation"] if self.nested else observation, self.leaf.dtype)
        if self.first:
            older = stack[:-1]
        else:
            sides = stack[..., : -self.size].reshape(*stack.shape[:-1], self.frames - 1, self.size)
            older = np.moveaxis(sides, -2, 0)
        # Bytes are compared, so that NaN equals itself.
        repeated = older.tobytes() == (self.frames - 1) * self._cut(stack, -1, None).tobytes()
        return None if repeated else older

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
