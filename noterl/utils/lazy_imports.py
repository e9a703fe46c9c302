"""Names of a package that are imported at the first use, so that `import noterl` stays fast."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from noterl.utils import words
from noterl.utils.start import collector_paused


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, the `__dir__` and the `__all__` of a package.

    The names are the imports in the `if TYPE_CHECKING:` block of the package's `__init__.py`. Type checkers and editors
    read the same block. A name is stored in the package at the first use.

    Args:
        package: the `__name__` of the package.

    Example:
    >>> from noterl.utils import lazy_imports
    >>> get_name, list_names, names = lazy_imports.attach("noterl.finders")
    >>> names, get_name("LRFinder").__module__
    (['FinderLogger', 'LRFinder', 'OptFinder', 'ParallelFinder'], 'noterl.finders.lr_finder')
    """
    module: Any = sys.modules[package]
    tree = ast.parse(module.__spec__.loader.get_source(package))
    # For each name that is imported only for type checking, the module of the name.
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    module_names = {alias.name: "." * node.level + (node.module or "") for node in imports for alias in node.names}

    def get_name(name: str) -> Any:
        """Import a name, and store the value in the package, so that Python does not call this function again."""
        if name not in module_names:
            error = words.missing_attribute(module, name, f"module {package!r}")
            # For `from noterl import name`, Python would replace the message of an AttributeError.
            is_from_import = sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap"
            # After an AttributeError, Python looks for a module of this name.
            is_module = is_from_import and importlib.util.find_spec(f"{package}.{name}") is not None
            raise ImportError(str(error)) if is_from_import and not is_module and words.hint(name) else error
        module_name = module_names[name]
        with collector_paused():
            if module_name == package:  # the name is a module of the package
                value: Any = importlib.import_module(f"{package}.{name}")
            else:
                value = getattr(importlib.import_module(module_name, package), name)
        setattr(module, name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*module_names, *(name for name in vars(module) if name.startswith("_"))})

    return get_name, list_names, list(module_names)
