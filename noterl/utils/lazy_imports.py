"""Names of a package that are imported when they are first used.

Owns: the `__getattr__` and `__dir__` of such packages. What nobody asks for costs nothing at import.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def names(
    namespace: dict[str, Any], homes: Mapping[str, str], modules: tuple[str, ...] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package.

    Args:
        namespace: the package's `globals()`, where a name stays once it was asked for.
        homes: for each name, the module that defines it.
        modules: names that are modules of the package themselves.

    Example:
    >>> from noterl import lazily
    >>> namespace = {"__name__": "shapes", "here": 1}
    >>> find, listed = lazily.names(namespace, {"OrderedDict": "collections"})
    >>> listed(), find("OrderedDict").__name__, "OrderedDict" in namespace
    (['OrderedDict', '__name__', 'here'], 'OrderedDict', True)
    """
    package = namespace["__name__"]

    def find(name: str) -> Any:
        if name in homes:
            value = getattr(importlib.import_module(homes[name]), name)
        elif name in modules:
            value = importlib.import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        namespace[name] = value
        return value

    def listed() -> list[str]:
        return sorted({*namespace, *homes, *modules})

    return find, listed
