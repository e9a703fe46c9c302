"""The functional Breakout equals that of the package `minatar`, step by step."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import minatar


def test_steps_equal_those_of_the_package() -> None:
    package = pytest.importorskip("minatar.environments.breakout")
    jax = pytest.importorskip("jax")
    advance = jax.jit(minatar.advance)
    observe = jax.jit(minatar.observe)
    generator = np.random.default_rng(0)
    original = package.Env()
    actions = original.minimal_action_set()
    rewards = 0.0
    for episode in range(40):
        original.random = np.random.RandomState(episode)
        original.reset()
        _, ball = minatar.reset(jax.random.PRNGKey(episode))
        while int(ball.x) != original.ball_x:
            original.reset()
        is_lost = False
        for _ in range(300):
            # A player that mostly follows the ball reaches walls, bricks and both contacts with the paddle.
            follows = 1 + int(ball.x > ball.paddle) if int(ball.x) != int(ball.paddle) else 0
            action = follows if generator.random() < 0.97 else int(generator.integers(3))
            ball, reward, is_lost = advance(ball, action)
            expected, terminal = original.act(actions[action])
            assert (float(reward), bool(is_lost)) == (expected, terminal)
            shown = np.asarray(observe(ball))
            np.testing.assert_array_equal(shown, original.state().astype(np.float32))
            rewards += float(reward)
            if is_lost:
                break
    assert rewards > 100


def test_first_observation() -> None:
    jax = pytest.importorskip("jax")
    observation, ball = minatar.reset(jax.random.PRNGKey(1))
    assert observation.shape == (10, 10, 4)
    assert float(observation[1:4, :, 3].sum()) == 30.0
    assert int(ball.x) in (0, 9)
    assert int(ball.paddle) == 4
