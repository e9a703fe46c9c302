"""Stored experience: the class `noterl.Dataset`, its files, and the recording of episodes."""

from typing import TYPE_CHECKING

from noterl.utils import lazy_imports

if TYPE_CHECKING:
    from .dataset import Dataset as Dataset
    from .dataset import Episode as Episode
else:
    __getattr__, __dir__, __all__ = lazy_imports.attach(__name__)
