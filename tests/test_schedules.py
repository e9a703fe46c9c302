"""Schedules: their values, their arguments, and the policies and noises that follow them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from noterl import policies, registry
from noterl.noise import GaussianWhiteNoiseProcess
from noterl.policies import AdaptiveEpsGreedyPolicy, EpsGreedyQPolicy, LinearEpsGreedyPolicy
from noterl.schedules import Constant, Cosine, Exponential, Linear, Piecewise, Schedule
from tests.support.encoding import through_json

pytestmark = pytest.mark.backend_free

SCHEDULES = {
    "constant": (Constant(0.3), {0: 0.3, 10**9: 0.3}),
    "linear": (Linear(2.0, -1.0, steps=30), {0: 2.0, 10: 1.0, 29: -0.9, 30: -1.0, 10**9: -1.0}),
    "exponential": (
        Exponential(1.0, decay_rate=0.1, end=0.2),
        {0: 1.0, 10: 0.2 + 0.8 / math.e, 20: 0.2 + 0.8 / math.e**2, 10**9: 0.2},
    ),
    "cosine": (
        Cosine(1.0, 0.0, steps=90),
        {0: 1.0, 30: 0.75, 45: 0.5, 60: 0.25, 90: 0.0, 91: 0.0, 10**9: 0.0},
    ),
    "piecewise": (
        Piecewise([10, 30], [Linear(0.0, 1.0, steps=10), 5, Exponential(1.0, decay_rate=0.5)]),
        {0: 0.0, 5: 0.5, 9: 0.9, 10: 5.0, 29: 5.0, 30: 1.0, 32: 1 / math.e, 10**9: 0.0},
    ),
}


@pytest.mark.parametrize(("schedule", "values"), SCHEDULES.values(), ids=SCHEDULES)
def test_value_at_each_step(schedule: Schedule, values: dict[int, float]) -> None:
    for step, value in values.items():
        assert schedule(step) == pytest.approx(value, abs=1e-12), step
        assert type(schedule(step)) is float
    assert schedule() == schedule(0)


@pytest.mark.parametrize(("schedule", "values"), SCHEDULES.values(), ids=SCHEDULES)
def test_schedule_comes_back_from_a_file(schedule: Schedule, values: dict[int, float]) -> None:
    again = through_json(schedule)
    assert type(again) is type(schedule)
    assert registry.lookup(type(schedule).__name__) is type(schedule)
    assert [again(step) for step in values] == [schedule(step) for step in values]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Constant("x"), r"constant must .*got 'x'"),
        (lambda: Linear(0.0, math.nan, 10), "end must be a finite number, got nan"),
        (lambda: Linear(0.0, 1.0, 0), "steps must be a positive int, got 0"),
        (lambda: Linear(0.0, 1.0, 1.5), "steps must be a positive int"),
        (lambda: Exponential(1.0, decay_rate=-1.0), r"decay_rate must .*got -1\.0"),
        (lambda: Cosine(math.inf, 1.0, 10), "start must be a finite number"),
        (lambda: Piecewise([10, 10], [1, 2, 3]), r"boundaries must increase, got \[10, 10\]"),
        (lambda: Piecewise([0], [1, 2]), "boundaries must be a positive int, got 0"),
        (lambda: Piecewise([10], [1]), r"parts must .*boundaries, got 1"),
        (lambda: Piecewise(10, [1, 2]), "boundaries must be a list, got 10"),
        (lambda: Piecewise([10], 1), "parts must be a list, got 1"),
        (lambda: Piecewise([10], "12"), "parts must be a list, got '12'"),
        (lambda: Piecewise([10], [1, None]), r"constant must .*got None"),
    ],
)
def test_bad_argument_raises(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("step", [-1, -0.5, "3", None, math.nan, True, [1]])
@pytest.mark.parametrize(("schedule", "values"), SCHEDULES.values(), ids=SCHEDULES)
def test_negative_or_invalid_step_raises(schedule: Schedule, values: dict[int, float], step: Any) -> None:
    with pytest.raises(ValueError) as raised:
        schedule(step)
    assert str(raised.value) == f"step must be a finite number of at least 0, got {step!r}"


@pytest.mark.parametrize(("start", "end"), [(1e-2, 1e-3), (0.1, 0.7), (3e-4, 1e-5)])
def test_start_and_end_are_exact(start: float, end: float) -> None:
    for schedule in (Linear(start, end, steps=100), Cosine(start, end, steps=100), Exponential(start, 0.3, end=end)):
        assert schedule(0) == start
    assert Linear(start, end, steps=100)(100) == Cosine(start, end, steps=100)(100) == end


def test_numpy_steps_are_accepted() -> None:
    assert Linear(1.0, 0.0, 10)(np.int64(5)) == Linear(1.0, 0.0, 10)(np.float32(5)) == 0.5


def test_subclass_must_define_value() -> None:
    with pytest.raises(NotImplementedError, match=r"Schedule must define value\(step\)"):
        Schedule()(0)


def test_repr_shows_the_arguments() -> None:
    assert repr(Linear(1.0, 0.5, steps=10)) == "Linear(start=1.0, end=0.5, steps=10)"


class TestExplorers:
    def test_policy_takes_the_value_of_the_current_step(self) -> None:
        policy = EpsGreedyQPolicy(Linear(1.0, 0.0, steps=100))
        assert policy.eps == 1.0
        assert [policy.epsilon(step) for step in (0, 25, 100)] == [1.0, 0.75, 0.0]
        policy.select_action(np.zeros((2, 3)), 75)
        assert policy.eps == 0.25
        values = np.array([[0.0, 1.0, 0.0]] * 500)
        assert (policy.select_action(values, 100) == 1).all()
        assert 0.5 < (policy.select_action(values, 0) != 1).mean() < 0.8, "two thirds of the random actions"

    @pytest.mark.parametrize(
        ("policy", "name"),
        [
            (policies.EpsGreedyQPolicy, "eps"),
            (policies.BoltzmannQPolicy, "tau"),
            (policies.MaxBoltzmannQPolicy, "eps"),
            (policies.MaxBoltzmannQPolicy, "tau"),
            (policies.BoltzmannGumbelQPolicy, "C"),
            (policies.GumbelSoftmaxPolicy, "temperature"),
            (policies.GumbelSoftmaxPolicy, "eps"),
        ],
    )
    def test_every_number_of_a_policy_can_follow_a_schedule(self, policy: Any, name: str) -> None:
        made = policy(**{name: Linear(0.9, 0.1, steps=100)})
        made.generator = np.random.default_rng(0)
        assert made.select_action(np.array([[0.0, 1.0]] * 3), 50).shape == (3,)
        assert getattr(made, name) == 0.5

    def test_number_that_follows_a_schedule_cannot_be_assigned(self) -> None:
        policy = EpsGreedyQPolicy(Linear(1.0, 0.0, steps=100))
        with pytest.raises(ValueError, match="eps"):
            policy.eps = 0.5
        assert policy.eps == 1.0
        free = EpsGreedyQPolicy(0.5)
        with pytest.raises(ValueError, match=r"^eps must .*got Linear"):
            free.eps = Linear(1.0, 0.0, steps=100)

    def test_schedule_out_of_range_raises_at_that_step(self) -> None:
        with pytest.raises(ValueError, match=r"^eps must .*got 2\.0"):
            EpsGreedyQPolicy(Linear(2.0, 0.0, steps=100))
        policy = EpsGreedyQPolicy(Linear(1.0, 2.0, steps=100))
        with pytest.raises(ValueError, match=r"^eps must .*got 1\.5"):
            policy.update_schedules(50)

    def test_state_and_file_keep_value_and_schedule(self) -> None:
        policy = EpsGreedyQPolicy(Linear(1.0, 0.0, steps=100))
        policy.update_schedules(50)
        again = through_json(policy)
        again.set_state(policy.get_state())
        assert again.eps == 0.5
        again.update_schedules(75)
        assert (again.eps, policy.eps) == (0.25, 0.5)

    def test_noise_follows_a_schedule(self) -> None:
        noise = GaussianWhiteNoiseProcess(sigma=Cosine(0.5, 0.0, steps=100), sigma_min=None, size=2)
        noise.update_schedules(100)
        assert noise.current_sigma == 0.0
        assert (noise.sample(3) == 0).all()
        noise.update_schedules(50)
        assert noise.current_sigma == pytest.approx(0.25)

    def test_annealing_policies_equal_their_schedules(self) -> None:
        for step in (0, 7, 100, 5_000):
            assert LinearEpsGreedyPolicy(1.0, 0.1, steps=100).epsilon(step) == Linear(1.0, 0.1, steps=100)(step)
            assert AdaptiveEpsGreedyPolicy(1.0, 0.1, 1e-3).epsilon(step) == Exponential(1.0, 1e-3, 0.1)(step)
