"""Names of a package that are imported when they are first used, so that `import noterl` stays fast."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def attach(
    namespace: dict[str, Any], homes: Mapping[str, str], modules: tuple[str, ...] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package.

    Args:
        namespace: the package's `globals()`, where a name is stored when it is first used.
        homes: for each name, the module that defines it.
        modules: names that are modules of the package themselves.

    Example:
    >>> from noterl.utils import lazy_imports
    >>> namespace = {"__name__": "shapes", "here": 1}
    >>> get_name, list_names = lazy_imports.attach(namespace, {"OrderedDict": "collections"})
    >>> list_names(), get_name("OrderedDict").__name__, "OrderedDict" in namespace
    (['OrderedDict', '__name__', 'here'], 'OrderedDict', True)
    """
    package = namespace["__name__"]

    def get_name(name: str) -> Any:
        if name in homes:
            value = getattr(importlib.import_module(homes[name]), name)
        elif name in modules:
            value = importlib.import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        namespace[name] = value
        return value

    def list_names() -> list[str]:
        return sorted({*namespace, *homes, *modules})

    return get_name, list_names
