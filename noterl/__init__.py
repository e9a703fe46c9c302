"""noterl: a callback-driven reinforcement-learning trainer in Keras's `Model.fit` style.

Public names are imported on first use, so `import noterl` does not import a deep-learning framework.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from noterl.registry import register_modules
from noterl.utils import keras_backend, lazy_imports

if TYPE_CHECKING:
    # `callbacks` is a folder next to the package, which mypy does not find under this name.
    from noterl import callbacks  # type: ignore[attr-defined]  # isort: skip
    from noterl import (
        envs,
        finders,
        heads,
        imitation,
        losses,
        networks,
        noise,
        plotting,
        policies,
        replay,
        schedules,
        tune,
    )
    from noterl.agent import Agent, load
    from noterl.agents.a2c import A2C
    from noterl.agents.acer import ACER
    from noterl.agents.alphazero import AlphaZero
    from noterl.agents.ddpg import DDPG
    from noterl.agents.dqn import DQN
    from noterl.agents.maddpg import MADDPG
    from noterl.agents.ppo import PPO
    from noterl.agents.sac import SAC
    from noterl.agents.td3 import TD3
    from noterl.agents.trpo import TRPO
    from noterl.callback import Callback
    from noterl.finders.worker_count import suggest_workers
    from noterl.history import History
    from noterl.multi_agent import MultiAgent
    from noterl.population import Population
    from noterl.registry import register
    from noterl.replay import Replay
    from noterl.types import Batch

__version__ = "0.1.0"

# Before Keras is imported, because it reads KERAS_BACKEND once.
keras_backend.choose()

# In a checkout, the folder `callbacks` is next to the package; in a wheel, it is inside.
_here = Path(__file__).parent
if not (_here / "callbacks").is_dir():
    __path__.append(str(_here.parent))

_AGENTS = ("a2c", "acer", "alphazero", "ddpg", "dqn", "maddpg", "ppo", "sac", "td3", "trpo")
register_modules(*(f"noterl.agents.{name}" for name in _AGENTS))
register_modules(
    *("noterl.envs.games", "noterl.policies", "noterl.noise", "noterl.replay", "noterl.schedules"),
    *("noterl.networks.config", "noterl.learning.reward_model", "noterl.imitation.demonstrations"),
)

__getattr__, __dir__, __all__ = lazy_imports.attach(__name__)
