"""Finding a learning rate, an optimizer or an agent by short trial runs, which leave the agent as it was."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .finder_logger import FinderLogger
    from .lr_finder import LRFinder
    from .opt_finder import OptFinder
    from .parallel_finder import ParallelFinder

__all__ = ["FinderLogger", "LRFinder", "OptFinder", "ParallelFinder"]

_HOMES = {
    "FinderLogger": "noterl.finders.finder_logger",
    "LRFinder": "noterl.finders.lr_finder",
    "OptFinder": "noterl.finders.opt_finder",
    "ParallelFinder": "noterl.finders.parallel_finder",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'noterl.finders' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
