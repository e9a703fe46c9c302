"""Noise processes equal their formulas.

Also `Explorer` for all noises and policies: generators, tunables, states and checks.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from noterl import policies
from noterl.explorer import Explorer
from noterl.noise import ColoredNoise, GaussianWhiteNoiseProcess, NoiseProcess, OrnsteinUhlenbeckProcess
from noterl.registry import lookup
from noterl.schedules import Linear

pytestmark = pytest.mark.backend_free

NOISES: list[tuple[type[NoiseProcess], dict[str, Any]]] = [
    (GaussianWhiteNoiseProcess, {"mu": 0.5, "sigma": 2.0, "sigma_min": 0.25, "n_steps_annealing": 40, "size": 3}),
    (
        OrnsteinUhlenbeckProcess,
        {"theta": 0.3, "mu": 0.5, "sigma": 2.0, "dt": 0.1, "size": 3, "sigma_min": 0.25, "n_steps_annealing": 40},
    ),
    (
        ColoredNoise,
        {"beta": 1.5, "mu": 0.5, "sigma": 2.0, "length": 8, "size": 3, "sigma_min": 0.25, "n_steps_annealing": 40},
    ),
]
BOTH = pytest.mark.parametrize(("cls", "arguments"), NOISES, ids=[cls.__name__ for cls, _ in NOISES])
EXPLORERS: list[tuple[type[Explorer], dict[str, Any]]] = [
    *NOISES,
    (policies.GreedyQPolicy, {}),
    (policies.EpsGreedyQPolicy, {"eps": 0.4}),
    (policies.AdaptiveEpsGreedyPolicy, {"initial_eps": 0.9, "min_eps": 0.2, "decay_rate": 1e-3}),
    (policies.LinearEpsGreedyPolicy, {"start": 0.9, "end": 0.2, "steps": 300}),
    (policies.BoltzmannQPolicy, {"tau": 0.7, "clip": (-1.0, 2.0)}),
    (policies.MaxBoltzmannQPolicy, {"eps": 0.6, "tau": 0.7, "clip": (-1.0, 2.0)}),
    (policies.BoltzmannGumbelQPolicy, {"C": 0.5}),
    (policies.SoftmaxPolicy, {}),
    (policies.GumbelSoftmaxPolicy, {"temperature": 0.5, "eps": 0.3}),
]
EACH = pytest.mark.parametrize(("cls", "arguments"), EXPLORERS, ids=[cls.__name__ for cls, _ in EXPLORERS])


def build(cls: type[Explorer], arguments: dict[str, Any], seed: int = 0) -> Any:
    explorer = cls(**arguments)
    explorer.generator = np.random.default_rng(seed)
    return explorer


def frozen(explorer: Explorer) -> str:
    """Return the whole state as text, to the last bit."""
    return json.dumps(explorer.get_state(), default=np.ndarray.tolist)


def annealed(n: int) -> float:
    """Return sigma_n for the arguments in NOISES, by the formula."""
    return max(0.25, -(2.0 - 0.25) / 40 * n + 2.0)


def draws(explorer: Any, count: int = 60) -> list[Any]:
    """Return the results of `count` calls of a policy or a noise, some of them for several lanes."""
    if isinstance(explorer, NoiseProcess):
        return [explorer.sample(lanes).tolist() for _ in range(count // 3) for lanes in (None, 2, 4)]
    probabilities = np.array([[0.2, 0.5, 0.3], [0.3, 0.4, 0.3]])
    return [explorer.select_action(probabilities, step).tolist() for step in range(count)]


def test_white_noise_equals_formula() -> None:
    noise, generator = build(*NOISES[0], seed=6), np.random.default_rng(6)
    for n in range(100):
        expected = [0.5 + annealed(n) * generator.standard_normal() for _ in range(3)]
        np.testing.assert_allclose(noise.sample(), expected, rtol=1e-6)


def test_ornstein_uhlenbeck_equals_formula() -> None:
    noise, rng = build(*NOISES[1], seed=6), np.random.default_rng(6)
    x = [0.5 + 2.0 * rng.standard_normal() for _ in range(3)]
    for n in range(100):
        x = [value + 0.3 * (0.5 - value) * 0.1 + annealed(n) * math.sqrt(0.1) * rng.standard_normal() for value in x]
        np.testing.assert_allclose(noise.sample(), x, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(noise.x, [x], rtol=1e-12, atol=1e-13)


@BOTH
def test_shapes_and_type(cls: type[NoiseProcess], arguments: dict[str, Any]) -> None:
    noise = build(cls, arguments)
    for lanes, shape in ((None, (3,)), (1, (1, 3)), (5, (5, 3))):
        sample = noise.sample(lanes)
        assert (sample.shape, sample.dtype) == (shape, np.float32)
        assert (np.zeros(shape, np.float32) + sample).dtype == np.float32


@BOTH
def test_annealing_counts_environment_steps(cls: type[NoiseProcess], arguments: dict[str, Any]) -> None:
    noise = build(cls, arguments)
    for n, lanes in ((0, None), (1, 4), (5, 1), (6, 20), (26, 30), (56, None)):
        assert noise.n == n
        assert noise.current_sigma == pytest.approx(annealed(n), rel=1e-14)
        noise.reset()
        noise.sample(lanes)
    assert noise.current_sigma == 0.25


@BOTH
def test_all_lanes_of_a_sample_use_same_sigma(cls: type[NoiseProcess], arguments: dict[str, Any]) -> None:
    """One sample anneals sigma to zero, but all of its lanes use the sigma before it."""
    noise = build(cls, {**arguments, "sigma_min": 0.0, "n_steps_annealing": 1000})
    first = noise.sample(4000)
    assert first[:1000].std() == pytest.approx(first[3000:].std(), rel=0.1)
    assert noise.current_sigma == 0.0


def test_sigma_is_constant_without_sigma_min() -> None:
    noise = build(GaussianWhiteNoiseProcess, {"sigma": 0.3})
    noise.sample(100_000)
    assert noise.current_sigma == 0.3


def test_sigma_set_below_sigma_min_stays_bounded() -> None:
    noise = build(*NOISES[0])
    noise.sample(4)
    noise.sigma = 0.1
    assert noise.current_sigma == 0.25
    noise.sample(4000)
    assert noise.current_sigma == 0.25


def test_white_noise_distribution() -> None:
    count = 200_000
    sample = build(GaussianWhiteNoiseProcess, {"mu": 0.5, "sigma": 2.0, "size": 2}).sample(count)
    # Five standard errors: sigma / sqrt(n) of a mean, sigma / sqrt(2 n) of a standard deviation.
    np.testing.assert_allclose(sample.mean(axis=0), 0.5, atol=5 * 2.0 / math.sqrt(count))
    np.testing.assert_allclose(sample.std(axis=0), 2.0, atol=5 * 2.0 / math.sqrt(2 * count))
    within = (np.abs(sample - 0.5) < 2.0).mean()
    assert within == pytest.approx(math.erf(math.sqrt(0.5)), abs=5 * 0.5 / math.sqrt(2 * count))
    assert abs(np.corrcoef(sample.T)[0, 1]) < 5 / math.sqrt(count)


def test_ornstein_uhlenbeck_distribution() -> None:
    """Over many lanes, after k steps: the moments of the linear recursion, and the correlation of neighbors."""
    lanes, theta, dt, sigma, mu = 100_000, 2.0, 0.1, 0.7, -1.0
    noise = build(OrnsteinUhlenbeckProcess, {"theta": theta, "mu": mu, "sigma": sigma, "dt": dt})
    keep = 1 - theta * dt
    variance = sigma**2
    for _ in range(20):
        before, sample = noise.x[:, 0].copy(), noise.sample(lanes)[:, 0]
        variance = keep**2 * variance + sigma**2 * dt
        assert sample.mean() == pytest.approx(mu, abs=5 * math.sqrt(variance / lanes))
        assert sample.var() == pytest.approx(variance, abs=5 * variance * math.sqrt(2 / lanes))
    slope = np.cov(before, sample)[0, 1] / before.var()
    assert slope == pytest.approx(keep, abs=5 * sigma * math.sqrt(dt / variance / lanes))


@pytest.mark.parametrize(("cls", "arguments"), NOISES[:2], ids=["white", "OU"])
def test_batch_equals_its_rows(cls: type[NoiseProcess], arguments: dict[str, Any]) -> None:
    """White noise of four lanes equals that of one lane sampled four times; lanes of OU noise are independent."""
    noise = build(cls, {**arguments, "sigma_min": None}, seed=9)
    batch = [noise.sample(4) for _ in range(10)]
    generator = np.random.default_rng(9)
    if cls is GaussianWhiteNoiseProcess:
        alone = build(cls, {**arguments, "sigma_min": None}, seed=9)
        np.testing.assert_array_equal(np.concatenate(batch), [alone.sample() for _ in range(40)])
        return
    x = 0.5 + 2.0 * generator.standard_normal((4, 3))
    for sample in batch:
        for lane in range(4):
            x[lane] += 0.3 * (0.5 - x[lane]) * 0.1 + 2.0 * math.sqrt(0.1) * generator.standard_normal(3)
        np.testing.assert_allclose(sample, x, rtol=1e-5, atol=1e-6)


def test_reset_restarts_one_lane_or_all() -> None:
    noise, generator = build(*NOISES[1]), np.random.default_rng()
    noise.sample(4)
    generator.bit_generator.state = noise.generator.bit_generator.state
    before = noise.x.copy()
    noise.reset(2)
    np.testing.assert_allclose(noise.x[2], 0.5 + annealed(4) * generator.standard_normal(3))
    np.testing.assert_array_equal(noise.x[[0, 1, 3]], before[[0, 1, 3]])
    noise.reset()
    np.testing.assert_allclose(noise.x, 0.5 + annealed(4) * generator.standard_normal((4, 3)))
    assert noise.n == 4


def test_lane_starts_when_first_sampled() -> None:
    noise = build(*NOISES[1])
    noise.reset()
    noise.reset(5)
    assert noise.x.shape == (0, 3)
    noise.sample(2)
    kept = noise.x.copy()
    noise.theta, noise.sigma, noise.sigma_min = 0.0, 0.0, None
    noise.sample(4)
    np.testing.assert_array_equal(noise.x[:2], kept)
    np.testing.assert_array_equal(noise.x[2:], 0.5)
    noise.sample()
    assert noise.x.shape == (4, 3)


def test_a_sample_is_not_a_view_of_the_state() -> None:
    noise = build(*NOISES[1])
    noise.sample(2)[:] = 1e9
    noise.sample()[:] = 1e9
    assert np.abs(noise.x).max() < 1e3


@EACH
def test_restored_state_continues_samples(cls: type[Explorer], arguments: dict[str, Any]) -> None:
    original = build(cls, arguments, seed=1)
    draws(original)
    state = original.get_state()
    expected = draws(original)
    restored = build(cls, arguments, seed=2)
    generator = restored.generator
    restored.set_state(state)
    assert draws(restored) == expected
    assert restored.generator is generator
    assert frozen(restored) == frozen(original)
    restored.set_state(state)
    assert draws(restored) == expected, "the state was changed by what came after it"


@EACH
def test_state_holds_plain_values(cls: type[Explorer], arguments: dict[str, Any]) -> None:
    def assert_plain(value: Any) -> None:
        if isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                assert_plain(item)
        else:
            assert value is None or type(value) in (np.ndarray, int, float, bool, str), value

    explorer = build(cls, arguments)
    draws(explorer)
    assert_plain(explorer.get_state())
    restored = build(cls, arguments, seed=1)
    restored.set_state(json.loads(frozen(explorer)))
    assert frozen(restored) == frozen(explorer)
    assert_plain(restored.get_state())


@EACH
def test_changed_tunables_are_part_of_state(cls: type[Explorer], arguments: dict[str, Any]) -> None:
    """Each tunable that is a constructor argument is changed, saved and restored."""
    changed = build(cls, arguments)
    for name in arguments.keys() & cls.tunables.keys():
        value = arguments[name]
        setattr(changed, name, [-3.0, 3.0] if name == "clip" else value + 1 if type(value) is int else value / 2)
    restored = build(cls, arguments)
    restored.set_state(changed.get_state())
    for name in arguments.keys() & cls.tunables.keys():
        assert getattr(restored, name) == getattr(changed, name) != getattr(build(cls, arguments), name)
    assert draws(restored) == draws(changed)
    assert restored.get_config() == arguments


@EACH
def test_bad_state_changes_nothing(cls: type[Explorer], arguments: dict[str, Any]) -> None:
    explorer = build(cls, arguments)
    draws(explorer, 6)
    before = frozen(explorer)
    other = build(cls, arguments, seed=3)
    draws(other)
    for name in ("generator", *cls.tunables):
        with pytest.raises(ValueError, match=name):
            explorer.set_state({**other.get_state(), name: "nonsense"})
        state = other.get_state()
        del state[name]
        with pytest.raises(ValueError, match=rf"state must hold \['{name}'\]"):
            explorer.set_state(state)
    for state in ({"bit_generator": "MT19937"}, {"bit_generator": "PCG64", "state": {"state": 2**200, "inc": -1}}):
        with pytest.raises(ValueError, match=r"state\['generator'\] .*PCG64"):
            explorer.set_state({**other.get_state(), "generator": state})
    assert frozen(explorer) == before


def test_state_with_other_action_size_raises() -> None:
    noise, wide = build(*NOISES[1]), build(OrnsteinUhlenbeckProcess, {"theta": 0.1, "size": 4})
    wide.sample(2)
    with pytest.raises(ValueError, match=r"state\['x'\] must"):
        noise.set_state(wide.get_state())


@EACH
def test_generator_is_own_and_assignable(cls: type[Explorer], arguments: dict[str, Any]) -> None:
    fresh, other = cls(**arguments), cls(**arguments)
    assert fresh.generator is fresh.generator
    assert fresh.generator.bit_generator.state != other.generator.bit_generator.state
    mine = np.random.default_rng(1)
    fresh.generator = mine
    assert fresh.generator is mine
    for wrong in (None, 7, np.random):
        with pytest.raises(ValueError, match="generator must"):
            fresh.generator = wrong
    assert fresh.generator is mine


@EACH
def test_every_class_is_rebuilt_by_name(cls: type[Explorer], arguments: dict[str, Any]) -> None:
    again = lookup(cls.__name__).from_config(build(cls, arguments).get_config())
    assert type(again) is cls
    assert again.get_config() == arguments
    assert draws(build(cls, again.get_config())) == draws(build(cls, arguments))


NOT_PROBABILITIES = (-0.1, 1.1, math.nan, "0.1", None, True)
NOT_POSITIVE = (0, -1.0, math.nan, math.inf, "1", None, False)
NOT_NATURAL = (0, -1, 2.0, None, True)
NOT_COUNT = (0, -1, 2.5, None, True)
INVALID = {
    (policies.EpsGreedyQPolicy, "eps"): NOT_PROBABILITIES,
    (policies.AdaptiveEpsGreedyPolicy, "initial_eps"): NOT_PROBABILITIES,
    (policies.AdaptiveEpsGreedyPolicy, "min_eps"): NOT_PROBABILITIES,
    (policies.AdaptiveEpsGreedyPolicy, "decay_rate"): (-1e-4, math.inf, "0"),
    (policies.LinearEpsGreedyPolicy, "start"): NOT_PROBABILITIES,
    (policies.LinearEpsGreedyPolicy, "end"): NOT_PROBABILITIES,
    (policies.LinearEpsGreedyPolicy, "steps"): NOT_COUNT,
    (policies.BoltzmannQPolicy, "tau"): NOT_POSITIVE,
    (policies.BoltzmannQPolicy, "clip"): ((1, 1), (2, -2), (1,), (0, 1, 2), 5, None, (0, math.inf), ("0", 1)),
    (policies.MaxBoltzmannQPolicy, "eps"): NOT_PROBABILITIES,
    (policies.MaxBoltzmannQPolicy, "tau"): NOT_POSITIVE,
    (policies.MaxBoltzmannQPolicy, "clip"): ((1, 1), None),
    (policies.BoltzmannGumbelQPolicy, "C"): (-1, math.nan, "1"),
    (policies.GumbelSoftmaxPolicy, "temperature"): NOT_POSITIVE,
    (policies.GumbelSoftmaxPolicy, "eps"): NOT_PROBABILITIES,
    **{
        (cls, name): wrong
        for cls, _ in NOISES
        for name, wrong in {
            "mu": (math.nan, math.inf, "0", None),
            "sigma": (-1.0, math.nan, None),
            "sigma_min": (-0.1, math.inf, "0"),
            "n_steps_annealing": NOT_COUNT,
            "size": NOT_NATURAL,
        }.items()
    },
    (ColoredNoise, "beta"): (-0.1, math.nan, "1"),
    (ColoredNoise, "length"): (0, 1, 2.0, None, True),
    (OrnsteinUhlenbeckProcess, "theta"): (-0.1, math.nan, "1"),
    (OrnsteinUhlenbeckProcess, "dt"): NOT_POSITIVE,
}
CASES = [
    pytest.param(cls, name, value, id=f"{cls.__name__}-{name}-{value}")
    for (cls, name), values in INVALID.items()
    for value in values
]


@pytest.mark.parametrize(("cls", "name", "value"), CASES)
def test_invalid_arguments_are_named(cls: type[Explorer], name: str, value: Any) -> None:
    arguments = dict(next(arguments for known, arguments in EXPLORERS if known is cls))
    with pytest.raises(ValueError, match=f"^{name} must be .*got"):
        cls(**{**arguments, name: value})
    if name in cls.tunables:
        explorer = build(cls, arguments)
        with pytest.raises(ValueError, match=f"^{name} must be .*got"):
            setattr(explorer, name, value)
        assert getattr(explorer, name) == arguments[name]


def test_every_argument_is_covered_by_the_cases_above() -> None:
    assert set(INVALID) == {(cls, name) for cls, arguments in EXPLORERS for name in arguments}


def test_contradictory_arguments_raise() -> None:
    with pytest.raises(ValueError, match="min_eps must"):
        policies.AdaptiveEpsGreedyPolicy(initial_eps=0.1, min_eps=0.2)
    for cls, arguments in NOISES:
        with pytest.raises(ValueError, match="sigma_min must"):
            cls(**{**arguments, "sigma_min": 2.5})
    with pytest.raises(ValueError, match=r"theta must .*\(20\), got 20"):
        OrnsteinUhlenbeckProcess(theta=20, dt=0.1)
    noise = OrnsteinUhlenbeckProcess(theta=10, dt=0.1)
    noise.dt = 0.2
    with pytest.raises(ValueError, match=r"theta must .*\(10\), got 10"):
        noise.sample()
    noise.theta, noise.dt = 1, 1.5
    noise.sample()
    scheduled = OrnsteinUhlenbeckProcess(theta=Linear(1.0, 50.0, steps=10), dt=0.1)
    scheduled.update_schedules(10)
    with pytest.raises(ValueError, match="theta must"):
        scheduled.sample()


@BOTH
def test_bad_lanes_change_nothing(cls: type[NoiseProcess], arguments: dict[str, Any]) -> None:
    noise = build(cls, arguments)
    noise.sample(3)
    before = frozen(noise)
    for lanes in (0, -1, 1.0, True):
        with pytest.raises(ValueError, match="lanes must be a positive int, got"):
            noise.sample(lanes)
    assert frozen(noise) == before


def test_removed_lane_leaves_the_noise_of_the_others() -> None:
    noise = OrnsteinUhlenbeckProcess(theta=0.1, sigma=0.5, size=2)
    noise.generator = np.random.default_rng(1)
    noise.draw(3)
    before = noise.x.copy()
    noise.remove_lane(1)
    np.testing.assert_array_equal(noise.x, before[[0, 2]])
    noise.remove_lane(5)
    assert len(noise.x) == 2


def spectrum(beta: float, length: int = 64, lanes: int = 4_000) -> tuple[np.ndarray, np.ndarray]:
    """Return the samples `[length, lanes]` of one sequence in each lane, and the mean power of each frequency."""
    noise = build(ColoredNoise, {"beta": beta, "length": length})
    samples = np.array([noise.sample(lanes)[:, 0] for _ in range(length)])
    return samples, (np.abs(np.fft.rfft(samples, axis=0)) ** 2).mean(axis=1)


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
def test_power_of_colored_noise_falls_with_the_frequency(beta: float) -> None:
    samples, power = spectrum(beta)
    frequency = np.arange(1, 32)
    slope = np.polyfit(np.log(frequency), np.log(power[1:32]), 1)[0]
    assert slope == pytest.approx(-beta, abs=0.02)
    assert power[0] == pytest.approx(power[1], rel=0.1), "the frequency 0 has the power of the lowest other one"
    # The variance of the parts other than the mean of a sequence, as in Timmer and König's program.
    assert (samples.var(axis=0)).mean() == pytest.approx(1.0, rel=0.05)


def test_white_colored_noise_has_the_standard_normal_distribution() -> None:
    samples, _ = spectrum(0.0, length=9)
    assert samples.mean() == pytest.approx(0.0, abs=0.03)
    assert np.abs(np.corrcoef(samples) - np.eye(9)).max() < 0.2


def test_colored_noise_follows_the_sequence_of_each_lane_and_starts_another_at_its_end() -> None:
    noise = build(ColoredNoise, {"beta": 1.0, "sigma": 0.5, "mu": 0.1, "length": 5, "size": 2})
    first = [noise.sample(3) for _ in range(2)]
    np.testing.assert_allclose(np.stack(first, 1), 0.1 + 0.5 * noise.sequences[:, :2], rtol=1e-6)
    kept = noise.sequences.copy()
    noise.reset(1)
    assert (noise.sequences[[0, 2]] == kept[[0, 2]]).all() and (noise.sequences[1] != kept[1]).all()
    assert noise.positions.tolist() == [2, 0, 2]
    for _ in range(4):
        noise.sample(3)
    assert noise.positions.tolist() == [1, 4, 1] and (noise.sequences[0] != kept[0]).all()
    noise.remove_lane(0)
    assert noise.positions.tolist() == [4, 1] and len(noise.sequences) == 2
    noise.reset()
    assert noise.positions.tolist() == [0, 0]


def test_state_of_colored_noise_with_another_shape_raises() -> None:
    noise, other = (build(ColoredNoise, {"length": length}) for length in (4, 5))
    other.sample(2)
    with pytest.raises(ValueError, match=r"state\['sequences'\] must"):
        noise.set_state(other.get_state())
    for positions in ([0], [0, 6]):
        with pytest.raises(ValueError, match=r"state\['positions'\] must"):
            other.set_state({**other.get_state(), "positions": np.array(positions)})
