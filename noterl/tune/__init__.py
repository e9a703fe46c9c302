"""Hyperparameter tuning with Optuna (extra `tune`): `tune`, and the ranges of search spaces.

The first use of a name imports the name.
"""

from typing import TYPE_CHECKING

from noterl.utils import lazy_imports

if TYPE_CHECKING:
    from noterl.tune.ranges import Choice as Choice
    from noterl.tune.ranges import Float as Float
    from noterl.tune.ranges import Int as Int
    from noterl.tune.ranges import OneMinus as OneMinus
    from noterl.tune.search import Result as Result
    from noterl.tune.search import tune as tune
else:
    __getattr__, __dir__, __all__ = lazy_imports.attach(__name__)
