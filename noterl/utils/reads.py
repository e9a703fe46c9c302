"""Recording which attributes of an object a traced program reads: it contains their values as constants."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

_PLAIN = (bool, int, float, complex, str, bytes, np.generic, type(None))

# Objects of these packages are compared by identity: their state is not plain numbers.
_OPAQUE = ("noterl", "keras", "torch", "tensorflow", "jax", "jaxlib", "gymnasium", "functools", "itertools")

# Larger arrays and containers are compared by identity, because a copy of each is kept.
_LARGEST_ARRAY, _LARGEST_CONTAINER = 2**20, 1_000

MISSING = object()


@dataclass
class Reads:
    """The attributes of an agent that its compiled programs have read.

    Attributes:
        values: their values by name, as `frozen` returns them.
        acting: the names of those that the forward pass for acting has read.
        in_place: the names of those that may change without an assignment, such as arrays and dicts.
        version: another number after each change; a program that was traced at an older one is traced again.
        retraced: the numbers of updates after which the `fit` in progress has traced programs again.
        is_eager: whether an update assigns such an attribute, so that losses must not be traced.
    """

    values: dict[str, Any] = field(default_factory=dict)
    acting: set[str] = field(default_factory=set)
    in_place: set[str] = field(default_factory=set)
    version: int = 0
    retraced: set[int] = field(default_factory=set)
    is_eager: bool = False

    def copied(self) -> Reads:
        """Return a copy, whose changes leave this object as it is."""
        return Reads(dict(self.values), set(self.acting), set(self.in_place), self.version)

    def forget(self) -> None:
        """Forget what programs have read: new ones replace them."""
        self.__init__(version=self.version + 1)  # type: ignore[misc]


@dataclass
class Reading:
    """What a trace has read and assigned.

    Attributes:
        names: the attributes that were read.
        assigned: the attributes that were assigned.
        is_kept: whether the traced program is used, so that the attributes are constants.
        depth: the number of contexts that record.
    """

    names: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)
    is_kept: bool = True
    depth: int = 0


def frozen(value: Any, depth: int = 4) -> Any:
    """Return a copy of plain values, arrays and containers of them, to be compared; other objects by identity."""
    if isinstance(value, _PLAIN):
        return type(value), repr(value)
    if isinstance(value, np.ndarray) and value.dtype != object and value.nbytes <= _LARGEST_ARRAY:
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, list | tuple | dict | set | frozenset) and len(value) > _LARGEST_CONTAINER:
        depth = 0
    if depth and isinstance(value, list | tuple):
        return type(value), [frozen(part, depth - 1) for part in value]
    if depth and isinstance(value, set | frozenset):
        return type(value), sorted(map(repr, value))
    attributes = _attributes(value)
    if depth and attributes is not None:
        return type(value), {name: frozen(part, depth - 1) for name, part in attributes.items()}
    return id(value), value  # holds the object, so that its id is not used again


def _attributes(value: Any) -> dict[Any, Any] | None:
    """Return a dict itself, or the attributes of an object that only holds data; None for other values."""
    if isinstance(value, dict):
        return value
    is_opaque = type(value).__module__.partition(".")[0] in _OPAQUE
    if is_opaque or callable(value) or isinstance(value, ModuleType) or not hasattr(value, "__dict__"):
        return None
    return vars(value)


def changes_in_place(value: Any, depth: int = 4) -> bool:
    """Return whether what `frozen` returns for this value may change without an assignment."""
    if isinstance(value, np.ndarray):
        return True
    attributes = _attributes(value)
    parts = value if isinstance(value, list | tuple | set) else (attributes or {}).values()
    return depth > 0 and any(isinstance(part, _PLAIN) or changes_in_place(part, depth - 1) for part in parts)


@contextmanager
def recorded(target: Any) -> Iterator[Reading]:
    """Record which attributes of `target` are read and, by its `__setattr__`, assigned inside the context.

    The object has another class meanwhile, so that reading attributes costs nothing outside of the context.
    """
    attributes = vars(target)
    reading: Reading = attributes.setdefault("_reading", Reading())
    if not reading.depth:
        kind: Any = type(target)
        object.__setattr__(target, "__class__", _recording_class(kind))
    reading.depth += 1
    try:
        yield reading
    finally:
        reading.depth -= 1
        if not reading.depth:
            attributes.pop("_reading", None)
            object.__setattr__(target, "__class__", type(target).__bases__[0])


@functools.cache
def _recording_class(kind: Any) -> type:
    def getattribute(self: Any, name: str) -> Any:
        reading = object.__getattribute__(self, "__dict__").get("_reading")
        if reading is not None:
            reading.names.add(name)
        return kind.__getattribute__(self, name)

    namespace = {"__slots__": (), "__getattribute__": getattribute, "__module__": kind.__module__}
    return type.__new__(type(kind), kind.__name__, (kind,), {**namespace, "__qualname__": kind.__qualname__})


@contextmanager
def restored(target: Any, is_own: Callable[[str], bool]) -> Iterator[set[str]]:
    """Restore the attributes of `target` at the end of the context, also the contents of lists, dicts and arrays.

    Args:
        target: the object.
        is_own: whether the attribute with this name is restored.

    Yields:
        a set that then holds the names of those that had changed.
    """
    before = {name: value for name, value in vars(target).items() if is_own(name)}
    contents = {name: (frozen(value), copy.copy(_contents(value))) for name, value in before.items()}
    changed = set[str]()
    try:
        yield changed
    finally:
        after = vars(target)
        for name in [name for name in after if name not in before and is_own(name)]:
            del after[name]
            changed.add(name)
        for name, value in before.items():
            known, content = contents[name]
            if after.get(name, MISSING) is not value:
                changed.add(name)
                after[name] = value
            if frozen(value) != known:
                changed.add(name)
                _restore(_contents(value), content)


def _contents(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value if value.nbytes <= _LARGEST_ARRAY else None
    return value if isinstance(value, list) else _attributes(value)


def _restore(value: Any, content: Any) -> None:
    if isinstance(value, dict):
        value.clear()
        value.update(content)
    elif value is not None:
        value[:] = content
