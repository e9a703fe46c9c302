"""`preprocess` and `ClipRewards`: each wrapper by its values, and the errors."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from noterl.collect import ScalarLanes
from noterl.envs import ClipRewards, get_state, preprocess, resolve, set_state
from noterl.random import Generators

pytestmark = pytest.mark.backend_free


class Screen(gymnasium.Env):
    """The screen shows the number of steps; the reward is 3 minus this number."""

    def __init__(self, shape: tuple[int, ...] = (40, 40, 3), dtype: Any = np.uint8) -> None:
        self.observation_space = spaces.Box(0, 255, shape, dtype)
        self.action_space = spaces.Discrete(2)
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self._screen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._screen(), 3.0 - self.count, self.count >= 8, False, {"count": self.count}

    def _screen(self) -> np.ndarray:
        screen = np.full(self.observation_space.shape, 10 * self.count, np.uint8)
        screen[0] = 255 - 10 * self.count  # the maximum of two frames is not the second frame
        return screen

    def get_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def test_without_arguments_nothing_changes() -> None:
    env = Screen()
    assert preprocess(env) is env


def test_skip_adds_rewards_and_takes_the_maximum_of_two_frames() -> None:
    env = preprocess(Screen(), skip=3)
    env.reset()
    observation, reward, terminated, _, _ = env.step(0)
    assert reward == 2.0 + 1.0 + 0.0 and not terminated
    assert (observation[1:] == 30).all() and (observation[0] == 235).all()
    assert env.step(0)[1] == -1.0 - 2.0 - 3.0 and env.step(0)[2]


def test_all_parts_together() -> None:
    pytest.importorskip("cv2")
    env = preprocess(Screen(), skip=2, grayscale=True, resize=(8, 6), scale=True, stack=3, clip_rewards=True)
    assert env.observation_space == spaces.Box(0.0, 1.0, (3, 8, 6), np.float32)
    first, _ = env.reset()
    assert first.dtype == np.float32 and (first[:, 2:] == 0.0).all()
    for count in (2, 4):
        observation, reward, _, _, info = env.step(0)
        assert observation in env.observation_space
        np.testing.assert_allclose(observation[-1, 2:], 10 * count / 255, rtol=1e-6)
        assert (reward, info["unclipped_reward"]) == {2: (1.0, 3.0), 4: (-1.0, -1.0)}[count]
    assert (observation[0, 2:] == 0.0).all()


def test_one_size_is_height_and_width() -> None:
    pytest.importorskip("cv2")
    assert preprocess(Screen((40, 60)), resize=5).observation_space.shape == (5, 5)


def test_state_of_the_wrappers_is_restored() -> None:
    env = preprocess(Screen(), grayscale=True, stack=3, clip_rewards=True)
    env.reset(seed=0)
    env.step(0)
    state = get_state(env)
    assert state is not None
    expected = env.step(1)
    other = preprocess(Screen(), grayscale=True, stack=3, clip_rewards=True)
    set_state(other, state)
    assert np.array_equal(other.step(1)[0], expected[0])


def test_lanes_return_clipped_rewards_and_count_the_others() -> None:
    lanes = ScalarLanes(resolve(lambda: ClipRewards(Screen())), 1, Generators(0))
    lanes.reset(0, 0, 0)
    rewards = []
    for step in range(8):
        lanes.begin_round(np.zeros(1, int))
        rewards += [transition.reward for transition in lanes.tick(step)]
    assert rewards == [1.0, 1.0, 0.0, -1.0, -1.0, -1.0, -1.0, -1.0]
    assert lanes.ledger.returns[0] == sum(3.0 - count for count in range(1, 9))


@pytest.mark.parametrize(
    ("env", "name", "options"),
    [
        (Screen(), "skip", {"skip": 0}),
        (Screen(), "stack", {"stack": 0}),
        (Screen(), "resize", {"resize": (1, 2, 3)}),
        (Screen(), "resize", {"resize": (0, 2)}),
        (Screen(), "scale", {"scale": 1}),
        (Screen((40, 40)), "grayscale", {"grayscale": True}),
        (Screen((40,)), "env", {}),
        (Screen(dtype=np.float32), "env", {"stack": 2}),
        (gymnasium.make("CartPole-v1"), "env", {}),
    ],
)
def test_bad_arguments_raise(env: gymnasium.Env, name: str, options: dict[str, Any]) -> None:
    if name == "resize":
        pytest.importorskip("cv2")
    with pytest.raises(ValueError, match=f"^{name} must"):
        preprocess(env, **options)
