"""The layout of spaces in arrays with one row per transition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, Union

import numpy as np
from gymnasium import spaces

Array: TypeAlias = np.ndarray[Any, Any]
Table: TypeAlias = Union[Array, "Leaves"]
Layout: TypeAlias = Union["Leaf", Mapping[str, "Layout"]]
Allocate: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], Array]
ExtraSpec: TypeAlias = Mapping[str, tuple[tuple[int, ...], Any]]


@dataclass(frozen=True)
class Leaf:
    """One array of a table: the shape and dtype of a stored row, and the dtype of the row in a batch."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    batch_dtype: np.dtype[Any]


class Leaves:
    """A table of nested dictionaries: one array per leaf, all with the same number of rows.

    `Leaves` supports the operations of arrays that the storage needs: `table[row] = value`, `table[row].tobytes()`,
    slices and `nbytes`.
    """

    __slots__ = ("_items", "tables")

    def __init__(self, tables: dict[str, Any]) -> None:
        self.tables: dict[str, Any] = tables
        self._items = tuple(tables.items())

    def __setitem__(self, rows: Any, value: Any) -> None:
        tables = value.tables if isinstance(value, Leaves) else value
        for name, table in self._items:
            table[rows] = tables[name]

    def __getitem__(self, rows: Any) -> Leaves:
        return Leaves({name: table[rows] for name, table in self._items})

    def __len__(self) -> int:
        return len(self._items[0][1])

    def tobytes(self) -> bytes:
        """Return the concatenated bytes of all leaves."""
        return b"".join([table.tobytes() for _, table in self._items])

    @property
    def nbytes(self) -> int:
        """Bytes allocated by all leaves."""
        return sum(table.nbytes for _, table in self._items)


def observation_layout(space: spaces.Space[Any], argument: str = "observation_space") -> Layout:
    """Return the layout in which observations of a space are stored.

    Raises:
        ValueError: if the space is not a Box, Discrete, MultiDiscrete or MultiBinary, or a Dict of these.
    """
    if isinstance(space, spaces.Dict) and space.spaces:
        return {name: observation_layout(part, f"{argument}[{name!r}]") for name, part in space.spaces.items()}
    return _leaf(space, argument, "Box, Discrete, MultiDiscrete, MultiBinary or a Dict of these")


def action_layout(space: spaces.Space[Any]) -> Leaf:
    """Return the layout in which actions of a space are stored.

    Raises:
        ValueError: if the space is not a Box, Discrete, MultiDiscrete or MultiBinary.
    """
    return _leaf(space, "action_space", "Box, Discrete, MultiDiscrete or MultiBinary")


def extra_layout(extra_spec: ExtraSpec | None) -> dict[str, Leaf]:
    """Return the layouts of an agent's extra fields by name; `extra_spec` maps names to (shape, dtype).

    Raises:
        ValueError: if an entry is not a pair of a shape and a numeric dtype.
    """
    layout = {}
    for name, entry in (extra_spec or {}).items():
        try:
            shape = tuple(int(size) for size in entry[0])
            dtype = np.dtype(entry[1])
        except (TypeError, ValueError, IndexError) as error:
            raise ValueError(f"extra_spec[{name!r}] must be a pair (shape, dtype), got {entry!r}") from error
        if dtype.kind not in "fiub" or any(size < 0 for size in shape):
            raise ValueError(f"extra_spec[{name!r}] must have sizes >= 0 and a numeric dtype, got {entry!r}")
        layout[name] = Leaf(shape, dtype, _batch_dtype(dtype, None))
    return layout


def allocate(layout: Layout, rows: int, empty: Allocate = np.empty) -> Table:
    """Return a table with `rows` rows, whose arrays `empty` allocates."""
    if isinstance(layout, Leaf):
        return empty((rows, *layout.shape), layout.dtype)
    return Leaves({name: allocate(part, rows, empty) for name, part in layout.items()})


def map_leaves(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function to each leaf of a tree and the same leaves of `others`; return the results nested likewise."""
    if isinstance(tree, Leaves):
        tree = tree.tables
    if not isinstance(tree, Mapping):
        return function(tree, *others)
    return {name: map_leaves(function, part, *(other[name] for other in others)) for name, part in tree.items()}


def gather(table: Any, rows: Array, layout: Layout) -> Any:
    """Return rows `[n]` of a table as new arrays `[n, ...]` of the batch dtype; for a mapping, a dict of arrays."""
    if isinstance(layout, Leaf):
        # `clip` skips NumPy's check of all indices; callers overwrite rows whose index is negative.
        return table.take(rows, axis=0, mode="clip").astype(layout.batch_dtype, copy=False)
    return map_leaves(lambda array, leaf: gather(array, rows, leaf), table, layout)


def scatter(target: Any, positions: Array, source: Any) -> None:
    """Write the arrays of `source` to the positions `[m]` of `target`, leaf by leaf."""

    def write(array: Array, values: Array) -> None:
        array[positions] = values

    map_leaves(write, target, source)


def reshape(value: Any, leading: tuple[int, ...]) -> Any:
    """Return the arrays `[n, ...]` of `value` with the first axis split into axes of the sizes `leading`."""
    if isinstance(value, Mapping):
        return {name: reshape(array, leading) for name, array in value.items()}
    return value.reshape(leading + value.shape[1:])


def _leaf(space: spaces.Space[Any], argument: str, allowed: str) -> Leaf:
    """Return the layout of a space that is one array; the ValueError for another space names `argument`."""
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise ValueError(f"{argument} must be {allowed}, got {space!r}")
    if space.shape is None or space.dtype is None or space.dtype.kind not in "fiub":
        raise ValueError(f"{argument} must have a shape and a numeric dtype, got {space!r}")
    return Leaf(space.shape, np.dtype(space.dtype), _batch_dtype(np.dtype(space.dtype), space))


def _batch_dtype(dtype: np.dtype[Any], space: spaces.Space[Any] | None) -> np.dtype[Any]:
    """Return the dtype in batches: 32 bits for float64, and for int64 if the bounds of the space fit."""
    if dtype == np.float64:
        return np.dtype(np.float32)
    if dtype == np.int64 and space is not None and fits_int32(space):
        return np.dtype(np.int32)
    return dtype


def fits_int32(space: spaces.Space[Any]) -> bool:
    """Return whether the bounds of a space fit 32 bits."""
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
    else:
        assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
        low = np.asarray(space.start)
        high = low + (space.n if isinstance(space, spaces.Discrete) else space.nvec) - 1
    bounds = np.iinfo(np.int32)
    return bool((low >= bounds.min).all() and (high <= bounds.max).all())
