"""noterl: a callback-driven reinforcement-learning trainer in Keras's `Model.fit` style.

Public names are imported on first use, so `import noterl` does not import a deep-learning framework.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from noterl.registry import register_modules
from noterl.utils import keras_backend, lazy_imports

if TYPE_CHECKING:
    import noterl.callbacks as callbacks
    from noterl import envs, finders, heads, losses, networks, noise, plotting, policies, replay, schedules
    from noterl.agent import Agent, load
    from noterl.agents.a2c import A2C
    from noterl.agents.ddpg import DDPG
    from noterl.agents.dqn import DQN
    from noterl.agents.maddpg import MADDPG
    from noterl.agents.ppo import PPO
    from noterl.agents.sac import SAC
    from noterl.agents.td3 import TD3
    from noterl.callback import Callback
    from noterl.history import History
    from noterl.multi_agent import MultiAgent
    from noterl.registry import register
    from noterl.replay import Replay
    from noterl.types import Batch

__version__ = "0.1.0"

__all__ = [
    "A2C",
    "DDPG",
    "DQN",
    "MADDPG",
    "PPO",
    "SAC",
    "TD3",
    "Agent",
    "Batch",
    "Callback",
    "History",
    "MultiAgent",
    "Replay",
    "callbacks",
    "envs",
    "finders",
    "heads",
    "load",
    "losses",
    "networks",
    "noise",
    "plotting",
    "policies",
    "register",
    "replay",
    "schedules",
]

_HOMES = {
    "A2C": "noterl.agents.a2c",
    "Agent": "noterl.agent",
    "Batch": "noterl.types",
    "Callback": "noterl.callback",
    "DDPG": "noterl.agents.ddpg",
    "DQN": "noterl.agents.dqn",
    "History": "noterl.history",
    "MADDPG": "noterl.agents.maddpg",
    "MultiAgent": "noterl.multi_agent",
    "PPO": "noterl.agents.ppo",
    "Replay": "noterl.replay",
    "SAC": "noterl.agents.sac",
    "TD3": "noterl.agents.td3",
    "load": "noterl.agent",
    "register": "noterl.registry",
}

# Before Keras is imported, because it reads KERAS_BACKEND once.
keras_backend.choose()

# In a checkout, the folder `callbacks` is next to the package; in a wheel, it is inside.
_here = Path(__file__).parent
if not (_here / "callbacks").is_dir():
    __path__.append(str(_here.parent))

_agents = (home for home in _HOMES.values() if home.startswith("noterl.agents."))
register_modules(*_agents, "noterl.policies", "noterl.noise", "noterl.replay", "noterl.schedules")

_modules = tuple(name for name in __all__ if name not in _HOMES)
__getattr__, __dir__ = lazy_imports.attach(globals(), _HOMES, _modules)
