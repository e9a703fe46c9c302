"""Exploration in compiled calls, compared with that on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from noterl import backends, heads, noise, policies
from noterl.explorer import Explorer
from noterl.learning.device_exploration import (
    find_exploration,
    has_uniform_actions,
    index_of,
    num_uniform,
    uniform_actions,
)
from noterl.schedules import Linear

pytestmark = pytest.mark.backends("jax")

BOX = spaces.Box(np.float32([-1, 0]), np.float32([3, 1]))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def tensor(values: Any) -> Any:
    return backends.ops.convert_to_tensor(np.asarray(values, np.float32))


def selected(exploration: Any, values: Any, numbers: Any, settings: Any) -> np.ndarray:
    return backends.current().fetch(exploration.select(*map(tensor, (values, numbers, settings))))


def test_epsilon_greedy_selects_the_actions_of_the_policy(rng: np.random.Generator) -> None:
    """From the same uniform numbers; `EpsGreedyQPolicy.choose` draws one for each row."""
    policy = policies.EpsGreedyQPolicy(0.4)
    exploration: Any = find_exploration(heads.Q().bind(spaces.Discrete(3)), policy)
    values, numbers = rng.normal(size=(200, 3)), rng.random((200, 1))

    class Given:
        def random(self, count: int) -> np.ndarray:
            return numbers[:count, 0]

    vars(policy)["generator"] = Given()
    assert exploration.settings(7, 0) == (0.4,)
    np.testing.assert_array_equal(selected(exploration, values, numbers, [0.4]), policy.choose(values, 7))


def test_epsilon_follows_its_schedule() -> None:
    head = heads.Q().bind(spaces.Discrete(3))
    for policy in (
        policies.LinearEpsGreedyPolicy(1.0, 0.2, steps=80),
        policies.EpsGreedyQPolicy(Linear(1.0, 0.2, 80)),
        policies.AdaptiveEpsGreedyPolicy(),
    ):
        exploration: Any = find_exploration(head, policy)
        assert [exploration.settings(step, 0)[0] for step in (0, 40, 80)] == [policy.epsilon(s) for s in (0, 40, 80)]
    falling: Any = find_exploration(head, policies.LinearEpsGreedyPolicy(1.0, Linear(0.5, 0.1, 80), steps=10))
    assert [falling.settings(step, 0)[0] for step in (20, 40, 80)] == pytest.approx([0.4, 0.3, 0.1])
    greedy: Any = find_exploration(head, policies.GreedyQPolicy())
    assert greedy.settings(5, 0) == (0.0,)
    np.testing.assert_array_equal(selected(greedy, [[1, 2, 2], [3, 0, 1]], [[0.0], [0.9]], [0.0]), [1, 0])


def test_noise_is_added_to_scaled_actions(rng: np.random.Generator) -> None:
    head: Any = heads.Deterministic().bind(BOX)
    process = noise.GaussianWhiteNoiseProcess(0.1, 0.8, sigma_min=0.2, n_steps_annealing=60, size=2)
    exploration: Any = find_exploration(head, process)
    process.skip(15)
    assert exploration.settings(20, 0) == (0.1, process.current_sigma)
    assert exploration.settings(20, 15) == (0.1, pytest.approx(0.5))
    assert exploration.settings(20, 100) == (0.1, 0.2)
    values, normal = rng.normal(size=(2, 50, 2)).astype(np.float32)
    expected = head.add_noise(values, (0.1 + 0.5 * normal).astype(np.float32))
    np.testing.assert_allclose(selected(exploration, values, normal, [0.1, 0.5]), expected, rtol=1e-4, atol=1e-5)


def test_other_exploration_stays_on_the_host() -> None:
    class OwnPolicy(policies.EpsGreedyQPolicy):
        pass

    q, bounded = heads.Q().bind(spaces.Discrete(3)), heads.Deterministic().bind(BOX)
    for policy in (OwnPolicy(), policies.BoltzmannQPolicy(), policies.MaxBoltzmannQPolicy()):
        assert find_exploration(q, policy) is None
    assert find_exploration(bounded, noise.OrnsteinUhlenbeckProcess(0.1, size=2)) is None
    assert find_exploration(bounded, Explorer()) is None


@pytest.mark.parametrize(
    ("space", "numbers", "expected"),
    [
        (spaces.Discrete(3), [[0.0], [0.34], [0.9999]], [0, 1, 2]),
        (spaces.MultiDiscrete([2, 4]), [[0.0, 0.9], [0.6, 0.3]], [[0, 3], [1, 1]]),
        (BOX, [[0.0, 0.25], [0.75, 0.5]], [[-1, 0.25], [2, 0.5]]),
    ],
    ids=str,
)
def test_random_actions_are_uniform(space: Any, numbers: Any, expected: Any) -> None:
    assert has_uniform_actions(space)
    assert num_uniform(space) == len(numbers[0])
    actions = backends.current().fetch(uniform_actions(space, tensor(numbers)))
    np.testing.assert_allclose(actions, expected, rtol=1e-6)


def test_largest_number_does_not_exceed_the_last_index() -> None:
    almost_one = np.nextafter(np.float32(1), np.float32(0))
    assert int(index_of(tensor(almost_one), 2**24 - 1)) == 2**24 - 2
    assert not has_uniform_actions(spaces.Box(-np.inf, np.inf, (1,)))
