"""Imitation: demonstrations of an expert, and learning from demonstrations.

`Agent.pretrain` clones the expert's actions. `GAIL` is a reward model for `Agent.compile`.
"""

from typing import TYPE_CHECKING

from noterl.utils import lazy_imports

if TYPE_CHECKING:
    from noterl.learning.reward_model import GAIL as GAIL

    from .demonstrations import Demonstrations as Demonstrations
else:
    __getattr__, __dir__, __all__ = lazy_imports.attach(__name__)
