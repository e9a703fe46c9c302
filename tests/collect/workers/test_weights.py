"""What the learner sends to workers when a callback has changed the policy or the noise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from noterl.collect.workers.weights import Publisher
from noterl.explorer import Explorer
from noterl.noise import GaussianWhiteNoiseProcess, OrnsteinUhlenbeckProcess
from noterl.policies import EpsGreedyQPolicy
from noterl.schedules import Linear

pytestmark = pytest.mark.backend_free


def publisher_of(*explorers: Explorer, seen: Any = ()) -> Publisher:
    """Return the publisher of an actor with these policies or noises, one for each worker if there are several."""
    several = explorers if len(explorers) > 1 else None
    actor: Any = SimpleNamespace(worker_explorers=several, explorer=explorers[0])
    return Publisher(actor, None, seen)


def test_only_what_a_callback_has_changed_is_sent_and_only_once() -> None:
    noise = GaussianWhiteNoiseProcess(sigma=0.5, sigma_min=0.1)
    publisher = publisher_of(noise)
    assert publisher.changes(2) == [{}, {}]
    noise.sigma = 0.3
    assert publisher.changes(2) == [{"sigma": 0.3}, {"sigma": 0.3}]
    assert publisher.changes(2) == [{}, {}]
    noise.sigma = 0.3  # the same value again
    assert publisher.changes(2) == [{}, {}]


def test_counted_steps_are_not_sent_but_a_new_count_is() -> None:
    noise = OrnsteinUhlenbeckProcess(0.15, sigma=0.5, sigma_min=0.1)
    publisher = publisher_of(noise)
    publisher.count_steps(0, 8)
    publisher.count_steps(0, 8)
    noise.sigma = 0.3
    assert noise.n == 16 == publisher.seen[0]["n"]
    assert publisher.changes(1) == [{"sigma": 0.3}]
    noise.n = 0
    publisher.count_steps(0, 8)
    assert publisher.changes(1) == [{"n": 8}]


def test_each_worker_receives_the_changes_of_its_own() -> None:
    noises = GaussianWhiteNoiseProcess(sigma=0.5), GaussianWhiteNoiseProcess(sigma=0.4)
    publisher = publisher_of(*noises)
    publisher.changes(2)
    noises[1].mu = 0.1
    assert publisher.changes(2) == [{}, {"mu": 0.1}]


def test_restored_state_is_sent() -> None:
    noise = GaussianWhiteNoiseProcess(sigma=0.5)
    other, publisher = GaussianWhiteNoiseProcess(sigma=0.4), publisher_of(noise)
    publisher.changes(1)
    noise.set_state(other.get_state())
    assert publisher.changes(1) == [{"sigma": 0.4}]


def test_difference_to_a_saved_state_is_sent() -> None:
    saved = publisher_of(GaussianWhiteNoiseProcess(sigma=0.5)).seen
    assert publisher_of(GaussianWhiteNoiseProcess(sigma=0.2), seen=saved).changes(1) == [{"sigma": 0.2}]


def test_scheduled_attributes_are_not_sent() -> None:
    policy = EpsGreedyQPolicy(eps=Linear(1.0, 0.0, steps=100))
    publisher = publisher_of(policy)
    publisher.changes(1)
    policy.update_schedules(50)
    assert policy.eps == pytest.approx(0.5)
    assert publisher.changes(1) == [{}]


def test_arrays_are_compared_by_value() -> None:
    noise = OrnsteinUhlenbeckProcess(0.15, size=2)
    publisher = publisher_of(noise)
    publisher.changes(1)
    noise.x = np.zeros((0, 2))
    assert publisher.changes(1) == [{}]
    noise.x = np.ones((1, 2))
    assert publisher.changes(1)[0]["x"].tolist() == [[1.0, 1.0]]
