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
        last: whether they lie in the last axis, although the first one is of k, too.

    Raises:
        ValueError: if it cannot be a stack of k frames.

    Attributes:
        whole: the layout of an observation, with its stack.
        leaf: that of the stack alone.
        layout: the layout of an observation with one frame in place of the stack.
        frame: that of the frame alone.
        other: how else they may lie, for all that the shape says; None if in no other way.
    """

    def __init__(self, layout: Layout, frames: int, last: bool = False) -> None:
        self.frames, self.nested = frames, isinstance(layout, Mapping)
        leaf = layout.get("observation") if isinstance(layout, Mapping) else layout
        shape = leaf.shape if isinstance(leaf, Leaf) else ()
        self.first = bool(shape) and shape[0] == frames and not last
        if not isinstance(leaf, Leaf) or not shape or not (self.first or shape[-1] % frames == 0):
            raise ValueError(
                f"frame_stack={frames} needs observations that are stacks of {frames} frames, along a first axis or "
                f"side by side in the last one (noterl.envs.FrameStack makes them), got {layout}"
            )
        self.size = shape[-1] // frames  # of a frame, in the last axis
        self.whole, self.leaf = layout, leaf
        self.frame = Leaf(shape[1:] if self.first else (*shape[:-1], self.size), leaf.dtype, leaf.delivered)
        self.layout: Layout = {**layout, "observation": self.frame} if isinstance(layout, Mapping) else self.frame
        # Along a single axis the two are the same.
        both = self.first and len(shape) > 1 and shape[-1] % frames == 0
        self.other = Stacking(layout, frames, last=True) if both else None

    def newest(self, observation: Any) -> Any:
        """Return the observation with the newest frame in place of the stack."""
        frame = self._cut(self.part(observation), -1, None)
        return {**observation, "observation": frame} if self.nested else frame

    def part(self, observations: Any) -> Any:
        """Return what is stacked of an observation, of a batch of them or of a table; with stacks or with frames."""
        if not self.nested:
            return observations
        return (observations.tables if isinstance(observations, Leaves) else observations)["observation"]

    def older(self, stack: Any) -> Array | None:
        """Return the frames `[k - 1, ...]` before the newest, as stored; None if all are like the newest."""
        stack = np.asarray(stack, self.leaf.dtype)
        if self.first:
            older = stack[:-1]
        else:
            sides = stack[..., : -self.size].reshape(*stack.shape[:-1], self.frames - 1, self.size)
            older = np.moveaxis(sides, -2, 0)
        # Bytes are compared, so that NaN equals itself.
        repeated = older.tobytes() == (self.frames - 1) * self._cut(stack, -1, None).tobytes()
        return None if repeated else older

    def follows(self, stack: Any, next_stack: Any) -> bool:
        """Return whether the next stack is this one without its oldest frame, and with a newer one."""
        return np.array_equal(self._cut(stack, 1, None), self._cut(next_stack, 0, -1))

    def newest_of(self, stacks: Array) -> Array:
        """Return the newest frames [n, ...] of stacks [n, ...]."""
        return stacks[:, -1] if self.first else stacks[..., -self.size :]

    def check(self, observation: Any, next_observation: Any, starts: bool) -> None:
        """Raise a ValueError unless the one stack follows from the other, and a first one repeats its first frame."""
        stack = self.part(observation)
        if not self.follows(stack, self.part(next_observation)):
            axis = "along its first axis" if self.first else "side by side in its last axis"
            if self.other is not None:
                axis += ", nor side by side in its last one"
            raise ValueError(
                f"frame_stack={self.frames}: an observation is not a stack of the last {self.frames} frames {axis}, "
                "the newest last; wrap the environment in noterl.envs.FrameStack"
            )
        older = self._cut(stack, 0, -1)
        if starts and self.frames > 1 and not older.any() and np.any(self._cut(stack, -1, None)):
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
