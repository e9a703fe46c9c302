"""What a new memory takes, and making it.

Owns: which storage serves which arguments, and that a request for more than there is gets refused with the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.replay.columns import Layout, Leaf, action_layout, extra_layout, observation_layout
from noterl.replay.disk import Allocate, check_disk, on_disk
from noterl.replay.frames import Stacking
from noterl.replay.past import past_bytes
from noterl.replay.stacks import StackedStorage
from noterl.replay.storage import Storage, bookkeeping_bytes, storage_bytes
from noterl.utils.checks import check_positive
from noterl.utils.memory import available_bytes

ExtraSpec = Mapping[str, tuple[tuple[int, ...], Any]]


def bytes_needed(
    capacity: int,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    *,
    extra_spec: ExtraSpec | None = None,
    frame_stack: int | None = None,
) -> int:
    """Return the bytes that `Replay(capacity, frame_stack=...)` allocates for these spaces.

    Each end of an episode in the memory may cost one more observation, and with a `frame_stack` each episode that lost
    its beginning the frames that its oldest transition still shows.

    >>> from gymnasium import spaces
    >>> from noterl.replay import bytes_needed
    >>> frames = spaces.Box(0, 255, (84, 84, 4), "uint8")
    >>> round(bytes_needed(1_000_000, frames, spaces.Discrete(18), frame_stack=4) / 1e9, 2)
    7.09
    """
    observation, kept = observation_layout(observation_space), 0
    check_positive("capacity", capacity)
    if frame_stack is not None:
        stacking = Stacking(observation, check_positive("frame_stack", frame_stack))
        observation, kept = stacking.layout, past_bytes(capacity, stacking.frame, stacking.frames)
    return kept + storage_bytes(capacity, observation, action_layout(action_space), extra_layout(extra_spec))


def check_room(
    capacity: int, observation: Layout, action: Leaf, extra: Mapping[str, Leaf], frames: int | None, folder: str | None
) -> None:
    """Raise a ValueError with the figures if there is no room for these rows, in memory or in the folder on disk."""
    stacking = None if frames is None else Stacking(observation, frames)
    stored = observation if stacking is None else stacking.layout
    large, small = storage_bytes(capacity, stored, action, extra), bookkeeping_bytes(capacity)
    if stacking is not None:
        large += past_bytes(capacity, stacking.frame, stacking.frames)
    _refuse_too_much(capacity, large if folder is None else small)
    if folder is not None:
        check_disk(folder, capacity, large - small)


def new_storage(
    capacity: int, observation: Layout, action: Leaf, extra: Mapping[str, Leaf], frames: int | None, folder: str | None
) -> Storage:
    """Return a storage, stacked where there are frames, on disk where there is a folder; refuse what has no room."""
    check_room(capacity, observation, action, extra, frames, folder)
    empty: Allocate = np.empty
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        empty = on_disk(folder)
    if frames is None:
        return Storage(capacity, observation, action, extra, empty)
    return StackedStorage(Stacking(observation, frames), capacity, action, extra, empty)


def _refuse_too_much(capacity: int, needed: int) -> None:
    available = available_bytes()
    if available is not None and needed > available:
        raise ValueError(
            f"capacity={capacity} needs {needed} bytes ({needed / 1e9:.2f} GB) for these spaces, but only {available} "
            f"bytes ({available / 1e9:.2f} GB) are available; at most {capacity * available // needed} transitions fit"
        )
