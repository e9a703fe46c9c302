"""The state of a storage as nested dicts of arrays, back again, and the invariants that both must keep.

Owns the form in which a memory is saved. Rows are in order of age (the oldest first), links are distances in age, and
slots are numbered by the age of their row, so the state says nothing of how the memory came to lie as it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from noterl.replay.columns import Array, Layout, Leaf, Leaves, Table
from noterl.replay.storage import BOOKKEEPING, Storage
from noterl.saving.arrays import pieces


def get_state(storage: Storage) -> dict[str, Any]:
    """Return the live rows; columns are lists of views of the storage, nothing big is copied.

    What is written to the memory later shows through the views: save or copy them before the next `add`.
    """
    successor = _successors(storage)
    lanes, heads = list(storage.heads), np.array(list(storage.heads.values()), np.int64)
    columns = {name: _segments(storage, table) for name, table in _columns(storage).items()}
    return {
        "capacity": storage.capacity,
        "begin": storage.begin,
        "count": storage.count,
        "columns": columns,
        "hidden": storage.mask.hidden(storage.begin) - storage.begin,
        "distance": _distances(storage, successor),
        "apart": _take(storage.apart, -1 - successor[successor < 0]),
        "heads": {
            "lane": np.array(lanes, BOOKKEEPING["lane"]),
            "age": storage.generation(heads) - storage.begin,
        },
        **_past(storage, successor),
    }


def checked(storage: Storage, state: Mapping[str, Any]) -> Callable[[], None]:
    """Return what takes the state of a storage of the same capacity and layouts, after all was looked at.

    Raises:
        ValueError: if the state is not of such a storage, or contradicts itself; the storage is never touched here.
    """
    begin, count = _bounds(storage, state)
    length = count - begin
    observation, past = storage.saved_as(state)
    layouts = {**_layouts(storage), "observation": observation}
    columns = {name: _checked(state, ("columns", name), layouts[name], length) for name in layouts}
    distance = _array(state, ("distance",), np.dtype(np.int64), (length,))
    apart = _checked(state, ("apart",), observation, int((distance == 0).sum()))
    lanes = _array(state, ("heads", "lane"), np.dtype(np.int32), None)
    ages = _array(state, ("heads", "age"), np.dtype(np.int64), lanes.shape)
    hidden = _array(state, ("hidden",), np.dtype(np.int64), None)
    first, frames = _checked_past(past, state, distance)
    ended = np.concatenate(columns["terminated"]) | np.concatenate(columns["truncated"])
    fault = broken_link(distance, np.concatenate(columns["lane"]), ended, lanes, ages) or broken_mask(hidden, length)
    if fault:
        raise ValueError(f"the state of a replay memory contradicts itself: {fault}")

    def take() -> None:
        storage.clear()
        storage.restore_as(state)
        storage.begin = storage.count = begin
        for name, table in _columns(storage).items():
            _fill(storage, table, columns[name])
        _fill_links(storage, distance, apart)
        storage.count = count
        storage.heads.update(zip(lanes.tolist(), ((begin + ages) % storage.capacity).tolist(), strict=True))
        storage.mask.hide(begin + hidden, count)
        storage.restored((begin + first) % storage.capacity, frames)

    return take


def check(storage: Storage) -> None:
    """Assert that the storage hangs together.

    Raises:
        AssertionError: naming the broken invariant.
    """
    begin, count, length = storage.begin, storage.count, storage.length
    assert 0 <= begin <= count, f"generations run from begin {begin} to count {count}"
    assert length <= storage.capacity, f"{length} live rows in a memory of {storage.capacity}"
    rows = storage.live_rows()
    successor = storage.successor
    assert (successor < storage.capacity).all(), "a successor lies beyond the last row"
    used = -1 - successor[successor < 0]
    handed_out = np.concatenate([used, np.array(storage.free, np.int64)])
    assert len(np.unique(handed_out)) == len(handed_out), "a slot is used twice, or used and free"
    assert ((handed_out >= 0) & (handed_out < storage.slots)).all(), "a slot was never handed out"
    assert storage.slots <= len(storage.apart), "more slots handed out than there are"
    lanes = np.array(list(storage.heads), np.int64)
    heads = np.array(list(storage.heads.values()), np.int64)
    ended = storage.terminated[rows] | storage.truncated[rows]
    ages = (heads - begin) % storage.capacity
    fault = broken_link(distances(storage), storage.lane[rows], ended, lanes, ages)
    fault = fault or broken_mask(storage.mask.hidden(begin) - begin, length)
    assert fault is None, fault
    allowed = storage.eligible
    if storage.past is not None:
        storage.past.check()
    masked = 0 if allowed is None else length - int(allowed[rows].sum())
    assert masked == length - storage.drawable, "the mask by row is not that by generation"
    if not storage.knows_episodes:
        return
    following = storage.next_row(rows)
    last = following < 0
    assert (storage.episodes.previous(following[~last]) == rows[~last]).all(), "an episode does not find its way back"
    assert ((storage.episodes.after(rows) == 0) == last).all(), "an episode ends where its links do not"


def broken_link(distance: Array, lane: Array, ended: Array, head_lanes: Array, head_ages: Array) -> str | None:
    """Return what is wrong with the links between live rows, all given in order of age; None if nothing is.

    Args:
        distance: how much younger each row's successor is; 0 where the next observation is kept apart. [n]
        lane: the lane of each row. [n]
        ended: whether the episode ended with the row. [n]
        head_lanes: lanes whose episode still runs. [N]
        head_ages: the position in age of the newest row of each of them. [N]
    """
    linked = np.flatnonzero(distance != 0)
    target = linked + distance[linked]
    if (distance < 0).any() or (target >= len(distance)).any():
        return "a successor is older than its row, or not there"
    if len(np.unique(target)) != len(target):
        return "two rows have the same successor"
    if (lane[target] != lane[linked]).any():
        return "a successor belongs to another lane"
    if ended[linked].any():
        return "a row that ended an episode has a successor"
    if len(np.unique(head_lanes)) != len(head_lanes):
        return "a lane has two heads"
    if ((head_ages < 0) | (head_ages >= len(distance))).any():
        return "the head of a lane is not a live row"
    if (lane[head_ages] != head_lanes).any():
        return "the head of a lane belongs to another lane"
    if ended[head_ages].any() or distance[head_ages].any():
        return "the head of a lane has ended or has a successor"
    return None


def broken_mask(hidden: Array, length: int) -> str | None:
    """Return what is wrong with the ages of masked rows among `length` live ones; None if nothing is."""
    if (np.diff(hidden) <= 0).any() or (len(hidden) and not 0 <= hidden[0] <= hidden[-1] < length):
        return "the masked rows are not live, or not in order of age"
    return None


def distances(storage: Storage) -> Array:
    """Return how much younger the successor of each live row is, in order of age [n]; 0 where there is none."""
    return _distances(storage, _successors(storage))


def _distances(storage: Storage, successor: Array) -> Array:
    distance = storage.live_rows()
    np.subtract(successor, distance, out=distance)
    # Around the end of the ring; a division for each row would cost more.
    np.add(distance, storage.capacity, out=distance, where=distance < 0)
    np.copyto(distance, 0, where=successor < 0)
    return distance


def _successors(storage: Storage) -> Array:
    """Return the links of the live rows, in order of age [n]."""
    return np.concatenate(_segments(storage, storage.successor))


def _past(storage: Storage, successor: Array) -> dict[str, Any]:
    """Return the older frames of stacks, and the ages of the rows they belong to."""
    if storage.past is None:
        return {}
    rows = storage.live_rows()
    followed = np.zeros(storage.capacity, np.bool_)
    followed[successor[successor >= 0]] = True
    age = np.flatnonzero((storage.past.slot[rows] > 0) & ~followed[rows])
    return {"past": {"age": age, "frames": [storage.past.table[storage.past.slot[rows[age]]]]}}


def _checked_past(layout: Leaf | None, state: Mapping[str, Any], distance: Array) -> tuple[Array, Any]:
    """Return the ages of rows that have older frames, and those frames; `layout` is None where there are no stacks.

    Of files from before these were saved every episode begins with the first frame they have.
    """
    if layout is None and "past" in state:
        raise ValueError("the state is of a replay memory with a frame_stack, this one has none")
    if layout is None or "past" not in state:
        return np.empty(0, np.int64), []
    age = _array(state, ("past", "age"), np.dtype(np.int64), None)
    frames = _checked(state, ("past", "frames"), layout, len(age))
    fault = broken_mask(age, len(distance))
    followed = np.flatnonzero(distance) + distance[distance != 0]
    if fault or np.isin(age, followed).any():
        raise ValueError("the state of a replay memory contradicts itself: older frames belong to no row's beginning")
    return age, np.concatenate(frames)


def _columns(storage: Storage) -> dict[str, Any]:
    """Return every column but the links, which are saved in another form."""
    names = ["observation", "action", *(name for name in BOOKKEEPING if name != "successor")]
    extra = {"extra": Leaves(dict(storage.extra))} if storage.extra else {}
    return {name: getattr(storage, name) for name in names} | extra


def _layouts(storage: Storage) -> dict[str, Layout]:
    scalars = {name: Leaf((), dtype, dtype) for name, dtype in BOOKKEEPING.items() if name != "successor"}
    extra = {"extra": storage.extra_layout} if storage.extra else {}
    return {"observation": storage.observation_layout, "action": storage.action_layout, **scalars, **extra}


def _slices(storage: Storage, start: int, length: int) -> Iterator[slice]:
    """Yield where `length` generations from `start` lie: one slice, or two around the end of the ring."""
    row = start % storage.capacity
    first = min(length, storage.capacity - row)
    yield slice(row, row + first)
    if length > first:
        yield slice(0, length - first)


def _segments(storage: Storage, table: Any) -> Any:
    if isinstance(table, Leaves):
        return {name: _segments(storage, part) for name, part in table.tables.items()}
    return [part for piece in _slices(storage, storage.begin, storage.length) for part in pieces(table[piece])]


def _take(table: Table, rows: Array) -> Any:
    if isinstance(table, Leaves):
        return {name: _take(part, rows) for name, part in table.tables.items()}
    return [table[rows]]


def _fill(storage: Storage, table: Any, segments: Any) -> None:
    if isinstance(table, Leaves):
        for name, part in table.tables.items():
            _fill(storage, part, segments[name])
        return
    start = storage.begin
    for segment in segments:
        position = 0
        for piece in _slices(storage, start, len(segment)):
            size = piece.stop - piece.start
            table[piece] = segment[position : position + size]
            position += size
        start += len(segment)


def _fill_links(storage: Storage, distance: Array, apart: Any) -> None:
    rows = (storage.begin + np.arange(len(distance))) % storage.capacity
    lonely = distance == 0
    slots = int(lonely.sum())
    storage.successor[rows] = (rows + distance) % storage.capacity
    storage.successor[rows[lonely]] = -1 - np.arange(slots)
    if slots > len(storage.apart):
        storage.apart = storage.new_slots(1 << (slots - 1).bit_length())
    _put(storage.apart, apart)
    storage.slots = slots


def _put(table: Table, segments: Any) -> None:
    if isinstance(table, Leaves):
        for name, part in table.tables.items():
            _put(part, segments[name])
        return
    content = np.concatenate(segments)
    table[: len(content)] = content


def _bounds(storage: Storage, state: Mapping[str, Any]) -> tuple[int, int]:
    capacity, begin, count = (entry(state, (name,)) for name in ("capacity", "begin", "count"))
    if capacity != storage.capacity:
        raise ValueError(f"the state is of a replay memory of capacity {capacity!r}, this one has {storage.capacity}")
    integers = all(isinstance(number, int) and not isinstance(number, bool) for number in (begin, count))
    if not integers or not 0 <= begin <= count <= begin + capacity:
        raise ValueError(f"the state of a replay memory holds begin={begin!r} and count={count!r}")
    return begin, count


def _checked(state: Mapping[str, Any], path: tuple[str, ...], layout: Layout, length: int) -> Any:
    """Return the segments at `path`, `length` rows in all, each of the layout's shape and dtype."""
    value = entry(state, path)
    if not isinstance(layout, Leaf):
        if not isinstance(value, Mapping) or value.keys() != layout.keys():
            raise ValueError(f"state{list(path)} must be a dict with the keys {sorted(layout)}")
        return {name: _checked(state, (*path, name), part, length) for name, part in layout.items()}
    form = f"{length} rows of {layout.dtype}{list(layout.shape)}"
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"state{list(path)} must be a list of arrays, {form}, got {type(value).__name__}")
    for segment in value:
        if (
            not isinstance(segment, np.ndarray)
            or segment.dtype != layout.dtype
            or segment.shape[1:] != layout.shape
            or not segment.ndim
        ):
            raise ValueError(f"state{list(path)} must hold {form}, got {_described(segment)}")
    if sum(len(segment) for segment in value) != length:
        raise ValueError(f"state{list(path)} must hold {form}, got {sum(len(segment) for segment in value)} rows")
    return list(value)


def _array(state: Mapping[str, Any], path: tuple[str, ...], dtype: np.dtype[Any], shape: Any) -> Array:
    value = entry(state, path)
    expected = value.shape if shape is None and isinstance(value, np.ndarray) and value.ndim == 1 else shape
    if not isinstance(value, np.ndarray) or value.dtype != dtype or value.shape != expected:
        raise ValueError(f"state{list(path)} must be an array {dtype}{list(shape or [])}, got {_described(value)}")
    return value


def entry(state: Any, path: tuple[str, ...]) -> Any:
    """Return what a state holds at `path`; raise a ValueError that names what it lacks."""
    for depth, name in enumerate(path):
        if not isinstance(state, Mapping) or name not in state:
            raise ValueError(f"the state of a replay memory lacks state{list(path[: depth + 1])}")
        state = state[name]
    return state


def _described(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
