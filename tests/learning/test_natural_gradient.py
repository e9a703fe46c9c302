"""Fisher-vector products, conjugate gradients and trust-region steps, inside compiled calls."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from noterl import losses
from noterl.backends import current
from noterl.learning import natural_gradient
from tests.support.reference_trpo import solve
from tests.support.representatives import representatives
from tests.support.rollouts import fetched

RULES = SimpleNamespace(
    target_kl=0.01,
    kl_tolerance=1.0,
    cg_iterations=10,
    cg_residual_tolerance=1e-10,
    cg_damping=0.1,
    line_search_steps=10,
    line_search_shrink=0.5,
)


def compiled(function: Callable[[Any], Any], variables: list[Any], inputs: np.ndarray, **options: Any) -> Any:
    """Return the results of one compiled call by name."""
    return fetched(current().compile_call(function, variables, **options)(inputs))


def positive_definite(size: int) -> np.ndarray:
    factor = np.random.default_rng(3).normal(size=(size, size))
    return (factor @ factor.T / size + 0.5 * np.eye(size)).astype(np.float32)


class TestConjugateGradients:
    vector = np.random.default_rng(5).normal(size=6).astype(np.float32)

    def solved(self, vector: np.ndarray, iterations: int, tolerance: float = 1e-10) -> dict[str, np.ndarray]:
        matrix = positive_definite(6)

        def run(right: Any) -> dict[str, Any]:
            def product(direction: Any) -> Any:
                return ops.matmul(ops.convert_to_tensor(matrix), direction)

            return natural_gradient.conjugate_gradients(product, right, iterations, tolerance)._asdict()

        return compiled(run, [], vector)

    def test_result_equals_the_exact_solution(self) -> None:
        found = self.solved(self.vector, 6, 0.0)
        expected = np.linalg.solve(positive_definite(6).astype(np.float64), self.vector)
        np.testing.assert_allclose(found["x"], expected, rtol=1e-4, atol=1e-5)
        assert found["iterations"] == 6

    def test_fewer_iterations_equal_the_reference(self) -> None:
        found = self.solved(self.vector, 3)
        x, iterations, residual = solve(positive_definite(6).astype(np.float64), self.vector.astype(np.float64), 3, 0)
        np.testing.assert_allclose(found["x"], x, rtol=1e-4)
        np.testing.assert_allclose(found["residual"], residual, rtol=1e-3)
        assert found["iterations"] == iterations == 3

    def test_iterations_end_within_the_tolerance(self) -> None:
        found = self.solved(self.vector, 100, 1e-3)
        _, iterations, residual = solve(
            positive_definite(6).astype(np.float64), self.vector.astype(np.float64), 100, 1e-3
        )
        assert found["iterations"] == iterations < 6
        assert found["residual"] == pytest.approx(residual, rel=1e-3)

    def test_zero_needs_no_iteration(self) -> None:
        found = self.solved(np.zeros(6, np.float32), 6)
        assert found["iterations"] == 0 and not found["x"].any()


class Softmax:
    """A linear policy over three choices, with one variable that it does not use."""

    def __init__(self) -> None:
        rng = np.random.default_rng(2)
        self.observations = rng.normal(size=(7, 4)).astype(np.float32)
        self.advantage = rng.normal(size=7).astype(np.float32)
        self.action = rng.integers(3, size=7).astype(np.int32)
        self.kernel = keras.Variable(rng.normal(size=(4, 3)).astype(np.float32), name="kernel")
        self.bias = keras.Variable(rng.normal(size=3).astype(np.float32), name="bias")
        self.unused = keras.Variable(np.ones(2, np.float32), name="unused")
        self.variables = [self.kernel, self.unused, self.bias]
        logits = self.observations.astype(np.float64) @ self.array(self.kernel) + self.array(self.bias)
        self.start = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)

    @staticmethod
    def array(variable: Any) -> np.ndarray:
        return current().fetch(variable).astype(np.float64)

    def log_policy(self, observations: Any) -> Any:
        return ops.log_softmax(ops.matmul(observations, self.kernel) + self.bias, axis=-1)

    def divergence(self, observations: Any) -> Any:
        old = ops.convert_to_tensor(self.start.astype(np.float32))
        return ops.mean(ops.sum(old * (ops.log(old) - self.log_policy(observations)), axis=-1))

    def evaluate(self, observations: Any) -> tuple[Any, Any]:
        log_policy = self.log_policy(observations)
        gain = losses.take(log_policy, self.action) * ops.convert_to_tensor(self.advantage)
        return ops.mean(gain), self.divergence(observations)

    def fisher(self) -> np.ndarray:
        """Return the Fisher matrix `[17, 17]` from the covariance of the logits' scores."""
        covariance = np.einsum("bi,ij->bij", self.start, np.eye(3)) - np.einsum("bi,bj->bij", self.start, self.start)
        inputs = np.concatenate([self.observations, np.ones((7, 1))], axis=1)
        full = np.einsum("bx,bij,by->xiyj", inputs, covariance, inputs).reshape(15, 15) / 7
        # The unused variable lies between kernel and bias.
        return np.insert(np.insert(full, [12, 12], 0.0, axis=0), [12, 12], 0.0, axis=1)


@pytest.mark.parametrize("jit_compile", ["auto", False])
def test_fisher_product_equals_the_explicit_matrix(jit_compile: Any) -> None:
    policy = Softmax()
    vectors = np.random.default_rng(7).normal(size=(17, 17)).astype(np.float32)

    def run(observations: Any) -> dict[str, Any]:
        product = natural_gradient.fisher_product(
            lambda: policy.divergence(observations), policy.variables, ops.convert_to_tensor(0.25)
        )
        # In a loop, as the conjugate gradients call it.
        rows = ops.convert_to_tensor(vectors)

        def add(k: Any, found: Any) -> tuple[Any, Any]:
            return k + 1, found + ops.cast(ops.arange(17) == k, "float32")[:, None] * product(rows[k])[None]

        start = ops.zeros((), "int32"), ops.zeros_like(rows)
        return {"rows": ops.while_loop(lambda k, found: k < 17, add, start)[1]}

    found = compiled(run, policy.variables, policy.observations, jit_compile=jit_compile)["rows"]
    expected = vectors @ (policy.fisher() + 0.25 * np.eye(17))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-6)


def test_gradients_equal_the_formula() -> None:
    policy = Softmax()

    def run(observations: Any) -> dict[str, Any]:
        value, found = current().gradients(lambda: policy.evaluate(observations)[0], policy.variables)
        return {"value": value, "gradient": natural_gradient.flatten(found)}

    found = compiled(run, policy.variables, policy.observations)
    score = (np.eye(3)[policy.action] - policy.start) * policy.advantage[:, None] / 7
    inputs = np.concatenate([policy.observations, np.ones((7, 1))], axis=1)
    expected = np.insert((inputs.T @ score).reshape(-1), [12, 12], 0.0)
    np.testing.assert_allclose(found["gradient"], expected, rtol=1e-4, atol=2e-6)
    value = np.mean(np.log(policy.start[np.arange(7), policy.action]) * policy.advantage)
    assert found["value"] == pytest.approx(value, rel=1e-5)


class TestSteps:
    def step(self, policy: Softmax, **rules: Any) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
        """Return metrics, and weights after the step."""

        def run(observations: Any) -> dict[str, Any]:
            return natural_gradient.step(
                lambda: policy.evaluate(observations),
                lambda: policy.divergence(observations),
                policy.variables,
                SimpleNamespace(**{**vars(RULES), **rules}),
            )

        found = compiled(run, policy.variables, policy.observations)
        return found, [current().fetch(variable) for variable in policy.variables]

    def test_step_has_the_targeted_divergence_and_improves_the_objective(self) -> None:
        policy = Softmax()
        metrics, weights = self.step(policy, kl_tolerance=2.0, cg_damping=1e-4, target_kl=1e-4)
        assert metrics["step_accepted"] == 1 and metrics["line_search_steps"] == 1 and metrics["surrogate_gain"] > 0
        assert metrics["kl"] == pytest.approx(1e-4, rel=0.1)  # quadratic for small steps, apart from damping
        np.testing.assert_array_equal(weights[1], [1.0, 1.0])
        moved = Softmax.array(policy.kernel), Softmax.array(policy.bias)
        logits = policy.observations.astype(np.float64) @ moved[0] + moved[1]
        after = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        divergence = (policy.start * np.log(policy.start / after)).sum(-1).mean()
        assert metrics["kl"] == pytest.approx(divergence, rel=1e-2)

    def test_rejected_steps_shrink(self) -> None:
        plain, weights = self.step(Softmax(), kl_tolerance=10.0)
        limit = 0.1 * float(plain["kl"])  # a quarter of the step has about a sixteenth of the divergence
        shrunk, nearer = self.step(Softmax(), kl_tolerance=limit / RULES.target_kl)
        assert plain["line_search_steps"] == 1 and shrunk["line_search_steps"] == 3
        start = [current().fetch(variable) for variable in Softmax().variables]
        for before, far, near in zip(start, weights, nearer, strict=True):
            np.testing.assert_allclose(near - before, (far - before) / 4, rtol=1e-3, atol=1e-6)
        assert shrunk["kl"] <= limit

    @pytest.mark.parametrize("rules", representatives([{"kl_tolerance": 0.0}, {"target_kl": 0.0}], {"target_kl": 0.0}))
    def test_weights_stay_if_no_step_is_accepted(self, rules: dict[str, float]) -> None:
        policy = Softmax()
        metrics, weights = self.step(policy, **rules)
        assert metrics["line_search_steps"] == 10
        assert metrics["step_accepted"] == metrics["kl"] == metrics["surrogate_gain"] == 0
        for before, after in zip(Softmax().variables, weights, strict=True):
            np.testing.assert_array_equal(current().fetch(before), after)

    @pytest.mark.parametrize("value", representatives([0.0, np.nan, np.inf], 0.0))
    def test_advantages_without_a_direction_leave_the_weights(self, value: float) -> None:
        policy = Softmax()
        policy.advantage[:] = value
        metrics, weights = self.step(policy)
        assert metrics["step_accepted"] == 0
        for before, after in zip(Softmax().variables, weights, strict=True):
            np.testing.assert_array_equal(current().fetch(before), after)
