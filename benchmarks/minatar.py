"""Breakout of MinAtar as pure functions of JAX, which the JAX backend runs on the device.

Young and Tian, "MinAtar: an Atari-inspired testbed for thorough and reproducible reinforcement learning experiments"
(2019), version 1.0.15, with the three actions that matter and sticky actions of probability 0.1. The observation is
`[10, 10, 4]`: paddle, ball, the place of the ball one step before, and bricks. A test compares each step with the
package `minatar` where that package is installed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from noterl.envs import FunctionalEnv, functional

SIZE = 10
STICKY = 0.1
# The package has no limit; a policy that never misses the ball would never end an episode.
MAX_STEPS = 1_000
BRICK_ROWS = slice(1, 4)
# Steps of the ball in x and y for the directions 0 to 3, and the direction after a contact.
STEP_X = np.array([-1, 1, 1, -1])
STEP_Y = np.array([-1, -1, 1, 1])
OFF_A_WALL = np.array([1, 0, 3, 2])
OFF_A_SURFACE = np.array([3, 2, 1, 0])
OFF_THE_EDGE_OF_THE_PADDLE = np.array([2, 3, 0, 1])


class Ball(NamedTuple):
    """The state: positions are numbers of cells, `bricks` is `[10, 10]`, `action` is the last one."""

    x: Any
    y: Any
    last_x: Any
    last_y: Any
    direction: Any
    paddle: Any
    bricks: Any
    strikes: Any
    action: Any


def observe(ball: Ball) -> Any:
    """Return the observation `[10, 10, 4]`."""
    import jax.numpy as jnp

    image = jnp.zeros((SIZE, SIZE, 4), jnp.float32)
    image = image.at[SIZE - 1, ball.paddle, 0].set(1.0)
    image = image.at[ball.y, ball.x, 1].set(1.0)
    image = image.at[ball.last_y, ball.last_x, 2].set(1.0)
    return image.at[:, :, 3].set(ball.bricks)


def full_wall() -> Any:
    """Return three rows of bricks, `[10, 10]`."""
    import jax.numpy as jnp

    return jnp.zeros((SIZE, SIZE), jnp.float32).at[BRICK_ROWS].set(1.0)


def reset(key: Any) -> tuple[Any, Ball]:
    """Return the first observation and state: the ball starts at the left or at the right, above the paddle."""
    import jax
    import jax.numpy as jnp

    right = jax.random.bernoulli(key)
    x = jnp.where(right, SIZE - 1, 0)
    direction = jnp.where(right, 3, 2)
    y = jnp.int32(3)
    zero = jnp.int32(0)
    ball = Ball(x, y, x, y, direction, jnp.int32(4), full_wall(), jnp.bool_(False), zero)
    return observe(ball), ball


def advance(ball: Ball, action: Any) -> tuple[Ball, Any, Any]:
    """Return the state after an action (0: stay, 1: left, 2: right), the reward, and whether the ball is lost."""
    import jax.numpy as jnp

    paddle = jnp.clip(ball.paddle - (action == 1) + (action == 2), 0, SIZE - 1)
    x = ball.x + jnp.asarray(STEP_X)[ball.direction]
    y = ball.y + jnp.asarray(STEP_Y)[ball.direction]
    is_wall = (x < 0) | (x >= SIZE)
    x = jnp.clip(x, 0, SIZE - 1)
    direction = jnp.where(is_wall, jnp.asarray(OFF_A_WALL)[ball.direction], ball.direction)

    is_top = y < 0
    y = jnp.maximum(y, 0)
    is_brick = ~is_top & (ball.bricks[y, x] == 1.0)
    is_bottom = ~is_top & ~is_brick & (y == SIZE - 1)
    # After a hit the ball flies through bricks until a step without a brick.
    is_hit = is_brick & ~ball.strikes
    reward = is_hit.astype(jnp.float32)
    bricks = jnp.where(is_hit, ball.bricks.at[y, x].set(0.0), ball.bricks)
    # A new wall appears when the ball is back at the bottom.
    bricks = jnp.where(is_bottom & ~jnp.any(bricks > 0.0), full_wall(), bricks)
    is_flat = is_bottom & (ball.x == paddle)
    is_edge = is_bottom & ~is_flat & (x == paddle)
    is_lost = is_bottom & ~is_flat & ~is_edge

    surface = jnp.asarray(OFF_A_SURFACE)[direction]
    edge = jnp.asarray(OFF_THE_EDGE_OF_THE_PADDLE)[direction]
    direction = jnp.where(is_top | is_hit | is_flat, surface, jnp.where(is_edge, edge, direction))
    y = jnp.where(is_hit | is_flat | is_edge, ball.y, y)
    return Ball(x, y, ball.x, ball.y, direction, paddle, bricks, is_brick, action), reward, is_lost


def step(key: Any, ball: Ball, action: Any) -> tuple[Any, Ball, Any, Any, Any]:
    """Return observation, state, reward, terminated and truncated after an action, or after the one before it."""
    import jax
    import jax.numpy as jnp

    sticky = jax.random.bernoulli(key, STICKY)
    ball, reward, is_lost = advance(ball, jnp.where(sticky, ball.action, action).astype(jnp.int32))
    return observe(ball), ball, reward, is_lost, jnp.bool_(False)


def breakout() -> FunctionalEnv:
    """Return the environment; without JAX it can be described, but not stepped."""
    image = spaces.Box(0.0, 1.0, (SIZE, SIZE, 4), np.float32)
    return functional(reset, step, image, spaces.Discrete(3), max_episode_steps=MAX_STEPS, name="MinAtar's Breakout")
