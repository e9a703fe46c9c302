"""The catalogue of callbacks, a small class per file; imported as `noterl.callbacks`."""

if __name__ != "noterl.callbacks":
    raise ImportError("import noterl.callbacks, not callbacks: a second copy of a class is a trap")

from noterl.callback import Callback, LambdaCallback

from .checkpoint import Checkpoint
from .early_stopping import EarlyStopping
from .episode_printer import EpisodePrinter
from .progress_bar import ProgressBar

__all__ = ["Callback", "Checkpoint", "EarlyStopping", "EpisodePrinter", "LambdaCallback", "ProgressBar"]
