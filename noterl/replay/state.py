"""The state of a storage as nested dicts of arrays, and the invariants of such a state.

Transitions are in order of age (the oldest first), links are differences in age, and final observations are in the
order of the transitions. So the state does not depend on which slots the final observations use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from noterl.replay.columns import Array, Layout, Leaf, Table, map_leaves
from noterl.replay.storage import Storage
from noterl.saving.arrays import pieces
from noterl.utils import schema

# The largest numbers in a file: arrays hold them as int64, and training continues to count.
MOST_TRANSITIONS = 2**62


def get_state(storage: Storage) -> dict[str, Any]:
    """Return the stored transitions; each column is a list of views of the storage.

    Later writes to the memory change the views: save or copy the views before the next `add`.
    """
    successor = np.concatenate(_segments(storage, storage.successor))
    final = -1 - successor[successor < 0]
    newest = np.array(list(storage.newest_index.values()), np.int64)
    return {
        "capacity": storage.capacity,
        "begin": storage.begin,
        "count": storage.count,
        "columns": {name: _segments(storage, table) for name, table in _columns(storage).items()},
        "hidden": storage.masked - storage.begin,
        "distance": distances(storage, successor),
        "apart": map_leaves(lambda array: [array[final]], storage.final_observations),
        "heads": {
            "lane": np.array(list(storage.newest_index), np.int32),
            "age": storage.insertion_numbers(newest) - storage.begin,
        },
    }


def check_state(storage: Storage, state: Any, capacity: int) -> None:
    """Check that `set_state` can restore a state.

    Args:
        storage: has the layouts of the memory; the capacity of this storage does not matter.
        state: of `get_state`, perhaps from a file.
        capacity: of the memory.

    Raises:
        ValueError: if the state is of another capacity or other spaces, or inconsistent.
    """
    vector = schema.Array(np.int64, (None,))
    expected = {
        "capacity": schema.Constant(capacity),
        "begin": schema.Int(0, MOST_TRANSITIONS),
        "count": schema.Int(0, MOST_TRANSITIONS),
        "columns": _schema(_layouts(storage)),
        "hidden": vector,
        "distance": vector,
        "apart": _schema(storage.observation_layout),
        "heads": {"lane": schema.Array(np.int32, (None,)), "age": vector},
        "sampler": dict,
    }
    schema.check(state, expected)
    columns = state["columns"]
    distance = state["distance"]
    heads = state["heads"]
    length = state["count"] - state["begin"]
    if not 0 <= length <= capacity:
        raise ValueError(f"state['count'] must be begin to begin + capacity, got {state['begin']}, {state['count']}")
    _check_rows("state['columns']", columns, length)
    _check_rows("state['distance']", [distance], length)
    _check_rows("state['apart']", state["apart"], int((distance == 0).sum()))
    _check_rows("state['heads']['age']", [heads["age"]], len(heads["lane"]))
    ended = np.concatenate(columns["terminated"]) | np.concatenate(columns["truncated"])
    fault = broken_link(distance, np.concatenate(columns["lane"]), ended, heads["lane"], heads["age"])
    fault = fault or broken_mask(state["hidden"], length)
    if fault:
        raise ValueError(f"the state of a replay memory is inconsistent: {fault}")


def set_state(storage: Storage, state: Mapping[str, Any]) -> None:
    """Restore a state that `check_state` accepts."""
    begin = state["begin"]
    distance = state["distance"]
    # A distance of 0 means that the transition has no successor, but a final observation.
    slots = int((distance == 0).sum())
    storage.clear()
    storage.begin = storage.count = begin
    # The stored rows are in order of age, from the insertion number `begin` on.
    indices = (begin + np.arange(len(distance))) % storage.capacity
    for name, table in _columns(storage).items():
        _fill(table, indices, state["columns"][name])
    storage.successor[indices] = (indices + distance) % storage.capacity
    # Final observations get the slots 0, 1, 2 ... in order of age.
    storage.successor[indices[distance == 0]] = -1 - np.arange(slots)
    if slots > len(storage.final_observations):
        # A power of two, which `Storage` doubles when all slots are used.
        storage.final_observations = storage.allocate_slots(1 << (slots - 1).bit_length())
    _fill(storage.final_observations, np.arange(slots), state["apart"])
    storage.num_slots = slots
    storage.count = state["count"]
    newest = (begin + state["heads"]["age"]) % storage.capacity
    storage.newest_index.update(zip(state["heads"]["lane"].tolist(), newest.tolist(), strict=True))
    storage.mask(begin + state["hidden"])


def broken_link(distance: Array, lane: Array, ended: Array, newest_lanes: Array, newest_ages: Array) -> str | None:
    """Return a description of what is wrong with the links of transitions in order of age; None if nothing is.

    Args:
        distance: age difference to the successor; 0 if there is none. `[n]`
        lane: the lane of each transition. `[n]`
        ended: whether the episode ended with the transition. `[n]`
        newest_lanes: lanes whose episode is running. `[N]`
        newest_ages: position of each such lane's newest transition in the order of age. `[N]`
    """
    linked = np.flatnonzero(distance != 0)
    target = linked + distance[linked]
    if (distance < 0).any() or (target >= len(distance)).any():
        return "a successor is older than its transition, or not stored"
    if len(np.unique(target)) != len(target):
        return "two transitions have the same successor"
    if (lane[target] != lane[linked]).any():
        return "a successor belongs to another lane"
    if ended[linked].any():
        return "a transition that ended an episode has a successor"
    if len(np.unique(newest_lanes)) != len(newest_lanes):
        return "a lane has two newest transitions"
    if ((newest_ages < 0) | (newest_ages >= len(distance))).any():
        return "the newest transition of a lane is not stored"
    if (lane[newest_ages] != newest_lanes).any():
        return "the newest transition of a lane belongs to another lane"
    if ended[newest_ages].any() or distance[newest_ages].any():
        return "the newest transition of a lane ended its episode or has a successor"
    return None


def broken_mask(masked: Array, length: int) -> str | None:
    """Return a description of what is wrong with the ages of masked transitions; None if nothing is."""
    if (np.diff(masked) <= 0).any() or (len(masked) and not 0 <= masked[0] <= masked[-1] < length):
        return "the masked transitions are not stored, or not in order of age"
    return None


def distances(storage: Storage, successor: Array) -> Array:
    """Return the age difference to each stored transition's successor, in order of age `[n]`; 0 if there is none."""
    distance = storage.stored_indices()
    np.subtract(successor, distance, out=distance)
    # Faster than a division for each transition.
    np.add(distance, storage.capacity, out=distance, where=distance < 0)
    np.copyto(distance, 0, where=successor < 0)
    return distance


def _layouts(storage: Storage) -> dict[str, Layout]:
    """Return the layouts of all columns except the links, which are saved as distances."""
    layouts: dict[str, Any] = {"observation": storage.observation_layout, "action": storage.action_layout}
    layouts |= {name: Leaf((), dtype, dtype) for name, dtype in storage.BOOKKEEPING.items() if name != "successor"}
    return layouts | ({"extra": storage.extra_layout} if storage.extra_layout else {})


def _columns(storage: Storage) -> dict[str, Any]:
    return {name: getattr(storage, name) for name in _layouts(storage)}


def _segments(storage: Storage, table: Table | Mapping[str, Array]) -> Any:
    """Return the stored rows of each leaf, the oldest first, as a list of views that a file stores one by one."""
    slices = storage.slices(storage.begin, storage.count) or [slice(0)]
    return map_leaves(lambda array: [part for piece in slices for part in pieces(array[piece])], table)


def _fill(table: Table | Mapping[str, Array], rows: Array, segments: Any) -> None:
    """Write segments to these rows of a table."""

    def fill(array: Array, parts: list[Array]) -> None:
        start = 0
        for part in parts:
            array[rows[start : start + len(part)]] = part
            start += len(part)

    map_leaves(fill, table, segments)


def _schema(layout: Layout | Mapping[str, Layout]) -> Any:
    """Return the schema of a column's segments; for a mapping, a dict of schemas."""
    return map_leaves(lambda leaf: schema.ListOf(schema.Array(leaf.dtype, (None, *leaf.shape))), layout)


def _check_rows(name: str, segments: Any, length: int) -> None:
    """Raise a ValueError unless the segments have `length` rows in all; a dict of segments is checked by item."""
    if isinstance(segments, Mapping):
        for key, part in segments.items():
            _check_rows(f"{name}[{key!r}]", part, length)
    elif not segments or sum(map(len, segments)) != length:
        raise ValueError(f"{name} must have {length} rows in all, got {sum(map(len, segments))}")
