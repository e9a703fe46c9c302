"""Adaptive callbacks: formulas in exact numbers, bounds, and logged values."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import noterl
from noterl import policies
from noterl.callbacks import AdaBatch, Adapt, ESSAdapt, Rate, Scale
from noterl.learning.gradient_noise import Spread
from noterl.training.dispatch import CallbackList, call_handlers

pytestmark = pytest.mark.backends("torch")


class Memory:
    """A memory with given effective sample sizes."""

    def __init__(self, sizes: list[float], capacity: int = 1000, length: int = 1000) -> None:
        self.sizes, self.capacity, self.length = iter(sizes), capacity, length
        self.sampler = noterl.replay.Prioritized(alpha=0.7, beta=0.4)

    def __len__(self) -> int:
        return self.length

    def num_sampleable(self) -> int:
        return self.length

    def effective_sample_size(self) -> float:
        return next(self.sizes)


class LiveAgent:
    """The part of an agent that adaptive callbacks use: its tunables."""

    optimizer_names = ("optimizer",)
    memory = "replay"

    def __init__(self, sizes: list[float] = (), **memory: Any) -> None:  # type: ignore[assignment]
        self.replay = Memory(list(sizes), **memory)
        self.schedule = SimpleNamespace(batch_size=64, update_every=4, updates=8, polyak=True, learning_starts=0)
        self.policy = policies.EpsGreedyQPolicy(0.1)
        names = ("gamma", "tau", "clip")
        self.hyperparameters = {name: Number(value) for name, value in zip(names, (0.9, 0.01, 0.2), strict=True)}
        self.rules = {"learning_rate": 1e-3, "weight_decay": 0.01, "beta_1": 0.9, "beta_2": 0.99}
        self.optimizers = {"optimizer": self}
        self.episodes = self.steps = self.updates = 0

    @property
    def update_batch_size(self) -> int:
        return self.schedule.batch_size

    def get_rule(self, rule: str, optimizer: str | None = None) -> float:
        return self.rules[rule]

    def set_rule(self, rule: str, value: float, optimizer: str | None = None) -> None:
        self.rules[rule] = value

    def gradient_noise(self, samples: int) -> Any:
        return self.noise

    def largest_batch(self, size: int) -> int:
        return size


class Number:
    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return self.value

    def assign(self, value: float) -> None:
        self.value = value


def measure(callback: Any, agent: LiveAgent, count: int = 1, steps: int = 0) -> list[dict[str, Any]]:
    """Finish episodes; return the logs of each."""
    callback.agent = agent
    callback.before_fit(agent, None)
    events, found = CallbackList([callback]).bind(), []
    callback.on_train_begin({})
    for _ in range(count):
        agent.episodes += 1
        agent.steps += steps
        logs: dict[str, Any] = {}
        call_handlers(events.on_episode_end, agent.episodes - 1, logs)
        found.append(logs)
    return found


RATE = Rate(0.05, 0.0, 1.0)

# For each tunable: its rule, its first value, and the next values for a ratio of 1.25, by ESS and by noise.
FORMULAS: dict[str, tuple[Any, float, float | None, float | None]] = {
    "batch": (Scale(max=128, align=8), 64, 80, 80),
    "alpha": (RATE, 0.7, 0.7125, 0.6875),
    "lr": (RATE, 1e-3, 1e-3 + 0.0125, 0.0),
    "eps": (RATE, 0.1, 0.0875, 0.1125),
    "update_every": (Scale(), 4, 3, 5),
    "tau": (RATE, 0.01, 0.0225, 0.0),
    "gamma": (RATE, 0.9, 0.9125, 0.8875),
    "updates": (Scale(), 8, 10, None),
    "collect": (Scale(max=100), 4, 3, None),
    "weight_decay": (RATE, 0.01, 0.0, 0.0225),
    "beta1": (RATE, 0.9, 0.9125, 0.9125),
    "beta2": (RATE, 0.99, 1.0, 1.0),
    "clip": (RATE, 0.2, 0.2125, 0.1875),
    "beta": (RATE, 0.4, 0.3875, 0.4125),
}


class Noise:
    """Replaces the measurement of the gradient noise; returns the given variances or spreads."""

    def __init__(self, agent: LiveAgent, found: list[Any]) -> None:
        self.agent, self.found = agent, iter(found)
        self.generator = np.random.default_rng(0)

    def __call__(self) -> Any:
        value, batch = next(self.found), self.agent.schedule.batch_size
        if isinstance(value, Spread):
            return value._replace(batch_size=batch)
        return None if value is None else Spread(7, 1, 7 * value, 0.0, batch)


def noisy(found: list[Any]) -> LiveAgent:
    """Return an agent with these measurements of the gradient noise."""
    agent = LiveAgent()
    agent.noise = Noise(agent, found)
    return agent


class TestFormulas:
    @pytest.mark.parametrize("name", FORMULAS)
    def test_effective_sample_size_changes_tunables_by_the_formula(self, name: str) -> None:
        how, first, after, _ = FORMULAS[name]
        agent = LiveAgent([500.0])
        (logs,) = measure(ESSAdapt(target_ess=400, **{name: how}), agent)
        assert logs == {"ess": 500.0, "ess_ratio": 1.25, name: pytest.approx(after)}
        assert first != after

    @pytest.mark.parametrize("name", [name for name, row in FORMULAS.items() if row[3] is not None])
    def test_gradient_variance_changes_tunables_by_the_formula(self, name: str) -> None:
        (logs,) = measure(AdaBatch(7, **{name: FORMULAS[name][0]}), noisy([1.25e-3]))
        assert logs["gradient_noise"] == 1.25e-3
        assert logs["gradient_noise_ratio"] == pytest.approx(1.25)
        assert logs[name] == pytest.approx(FORMULAS[name][3])

    def test_logs_hold_the_values_of_the_agent(self) -> None:
        agent = LiveAgent([500.0])
        (logs,) = measure(
            ESSAdapt(target_ess=400, **{name: row[0] for name, row in FORMULAS.items() if name != "collect"}), agent
        )
        assert (agent.schedule.batch_size, agent.schedule.update_every, agent.schedule.updates) == (80, 3, 10)
        assert type(agent.schedule.batch_size) is int
        assert agent.replay.sampler.alpha == logs["alpha"]
        assert agent.replay.sampler.beta == logs["beta"]
        assert agent.policy.eps == logs["eps"]
        assert agent.rules == {
            "learning_rate": logs["lr"],
            "weight_decay": logs["weight_decay"],
            "beta_1": logs["beta1"],
            "beta_2": logs["beta2"],
        }
        assert {name: float(value) for name, value in agent.hyperparameters.items()} == {
            name: logs[name] for name in ("gamma", "tau", "clip")
        }

    def test_collect_decreases_as_the_memory_fills(self) -> None:
        """collect = scale * (T / ESS) * n * f, where f = 1 - N / capacity."""
        agent = LiveAgent([250.0], length=400)
        agent.schedule.update_every = 40
        (logs,) = measure(ESSAdapt(target_ess=500, collect=Scale(0.5, max=1000)), agent)
        assert logs["collect"] == int(0.5 * 2 * 40 * 0.6) == 24

    def test_filling_of_the_memory_does_not_compound(self) -> None:
        """At a ratio of 1, collect is the first value times f, at every look."""
        agent = LiveAgent([500.0] * 4)
        agent.schedule.update_every = 40
        callback, found = ESSAdapt(target_ess=500, collect=Scale(max=1000)), []
        for length in (400, 400, 800, 1000):
            agent.replay.length = length
            found += [logs["collect"] for logs in measure(callback, agent)]
        assert found == [24, 24, 8, 40]  # a full memory has no room left that could be a factor

    def test_restored_collect_is_that_of_the_last_measurement(self) -> None:
        agent = LiveAgent([500.0] * 2, length=400)
        agent.schedule.update_every = 40
        callback = ESSAdapt(target_ess=500, collect=Scale(max=1000))
        measure(callback, agent)
        agent.replay.length = 800  # before the run is saved
        restored = ESSAdapt(target_ess=500, collect=Scale(max=1000))
        restored.set_state(callback.get_state())
        for each in (callback, restored):
            measure(each, agent, 0)
            assert agent.schedule.update_every == 24

    def test_smooth_is_the_weight_of_the_new_measurement(self) -> None:
        callback = ESSAdapt(target_ess=100, smooth=0.2, lr=Rate(1.0, 0, 1))
        measure(callback, LiveAgent([100.0, 200.0, 50.0]), 3)
        assert callback.ema == pytest.approx(0.2 * 50 + 0.8 * (0.2 * 200 + 0.8 * 100))

    def test_smooth_of_a_rate_is_the_weight_of_the_new_value(self) -> None:
        assert Rate(0.1, 0, 1, smooth=0.2).next(0.5, 2.0, 1) == pytest.approx(0.2 * 0.6 + 0.8 * 0.5)
        assert Rate(10, 0, 1, smooth=0.2).next(0.5, 2.0, 1) == pytest.approx(0.2 * 1.0 + 0.8 * 0.5)

    def test_without_target_the_first_measurement_is_the_target(self) -> None:
        callback, agent = ESSAdapt(smooth=1.0, lr=Rate(1e-3, 0, 1)), LiveAgent([400.0, 600.0, 300.0])
        logs = measure(callback, agent, 3)
        assert [each["ess_ratio"] for each in logs] == pytest.approx([1.0, 1.5, 0.75])
        assert [each["lr"] for each in logs] == pytest.approx([1e-3, 1.5e-3, 1.25e-3])

    def test_baseline_is_per_transition_of_the_memory(self) -> None:
        callback, agent = ESSAdapt(smooth=1.0, lr=Rate(1e-3, 0, 1)), LiveAgent([80.0, 160.0], length=100)
        measure(callback, agent)
        agent.replay.length = 200
        assert measure(callback, agent)[0]["ess_ratio"] == 1.0

    def test_filling_memory_of_equal_scores_stays_at_its_baseline(self) -> None:
        """The ESS of equal scores is the number of transitions, at every size of the memory."""
        callback, agent = ESSAdapt(smooth=0.2, lr=Rate(1e-3, 0, 1)), LiveAgent()
        for length in range(100, 1000, 100):
            agent.replay.length, agent.replay.sizes = length, iter([float(length)])
            (logs,) = measure(callback, agent)
            assert logs["ess_ratio"] == pytest.approx(1.0)
            assert logs["ess"] == length
            assert logs["lr"] == pytest.approx(1e-3)

    def test_baseline_is_measured_again_when_all_transitions_are_replaced(self) -> None:
        agent = LiveAgent([400.0, 800.0, 200.0, 100.0], capacity=1000)
        logs = measure(ESSAdapt(smooth=1.0, lr=Rate(1e-3, 0, 1)), agent, 4, steps=400)
        assert [each["ess_ratio"] for each in logs] == pytest.approx([1.0, 2.0, 0.5, 1.0])
        assert [each["lr"] for each in logs] == pytest.approx([1e-3, 2e-3, 1.5e-3, 1e-3])

    def test_baseline_is_measured_again_when_a_filling_memory_has_doubled(self) -> None:
        """At first all priorities are equal; a batch or rate that falls because they begin to differ rises again."""
        agent = LiveAgent([400.0, 200.0, 200.0], capacity=10_000, length=400)
        logs = measure(ESSAdapt(smooth=1.0, lr=Rate(1e-3, 0, 1)), agent, 3, steps=200)
        assert [each["ess_ratio"] for each in logs] == pytest.approx([1.0, 0.5, 1.0])
        assert [each["lr"] for each in logs] == pytest.approx([1e-3, 5e-4, 1e-3])

    def test_noise_scale_is_logged_per_transition_of_a_batch(self) -> None:
        spreads = [Spread(4, 10, 0.3, 0.2, 64), Spread(4, 10, 0.35, 0.21, 64)]
        agent = noisy(list(spreads))
        logs = measure(AdaBatch(4, scale="simple", batch=Scale(align=1, min=30, max=45)), agent, 2)
        (signal, noise), (second_signal, second_noise) = (spread.signal_and_noise() for spread in spreads)
        assert logs[0]["gradient_noise"] == pytest.approx(noise / signal / 64)
        assert logs[0]["batch"] == round(noise / signal)  # the batch follows B_simple itself
        signal, noise = 0.2 * second_signal + 0.8 * signal, 0.2 * second_noise + 0.8 * noise
        second_signal, second_noise = spreads[1]._replace(batch_size=logs[0]["batch"]).signal_and_noise()
        first = spreads[0].signal_and_noise()
        smoothed = [0.2 * new + 0.8 * old for new, old in zip((second_signal, second_noise), first, strict=True)]
        assert logs[1]["gradient_noise"] == pytest.approx(smoothed[1] / smoothed[0] / logs[0]["batch"])

    def test_variance_scale_settles_without_overshooting(self) -> None:
        """The variance of one transition is constant, 0.128; the target 1e-3 is that of a batch of 128."""
        agent = LiveAgent()
        agent.noise, sizes = Noise(agent, []), []
        callback = AdaBatch(7, batch=Scale(min=32, max=512, align=32))
        for _ in range(12):
            agent.noise.found = iter([0.128 / agent.schedule.batch_size])
            (logs,) = measure(callback, agent)
            sizes.append(logs["batch"])
        assert sizes == [128] * 12
        assert logs["gradient_noise_ratio"] == pytest.approx(1.0)

    @pytest.mark.parametrize(("scale", "target"), [("variance", 1e-3), ("simple", 1.0)])
    def test_default_target_depends_on_the_scale(self, scale: str, target: float) -> None:
        assert AdaBatch(4, scale=scale).target_noise == target
        assert AdaBatch(4, None, scale=scale).target_noise is None

    def test_without_target_the_first_noise_is_the_target(self) -> None:
        logs = measure(AdaBatch(4, None, 1.0, lr=Rate(1e-3, 0, 1)), noisy([0.5, 1.0]), 2)
        assert [each["gradient_noise_ratio"] for each in logs] == [1.0, 2.0]

    def test_tunables_stay_without_a_finite_measurement(self) -> None:
        logs = measure(AdaBatch(4, lr=Rate(1e-3, 0, 1)), noisy([None, math.nan, math.inf]), 3)
        assert logs == [{"lr": 1e-3}] * 3


class TestScales:
    def test_small_ratios_accumulate_between_sizes(self) -> None:
        logs = measure(ESSAdapt(target_ess=100, batch=Scale()), LiveAgent([130.0] * 4), 4)
        assert [each["batch"] for each in logs] == [64, 64, 128, 128]  # rounded from 83.2, 108.2, 140.6, 182.8

    def test_default_scale_allows_few_sizes(self) -> None:
        ratios = np.random.default_rng(0).uniform(0.5, 2.0, 200)
        logs = measure(ESSAdapt(target_ess=100, smooth=1.0, batch=Scale()), LiveAgent(list(100 * ratios)), 200)
        assert {each["batch"] for each in logs} <= {32, *range(64, 513, 64)}
        assert len({each["batch"] for each in logs}) > 3

    def test_min_need_not_be_a_multiple_of_align(self) -> None:
        logs = measure(ESSAdapt(target_ess=100, batch=Scale(min=10, align=64)), LiveAgent([1.0, 1.0]), 2)
        assert logs[-1]["batch"] == 10

    @pytest.mark.parametrize(("value", "set_to"), [(7.99, 7), (8.0, 8), (1.2, 1)])
    def test_counts_are_rounded_down(self, value: float, set_to: int) -> None:
        assert Scale().with_defaults(8, largest_batch=None).rounded(value, batch=False) == set_to

    def test_too_many_sizes_raise(self) -> None:
        with pytest.raises(ValueError, match=r"^align .* 32 .* 512 .*got 8$"):
            measure(ESSAdapt(batch=Scale(align=8)), LiveAgent())


class TestAdapt:
    def test_target_decides_the_class(self) -> None:
        assert isinstance(Adapt(lr=RATE).chosen, ESSAdapt)
        assert Adapt(300, smooth=0.5, lr=RATE).chosen.target_ess == 300
        chosen = Adapt(target_noise=2e-3, num_samples=np.int64(7), smooth=0.5).chosen
        assert isinstance(chosen, AdaBatch)
        assert (chosen.num_samples, chosen.target_noise, chosen.smooth) == (7, 2e-3, 0.5)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"target_ess": 1, "target_noise": 1}, r"^target_ess .*target_noise.*got 1$"),
            ({"target_noise": 1}, r"^num_samples.* must be given"),
            ({"num_samples": 3}, r"^num_samples .*target_noise.*got 3$"),
        ],
    )
    def test_arguments_of_the_other_class_raise(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Adapt(**arguments)


class TestErrors:
    @pytest.mark.parametrize(
        ("build", "message"),
        [
            (lambda: ESSAdapt(0), r"^target_ess must .*got 0$"),
            (lambda: ESSAdapt(smooth=0), r"^smooth must .*got 0$"),
            (lambda: ESSAdapt(every=0), r"^every must be a positive int, got 0$"),
            (lambda: ESSAdapt(learning=RATE), r"^ESSAdapt .*'learning': .*batch, alpha"),
            (lambda: AdaBatch(2, updates=Scale()), r"^AdaBatch .*'updates': .*batch, "),
            (lambda: ESSAdapt(), r"^ESSAdapt .*something to adapt"),
            (lambda: ESSAdapt(400, lr=None), r"^ESSAdapt .*something to adapt"),
            (lambda: Adapt(), r"^ESSAdapt .*something to adapt"),
            (lambda: ESSAdapt(lr=0.1), r"^lr must be a Rate, got 0.1$"),
            (lambda: ESSAdapt(batch=RATE), r"^batch must be a Scale, got "),
            (
                lambda: ESSAdapt(collect=Scale(), update_every=Scale()),
                r"^collect and update_every",
            ),
            (lambda: AdaBatch(1), r"^num_samples must .*got 1$"),
            (lambda: AdaBatch(2, "automatic"), r"^target_noise must .*got 'automatic'$"),
            (lambda: AdaBatch(2, 0.0), r"^target_noise must .*got 0\.0$"),
            (lambda: AdaBatch(2, scale="large"), r"^scale must .*got 'large'$"),
            (lambda: Rate(0, 0, 1), r"^rate must .*got 0$"),
            (lambda: Rate(1, 2, 1), r"^min must be at most max, 1, got 2$"),
            (lambda: Rate(1, 0, 1, smooth=2), r"^smooth must be"),
            (lambda: Scale(min=5, max=4), r"^min must be at most max, 4, got 5$"),
            (lambda: Scale(align=0), r"^align must be a positive int, got 0$"),
        ],
    )
    def test_bad_arguments_raise(self, build: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            build()
