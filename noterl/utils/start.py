"""What shortens the start and the end of a process: a paused garbage collector, and optional packages imported late."""

from __future__ import annotations

import gc
import importlib
import io
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

# Text files, binary files and archives. The base of `io.BufferedIOBase` is not abstract, so `issubclass` is fast.
_FILES: Any = (io.TextIOWrapper, io.BufferedIOBase.__base__, zipfile.ZipFile)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's garbage collector inside the `with` block, unless the caller has disabled the collector.

    An import makes a million objects that live until the process ends. The collector would walk all objects several
    times, for 30 to 40 % of the time of the import.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            # Moves the new objects to the oldest generation without walking them. Nothing stays frozen. The objects
            # that a program has frozen itself would not, so such a program pays for the walks.
            gc.freeze()
            gc.unfreeze()
        gc.enable()


def freeze_at_exit() -> None:
    """Freeze all objects, so that the interpreter does not walk them at its end; flush the files of the objects.

    The last collection would close the files of objects in reference cycles. Without that collection, the file of a
    callback, which refers to an agent that refers to the callback, would end without the last lines that Python has
    buffered. Compressed files and archives are closed, because their ends are written only then.
    """
    # `isinstance` would use `__class__`, which imports the lazy modules of some packages.
    files = [value for value in gc.get_objects() if issubclass(type(value), _FILES)]
    compressed = [file for file in files if type(file).__module__ != "_io" and issubclass(type(file), _FILES[1:])]
    # Text goes into a compressed file, and the end of this file into a buffer.
    for group, method in ((files, "flush"), (compressed, "close"), (files, "flush")):
        for file in group:
            with suppress(Exception):  # a closed file, or a pipe without a reader
                getattr(file, method)()
    gc.freeze()


@contextmanager
def imported_late(modules: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Import some modules at the first use, if the code inside the `with` block imports these modules.

    The importing code receives a placeholder. After the block, other imports receive the module itself.

    Args:
        modules: for each full name of a module, attributes of the placeholder before the import. A module that the
            process has imported before is not replaced.
    """
    finder = _LateFinder(modules)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _remove_placeholders()


def called_late(module: str, name: str, *decorated: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that imports a module when it is called, and calls the module's function of this name.

    Args:
        module: the full name of the module.
        name: the function, or a decorator of the module.
        *decorated: the function that the decorator receives; the result of the decorator is called.
    """

    def call(*args: Any, **options: Any) -> Any:
        function = getattr(_imported(module), name)
        return (function(*decorated) if decorated else function)(*args, **options)

    return call


def disabled_late() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator `torch._dynamo.disable()`, which takes effect when torch has imported its compiler."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls this one, decorated by torch once torch has imported its compiler."""
        disabled: list[Callable[..., Any]] = []

        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            if not disabled and not _is_imported("torch._dynamo"):
                return function(*args, **options)  # without its compiler, torch compiles nothing
            if not disabled:
                disabled.append(_imported("torch._dynamo").disable()(function))
            return disabled[0](*args, **options)

        return call

    return decorate


class _LateModule(ModuleType):
    """A placeholder that imports the module at the first use of an attribute.

    A class becomes a placeholder too, because `isinstance(x, pandas.DataFrame)` is False as long as pandas is not
    imported.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if not _is_imported(self.__name__):
            if name[0].isupper():
                late_class = _LateClass(name, (), {"home": self.__name__})
                setattr(self, name, late_class)
                return late_class
            if PathFinder.find_spec(f"{self.__name__}.{name}", vars(self).get("__path__", [])):
                return importlib.import_module(f"{self.__name__}.{name}")
        return getattr(_imported(self.__name__), name)


class _LateClass(type):
    """A placeholder of a class; `isinstance` does not import the module of the class."""

    home: str

    def __instancecheck__(cls, instance: Any) -> bool:
        return _is_imported(cls.home) and isinstance(instance, getattr(_imported(cls.home), cls.__name__))

    def __call__(cls, *args: Any, **options: Any) -> Any:
        return getattr(_imported(cls.home), cls.__name__)(*args, **options)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(getattr(_imported(cls.home), cls.__name__), name)


class _LateFinder(MetaPathFinder, Loader):
    """Finds placeholders for some modules and all submodules."""

    def __init__(self, modules: Mapping[str, Mapping[str, Any]]) -> None:
        self.modules = modules

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """Return how to make the placeholder of a module; None for other modules, which Python then finds itself."""
        if not any(f"{name}.".startswith(f"{late}.") for late in self.modules):
            return None
        spec_of_module = PathFinder.find_spec(name, path)
        if spec_of_module is None:  # not installed: the import raises as it always does
            return None
        spec = ModuleSpec(name, self, is_package=spec_of_module.submodule_search_locations is not None)
        if spec_of_module.submodule_search_locations is not None:
            spec.submodule_search_locations = list(spec_of_module.submodule_search_locations)
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _LateModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self.modules.get(module.__name__, {}))


def _is_imported(name: str) -> bool:
    """Whether a module itself, not a placeholder, is imported."""
    return name in sys.modules and type(sys.modules[name]) is not _LateModule


def _imported(name: str) -> ModuleType:
    """Import and return a module itself."""
    finders = [finder for finder in sys.meta_path if isinstance(finder, _LateFinder)]
    for finder in finders:
        sys.meta_path.remove(finder)
    _remove_placeholders()
    try:
        return importlib.import_module(name)
    finally:
        sys.meta_path[:0] = finders


def _remove_placeholders() -> None:
    """Let the next import of each module that has a placeholder import the module itself."""
    # `isinstance` would use `__class__`, which imports the lazy modules of other packages.
    placeholders = {name: module for name, module in sys.modules.items() if type(module) is _LateModule}
    for name, module in placeholders.items():
        del sys.modules[name]
        parent_name, _, child = name.rpartition(".")
        parent = sys.modules.get(parent_name)
        if parent is not None and vars(parent).get(child) is module:
            delattr(parent, child)
