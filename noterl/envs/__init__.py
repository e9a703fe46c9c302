"""Environments: gymnasium and classic gym in, one interface out.

`resolve` turns whatever `env=` may be into an `EnvSource`, `check` tells what is wrong with an environment, and
`get_state`, `set_state` and `replay` bring an episode back that was in flight when a run was saved. `Reach2D` and
`BitFlip` are goal environments of our own, in `BlindCliffwalk` rewards are rare, and `Signals` has two agents.
"""

from noterl.envs.checking.check import check
from noterl.envs.checking.report import Report
from noterl.envs.checking.vector import autoreset_mode
from noterl.envs.snapshots import equal, get_state, replay, set_state
from noterl.envs.source import EnvSource, resolve
from noterl.envs.spaces import check_spaces
from noterl.envs.tasks.cliffwalk import BlindCliffwalk
from noterl.envs.tasks.goals import BitFlip, Reach2D
from noterl.envs.tasks.signals import Signals
from noterl.envs.wrappers.classic import ClassicEnv
from noterl.envs.wrappers.frame_stack import FrameStack

__all__ = [
    "BitFlip",
    "BlindCliffwalk",
    "ClassicEnv",
    "EnvSource",
    "FrameStack",
    "Reach2D",
    "Report",
    "Signals",
    "autoreset_mode",
    "check",
    "check_spaces",
    "equal",
    "get_state",
    "replay",
    "resolve",
    "set_state",
]
