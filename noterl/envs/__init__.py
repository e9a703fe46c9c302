"""Environments: gymnasium, classic gym, PettingZoo and vector environments behind one interface.

`resolve` returns an `EnvSource` for anything that `env=` accepts. `check` reports what is wrong with an environment.
`get_state`, `set_state` and `replay` restore an episode in flight.
"""

from noterl.envs.atari import Atari as Atari
from noterl.envs.checking.check import check as check
from noterl.envs.checking.report import Report as Report
from noterl.envs.checking.vector import autoreset_mode as autoreset_mode
from noterl.envs.functional import FunctionalEnv as FunctionalEnv
from noterl.envs.functional import FunctionalVectorEnv as FunctionalVectorEnv
from noterl.envs.functional import functional as functional
from noterl.envs.games.game import Game as Game
from noterl.envs.games.game import GameEnv as GameEnv
from noterl.envs.snapshots import equal as equal
from noterl.envs.snapshots import get_state as get_state
from noterl.envs.snapshots import replay as replay
from noterl.envs.snapshots import set_state as set_state
from noterl.envs.source import from_description as from_description
from noterl.envs.source import resolve as resolve
from noterl.envs.sources.base import EnvSource as EnvSource
from noterl.envs.spaces import check_spaces as check_spaces
from noterl.envs.tasks.cartpole import functional_cartpole as functional_cartpole
from noterl.envs.tasks.goals import BitFlip as BitFlip
from noterl.envs.tasks.goals import Reach2D as Reach2D
from noterl.envs.tasks.memory import RepeatPrevious as RepeatPrevious
from noterl.envs.tasks.memory import TMaze as TMaze
from noterl.envs.tasks.memory import functional_repeat_previous as functional_repeat_previous
from noterl.envs.tasks.memory import functional_t_maze as functional_t_maze
from noterl.envs.tasks.signals import Signals as Signals
from noterl.envs.vectorized import VectorMaker as VectorMaker
from noterl.envs.wrappers.classic import ClassicEnv as ClassicEnv
from noterl.envs.wrappers.frame_stack import FrameStack as FrameStack
from noterl.envs.wrappers.images import ClipRewards as ClipRewards
from noterl.envs.wrappers.images import preprocess as preprocess
from noterl.envs.wrappers.memory import PreviousStep as PreviousStep
from noterl.envs.wrappers.memory import hide as hide
