"""Gradient noise: the estimates, the compiled call of each backend, and that measuring changes nothing."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import noterl
from noterl.learning.gradient_noise import Spread, noise_batch
from tests.support.parts import learner_of, run_updates
from tests.support.representatives import representatives
from tests.support.states import assert_same_state

SAMPLES, BATCH = 5, 8


class TwoLosses(noterl.Agent):
    """Has two optimizers, a loss that assigns a running mean of rewards, and a loss that uses random numbers."""

    memory, head = "replay", noterl.heads.Q()
    optimizer_names = ("first", "second")
    random_spec = {"jitter": ((), "normal")}  # noqa: RUF012

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        super().__init__(env, seed=seed)
        self.q = noterl.networks.mlp(self.observation_size, [4], self.action_size)
        self.other = noterl.networks.mlp(self.observation_size, [3], 1)
        self.running_mean = keras.Variable(np.float32(0.0), dtype="float32", trainable=False)

    def forward(self, observation: Any) -> Any:
        return self.q(observation)

    def first_loss(self, batch: Any) -> Any:
        self.running_mean.assign(0.5 * self.running_mean + ops.mean(batch.reward))
        return ops.mean(ops.square(ops.sum(self.q(batch.observation), axis=-1) - batch.reward))

    def second_loss(self, batch: Any) -> Any:
        return ops.mean(ops.square(self.other(batch.observation)[:, 0] - batch.extra["jitter"]))

    def update(self, batch: Any) -> Any:
        loss, _ = self.minimize(self.first_loss, self.q, "first", batch)
        self.minimize(self.second_loss, self.other, "second", batch)
        return {"loss": loss}, {}


@functools.cache
def trained(kind: str) -> noterl.Agent:
    """Return a shared agent that has made some updates; its gradient descent now has the learning rate 1."""
    if kind == "DQN":
        agent: noterl.Agent = noterl.DQN("CartPole-v1", hidden=(6,), double=True, seed=4)
    else:
        agent = TwoLosses("CartPole-v1", seed=4)
    agent.compile(optimizer="sgd", replay=noterl.Replay(200), batch_size=BATCH, learning_starts=20)
    agent.fit(steps=40, verbose=0)
    agent.set_rule("learning_rate", 1.0)
    return agent


def gradients_by_descent(agent: noterl.Agent, batch: Any) -> np.ndarray:
    """Return the gradients `[K, D]` of K batches: the change of the weights by a step of learning rate 1."""
    start = agent.get_state()

    def trained_weights() -> np.ndarray:
        fetch = noterl.backends.current().fetch
        return np.concatenate([fetch(variable).ravel() for variable in agent.trained_variables()]).astype(np.float64)

    def part(array: Any, k: int) -> Any:
        return (
            {name: value[k : k + 1] for name, value in array.items()} if isinstance(array, dict) else array[k : k + 1]
        )

    rows = []
    for k in range(SAMPLES):
        agent.set_state(start)
        before = trained_weights()
        run_updates(agent, type(batch)(*(part(field, k) for field in batch)), 1)
        rows.append(before - trained_weights())
    agent.set_state(start)
    return np.array(rows)


@pytest.mark.parametrize("kind", representatives(["DQN", "TwoLosses"], "TwoLosses"))
def test_spread_equals_that_of_gradients_taken_one_by_one(kind: str) -> None:
    agent = trained(kind)
    generator = agent.gradient_noise(SAMPLES).generator
    expected = gradients_by_descent(agent, noise_batch(learner_of(agent), SAMPLES, generator))
    found = agent.gradient_noise(SAMPLES)()  # samples the same batches
    mean = expected.mean(0)
    assert found.samples == SAMPLES
    assert found.size == expected.shape[1]
    assert found.squares == pytest.approx(np.square(expected - mean).sum(), rel=1e-3)
    assert found.mean_square == pytest.approx(np.square(mean).sum(), rel=1e-3)
    assert found.variance == pytest.approx(expected.var(0).mean(), rel=1e-3)


@pytest.mark.parametrize("kind", ["DQN", "TwoLosses"])
def test_measuring_changes_nothing_and_traces_once(kind: str, backend: str) -> None:
    agent = trained(kind)
    before, traced = agent.get_state(), agent.trace_counts.get("noise", 0)
    noise = agent.gradient_noise(SAMPLES)
    spreads = [noise() for _ in range(3)]
    assert len({spread.squares for spread in spreads}) == 3, "each call samples other batches"
    assert_same_state(agent.get_state(), before)
    if backend != "torch":
        assert agent.trace_counts["noise"] - traced == 1


@pytest.mark.backends("torch")
def test_no_spread_before_learning_starts() -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=4)
    agent.compile(batch_size=BATCH, learning_starts=20)
    agent.fit(steps=15, verbose=0)
    assert agent.gradient_noise(2)() is None


def test_non_finite_loss_gives_no_finite_spread() -> None:
    agent = trained("DQN")
    weights = agent.get_weights()
    infinite = {name: np.full_like(array, np.inf) for name, array in weights.items()}
    agent.set_weights(infinite, allow_nonfinite=True)
    spread = agent.gradient_noise(SAMPLES)()
    agent.set_weights(weights)
    assert spread is None or not np.isfinite(spread.squares)


@pytest.mark.backends("torch")
class TestSpread:
    def test_variance_is_the_mean_over_samples_and_coordinates(self) -> None:
        gradients = np.array([[1.0, 2.0], [3.0, 2.0], [2.0, 5.0]])
        mean = gradients.mean(0)
        spread = Spread(3, 2, float(np.square(gradients - mean).sum()), float(np.square(mean).sum()), 8)
        assert spread.variance == pytest.approx((2 / 3 + 2.0) / 2)
        assert spread.transition_variance == pytest.approx(8 * spread.variance)

    def test_signal_and_noise_are_unbiased(self) -> None:
        """Gradients with known mean and covariance: 20,000 measurements of four batches of eight."""
        generator = np.random.default_rng(1)
        mean, deviation, batch, samples = np.array([0.3, -0.2, 0.1]), np.array([1.0, 0.5, 2.0]), 8, 4
        found = []
        for deviates in generator.standard_normal((20_000, samples, batch, 3)):
            gradients = mean + deviation * deviates.mean(1)
            center = gradients.mean(0)
            squares = float(np.square(gradients - center).sum())
            found.append(Spread(samples, 3, squares, float(np.square(center).sum()), batch).signal_and_noise())
        signal, noise = np.mean(found, axis=0)
        assert signal == pytest.approx(np.square(mean).sum(), abs=0.02)
        assert noise == pytest.approx(np.square(deviation).sum(), rel=0.02)

    @pytest.mark.parametrize("batch", [4, 12, 20])
    def test_estimates_are_unbiased_without_replacement(self, batch: int) -> None:
        """10,000 measurements of three batches, each of different ones of the same 24 transitions."""
        generator, samples = np.random.default_rng(1), 3
        rows = generator.normal(0.4, 1.0, (24, 3))
        found = []
        for _ in range(10_000):
            gradients = np.stack([rows[generator.permutation(24)[:batch]].mean(0) for _ in range(samples)])
            center = gradients.mean(0)
            numbers = float(np.square(gradients - center).sum()), float(np.square(center).sum())
            spread = Spread(samples, 3, *numbers, batch, 24)
            found.append((*spread.signal_and_noise(), 3 * spread.transition_variance * samples / (samples - 1)))
        signal, noise, variance = np.mean(found, axis=0)
        assert signal == pytest.approx(np.square(rows.mean(0)).sum(), rel=0.02)
        assert noise == pytest.approx(rows.var(0).sum(), rel=0.02)
        assert variance == pytest.approx(rows.var(0).sum(), rel=0.02)


@pytest.mark.backends("torch")
class TestRollouts:
    """Batches of a rollout of 16 transitions hold different transitions, at most half of them."""

    @pytest.mark.parametrize(("batch_size", "size"), [(4, 4), (12, 8), (16, 8)])
    def test_batches_are_at_most_half_of_the_rollout(self, batch_size: int, size: int) -> None:
        agent = noterl.PPO("CartPole-v1", hidden=(4,), rollout_steps=16, epochs=1, seed=4)
        agent.compile(batch_size=batch_size)
        agent.fit(steps=16, verbose=0)
        spread = agent.gradient_noise(3)()
        assert (spread.batch_size, spread.population) == (size, 16)
        assert spread.correction == pytest.approx((16 - size) / 15)
        assert spread.variance > 0

    def test_agent_that_learns_from_whole_rollouts_is_measured_in_halves(self) -> None:
        agent = noterl.A2C("CartPole-v1", hidden=(4,), rollout_steps=8, seed=4)
        agent.fit(steps=8, verbose=0)
        assert agent.gradient_noise(3)().batch_size == 4

    def test_sequences_of_rollouts_are_sampled_whole(self) -> None:
        def agent(sequence_length: int, num_envs: int) -> noterl.PPO:
            ppo = noterl.PPO(
                "CartPole-v1", hidden=(4,), recurrent="gru", recurrent_units=4, rollout_steps=16, epochs=1, seed=4
            )
            ppo.sequence_length = sequence_length
            ppo.compile(batch_size=16)
            ppo.fit(steps=32, num_envs=num_envs, verbose=0)
            return ppo

        spread = agent(sequence_length=4, num_envs=2).gradient_noise(3)()
        assert (spread.batch_size, spread.population, spread.length) == (16, 32, 4)
        assert spread.correction == pytest.approx((8 - 4) / (8 - 1))  # of sequences
        assert spread.variance > 0
        with pytest.raises(ValueError, match="rollout_steps times num_envs must be at least 32"):
            agent(sequence_length=16, num_envs=1).gradient_noise(3)


@pytest.mark.backends("torch")
def test_batch_of_sequences_counts_the_transitions_of_all_lanes() -> None:
    agent = noterl.ACER("CartPole-v1", rollout_steps=5, replay_starts=0, hidden=(4,), seed=1)
    agent.fit(steps=60, num_envs=3, verbose=0)
    spread = agent.gradient_noise(4)()
    assert spread is not None and spread.batch_size == agent.update_batch_size == 15
    assert spread.correction == 1.0
