"""noterl: a callback-driven reinforcement-learning trainer in Keras's `Model.fit` style.

Public names are imported on first use, so `import noterl` does not import a deep-learning framework.
"""

import atexit
from pathlib import Path
from typing import TYPE_CHECKING

from noterl.registry import register_modules
from noterl.utils import keras_backend, lazy_imports, start

if TYPE_CHECKING:
    # `callbacks` is a folder next to the package, which mypy does not find under this name.
    from noterl import callbacks as callbacks  # type: ignore[attr-defined]
    from noterl import envs as envs
    from noterl import evaluation as evaluation
    from noterl import finders as finders
    from noterl import heads as heads
    from noterl import imitation as imitation
    from noterl import losses as losses
    from noterl import networks as networks
    from noterl import noise as noise
    from noterl import optimizers as optimizers
    from noterl import plotting as plotting
    from noterl import policies as policies
    from noterl import presets as presets
    from noterl import replay as replay
    from noterl import schedules as schedules
    from noterl import tune as tune
    from noterl.agent import Agent as Agent
    from noterl.agent import load as load
    from noterl.agents.a2c import A2C as A2C
    from noterl.agents.acer import ACER as ACER
    from noterl.agents.alphazero import AlphaZero as AlphaZero
    from noterl.agents.c51 import C51 as C51
    from noterl.agents.cql import CQL as CQL
    from noterl.agents.crossq import CrossQ as CrossQ
    from noterl.agents.ddpg import DDPG as DDPG
    from noterl.agents.dqn import DQN as DQN
    from noterl.agents.iql import IQL as IQL
    from noterl.agents.iqn import IQN as IQN
    from noterl.agents.maddpg import MADDPG as MADDPG
    from noterl.agents.ppo import PPO as PPO
    from noterl.agents.pqn import PQN as PQN
    from noterl.agents.qrdqn import QRDQN as QRDQN
    from noterl.agents.rainbow import Rainbow as Rainbow
    from noterl.agents.rebrac import ReBRAC as ReBRAC
    from noterl.agents.sac import SAC as SAC
    from noterl.agents.td3 import TD3 as TD3
    from noterl.agents.td3bc import TD3BC as TD3BC
    from noterl.agents.tqc import TQC as TQC
    from noterl.agents.trpo import TRPO as TRPO
    from noterl.callback import Callback as Callback
    from noterl.data.dataset import Dataset as Dataset
    from noterl.history import History as History
    from noterl.multi_agent import MultiAgent as MultiAgent
    from noterl.population import Population as Population
    from noterl.registry import register as register
    from noterl.replay import Replay as Replay
    from noterl.types import Batch as Batch

__version__ = "0.1.0"

# Handlers run in reverse order, so this one runs after those of the frameworks.
atexit.register(start.freeze_at_exit)

# Before Keras is imported, because it reads KERAS_BACKEND once.
keras_backend.choose()

# In a checkout, the folder `callbacks` is next to the package; in a wheel, it is inside.
_here = Path(__file__).parent
if not (_here / "callbacks").is_dir():
    __path__.append(str(_here.parent))

_VALUE_AGENTS = ("c51", "dqn", "iqn", "pqn", "qrdqn", "rainbow")
_ACTOR_AGENTS = ("a2c", "acer", "alphazero", "crossq", "ddpg", "maddpg", "ppo", "sac", "td3", "tqc", "trpo")
_OFFLINE_AGENTS = ("cql", "iql", "rebrac", "td3bc")
_AGENTS = (*_ACTOR_AGENTS, *_VALUE_AGENTS, *_OFFLINE_AGENTS)
register_modules(*(f"noterl.agents.{name}" for name in _AGENTS))
register_modules(
    *("noterl.envs.games", "noterl.policies", "noterl.noise", "noterl.replay", "noterl.schedules"),
    *("noterl.networks.config", "noterl.optimizers", "noterl.learning.reward_model", "noterl.data.dataset"),
    *("noterl.imitation.demonstrations", "noterl.callbacks.evaluate", "noterl.callbacks.early_stopping"),
)

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = lazy_imports.attach(__name__)
