"""The sum tree against cumulative sums of a plain list."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noterl.replay import sum_tree
from noterl.replay.sum_tree import SumTree

pytestmark = pytest.mark.backend_free


@pytest.fixture(params=[8, 20, 4096])
def root(request, monkeypatch):
    """With a small root, few values make a tree of several levels."""
    monkeypatch.setattr(sum_tree, "ROOT", request.param)
    return request.param


def rebuilt(values):
    tree = SumTree(len(values))
    tree.set_range(0, len(values), values)
    return tree


def assert_same_tree(tree, other):
    for level, expected in zip(tree._levels, other._levels, strict=True):
        np.testing.assert_array_equal(level, expected)


@pytest.mark.parametrize("size", [1, 3, 7, 8, 9, 64, 65, 511, 1000, 4097])
def test_every_whole_number_finds_its_value(root, size):
    values = np.random.default_rng(size).integers(0, 4, size).astype(float)
    values[size // 2] = 3.0
    tree = rebuilt(values)
    assert tree.total == values.sum()
    sums = np.arange(0.0, values.sum(), 0.5)
    np.testing.assert_array_equal(tree.find(sums), values.cumsum().searchsorted(sums, "right"))
    np.testing.assert_array_equal(tree.find(sums), np.repeat(np.arange(size), (2 * values).astype(int)))


writes = st.lists(
    st.one_of(
        st.tuples(
            st.just("set"), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 9)), min_size=0, max_size=30)
        ),
        st.tuples(st.just("range"), st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 9))),
    ),
    max_size=8,
)


@settings(max_examples=200)
@given(size=st.integers(1, 700), writes=writes, scale=st.sampled_from([1.0, 1 / 3, 1e-250, 1e250]))
def test_any_sequence_of_writes_leaves_the_sums_of_the_values(size, writes, scale):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sum_tree, "ROOT", 16)
        tree, values = SumTree(size), np.zeros(size)
        for kind, arguments in writes:
            if kind == "set":
                index = np.array([each[0] % size for each in arguments], np.int64)
                numbers = np.array([each[1] * scale for each in arguments])
                tree.set(index, numbers)
                for at, number in zip(index, numbers, strict=True):
                    values[at] = number
            else:
                start, stop = sorted(bound % (size + 1) for bound in arguments[:2])
                tree.set_range(start, stop, arguments[2] * scale)
                values[start:stop] = arguments[2] * scale
        np.testing.assert_array_equal(tree.values, values)
        assert_same_tree(tree, rebuilt(values))
    total = values.sum()
    assert tree.total == pytest.approx(total, rel=1e-12)
    if total:
        sums = np.concatenate([np.linspace(0, tree.total, 100), np.nextafter(values.cumsum(), 0), values.cumsum()])
        found = tree.find(sums)
        assert (values[found] > 0).all()
        expected = values.cumsum().searchsorted(sums, "right").clip(max=np.flatnonzero(values)[-1])
        near = np.abs(values.cumsum()[None] - sums[:, None]).min(1) < 1e-12 * total  # a boundary, up to rounding
        np.testing.assert_array_equal(found[~near], expected[~near])


def test_last_value_stays_if_an_index_occurs_twice():
    tree = SumTree(5000)
    tree.set(np.array([4000, 7, 4000, 4000]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert (tree.values[4000], tree.total) == (4.0, 6.0)


def test_sums_do_not_drift(root):
    generator, tree = np.random.default_rng(0), SumTree(300)
    for _ in range(500):
        tree.set(generator.integers(0, 300, 40), generator.random(40) * 10.0 ** generator.integers(-12, 12, 40))
    tree.set_range(0, 300, 0.0)
    assert tree.total == 0.0
    tree.set(np.array([123]), np.array([1e-12]))
    assert tree.total == 1e-12
    assert tree.find(np.array([0.0, 1.0])).tolist() == [123, 123]


def test_zero_values_are_never_found_even_by_sums_above_the_total(root):
    values = np.zeros(1000)
    values[[3, 500, 501, 640]] = [0.1, 0.2, 0.3, 1e-300]
    tree = rebuilt(values)
    far = np.array([0.0, tree.total, np.nextafter(tree.total, 9), 2.0, np.inf])
    assert tree.find(far)[0] == 3
    assert (values[tree.find(far)] > 0).all()
    dense = rebuilt(np.where(np.arange(1000) % 7 == 3, np.random.default_rng(1).random(1000), 0.0))
    found = dense.find(np.random.default_rng(2).random(100_000) * dense.total)
    assert (dense.values[found] > 0).all()


def test_counting_in_words_is_the_same_as_along_the_axis():
    passed = np.random.default_rng(0).random((200, sum_tree.BRANCHES)) < 0.5
    np.testing.assert_array_equal(sum_tree._count(passed), passed.sum(1))


def test_find_does_not_change_its_argument(root):
    tree, sums = rebuilt(np.ones(100)), np.array([5.0, 50.5])
    tree.find(sums)
    assert sums.tolist() == [5.0, 50.5]
