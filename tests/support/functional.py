"""Functional environments, and fakes with the interfaces of gymnax, Brax and Jumanji."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from noterl.envs.functional import functional, import_jax

LINE = spaces.Box(-10.0, 10.0, (2,))


def line(limit: int = 7, **options: Any) -> Any:
    """Return a walk on a line: the episode ends beyond 2 or after `limit` steps; the reward is a fraction."""

    def reset(key: Any) -> tuple[Any, Any]:
        position = import_jax().random.uniform(key, (), minval=-1.0, maxval=1.0)
        return _observed(position), position

    def step(key: Any, position: Any, action: Any) -> tuple[Any, ...]:
        noise = 0.1 * import_jax().random.normal(key, ())
        position = position + (2.0 * action - 1.0) * 0.5 + noise
        return _observed(position), position, 0.1 * position, abs(position) > 2.0, False

    return functional(reset, step, LINE, spaces.Discrete(2), max_episode_steps=limit, **options)


def keyed_line() -> Any:
    """Return a walk on a line whose state holds a typed key of JAX, from which the noise of all its steps comes."""

    def reset(key: Any) -> tuple[Any, Any]:
        random = import_jax().random
        position = random.uniform(key, (), minval=-1.0, maxval=1.0)
        return _observed(position), {"key": random.wrap_key_data(key), "position": position}

    def step(_: Any, state: Any, action: Any) -> tuple[Any, ...]:
        random = import_jax().random
        key, drawn = random.split(state["key"])
        position = state["position"] + (2.0 * action - 1.0) * 0.5 + 0.1 * random.normal(drawn, ())
        return _observed(position), {"key": key, "position": position}, 0.1 * position, abs(position) > 2.0, False

    return functional(reset, step, LINE, spaces.Discrete(2), max_episode_steps=7)


def _observed(position: Any) -> Any:
    jnp = import_jax().numpy
    return jnp.stack([position, position**2])


class FakeGymnax:
    """The interface of gymnax 1.0: `step_env` does not reset, and the time limit is apart."""

    name = "Line-gymnax"
    default_params = SimpleNamespace(limit=5)

    def observation_space(self, params: Any) -> Any:
        return SimpleBox(-np.inf, np.inf, (1,), np.float32)

    def action_space(self, params: Any) -> Any:
        return Discrete(3)

    def reset_env(self, key: Any, params: Any) -> Any:
        jnp = import_jax().numpy
        return jnp.zeros(1), {"time": jnp.int32(0), "position": jnp.zeros(1)}

    def step_env(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        position = state["position"] + action - 1.0
        state = {"time": state["time"] + 1, "position": position}
        return position, state, position[0], position[0] >= 3, {}

    def is_truncated(self, state: Any, params: Any) -> Any:
        return state["time"] >= params.limit


class Discrete:
    def __init__(self, n: int) -> None:
        self.n = n


class SimpleBox:
    def __init__(self, low: Any, high: Any, shape: Any, dtype: Any) -> None:
        self.low, self.high, self.shape, self.dtype = low, high, shape, dtype


SimpleBox.__name__ = "Box"


class BraxState(NamedTuple):
    position: Any
    obs: Any
    reward: Any
    done: Any
    info: Any


class FakeBrax:
    """The interface of Brax and Playground: a state holds everything."""

    observation_size, action_size = 2, 1
    _config = SimpleNamespace(episode_length=4)

    def reset(self, rng: Any) -> BraxState:
        jnp = import_jax().numpy
        zero = jnp.zeros(())
        return BraxState(zero, jnp.zeros(2), zero, zero, {})

    def step(self, state: BraxState, action: Any) -> BraxState:
        jnp = import_jax().numpy
        position = state.position + action[0]
        over = jnp.where(position > 2.5, 1.0, 0.0)
        return BraxState(position, jnp.stack([position, -position]), position, over, {})


class JumanjiObservation(NamedTuple):
    place: Any
    choice: Any


class Timestep(NamedTuple):
    step_type: Any
    reward: Any
    discount: Any
    observation: Any


class FakeJumanji:
    """The interface of Jumanji: the key is part of the state, and a discount of 0 means termination."""

    @property
    def observation_spec(self) -> Any:
        place = SimpleNamespace(shape=(2,), dtype=np.float32)
        choice = SimpleNamespace(num_values=3, shape=(), dtype=np.int32)
        return SimpleNamespace(_specs={"place": place, "choice": choice})

    @property
    def action_spec(self) -> Any:
        return SimpleNamespace(num_values=2, shape=(), dtype=np.int32)

    def _timestep(self, time: Any, kind: Any, discount: Any) -> Timestep:
        jnp = import_jax().numpy
        observation = JumanjiObservation(jnp.stack([time, -time]).astype(jnp.float32), time % 3)
        return Timestep(jnp.int32(kind), jnp.float32(1), jnp.float32(discount), observation)

    def reset(self, key: Any) -> Any:
        jnp = import_jax().numpy
        time = jnp.int32(0)
        return (time, key), self._timestep(time, 0, 1)

    def step(self, state: Any, action: Any) -> Any:
        jnp = import_jax().numpy
        time = state[0] + 1
        ends = (action == 1) | (time >= 6)
        return (time, state[1]), self._timestep(time, jnp.where(ends, 2, 1), jnp.where(action == 1, 0.0, 1.0))
