"""`finiteness_probes` are finite if and only if all values are."""

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


def probes_are_finite(values: list[np.ndarray]) -> bool:
    probes = finiteness_probes([keras.ops.convert_to_tensor(value) for value in values])
    return all(np.isfinite(keras.ops.convert_to_numpy(value)).all() for value in probes)


def test_large_finite_numbers_do_not_overflow() -> None:
    assert probes_are_finite([np.full((64, 64), np.finfo(np.float32).max, np.float32)] * 3)
    assert probes_are_finite(state())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(SHAPES) - 1), st.integers(0, 10**9), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_one_non_finite_number_anywhere_is_detected(which: int, place: int, number: float) -> None:
    values = state()
    values[which].reshape(-1)[place % max(values[which].size, 1)] = number
    assert not probes_are_finite(values)


def test_opposite_infinities_are_detected() -> None:
    values = [np.zeros((64, 64), np.float32) for _ in range(2)]
    values[0][3, 4], values[1][3, 4] = np.inf, -np.inf
    assert not probes_are_finite(values)


def test_large_matrices_of_a_shape_become_one_row() -> None:
    probes = finiteness_probes([keras.ops.ones((LARGE // 64, 64)) for _ in range(5)])
    assert [tuple(value.shape) for value in probes] == [(64,)]


@pytest.mark.parametrize("dtype", ["int32", "uint32", "bool"])
def test_integers_have_no_probes(dtype: str) -> None:
    assert finiteness_probes([keras.ops.ones((100, 100), dtype=dtype)]) == []


@pytest.mark.parametrize("jit", [True, False])
def test_compilers_do_not_simplify_zero_times_a_number(jit: bool) -> None:
    def check(values: list) -> object:
        return keras.ops.all(keras.ops.isfinite(keras.ops.concatenate(finiteness_probes(values))))

    if keras.backend.backend() == "tensorflow":
        import tensorflow

        check = tensorflow.function(check, jit_compile=jit)
    elif keras.backend.backend() == "jax" and jit:
        import jax

        check = jax.jit(check)
    values = [np.ones((64, 64), np.float32) for _ in range(3)]
    assert bool(check([keras.ops.convert_to_tensor(value) for value in values]))
    values[1][20, 30] = np.nan
    assert not bool(check([keras.ops.convert_to_tensor(value) for value in values]))


@pytest.mark.backends("tensorflow")
def test_all_tensors_of_a_dtype_are_checked_by_one_operation() -> None:
    """XLA computes a check of each variable again for every variable that is undone, and compiles for seconds."""
    import tensorflow

    from noterl.backends.tensorflow.gradients import all_finite

    checked = tensorflow.function(lambda values: all_finite([values[0], None, *values[1:]]), jit_compile=True)
    values = [np.ones(shape, dtype) for shape in SHAPES for dtype in (np.float32, np.float16)]
    operations = checked.get_concrete_function(values).graph.get_operations()
    assert sum(operation.type == "IsFinite" for operation in operations) == 2
    assert checked(values)
    for place, number in ((0, np.nan), (1, np.inf), (len(values) - 1, -np.inf)):
        wrong = [np.copy(value) for value in values]
        wrong[place].reshape(-1)[-1] = number
        assert not checked(wrong)
    assert all_finite([None])
