"""The catalogue of callbacks, a small class per file; imported as `noterl.callbacks`.

A class is imported when it is first used, so that the catalogue costs nothing but what is composed.
"""

from __future__ import annotations

if __name__ != "noterl.callbacks":
    raise ImportError("import noterl.callbacks, not callbacks: a second copy of a class is a trap")

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noterl.callback import Callback, LambdaCallback

    from .checkpoint import Checkpoint
    from .early_stopping import EarlyStopping
    from .episode_printer import EpisodePrinter
    from .progress_bar import ProgressBar

__all__ = ["Callback", "Checkpoint", "EarlyStopping", "EpisodePrinter", "LambdaCallback", "ProgressBar"]

_HOMES = {
    "Callback": "noterl.callback",
    "Checkpoint": "noterl.callbacks.checkpoint",
    "EarlyStopping": "noterl.callbacks.early_stopping",
    "EpisodePrinter": "noterl.callbacks.episode_printer",
    "LambdaCallback": "noterl.callback",
    "ProgressBar": "noterl.callbacks.progress_bar",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'noterl.callbacks' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
