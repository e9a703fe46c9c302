"""RAdam makes the steps of `torch.optim.RAdam` on every backend."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

import noterl
from noterl.backends import current
from noterl.optimizers import RAdam


def reference(
    weights: np.ndarray, gradients: np.ndarray, rate: float, beta_1: float, beta_2: float
) -> list[np.ndarray]:
    """Return the weights after each step: Liu et al. (2020), algorithm 2, with the threshold 5, in float64."""
    weight, mean, square, rows = weights.astype(float), 0.0, 0.0, []
    largest = 2 / (1 - beta_2) - 1
    for step, gradient in enumerate(gradients.astype(float), start=1):
        mean = beta_1 * mean + (1 - beta_1) * gradient
        square = beta_2 * square + (1 - beta_2) * gradient**2
        rho = largest - 2 * step * beta_2**step / (1 - beta_2**step)
        change = mean / (1 - beta_1**step)
        if rho > 5:
            rectification = (rho - 4) * (rho - 2) * largest / ((largest - 4) * (largest - 2) * rho)
            change = change * np.sqrt(rectification * (1 - beta_2**step)) / (np.sqrt(square) + 1e-8)
        weight = weight - rate * change
        rows.append(weight)
    return rows


def steps(optimizer: keras.optimizers.Optimizer, weights: np.ndarray, gradients: np.ndarray) -> list[np.ndarray]:
    variable = keras.Variable(weights)
    optimizer.build([variable])
    rows = []
    for gradient in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
        rows.append(np.array(current().fetch(variable)))
    return rows


@pytest.fixture
def numbers() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(3, 2)).astype(np.float32), rng.normal(size=(40, 3, 2)).astype(np.float32)


@pytest.mark.parametrize(("beta_1", "beta_2"), [(0.9, 0.999), (0.5, 0.9)])
def test_steps_equal_the_algorithm(numbers: tuple[np.ndarray, np.ndarray], beta_1: float, beta_2: float) -> None:
    optimizer = RAdam(0.01, beta_1=beta_1, beta_2=beta_2)
    expected = reference(*numbers, 0.01, beta_1, beta_2)
    for row, truth in zip(steps(optimizer, *numbers), expected, strict=True):
        np.testing.assert_allclose(row, truth, rtol=1e-4, atol=2e-6)


@pytest.mark.backends("torch")
def test_steps_equal_those_of_torch(numbers: tuple[np.ndarray, np.ndarray]) -> None:
    import torch

    weights, gradients = numbers
    parameter = torch.nn.Parameter(torch.tensor(weights))
    other = torch.optim.RAdam([parameter], lr=0.01)
    for row, gradient in zip(steps(RAdam(0.01), weights, gradients), gradients, strict=True):
        parameter.grad = torch.tensor(gradient)
        other.step()
        np.testing.assert_allclose(row, parameter.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.backends("torch")
def test_optimizer_is_saved_and_its_rules_change(tmp_path: Path) -> None:
    agent = noterl.DQN("CartPole-v1", hidden=(4,), seed=7)
    agent.compile(optimizer=RAdam(1e-3, beta_2=0.99, global_clipnorm=1.0), batch_size=8, learning_starts=10)
    agent.fit(steps=64, verbose=0)
    agent.set_rule("beta_2", 0.9)
    agent.fit(steps=64, verbose=0)
    agent.save(tmp_path / "agent.noterl")
    loaded = noterl.load(tmp_path / "agent.noterl")
    assert type(loaded.optimizer) is RAdam and float(loaded.optimizer.beta_2) == pytest.approx(0.9)
    for one in (agent, loaded):
        one.fit(steps=64, verbose=0)
    for left, right in zip(*(one.get_weights().values() for one in (agent, loaded)), strict=True):
        np.testing.assert_array_equal(left, right)
