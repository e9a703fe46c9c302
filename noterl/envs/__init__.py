"""Environments: gymnasium, classic gym, PettingZoo and vector environments behind one interface.

`resolve` returns an `EnvSource` for anything that `env=` accepts. `check` reports what is wrong with an environment.
`get_state`, `set_state` and `replay` restore an episode in flight.
"""

from noterl.envs.atari import Atari
from noterl.envs.checking.check import check
from noterl.envs.checking.report import Report
from noterl.envs.checking.vector import autoreset_mode
from noterl.envs.envpool import EnvPool
from noterl.envs.functional import FunctionalEnv, FunctionalVectorEnv, functional
from noterl.envs.games.game import Game, GameEnv
from noterl.envs.snapshots import equal, get_state, replay, set_state
from noterl.envs.source import from_description, resolve
from noterl.envs.sources.base import EnvSource
from noterl.envs.spaces import check_spaces
from noterl.envs.tasks.cartpole import functional_cartpole
from noterl.envs.tasks.cliffwalk import BlindCliffwalk
from noterl.envs.tasks.goals import BitFlip, Reach2D
from noterl.envs.tasks.memory import RepeatPrevious, TMaze, functional_repeat_previous, functional_t_maze
from noterl.envs.tasks.signals import Signals
from noterl.envs.vectorized import VectorMaker
from noterl.envs.wrappers.classic import ClassicEnv
from noterl.envs.wrappers.frame_stack import FrameStack
from noterl.envs.wrappers.images import ClipRewards, preprocess
from noterl.envs.wrappers.memory import PreviousStep, hide

__all__ = [
    "Atari",
    "BitFlip",
    "BlindCliffwalk",
    "ClassicEnv",
    "ClipRewards",
    "EnvPool",
    "EnvSource",
    "FrameStack",
    "FunctionalEnv",
    "FunctionalVectorEnv",
    "Game",
    "GameEnv",
    "PreviousStep",
    "Reach2D",
    "RepeatPrevious",
    "Report",
    "Signals",
    "TMaze",
    "VectorMaker",
    "autoreset_mode",
    "check",
    "check_spaces",
    "equal",
    "from_description",
    "functional",
    "functional_cartpole",
    "functional_repeat_previous",
    "functional_t_maze",
    "get_state",
    "hide",
    "preprocess",
    "replay",
    "resolve",
    "set_state",
]
