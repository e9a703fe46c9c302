"""`noterl.backends.finite`: what is asked instead of a whole state."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noterl.backends.finite import LARGE, finiteness_probes

SHAPES = [(3,), (), (7, 5), (64, 64), (64, 64), (5_000,), (2, 3, 32, 32), (80, 64)]


def state() -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [np.asarray(generator.normal(size=shape) * 1e30, np.float32) for shape in SHAPES]


def finite(values: list[np.ndarray]) -> bool:
    asked = finiteness_probes([keras.ops.convert_to_tensor(value) for value in values])
    return all(np.isfinite(keras.ops.convert_to_numpy(value)).all() for value in asked)


def test_large_finite_numbers_do_not_overflow() -> None:
    assert finite([np.full((64, 64), np.finfo(np.float32).max, np.float32)] * 3)
    assert finite(state())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(SHAPES) - 1), st.integers(0, 10**9), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_one_number_anywhere_is_found(which: int, place: int, number: float) -> None:
    values = state()
    values[which].reshape(-1)[place % max(values[which].size, 1)] = number
    assert not finite(values)


def test_opposite_infinities_are_found() -> None:
    values = [np.zeros((64, 64), np.float32) for _ in range(2)]
    values[0][3, 4], values[1][3, 4] = np.inf, -np.inf
    assert not finite(values)


def test_large_matrices_of_a_shape_are_asked_as_one_row() -> None:
    asked = finiteness_probes([keras.ops.ones((LARGE // 64, 64)) for _ in range(5)])
    assert [tuple(value.shape) for value in asked] == [(64,)]


@pytest.mark.parametrize("dtype", ["int32", "uint32", "bool"])
def test_whole_numbers_are_not_asked(dtype: str) -> None:
    assert finiteness_probes([keras.ops.ones((100, 100), dtype=dtype)]) == []


@pytest.mark.parametrize("jit", [True, False])
def test_a_compiler_does_not_take_zero_times_a_number_for_zero(jit: bool) -> None:
    def ask(values: list) -> object:
        return keras.ops.all(keras.ops.isfinite(keras.ops.concatenate(finiteness_probes(values))))

    if keras.backend.backend() == "tensorflow":
        import tensorflow

        ask = tensorflow.function(ask, jit_compile=jit)
    elif keras.backend.backend() == "jax" and jit:
        import jax

        ask = jax.jit(ask)
    values = [np.ones((64, 64), np.float32) for _ in range(3)]
    assert bool(ask([keras.ops.convert_to_tensor(value) for value in values]))
    values[1][20, 30] = np.nan
    assert not bool(ask([keras.ops.convert_to_tensor(value) for value in values]))
