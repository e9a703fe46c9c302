"""Finding a learning rate, an optimizer or an agent by short trial runs. The agents do not change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noterl.utils import lazy_imports

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

__getattr__, __dir__ = lazy_imports.attach(globals(), _HOMES)
