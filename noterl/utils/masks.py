"""Action masks: which actions are legal, as an environment reports them in `info["action_mask"]`.

A mask is a bool array `[A]` with an entry for each action of a Discrete space. For a MultiDiscrete space, the entries
of all parts lie side by side. Environments may also use ints (0 for illegal), and a tuple with an array for each part.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
from gymnasium import spaces

ACTION_MASK = "action_mask"

Array = np.ndarray[Any, Any]


def part_sizes(space: spaces.Space[Any]) -> tuple[int, ...]:
    """Return the number of choices of each part of a space; () if actions of this space have no mask.

    Example:
    >>> from noterl.utils.masks import part_sizes
    >>> part_sizes(spaces.Discrete(4)), part_sizes(spaces.MultiDiscrete([2, 3])), part_sizes(spaces.MultiBinary(2))
    ((4,), (2, 3), ())
    """
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    return tuple(map(int, space.nvec.reshape(-1))) if isinstance(space, spaces.MultiDiscrete) else ()


def mask_spec(space: spaces.Space[Any]) -> dict[str, tuple[tuple[int, ...], Any, Any]]:
    """Return the entry of `Algorithm.info_spec` for the masks of an action space; {} if actions have none."""
    sizes = part_sizes(space)
    return {ACTION_MASK: ((sum(sizes),), np.bool_, True)} if sizes else {}


def read_mask(value: Any, space: spaces.Space[Any], *, terminated: bool = False, name: str = "") -> Array:
    """Return a mask as a new bool array `[A]`.

    Args:
        value: the mask.
        space: the action space.
        terminated: whether no action follows. If such a mask forbids all choices of a part, the mask is replaced by one
            that allows all choices, so that losses need not exclude this state.
        name: of the mask, for error messages; by default the name in the environment's info.

    Raises:
        ValueError: if the mask has another shape, is not of bools or ints, or forbids all choices of a part.

    Example:
    >>> from noterl.utils.masks import read_mask
    >>> read_mask((np.array([1, 0]), np.array([1, 1, 0])), spaces.MultiDiscrete([2, 3]))
    array([ True, False,  True,  True, False])
    """
    sizes = part_sizes(space)
    name = name or f"env: info[{ACTION_MASK!r}]"
    array = np.concatenate([np.asarray(part) for part in value]) if isinstance(value, tuple) else np.asarray(value)
    if array.shape != (sum(sizes),) or array.dtype.kind not in "biu":
        raise ValueError(
            f"{name} must be bools or ints of the shape ({sum(sizes)},) for {space}, got {array.dtype} {array.shape}"
        )
    mask: Array = array.astype(np.bool_)
    # For each part, whether a choice is legal.
    has_choice = np.logical_or.reduceat(mask, [0, *accumulate(sizes[:-1])])
    if not all(has_choice.tolist()):  # half a microsecond faster than `has_choice.all()`
        if not terminated:
            raise ValueError(
                f"{name} must allow an action (of each part), unless the episode has terminated, got {value!r}"
            )
        mask |= np.repeat(~has_choice, sizes)
    return mask


def read_masks(value: Any, space: spaces.Space[Any], rows: int) -> Array:
    """Return the argument `action_mask` of `Agent.act` for a batch, as bools `[N, A]`.

    Raises:
        ValueError: if there is not one valid mask for each of the N rows, or actions of the space have no mask.
    """
    name = ACTION_MASK
    if not part_sizes(space):
        raise ValueError(f"{name} must be None for the action space {space}, got {value!r}")
    masks = [tuple(part[row] for part in value) for row in range(rows)] if isinstance(value, tuple) else value
    # Not `np.ndim`: a mask may be a tuple of arrays of different lengths.
    if not len(masks) == rows > 0 or not all(isinstance(mask, tuple) or np.ndim(mask) for mask in masks):
        raise ValueError(f"{name} must hold a mask for each of the {rows} observations, got {value!r:.200}")
    return np.stack([read_mask(mask, space, name=name) for mask in masks])


def legal_choice(mask: Array, uniform: Array) -> Array:
    """Return a uniformly random legal choice for each row of a mask, `[N]`.

    Args:
        mask: `[N, A]`, with a legal choice in each row.
        uniform: numbers in [0, 1), `[N]`.

    Example:
    >>> from noterl.utils.masks import legal_choice
    >>> legal_choice(np.array([[False, True, True], [True, False, False]]), np.array([0.6, 0.9]))
    array([2, 0])
    """
    wanted = (uniform * mask.sum(axis=1)).astype(np.int64)  # its number among the legal choices
    return (mask.cumsum(axis=1) > wanted[:, None]).argmax(axis=1)
