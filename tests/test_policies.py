"""Exploration policies equal slow references and follow their distributions."""

from __future__ import annotations

import itertools
import math
import threading
from typing import Any

import numpy as np
import pytest

from noterl import policies
from noterl.policies import (
    AdaptiveEpsGreedyPolicy,
    BoltzmannGumbelQPolicy,
    BoltzmannQPolicy,
    EpsGreedyQPolicy,
    GreedyQPolicy,
    GumbelSoftmaxPolicy,
    LinearEpsGreedyPolicy,
    MaxBoltzmannQPolicy,
    Policy,
    SoftmaxPolicy,
)
from noterl.registry import lookup

pytestmark = pytest.mark.backend_free

# Constructor arguments that differ from the defaults and reach both branches of every mixture.
ARGUMENTS: dict[type[Policy], dict[str, Any]] = {
    GreedyQPolicy: {},
    EpsGreedyQPolicy: {"eps": 0.4},
    AdaptiveEpsGreedyPolicy: {"initial_eps": 0.9, "min_eps": 0.2, "decay_rate": 1e-2},
    LinearEpsGreedyPolicy: {"start": 0.8, "end": 0.3, "steps": 200},
    BoltzmannQPolicy: {"tau": 0.7, "clip": (-1.0, 2.0)},
    MaxBoltzmannQPolicy: {"eps": 0.6, "tau": 0.7, "clip": (-1.0, 2.0)},
    BoltzmannGumbelQPolicy: {"C": 0.5},
    SoftmaxPolicy: {},
    GumbelSoftmaxPolicy: {"temperature": 0.5, "eps": 0.3},
}
ALL = pytest.mark.parametrize("cls", ARGUMENTS, ids=lambda cls: cls.__name__)
STEP = 100


class ListedDraws(np.random.Generator):
    """A generator whose uniform numbers are those of a list, repeated."""

    def __init__(self, *draws: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.draws = itertools.cycle(draws)

    def random(self, size: Any = None, *args: Any, **kwargs: Any) -> Any:
        if size is None:
            return next(self.draws)
        return np.array([next(self.draws) for _ in range(math.prod(np.atleast_1d(size)))]).reshape(size)


def build(cls: type[Policy], seed: int = 0, **arguments: Any) -> Any:
    policy = cls(**{**ARGUMENTS[cls], **arguments})
    policy.generator = np.random.default_rng(seed)
    return policy


def values_for(policy: Policy | type[Policy], rows: int, actions: int, seed: int = 1) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(rows, actions)).astype(np.float32)
    if policy.acts_on == "probabilities":
        values = np.exp(values) / np.exp(values).sum(axis=1, keepdims=True)
    return values


def first_of_the_largest(row: Any) -> int:
    best = 0
    for index, value in enumerate(row):
        if value > row[best]:
            best = index
    return best


def softmax(row: Any, tau: float = 1.0, clip: tuple[float, float] = (-math.inf, math.inf)) -> list[float]:
    scaled = [min(max(float(value) / tau, clip[0]), clip[1]) for value in row]
    weights = [math.exp(value - max(scaled)) for value in scaled]
    return [weight / sum(weights) for weight in weights]


def invert(probabilities: list[float], draw: float) -> int:
    """Return the first index at which the cumulative probability exceeds `draw`."""
    for index in range(len(probabilities)):
        if sum(probabilities[: index + 1]) > draw:
            return index
    raise AssertionError(f"{draw} is not below the sum of {probabilities}")


def epsilon_of(policy: Any) -> float:
    """Return epsilon at `STEP` for the arguments above, computed independently."""
    if isinstance(policy, AdaptiveEpsGreedyPolicy):
        return 0.2 + 0.7 * math.exp(-1.0)
    if isinstance(policy, LinearEpsGreedyPolicy):
        return 0.8 - 0.5 * (100 / 200)
    return float(policy.eps)


def reference(policy: Any, values: np.ndarray, generator: np.random.Generator) -> list[int]:
    actions = []
    for row in values.tolist():
        size = len(row)
        if isinstance(policy, GreedyQPolicy):
            actions.append(first_of_the_largest(row))
        elif isinstance(policy, BoltzmannQPolicy):
            actions.append(invert(softmax(row, 0.7, (-1.0, 2.0)), generator.random()))
        elif isinstance(policy, SoftmaxPolicy):
            actions.append(invert([value / sum(row) for value in row], generator.random()))
        elif isinstance(policy, BoltzmannGumbelQPolicy):
            noise = [0.5 / math.sqrt(1) * generator.gumbel() for _ in row]
            actions.append(first_of_the_largest([value + extra for value, extra in zip(row, noise, strict=True)]))
        elif isinstance(policy, GumbelSoftmaxPolicy):
            gumbel = [-math.log(-math.log(generator.random() + 1e-20) + 1e-20) for _ in row]
            draw = generator.random()
            best = first_of_the_largest([value + extra for value, extra in zip(row, gumbel, strict=True)])
            actions.append(int(draw / 0.3 * size) if draw < 0.3 else best)
        else:
            draw, epsilon = generator.random(), epsilon_of(policy)
            if draw >= epsilon:
                actions.append(first_of_the_largest(row))
            elif isinstance(policy, MaxBoltzmannQPolicy):
                actions.append(invert(softmax(row, 0.7, (-1.0, 2.0)), draw / epsilon))
            else:
                actions.append(int(draw / epsilon * size))
    return actions


def assert_distributed(actions: np.ndarray, probabilities: Any) -> None:
    """Check that each frequency is within five binomial standard deviations of its probability."""
    probabilities = np.asarray(probabilities)
    frequencies = np.bincount(actions, minlength=len(probabilities)) / len(actions)
    deviation = np.sqrt(probabilities * (1 - probabilities) / len(actions))
    assert (np.abs(frequencies - probabilities) <= 5 * deviation).all(), (frequencies, probabilities)


ROWS = 100_000
Q = np.array([0.5, -0.2, 1.0, 0.0])
GREEDY = np.array([0.0, 0.0, 1.0, 0.0])


def choices(policy: Any, row: Any = Q, step: int = 0) -> np.ndarray:
    return policy.select_action(np.tile(np.asarray(row), (ROWS, 1)), step)


@ALL
def test_a_batch_equals_the_slow_reference(cls: type[Policy]) -> None:
    policy = build(cls, seed=5)
    values = values_for(cls, rows=500, actions=3)
    actions = policy.select_action(values, STEP)
    assert actions.dtype == np.int64
    assert actions.tolist() == reference(policy, values, np.random.default_rng(5))


@ALL
def test_rows_in_turn_equal_batch(cls: type[Policy]) -> None:
    values = values_for(cls, rows=200, actions=5)
    batch = build(cls).select_action(values, STEP).tolist()
    lone_rows, batches_of_one = build(cls), build(cls)
    for row, action in zip(values, batch, strict=True):
        if cls is BoltzmannGumbelQPolicy:
            # All rows of a batch use the counts before the batch.
            lone_rows.counts = batches_of_one.counts = None
        alone = lone_rows.select_action(row, STEP)
        assert type(alone) is int
        assert alone == action
        assert batches_of_one.select_action(row[None], STEP).tolist() == [action]


@ALL
def test_other_shapes(cls: type[Policy]) -> None:
    policy = build(cls)
    assert policy.select_action(np.empty((0, 3), np.float32)).shape == (0,)
    for shape in ((), (2, 3, 4)):
        with pytest.raises(ValueError, match=r"values must be \[N, A\] or \[A\]"):
            policy.select_action(np.zeros(shape))


@ALL
def test_select_action_does_not_change_values(cls: type[Policy]) -> None:
    values = values_for(cls, rows=20, actions=3)
    before = values.copy()
    build(cls).select_action(values, STEP)
    np.testing.assert_array_equal(values, before)


def test_acts_on_of_each_policy() -> None:
    assert {cls.__name__: cls.acts_on for cls in ARGUMENTS if cls.acts_on != "q"} == {
        "SoftmaxPolicy": "probabilities",
        "GumbelSoftmaxPolicy": "logits",
    }


@pytest.mark.parametrize(
    "policy", [GreedyQPolicy(), EpsGreedyQPolicy(0.0), MaxBoltzmannQPolicy(0.0), BoltzmannGumbelQPolicy(0.0)]
)
def test_first_of_equal_actions_is_selected(policy: Policy) -> None:
    assert policy.select_action([[0.0, 2.0, 2.0], [1.0, 1.0, 1.0]]).tolist() == [1, 0]
    assert policy.select_action([0.0, 2.0, 2.0]) == 1


def test_epsilon_greedy_uses_one_uniform_number() -> None:
    """A number below epsilon selects the action by equal parts of [0, eps); epsilon itself does not explore."""
    policy = EpsGreedyQPolicy(0.3)
    below = [0.0, 0.0999, 0.1001, 0.1999, 0.2001, np.nextafter(0.3, 0.0)]
    draws = [*below, 0.3, 0.9]
    policy.generator = ListedDraws(*draws)
    values = np.tile([[0.0, 5.0, 0.0]], (8, 1))
    expected = [0, 0, 1, 1, 2, 2, 1, 1]
    assert policy.select_action(values).tolist() == expected
    assert [policy.select_action(values[0]) for _ in draws] == expected


@pytest.mark.parametrize("actions", [1, 2, 3, 5, 7, 64, 100, 1025])
@pytest.mark.parametrize("eps", [1.0, 0.1, 1 / 3, 1e-9])
def test_largest_uniform_number_gives_valid_action(actions: int, eps: float) -> None:
    policy = EpsGreedyQPolicy(eps)
    policy.generator = ListedDraws(np.nextafter(eps, 0.0))
    assert policy.select_action(np.zeros((2, actions))).tolist() == [actions - 1] * 2
    assert policy.select_action(np.zeros(actions)) == actions - 1


@pytest.mark.parametrize("eps", [0.0, 0.25, 1.0])
def test_epsilon_greedy_distribution(eps: float) -> None:
    assert_distributed(choices(build(EpsGreedyQPolicy, eps=eps)), (1 - eps) * GREEDY + eps / 4)


def test_adaptive_schedule() -> None:
    policy = AdaptiveEpsGreedyPolicy()
    assert policy.epsilon() == policy.epsilon(0) == 1.0
    assert policy.epsilon(10_000) == pytest.approx(0.1 + 0.9 / math.e, rel=1e-15)
    assert policy.epsilon(20_000) == pytest.approx(0.1 + 0.9 / math.e**2, rel=1e-15)
    assert policy.epsilon(10**9) == 0.1
    assert AdaptiveEpsGreedyPolicy(decay_rate=0.0).epsilon(10**9) == 1.0


def test_linear_schedule() -> None:
    policy = LinearEpsGreedyPolicy()
    expected = {0: 1.0, 2_500: 0.7625, 5_000: 0.525, 9_999: 0.050095, 10_000: 0.05, 15_000: 0.05}
    assert {step: policy.epsilon(step) for step in expected} == pytest.approx(expected, rel=1e-12)
    assert LinearEpsGreedyPolicy(start=0.1, end=0.9, steps=3).epsilon(3) == 0.9


@pytest.mark.parametrize(
    ("policy", "step", "eps"),
    [(LinearEpsGreedyPolicy(1.0, 0.2, 100), 75, 0.4), (AdaptiveEpsGreedyPolicy(1.0, 0.0, 1.0), 1, 1 / math.e)],
)
def test_select_action_updates_schedules(policy: Any, step: int, eps: float) -> None:
    policy.generator = np.random.default_rng(3)
    assert_distributed(choices(policy, step=step), (1 - eps) * GREEDY + eps / 4)


@pytest.mark.parametrize("cls", [AdaptiveEpsGreedyPolicy, LinearEpsGreedyPolicy])
def test_assigning_scheduled_eps_raises(cls: type[Policy]) -> None:
    policy = cls()
    with pytest.raises(AttributeError, match=rf"eps.*{cls.__name__}"):
        policy.eps = 0.2
    assert not hasattr(policy, "eps")


@pytest.mark.parametrize("tau", [0.5, 1.0, 4.0])
def test_boltzmann_distribution(tau: float) -> None:
    assert_distributed(choices(build(BoltzmannQPolicy, tau=tau, clip=(-500, 500))), softmax(Q, tau))


def test_boltzmann_clips_the_scaled_values() -> None:
    """q / tau = (0, 2, 1000) clipped to (-1, 1): the last two are equally likely, e times the first."""
    policy = build(BoltzmannQPolicy, tau=0.5, clip=(-1, 1))
    weights = np.array([1.0, math.e, math.e])
    assert_distributed(choices(policy, [0.0, 1.0, 500.0]), weights / weights.sum())


def test_boltzmann_is_stable() -> None:
    values = np.array([[1e30, -1e30], [-1e30, 1e30], [700.0, 800.0]], np.float32)
    assert BoltzmannQPolicy(tau=1e-3).select_action(values)[:2].tolist() == [0, 1]
    wide = BoltzmannQPolicy(clip=(-1e6, 1e6))
    assert wide.select_action(values).tolist() == [0, 1, 1]


def test_max_boltzmann_distribution() -> None:
    expected = 0.7 * GREEDY + 0.3 * np.array(softmax(Q, 2.0))
    assert_distributed(choices(build(MaxBoltzmannQPolicy, eps=0.3, tau=2.0, clip=(-500, 500))), expected)


@pytest.mark.parametrize(("C", "count"), [(1.0, 1), (1.0, 4), (3.0, 9)])
def test_boltzmann_gumbel_distribution(C: float, count: int) -> None:
    """With equal counts Gumbel noise of scale C / sqrt(n) makes the argmax a softmax of that temperature."""
    policy = build(BoltzmannGumbelQPolicy, C=C)
    policy.counts = [count] * 4
    assert_distributed(choices(policy), softmax(Q, C / math.sqrt(count)))


def test_boltzmann_gumbel_scales_each_action_by_its_count() -> None:
    policy, generator = build(BoltzmannGumbelQPolicy, seed=8, C=2.0), np.random.default_rng(8)
    counts = [1, 1, 1]
    for row in values_for(policy, rows=300, actions=3).tolist():
        scores = [value + 2.0 / math.sqrt(count) * generator.gumbel() for value, count in zip(row, counts, strict=True)]
        action = policy.select_action(np.array(row))
        assert action == first_of_the_largest(scores)
        counts[action] += 1
        assert policy.counts.tolist() == counts
    before = np.array(counts)
    actions = policy.select_action(values_for(policy, rows=50, actions=3))
    np.testing.assert_array_equal(policy.counts, before + np.bincount(actions, minlength=3))


def test_boltzmann_gumbel_with_other_number_of_actions_raises() -> None:
    policy = build(BoltzmannGumbelQPolicy)
    policy.select_action(Q)
    state = policy.get_state()
    with pytest.raises(ValueError, match="values"):
        policy.select_action(Q[:3])
    np.testing.assert_equal(policy.get_state(), state)
    policy.counts = None
    assert policy.select_action(Q[:3]) in range(3)


def test_softmax_distribution() -> None:
    probabilities = [0.1, 0.0, 0.65, 0.25]
    assert_distributed(choices(build(SoftmaxPolicy), probabilities), probabilities)


@pytest.mark.parametrize("draw", [0.0, np.nextafter(1.0, 0.0)])
def test_action_with_probability_0_is_never_selected(draw: float) -> None:
    policy = build(SoftmaxPolicy)
    policy.generator = ListedDraws(draw)
    expected = 1 if draw == 0.0 else 3
    for dtype in (np.float32, np.float64):
        # The sum may be a little below or above 1, because of rounding to float32.
        for total in (1.0, 1 - 1e-4, 1 + 1e-4):
            row = np.array([0.0, 0.3, 0.0, 0.7, 0.0], dtype) * dtype(total)
            assert policy.select_action(row) == expected


@pytest.mark.parametrize(
    "row", [[0.5, 0.6], [0.5, 0.4], [1.5, -0.5], [0.0, 0.0], [3.0, -1.0], [math.nan, 1.0], [0.2, 0.798]]
)
def test_softmax_policy_without_probabilities_raises(row: list[float]) -> None:
    policy = build(SoftmaxPolicy)
    before = policy.get_state()
    with pytest.raises(ValueError, match=r"values must .*; row 1 is"):
        policy.select_action([[0.5, 0.5], row])
    assert policy.get_state() == before


def test_gumbel_softmax_distribution() -> None:
    expected = 0.8 * np.array(softmax(Q)) + 0.2 / 4
    for temperature in (0.1, 10.0):
        assert_distributed(choices(build(GumbelSoftmaxPolicy, temperature=temperature, eps=0.2)), expected)


def test_gumbel_softmax_relaxation() -> None:
    logits = values_for(GumbelSoftmaxPolicy, rows=50, actions=3)
    relaxed = build(GumbelSoftmaxPolicy, seed=4).relaxed_sample(logits)
    generator = np.random.default_rng(4)
    for logit, row in zip(logits.tolist(), relaxed, strict=True):
        noisy = [value - math.log(-math.log(generator.random() + 1e-20) + 1e-20) for value in logit]
        generator.random()
        np.testing.assert_allclose(row, softmax(noisy, tau=0.5), rtol=1e-6, atol=1e-9)
    assert relaxed.dtype == np.float32
    np.testing.assert_array_equal(build(GumbelSoftmaxPolicy, seed=4).relaxed_sample(logits[0]), relaxed[0])
    hard = np.eye(3)[build(GumbelSoftmaxPolicy, seed=4, eps=0.0).select_action(logits)]
    sharp = build(GumbelSoftmaxPolicy, seed=4, temperature=1e-4).relaxed_sample(logits)
    np.testing.assert_allclose(sharp, hard, atol=1e-6)


@pytest.mark.parametrize("draw", [0.0, np.nextafter(1.0, 0.0)])
def test_gumbel_softmax_is_finite_at_ends_of_unit_interval(draw: float) -> None:
    policy = GumbelSoftmaxPolicy(eps=0.0)
    policy.generator = ListedDraws(draw)
    assert np.isfinite(policy.relaxed_sample(Q)).all()
    assert policy.select_action(Q) == 2


def test_copy_shares_no_array_of_a_policy_of_your_own() -> None:
    class Visits(Policy):
        def __init__(self) -> None:
            self.seen = np.zeros(3)

        def choose(self, values: np.ndarray, step: int) -> np.ndarray:
            actions = (values - self.seen).argmax(axis=1)
            self.seen += np.bincount(actions, minlength=3)
            return actions

    class Locked(Visits):
        def __init__(self, lock: Any) -> None:
            super().__init__()
            self.lock = lock

    lock = threading.Lock()
    assert Locked(lock).copy_with_generator(np.random.default_rng(1)).lock is lock
    policy = Visits()
    copied = policy.copy_with_generator(np.random.default_rng(1))
    copied.choose(np.zeros((4, 3)), 0)
    assert copied.seen.sum() == 4 and policy.seen.sum() == 0


def test_every_policy_of_the_module_is_tested_here_and_registered() -> None:
    public = {cls for cls in vars(policies).values() if isinstance(cls, type) and issubclass(cls, Policy)}
    named = {cls for cls in public if not cls.__name__.startswith("_")} - {Policy}
    assert named == set(ARGUMENTS)
    assert all(lookup(cls.__name__) is cls for cls in named)
