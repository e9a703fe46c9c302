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

_AGENTS = {name: f"noterl.agents.{name.lower()}" for name in ("A2C", "DDPG", "DQN", "MADDPG", "PPO", "SAC", "TD3")}
_HOMES = {
    **_AGENTS,
    "Agent": "noterl.agent",
    "Batch": "noterl.types",
    "Callback": "noterl.callback",
    "History": "noterl.history",
    "MultiAgent": "noterl.multi_agent",
    "Replay": "noterl.replay",
    "load": "noterl.agent",
    "register": "noterl.registry",
}
_MODULES = (
    "callbacks",
    "envs",
    "finders",
    "heads",
    "losses",
    "networks",
    "noise",
    "plotting",
    "policies",
    "replay",
    "schedules",
)

__all__ = [*_HOMES, *_MODULES]

# Before Keras is imported, because it reads KERAS_BACKEND once.
keras_backend.choose()

# In a checkout, the folder `callbacks` is next to the package; in a wheel, it is inside.
_here = Path(__file__).parent
if not (_here / "callbacks").is_dir():
    __path__.append(str(_here.parent))

register_modules(*_AGENTS.values(), "noterl.policies", "noterl.noise", "noterl.replay", "noterl.schedules")

__getattr__, __dir__ = lazy_imports.attach(globals(), _HOMES, _MODULES)
