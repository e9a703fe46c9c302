"""Compiled programs of plain functions and variables, without an agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from noterl.backends import current
from noterl.backends.common import GatheredRows, SeparateUpdates
from noterl.learning.gradient_noise import Recorder
from noterl.types import Batch
from tests.support.batches import random_batch
from tests.support.parts import tracing_at_once

UPDATES, ROWS = 5, 4


class Regression:
    """Fits a vector to rewards by gradient descent, and counts its updates.

    Args:
        with_kernel: whether it has a variable with the shape of a convolution's kernel. XLA then compiles each update
            without a loop on the CPU.
    """

    def __init__(self, *, with_kernel: bool = False) -> None:
        self.weights = keras.Variable(np.linspace(0.1, 0.5, 5, dtype=np.float32), name="weights")
        self.count = keras.Variable(np.float32(0), trainable=False, name="count")
        self.optimizer = keras.optimizers.SGD(0.1)
        self.optimizer.build([self.weights])
        self.variables = [self.weights, self.count, *self.optimizer.variables]
        if with_kernel:
            self.variables.append(keras.Variable(np.zeros((1, 1, 2, 2), np.float32)))
        self.traces = 0

    def loss(self, batch: Batch) -> Any:
        return ops.mean(ops.square(ops.matmul(batch.observation, self.weights) - batch.reward))

    def step(self, batch: Batch, index: int) -> tuple[dict[str, Any], dict[str, Any]]:
        loss, _ = current().minimize(self.loss, [self.weights], self.optimizer, (batch,), traceable=True)
        self.count.assign_add(1.0)
        value = ops.sum(self.weights)
        return {"loss": loss, "index": ops.zeros(()) + index, "sum": value}, {"td_error": batch.reward * 2}

    def trace(self) -> None:
        self.traces += 1

    def program(self, **options: Any) -> Any:
        return current().compile_updates(self.step, self.variables, on_trace=self.trace, **options)

    def state(self) -> list[np.ndarray]:
        return [current().fetch(variable) for variable in self.variables]


@pytest.fixture(autouse=True)
def _tracing() -> Iterator[None]:
    with tracing_at_once():
        yield


def batches() -> Batch:
    return random_batch(UPDATES, ROWS)


def on_device(batch: Batch) -> Batch:
    """Return the rows of all batches `[K B, ...]` as tensors."""

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: convert(part) for name, part in value.items()}
        return ops.convert_to_tensor(value.reshape(-1, *value.shape[2:]))

    return Batch(*map(convert, batch))


# Programs of a compiler with and without a loop, and without a compiler, where a kernel makes no difference.
KINDS = pytest.mark.parametrize(("jit_compile", "with_kernel"), [("auto", False), ("auto", True), (False, False)])
INDICES = np.arange(UPDATES * ROWS, dtype=np.int32).reshape(UPDATES, ROWS)


@KINDS
def test_gathered_rows_give_the_results_of_stacked_batches(jit_compile: Any, with_kernel: bool) -> None:
    stacked, gathered = Regression(with_kernel=with_kernel), Regression(with_kernel=with_kernel)
    first = stacked.program(jit_compile=jit_compile)(batches(), UPDATES)
    second = gathered.program(jit_compile=jit_compile)(GatheredRows(on_device(batches()), INDICES), UPDATES)
    for left, right in zip(stacked.state(), gathered.state(), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)
    assert first.applied == second.applied == UPDATES
    for results in ("logs", "feedback"):
        for name, values in getattr(first, results).items():
            other = getattr(second, results)[name]
            np.testing.assert_allclose(current().fetch(values), current().fetch(other), rtol=1e-5)


@KINDS
@pytest.mark.parametrize("first", [0, 1, 7])
def test_index_counts_from_the_first_update_within_the_period(first: int, jit_compile: Any, with_kernel: bool) -> None:
    result = Regression(with_kernel=with_kernel).program(period=3, jit_compile=jit_compile)(batches(), UPDATES, first)
    assert current().fetch(result.logs["index"]).tolist() == [(first + k) % 3 for k in range(UPDATES)]


@KINDS
@pytest.mark.parametrize("gathered", [True, False])
@pytest.mark.parametrize("last", [0, 2, UPDATES])
def test_stop_undoes_the_update_and_skips_the_rest(
    last: int, gathered: bool, jit_compile: Any, with_kernel: bool
) -> None:
    plain, stopping = Regression(with_kernel=with_kernel), Regression(with_kernel=with_kernel)
    if last:
        plain.program(jit_compile=jit_compile)(batches(), last)
    rows = GatheredRows(on_device(batches()), INDICES) if gathered else batches()
    # `step` logs after it counted, so the variable is the number of the update.
    program = stopping.program(stop=lambda logs: stopping.count.value > last, jit_compile=jit_compile)
    result = program(rows, UPDATES)
    assert (result.applied, result.stopped_early) == (last, last < UPDATES)
    for left, right in zip(plain.state(), stopping.state(), strict=True):
        # With JAX 0.7.2, small weights of the two programs differ by 3e-8.
        np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("with_kernel", [False, True])
@pytest.mark.parametrize("gathered", [True, False])
@pytest.mark.parametrize("bad", [0, 3])
def test_update_that_is_not_finite_and_later_ones_are_not_applied(bad: int, gathered: bool, with_kernel: bool) -> None:
    plain, failing = Regression(with_kernel=with_kernel), Regression(with_kernel=with_kernel)
    if bad:
        plain.program()(batches(), bad)
    rows = batches()
    rows.reward[bad] = np.inf
    result = failing.program()(GatheredRows(on_device(rows), INDICES) if gathered else rows, UPDATES)
    assert (result.applied, result.stopped_early) == (bad, False)
    assert not np.isfinite(current().fetch(result.logs["loss"])[bad])
    for left, right in zip(plain.state(), failing.state(), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)


@pytest.mark.backends("jax", "tensorflow")
def test_updates_with_convolutions_are_compiled_without_a_loop() -> None:
    """On the CPU, XLA computes the gradients of convolutions ten times slower inside of loops."""
    program = Regression(with_kernel=True).program(period=2)
    assert isinstance(program, SeparateUpdates) and not isinstance(Regression().program(), SeparateUpdates)


@pytest.mark.backends("jax", "tensorflow")
def test_reported_weights_come_back_flat_and_current() -> None:
    regression = Regression()
    result = regression.program(report=[regression.weights])(batches(), UPDATES)
    np.testing.assert_array_equal(result.weights, current().fetch(regression.weights))
    assert Regression().program()(batches(), UPDATES).weights is None


def test_one_trace_serves_every_count_and_first() -> None:
    regression = Regression()
    program = regression.program(period=2)
    for count, first in ((UPDATES, 0), (2, 1), (1, 0)):
        assert program(batches(), count, first).applied == count
    assert regression.traces == 1
    assert float(current().fetch(regression.count)) == UPDATES + 3


@pytest.mark.parametrize("jit_compile", ["auto", False])
@pytest.mark.parametrize("acting", [True, False])
def test_a_call_writes_assigned_variables_back(acting: bool, jit_compile: Any) -> None:
    total = keras.Variable(np.zeros(5, np.float32), trainable=False)

    def add(observations: Any) -> Any:
        total.assign(total + ops.sum(observations, axis=0))
        return total * 2.0

    call = current().compile_call(add, [total], acting=acting, jit_compile=jit_compile)
    for _ in range(2):
        result = call(np.ones((3, 5), np.float32))
    assert isinstance(result, np.ndarray) == acting
    np.testing.assert_array_equal(current().fetch(result), np.full(5, 12.0))
    np.testing.assert_array_equal(current().fetch(total), np.full(5, 6.0))


@pytest.mark.parametrize("compiled", [True, False])
def test_isolated_discards_assignments(compiled: bool) -> None:
    count = keras.Variable(np.float32(1), trainable=False)

    def look(inputs: Any) -> Any:
        def change() -> Any:
            count.assign_add(5.0)
            return count * inputs

        return current().isolated(change, [count])

    value = current().compile_call(look, [count])(np.ones(3, np.float32)) if compiled else look(np.ones(3, np.float32))
    np.testing.assert_array_equal(current().fetch(ops.convert_to_tensor(value)), np.full(3, 6.0))
    assert float(current().fetch(count)) == 1.0


def test_minimize_outside_a_program_updates_known_variables() -> None:
    regression, before = Regression(), Regression().state()
    batch = Batch(*(value if isinstance(value, dict) else ops.convert_to_tensor(value[0]) for value in batches()))
    loss, aux = current().minimize(
        regression.loss, [regression.weights], regression.optimizer, (batch,), known=regression.variables
    )
    assert np.isfinite(current().fetch(loss)) and aux == {}
    assert not np.array_equal(before[0], regression.state()[0])
    assert int(current().fetch(regression.optimizer.iterations)) == 1


def test_recording_gradients_changes_nothing() -> None:
    regression, before = Regression(), Regression().state()
    batch = Batch(*(value if isinstance(value, dict) else ops.convert_to_tensor(value[0]) for value in batches()))
    pairs: list = []
    recorder = Recorder(pairs)
    current().minimize(regression.loss, [regression.weights], recorder, (batch,), known=regression.variables)
    ((gradient, variable),) = pairs
    assert variable is regression.weights
    observation, reward = (np.asarray(batches()[k][0], np.float64) for k in (0, 2))
    expected = 2 * observation.T @ (observation @ before[0] - reward) / ROWS
    np.testing.assert_allclose(current().fetch(gradient), expected, rtol=1e-4, atol=1e-6)
    for left, right in zip(before, regression.state(), strict=True):
        np.testing.assert_array_equal(left, right)
