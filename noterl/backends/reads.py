"""Recording which attributes of an agent compiled programs read: programs contain the values as constants."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from noterl import backends

_PLAIN = (bool, int, float, complex, str, bytes, np.generic, type(None))

# Objects of these packages are compared by identity: their state is not plain numbers. Classes of noterl whose numbers
# losses read have the attribute `read_by_losses`.
_OPAQUE = ("noterl", "keras", "torch", "tensorflow", "jax", "jaxlib", "gymnasium", "functools", "itertools")

# Larger arrays and containers are compared by identity, because a copy of each is kept.
_LARGEST_ARRAY = 2**20
_LARGEST_CONTAINER = 1_000

_MISSING = object()


@dataclass
class Reading:
    """What a program has read and assigned during tracing.

    Attributes:
        names: the attributes that were read.
        assigned: the attributes that were assigned or whose contents have changed.
        is_kept: whether the traced program is used, so that the attributes are constants.
    """

    names: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)
    is_kept: bool = True


class Reads:
    """The attributes of an agent that compiled programs have read.

    Args:
        agent: the agent.
        is_own: whether the attribute with this name is one of the author of the algorithm.

    Attributes:
        version: another number after each change; a program that was traced at an older one is traced again.
        acting: the names of attributes that the forward pass for acting has read.
        in_place: the names of attributes that may change without an assignment, such as arrays and dicts.
        retraced: the numbers of updates after which the `fit` in progress has traced programs again.
        is_eager: whether an update assigns such an attribute, so that losses must not be traced.
    """

    def __init__(self, agent: Any, is_own: Callable[[str], bool]) -> None:
        self._agent = agent
        self._is_own = is_own
        self.version: int = 0
        self.acting: set[str] = set()
        self.in_place: set[str] = set()
        self.retraced: set[int] = set()
        self.is_eager: bool = False
        self._values: dict[str, Any] = {}  # by name, as `frozen` returns them
        self._watched: dict[str, Any] = {}
        self._reading = Reading()
        self._depth = 0  # of contexts that record

    def assign(self, name: str, value: Any) -> None:
        """Called before an attribute is assigned: outdate the programs that have read the attribute."""
        if self._depth:
            self._reading.assigned.add(name)
            return
        self._agent._before_assignment(name, value)
        if name in self._values:
            self._compare(name, value)

    def check(self) -> int:
        """Find attributes that have changed without an assignment, such as arrays, and return the version."""
        for name in list(self._values):
            self._compare(name, self._current(name))
        return self.version

    def _compare(self, name: str, value: Any) -> None:
        """If the value differs from the constant in programs, let the programs be traced again."""
        new = frozen(value)
        if new != self._values[name]:
            self.outdate(name)
            self._values[name] = new

    def outdate(self, name: str) -> None:
        """Let the programs be traced again before the next call, because this attribute gets another value."""
        self.version += self._agent._on_change(name)

    def watch(self, name: str, value: Any) -> None:
        """Compare the attributes of this object too, which programs read, at the start of each `fit`."""
        self._watched[name] = value
        self._values[name] = frozen(value)

    def traced(self, function: Callable[..., Any], jit_compile: bool | str, *, acting: bool = False) -> Any:
        """Return a function for a backend that traces whole functions; attributes that the function reads are recorded.

        On torch, and without compilation, the function itself is returned, and runs in Python each time.
        """
        if jit_compile is False or "live_numbers" in backends.current().capabilities:
            return function

        def run(*args: Any, **keywords: Any) -> Any:
            with self.recording(acting=acting) as reading:
                result = function(*args, **keywords)
            if reading.assigned:
                name = min(reading.assigned)
                raise RuntimeError(
                    f"{type(self._agent).__name__} assigns {name} in a method that is compiled, which would happen "
                    f"only once: make a variable in __init__, self.{name} = keras.Variable(..., trainable=False), and "
                    "call its assign; or compile(jit_compile=False)"
                )
            return result

        return run

    def renewed(self, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        """Return the program of `make`; `make` is called again if an attribute that programs read has changed."""
        programs: dict[int, Callable[..., Any]] = {self.version: make()}

        def run(*args: Any, **keywords: Any) -> Any:
            version = self.check()
            if version not in programs:
                # Programs of older versions hold outdated constants.
                programs.clear()
                programs[version] = make()
            return programs[version](*args, **keywords)

        return run

    @contextmanager
    def recording(self, *, acting: bool = False) -> Iterator[Reading]:
        """Record inside the context which attributes a traced program reads; undo the program's assignments.

        The agent has another class meanwhile, so that reading attributes costs nothing outside of the context.
        """
        agent = self._agent
        # Contexts may be nested; the outermost one changes the class of the agent.
        if not self._depth:
            self._reading = Reading()
            agent_class: Any = type(agent)
            object.__setattr__(agent, "__class__", _recording_class(agent_class))
        self._depth += 1
        reading = self._reading
        before = self._own()
        values = self.own_values()
        contents = [(container, copy.copy(container)) for value in before.values() for container in _containers(value)]
        try:
            yield reading
        finally:
            self._depth -= 1
            if not self._depth:
                object.__setattr__(agent, "__class__", type(agent).__bases__[0])
            # Code that assigns attributes is not kept as a trace, so the assignments of tracing are undone.
            after = self._own()
            changed = {name for name, value in after.items() if frozen(value) != values.get(name)}
            for name in after.keys() - before.keys():
                del vars(agent)[name]
            vars(agent).update(before)
            for container, content in contents:
                _restore(container, content)
            reading.assigned |= changed & reading.names
        if reading.is_kept and not reading.assigned:
            self._keep(tuple(reading.names), acting)  # a recording that goes on adds names

    def own_values(self) -> dict[str, Any]:
        """Return the attributes of the author of the algorithm by name, as values of `frozen`."""
        return {name: frozen(value) for name, value in self._own().items()}

    def adopt(self, other: Reads, values: dict[str, Any]) -> None:
        """Compare the attributes that the programs of another agent have read with these `own_values`."""
        self._values |= {name: values[name] for name in other._values.keys() & values.keys() - self._values.keys()}

    def _own(self) -> dict[str, Any]:
        """Return the attributes of the author of the algorithm by name."""
        return {name: value for name, value in vars(self._agent).items() if self._is_own(name)}

    def _keep(self, names: tuple[str, ...], acting: bool) -> None:
        """Compare these attributes from now on, because a program that is used has read the attributes."""
        agent_class = type(self._agent)
        is_built_in = agent_class.__module__.partition(".")[0] == "noterl"
        for name in names:
            declared = inspect.getattr_static(agent_class, name, None)
            if name.startswith("__") or not self._is_own(name) or isinstance(declared, property):
                continue
            value = self._current(name)
            self._values[name] = frozen(value)
            if acting:
                self.acting.add(name)
            if not is_built_in and next(_containers(value), None) is not None:
                self.in_place.add(name)

    def _current(self, name: str) -> Any:
        """Return the value of an attribute of the instance or its class, without calling properties."""
        values = {**vars(self._agent), **self._watched}
        return values[name] if name in values else inspect.getattr_static(type(self._agent), name, _MISSING)


def frozen(value: Any, depth: int = 4) -> Any:
    """Return a copy of plain values, arrays and their containers, to be compared; other objects by identity."""
    if isinstance(value, _PLAIN):
        # `1 == 1.0 == True`, but each is another constant in a program; `repr` also makes NaN equal to itself.
        return type(value), repr(value)
    contents = _contents(value) if depth else None
    if contents is None:
        return id(value), value  # holds the object, so that its id is not used again
    if isinstance(contents, np.ndarray):
        return contents.dtype.str, contents.shape, contents.tobytes()
    if isinstance(contents, dict):
        return type(value), {name: frozen(part, depth - 1) for name, part in contents.items()}
    return type(value), [frozen(part, depth - 1) for part in contents]


def _contents(value: Any) -> Any:
    """Return an array or a container itself, or the attributes of an object that only holds data; otherwise None."""
    if isinstance(value, np.ndarray):
        return value if value.dtype != object and value.nbytes <= _LARGEST_ARRAY else None
    if isinstance(value, list | tuple | dict | set | frozenset):
        return value if len(value) <= _LARGEST_CONTAINER else None
    module = type(value).__module__
    is_opaque = module.partition(".")[0] in _OPAQUE and not hasattr(type(value), "read_by_losses")
    if is_opaque or callable(value) or isinstance(value, ModuleType):
        return None
    return getattr(value, "__dict__", None)


def _containers(value: Any, depth: int = 4) -> Iterator[Any]:
    """Yield the arrays, containers and dicts of attributes in a value that can change in place.

    Lists of networks and functions are left out: they seldom change, and comparing such lists before each step takes
    time.
    """
    contents = None if isinstance(value, _PLAIN) or not depth else _contents(value)
    if contents is None:
        return
    elements = (
        () if isinstance(contents, np.ndarray) else list(contents.values() if isinstance(contents, dict) else contents)
    )
    if not isinstance(contents, tuple | frozenset) and (
        not elements or any(isinstance(element, _PLAIN) for element in elements)
    ):
        yield contents
    for element in elements:
        yield from _containers(element, depth - 1)


def _restore(container: Any, content: Any) -> None:
    """Replace the contents of an array or container, which other objects may refer to, by the copied contents."""
    if isinstance(container, np.ndarray):
        container[...] = content
    else:
        container.clear()
        (container.extend if isinstance(container, list) else container.update)(content)


@functools.cache
def _recording_class(agent_class: Any) -> type:
    """Return a subclass, in which reading an attribute adds the name to the `Reading` in progress."""

    def getattribute(self: Any, name: str) -> Any:
        object.__getattribute__(self, "__dict__")["_reads"]._reading.names.add(name)
        return agent_class.__getattribute__(self, name)

    namespace = {"__slots__": (), "__getattribute__": getattribute, "__module__": agent_class.__module__}
    namespace["__qualname__"] = agent_class.__qualname__
    return type.__new__(type(agent_class), agent_class.__name__, (agent_class,), namespace)
