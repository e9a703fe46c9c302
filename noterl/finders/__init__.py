"""Finding a learning rate, an optimizer or an agent by short trial runs. The agents do not change."""

from typing import TYPE_CHECKING

from noterl.utils import lazy_imports

if TYPE_CHECKING:
    from noterl.training.finder_logger import FinderLogger as FinderLogger

    from .lr_finder import LRFinder as LRFinder
    from .opt_finder import OptFinder as OptFinder
    from .parallel_finder import ParallelFinder as ParallelFinder
else:
    __getattr__, __dir__, __all__ = lazy_imports.attach(__name__)
