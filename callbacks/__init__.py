"""All callbacks, one class per file; imported as `noterl.callbacks`.

A class is imported when it is first used.
"""

from __future__ import annotations

if __name__ != "noterl.callbacks":
    raise ImportError(
        "import noterl.callbacks, not callbacks, because a second copy of a class would not be recognized: write "
        "`from noterl.callbacks import Checkpoint`, or another name"
    )

from typing import TYPE_CHECKING

from noterl.utils import lazy_imports

if TYPE_CHECKING:
    from noterl.callback import Callback, Every, LambdaCallback
    from noterl.training.episode_printer import EpisodePrinter
    from noterl.training.finder_logger import FinderLogger
    from noterl.training.progress_bar import ProgressBar

    from .ada_batch import AdaBatch
    from .adapt import Adapt
    from .animate import Animate
    from .arena import Arena
    from .backup_and_restore import BackupAndRestore
    from .checkpoint import Checkpoint
    from .csv_logger import CSVLogger
    from .early_stopping import EarlyStopping
    from .ess_adapt import ESSAdapt
    from .ess_window import ESSWindow
    from .evaluate import Evaluate
    from .export import Export
    from .hyperparameter_scheduler import HyperparameterScheduler
    from .json_logger import JSONLogger
    from .learning_rate_scheduler import LearningRateScheduler
    from .mlflow_logger import MLflowLogger
    from .optuna_pruning import OptunaPruning
    from .parquet_logger import ParquetLogger
    from .record_video import RecordVideo
    from .reduce_lr_on_plateau import ReduceLROnPlateau
    from .stop_on_steps import StopOnSteps
    from .stop_on_time import StopOnTime
    from .support.tunables import Rate, Scale
    from .tensor_board import TensorBoard
    from .terminate_on_nan import TerminateOnNaN
    from .wandb_logger import WandbLogger
    from .window import Window

__getattr__, __dir__, __all__ = lazy_imports.attach(__name__)
