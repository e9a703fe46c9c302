"""Schemas of saved states; a state is checked against a schema before the restore.

A schema is written like the described state:

- a type (`int`, `str`, `dict` ...): a value of exactly this type, so a bool does not fit `int`;
- None: the value None;
- a dict: a dict with exactly these keys, whose values fit the schemas;
- a list: a list of this length, whose items fit the schemas;
- a tuple: a value that fits one of these schemas;
- an `Int`, `Float`, `Constant`, `Array`, `ListOf` or `DictOf`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from noterl.utils.files import Keys, key_path


@dataclass(frozen=True)
class Int:
    """A Python int between two bounds, both included."""

    low: float = -math.inf
    high: float = math.inf
    kind: ClassVar[Any] = int
    name: ClassVar[str] = "an int"

    def __str__(self) -> str:
        least = "" if self.low == -math.inf else f" of at least {self.low}"
        most = "" if self.high == math.inf else f"{' and' if least else ' of'} at most {self.high}"
        return f"{self.name}{least}{most}"


class Float(Int):
    """A finite Python float between two bounds, both included."""

    kind = float
    name = "a finite float"


@dataclass(frozen=True)
class Constant:
    """Exactly one value, such as the capacity of the memory into which the state is restored."""

    value: Any

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True)
class Array:
    """A NumPy array, or a NumPy scalar if the shape is ().

    Attributes:
        dtype: the dtype; None for any dtype.
        shape: the length of each axis, where None stands for any length; None for any shape.
    """

    dtype: npt.DTypeLike | None = None
    shape: Sequence[int | None] | None = None

    def __str__(self) -> str:
        lengths = "" if self.shape is None else f"[{', '.join('any' if n is None else str(n) for n in self.shape)}]"
        return f"an array {'' if self.dtype is None else np.dtype(self.dtype)}{lengths}".rstrip()


@dataclass(frozen=True)
class ListOf:
    """A list whose items all fit one schema."""

    item: Any

    def __str__(self) -> str:
        return "a list"


@dataclass(frozen=True)
class DictOf:
    """A dict with any str keys, whose values all fit one schema."""

    item: Any

    def __str__(self) -> str:
        return "a dict with str keys"


def check(value: Any, schema: Any, name: str = "state") -> None:
    """Check a value against a schema.

    Args:
        value: the state, for example from a file.
        schema: the schema, as described at the top of this module.
        name: name of the value in the error message.

    Raises:
        ValueError: if an entry does not fit; the message contains the place, the expected value and the actual one.

    Example:
    >>> from noterl.utils.schema import Int, check
    >>> check({"steps": 3, "loss": 0.5}, {"steps": Int(0), "loss": (float, None)})
    >>> check({"steps": -1, "loss": None}, {"steps": Int(0), "loss": (float, None)})
    Traceback (most recent call last):
        ...
    ValueError: state['steps'] must be an int of at least 0, got -1
    """
    _check(value, schema, (name,))


def _check(value: Any, schema: Any, keys: Keys) -> None:
    """Check a value, and then the items against the first alternative that fits the value itself."""
    alternatives = schema if isinstance(schema, tuple) else (schema,)
    fitting = [alternative for alternative in alternatives if _fits(value, alternative)]
    if not fitting:
        expected = " or ".join(map(_expected, alternatives))
        raise ValueError(f"{key_path(keys[1:], str(keys[0]))} must be {expected}, got {_described(value)}")
    for key, entry, item_schema in _items(value, fitting[0]):
        _check(entry, item_schema, (*keys, key))


def _fits(value: Any, schema: Any) -> bool:
    """Return whether the value itself fits; `_check` checks the items afterwards."""
    if schema is None or isinstance(schema, type):
        return value is None if schema is None else type(value) is schema
    if isinstance(schema, Int):
        # math.isfinite raises OverflowError for an int of more than 308 digits.
        is_finite = type(value) is schema.kind and (schema.kind is int or math.isfinite(value))
        return is_finite and schema.low <= value <= schema.high
    if isinstance(schema, Constant):
        return type(value) is type(schema.value) and bool(value == schema.value)
    if isinstance(schema, Array):
        return _fits_array(value, schema)
    if isinstance(schema, Mapping):
        return isinstance(value, Mapping) and value.keys() == schema.keys()
    if isinstance(schema, DictOf):
        return isinstance(value, Mapping) and all(type(key) is str for key in value)
    return type(value) is list and (isinstance(schema, ListOf) or len(value) == len(schema))


def _fits_array(value: Any, schema: Array) -> bool:
    if not isinstance(value, np.ndarray | np.generic) or schema.dtype not in (None, value.dtype):
        return False
    lengths = value.shape if schema.shape is None else tuple(schema.shape)
    return len(lengths) == value.ndim and all(n in (None, m) for n, m in zip(lengths, value.shape, strict=True))


def _items(value: Any, schema: Any) -> list[tuple[str | int, Any, Any]]:
    """Return the key, the value and the schema of each item of a container."""
    if not isinstance(schema, Mapping | list | DictOf | ListOf):
        return []
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    return [(key, entry, schema.item if isinstance(schema, DictOf | ListOf) else schema[key]) for key, entry in items]


def _expected(schema: Any) -> str:
    """Return what a schema allows, for an error message."""
    if isinstance(schema, Mapping):
        return f"a dict with the keys {sorted(schema)}"
    if isinstance(schema, list):
        return f"a list of {len(schema)} items"
    return schema.__name__ if isinstance(schema, type) else str(schema)


def _described(value: Any) -> str:
    """Return a short description of a value from a file, which may be large."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, Mapping):
        return f"a dict with the keys {sorted(map(str, value))!s:.200}"
    return f"a list of {len(value)} items" if isinstance(value, list) else f"{value!r:.80}"
