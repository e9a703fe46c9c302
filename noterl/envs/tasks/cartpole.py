"""CartPole as pure functions of JAX, for training on the device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl.envs.functional import FunctionalEnv, functional, import_jax

# The constants of gymnasium's CartPole-v1, in SI units.
GRAVITY = 9.8
CART_MASS = 1.0
POLE_MASS = 0.1
HALF_LENGTH = 0.5
FORCE = 10.0
SECONDS = 0.02
MAX_POSITION = 2.4
MAX_ANGLE = 12 * math.pi / 180
LIMIT = 500


def functional_cartpole() -> FunctionalEnv:
    """Return CartPole with the dynamics of gymnasium's CartPole-v1 (Barto, Sutton and Anderson, 1983), in float32.

    Example:
    >>> from noterl.envs import functional_cartpole
    >>> functional_cartpole().action_space
    Discrete(2)
    """
    # Twice the limits, as in gymnasium: the observation after the end lies outside of them.
    high = np.array([2 * MAX_POSITION, np.inf, 2 * MAX_ANGLE, np.inf], np.float32)
    space = spaces.Box(-high, high)
    return functional(_reset, _step, space, spaces.Discrete(2), max_episode_steps=LIMIT, name="functional_cartpole")


def _reset(key: Any) -> tuple[Any, Any]:
    state = import_jax().random.uniform(key, (4,), minval=-0.05, maxval=0.05)
    return state, state


def _step(key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Return the results of a step, as `functional` documents; the observation, the first result, is the new state.

    `turning` is the angular velocity; `turn` and `speed_up` are the accelerations of the pole and of the cart.
    """
    jnp = import_jax().numpy
    position, velocity, angle, turning = state
    force = jnp.where(action == 1, FORCE, -FORCE)
    cosine = jnp.cos(angle)
    sine = jnp.sin(angle)
    mass = CART_MASS + POLE_MASS
    push = (force + POLE_MASS * HALF_LENGTH * turning**2 * sine) / mass
    turn = (GRAVITY * sine - cosine * push) / (HALF_LENGTH * (4 / 3 - POLE_MASS * cosine**2 / mass))
    speed_up = push - POLE_MASS * HALF_LENGTH * turn * cosine / mass
    following = [
        # Euler's method, position first: gymnasium's default.
        position + SECONDS * velocity,
        velocity + SECONDS * speed_up,
        angle + SECONDS * turning,
        turning + SECONDS * turn,
    ]
    state = jnp.stack(following)
    terminated = (abs(state[0]) > MAX_POSITION) | (abs(state[2]) > MAX_ANGLE)
    return state, state, jnp.float32(1), terminated, False
