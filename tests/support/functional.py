"""Functional environments, and fakes with the interfaces of gymnax and Brax."""

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from noterl.envs.functional import functional, import_jax

LINE = spaces.Box(-10.0, 10.0, (2,))
PAIR = spaces.Box(-np.inf, np.inf, (2,))


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


def box_walk() -> Any:
    """Return a walk with Box actions: the reward is the position, and the episode ends beyond 2.5 or after 4 steps."""

    def reset(key: Any) -> tuple[Any, Any]:
        jnp = import_jax().numpy
        return jnp.zeros(2), jnp.zeros(())

    def step(key: Any, position: Any, action: Any) -> tuple[Any, ...]:
        position = position + action[0]
        observation = import_jax().numpy.stack([position, -position])
        return observation, position, position, position > 2.5, False

    return functional(reset, step, PAIR, spaces.Box(-1.0, 1.0, (1,)), max_episode_steps=4)


def dict_counter() -> Any:
    """Return an environment with Dict observations: action 1 terminates the episode, and 6 steps truncate it."""

    def observed(time: Any) -> dict[str, Any]:
        jnp = import_jax().numpy
        return {"place": jnp.stack([time, -time]).astype(jnp.float32), "choice": time % 3}

    def reset(key: Any) -> tuple[Any, Any]:
        time = import_jax().numpy.int32(0)
        return observed(time), time

    def step(key: Any, time: Any, action: Any) -> tuple[Any, ...]:
        time = time + 1
        return observed(time), time, import_jax().numpy.float32(1), action == 1, (action != 1) & (time >= 6)

    observations = spaces.Dict({"place": PAIR, "choice": spaces.Discrete(3)})
    return functional(reset, step, observations, spaces.Discrete(2))


class FakeGymnax:
    """The interface of gymnax 1.0: `step_env` does not reset, and the time limit is apart."""

    def reset_env(self, key: Any, params: Any) -> Any:
        jnp = import_jax().numpy
        return jnp.zeros(1), {"time": jnp.int32(0), "position": jnp.zeros(1)}

    def step_env(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        position = state["position"] + action - 1.0
        state = {"time": state["time"] + 1, "position": position}
        return position, state, position[0], position[0] >= 3, {}

    def is_truncated(self, state: Any, params: Any) -> Any:
        return state["time"] >= params.limit


class BraxState(NamedTuple):
    position: Any
    obs: Any
    reward: Any
    done: Any


class FakeBrax:
    """The interface of Brax and Playground: a state holds everything."""

    observation_size, action_size = 2, 1

    def reset(self, rng: Any) -> BraxState:
        jnp = import_jax().numpy
        zero = jnp.zeros(())
        return BraxState(zero, jnp.zeros(2), zero, zero)

    def step(self, state: BraxState, action: Any) -> BraxState:
        jnp = import_jax().numpy
        position = state.position + action[0]
        over = jnp.where(position > 2.5, 1.0, 0.0)
        return BraxState(position, jnp.stack([position, -position]), position, over)
