"""All callbacks, one class per file; imported as `noterl.callbacks`.

The first use of a class imports the file of the class.
"""

if __name__ != "noterl.callbacks":
    raise ImportError(
        "import noterl.callbacks, not callbacks, because a second copy of a class would not be recognized: write "
        "`from noterl.callbacks import Checkpoint`, or another name"
    )

from typing import TYPE_CHECKING

from noterl.utils import lazy_imports

if TYPE_CHECKING:
    from noterl.callback import Callback as Callback
    from noterl.callback import Every as Every
    from noterl.callback import LambdaCallback as LambdaCallback
    from noterl.training.episode_printer import EpisodePrinter as EpisodePrinter
    from noterl.training.finder_logger import FinderLogger as FinderLogger
    from noterl.training.progress_bar import ProgressBar as ProgressBar

    from .ada_batch import AdaBatch as AdaBatch
    from .adapt import Adapt as Adapt
    from .animate import Animate as Animate
    from .arena import Arena as Arena
    from .backup_and_restore import BackupAndRestore as BackupAndRestore
    from .checkpoint import Checkpoint as Checkpoint
    from .csv_logger import CSVLogger as CSVLogger
    from .doctor import Doctor as Doctor
    from .early_stopping import EarlyStopping as EarlyStopping
    from .ess_adapt import ESSAdapt as ESSAdapt
    from .ess_window import ESSWindow as ESSWindow
    from .evaluate import Evaluate as Evaluate
    from .export import Export as Export
    from .hyperparameter_scheduler import HyperparameterScheduler as HyperparameterScheduler
    from .json_logger import JSONLogger as JSONLogger
    from .learning_rate_scheduler import LearningRateScheduler as LearningRateScheduler
    from .mlflow_logger import MLflowLogger as MLflowLogger
    from .optuna_pruning import OptunaPruning as OptunaPruning
    from .parquet_logger import ParquetLogger as ParquetLogger
    from .record_video import RecordVideo as RecordVideo
    from .reduce_lr_on_plateau import ReduceLROnPlateau as ReduceLROnPlateau
    from .stop_on_steps import StopOnSteps as StopOnSteps
    from .stop_on_time import StopOnTime as StopOnTime
    from .support.tunables import Rate as Rate
    from .support.tunables import Scale as Scale
    from .tensor_board import TensorBoard as TensorBoard
    from .terminate_on_nan import TerminateOnNaN as TerminateOnNaN
    from .trackio_logger import TrackioLogger as TrackioLogger
    from .wandb_logger import WandbLogger as WandbLogger
    from .window import Window as Window
else:
    __getattr__, __dir__, __all__ = lazy_imports.attach(__name__)
