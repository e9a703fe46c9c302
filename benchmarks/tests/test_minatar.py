"""The functional Breakout equals that of the package `minatar`, step by step."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import minatar

pytestmark = pytest.mark.backends("jax")

# Step, sum of the rewards, x and y of the ball, paddle and bricks, as the package has them, for a ball that starts on
# the left and a paddle that follows the ball. The wall is renewed before step 600.
FOLLOWING = [
    (150, 14, 9, 5, 9, 16),
    (300, 25, 0, 4, 0, 5),
    (450, 38, 9, 8, 9, 22),
    (600, 51, 0, 8, 0, 9),
    (750, 62, 9, 4, 9, 28),
    (900, 76, 0, 8, 0, 14),
]


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


def test_a_paddle_that_follows_the_ball() -> None:
    jax = pytest.importorskip("jax")
    advance = jax.jit(minatar.advance)
    seeds = (jax.random.PRNGKey(seed) for seed in range(20))
    ball = next(ball for _, ball in map(minatar.reset, seeds) if int(ball.x) == 0)
    total = 0
    shown = []
    for step in range(1, FOLLOWING[-1][0] + 1):
        action = 0 if int(ball.x) == int(ball.paddle) else 1 + int(ball.x > ball.paddle)
        ball, reward, is_lost = advance(ball, action)
        total += int(reward)
        if step in [row[0] for row in FOLLOWING]:
            shown.append((step, total, int(ball.x), int(ball.y), int(ball.paddle), int(ball.bricks.sum())))
    assert shown == FOLLOWING
    assert not is_lost


def test_first_observation() -> None:
    jax = pytest.importorskip("jax")
    observation, ball = minatar.reset(jax.random.PRNGKey(1))
    assert observation.shape == (10, 10, 4)
    assert float(observation[1:4, :, 3].sum()) == 30.0
    assert int(ball.x) in (0, 9)
    assert int(ball.paddle) == 4
