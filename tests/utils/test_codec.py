"""Data as JSON: every type comes back exactly, and malformed data raises a FileError."""

from __future__ import annotations

import collections
import contextlib
import enum
import inspect
import json
import math
from collections import OrderedDict, deque
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from noterl.utils import codec
from noterl.utils.files import FileError
from tests.support.encoding import same

pytestmark = pytest.mark.backend_free


def through_json(value: Any) -> Any:
    encoder = codec.Encoder()
    structure = json.loads(json.dumps(encoder.encode(value), allow_nan=False))
    return codec.Decoder(lambda name: encoder.arrays[name].copy()).decode(structure)


def decode(structure: Any, **arrays: np.ndarray) -> Any:
    def load(name: str) -> np.ndarray:
        if name not in arrays:
            raise FileError(f"there is no {name}")
        return arrays[name]

    return codec.Decoder(load).decode(structure)


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**130), 2**130),
    st.floats(),
    st.text(),
    st.binary(),
    st.floats(width=32).map(np.float32),
    st.just(np.arange(6, dtype=np.int16).reshape(2, 3)),
    st.just(np.array(2.5)),
)
names = st.one_of(st.text(max_size=5), st.sampled_from(["$npy", "$dict", "$new", "$", "__init__"]))
keys = st.one_of(names, st.integers(), st.binary(), st.tuples(st.integers(), st.text()))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.builds(lambda items: deque(items, maxlen=5), st.lists(inner)),
        st.dictionaries(keys, inner),
    ),
    max_leaves=10,
)


@given(value=values)
def test_data_comes_back_with_its_types(value: Any) -> None:
    assert same(through_json(value), value)
    assert same(codec.copy(value), value)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6.0).reshape(2, 3).T,
        np.array([True, False]),
        np.array(7, np.uint8),
        np.empty((0, 3), np.float32),
        np.array([-0.0, 0.0]),
        np.array([math.nan, math.nan]),
        np.array([1, 2], ">i4"),
        np.complex64(1 + 2j),
        np.bool_(True),
        (0.5,) * 100,
        deque(range(100), maxlen=100),
        [2**70] * 100,
        [None, 0.5, 3, True, False, -(2**63), math.nan] * 12,
        [None] * 64,
        [True, 2**70] * 40,
        ["", "a\0b", "\udcff", "ü"] * 20,
        [math.nan, "word", None, np.float64(0.5), np.float32(math.nan), np.bool_(True), 3] * 10,
        [np.int64(1), "a"] * 40,
        [np.float16(1.0)] * 64,
    ],
)
def test_numbers_come_back_to_the_bit(value: Any) -> None:
    assert same(through_json(value), value)


@pytest.mark.parametrize(
    "kinds",
    [[0, 1, 9], [0, 0, 1], [1, 1, 1], [-1, 0, 1], [0.0, 1.0, 1.0]],
    ids=["unknown", "more", "less", "-1", "floats"],
)
def test_malformed_mixed_list_raises(kinds: list[float]) -> None:
    arrays = {"kinds": np.array(kinds), "floats": np.array([0.5]), "ints": np.array([1, 2])}
    with pytest.raises(FileError, match="malformed mixed"):
        decode({"$mixed": ["kinds", "floats", "ints"]}, **arrays)


@pytest.mark.parametrize(
    ("lengths", "codes"),
    [([2, 2], [5, 5]), ([-1, 4], [5, 5]), ([1, 2], [5, 6]), ([1, 2], [5, 7]), ([1.0, 2.0], [5, 5])],
)
def test_malformed_words_raise(lengths: list[Any], codes: list[int]) -> None:
    arrays = {"codes": np.array(codes), "none": np.zeros(0), "lengths": np.array(lengths)}
    arrays["bytes"] = np.frombuffer(b"abc", np.uint8)
    with pytest.raises(FileError, match="malformed mixed"):
        decode({"$mixed": ["codes", "none", "none", "lengths", "bytes"]}, **arrays)


def test_ordered_dict_comes_back_as_dict() -> None:
    assert same(through_json(OrderedDict(b=1, a=2)), {"b": 1, "a": 2})


def test_copy_shares_nothing() -> None:
    array = np.zeros(3)
    first, second = codec.copy([array, array])
    assert not any(np.shares_memory(*pair) for pair in ((array, first), (array, second), (first, second)))


@pytest.mark.parametrize("name", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_generator_continues_after_decoding(name: str) -> None:
    generator = np.random.Generator(getattr(np.random, name)(3))
    generator.integers(10, size=3, dtype=np.int32)
    again = through_json(generator)
    assert again.integers(2**60, size=4).tolist() == generator.integers(2**60, size=4).tolist()


SPACES = [
    spaces.Box(-1.5, 2.5, (3,), np.float32),
    spaces.Box(np.array([-np.inf, 0.1]), np.array([1.0, np.inf]), dtype=np.float64),
    spaces.Box(0, 255, (84, 84, 4), np.uint8),
    spaces.Box(-np.inf, 2**62 + 1, (2,), np.int64),
    spaces.Box(-1, 1, (), np.float32),
    spaces.Discrete(5, start=-2),
    spaces.Discrete(2**40),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [0, -1]], dtype=np.int32),
    spaces.MultiBinary(4),
    spaces.MultiBinary([4]),
    spaces.MultiBinary([2, 3]),
    spaces.Tuple([spaces.Discrete(2), spaces.Tuple([spaces.MultiBinary(1)])]),
    spaces.Dict(collections.OrderedDict(z=spaces.Discrete(2), a=spaces.Dict(__array__=spaces.Box(0, 1, (2,))))),
]


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_space_comes_back_equal(space: Any) -> None:
    again = through_json(space)
    assert type(again) is type(space) and again == space and again.dtype == space.dtype
    if isinstance(space, spaces.Box):
        for name in ("low", "high", "bounded_below", "bounded_above"):
            assert same(getattr(space, name), getattr(again, name))
    if isinstance(space, spaces.Dict):
        assert list(again.spaces) == list(space.spaces)
    for each in (space, again):
        each.seed(3)
    assert str(space.sample()) == str(again.sample())


nested_spaces = st.recursive(
    st.one_of(
        st.builds(
            lambda shape, dtype, low, high: spaces.Box(low, high, tuple(shape), dtype),
            st.lists(st.integers(1, 4), max_size=3),
            st.sampled_from([np.float32, np.float64, np.float16]),
            st.sampled_from([-np.inf, -1.0, 0.1]),
            st.sampled_from([np.inf, 1.0, 0.3]),
        ),
        st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-5, 5)),
        st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 5), min_size=1, max_size=4)),
        st.builds(spaces.MultiBinary, st.lists(st.integers(1, 4), min_size=1, max_size=2) | st.integers(1, 4)),
        st.just(spaces.Box(np.float32([-1.5, 0.0]), np.float32([0.1, np.inf]))),
    ),
    lambda parts: st.one_of(
        st.builds(
            lambda pairs: spaces.Dict(OrderedDict(pairs)), st.lists(st.tuples(st.text("abz"), parts), max_size=3)
        ),
        st.builds(spaces.Tuple, st.lists(parts, min_size=1, max_size=3)),
    ),
    max_leaves=5,
)


@given(space=nested_spaces)
def test_nested_spaces_come_back_equal(space: Any) -> None:
    again = through_json(space)
    assert again == space and str(again) == str(space)


def test_space_with_equal_bounds_is_short() -> None:
    encoder = codec.Encoder()
    assert len(json.dumps(encoder.encode(spaces.Box(0, 255, (84, 84, 4), np.uint8)))) < 200
    assert not encoder.arrays


def test_discrete_keeps_its_dtype() -> None:
    if "dtype" not in inspect.signature(spaces.Discrete).parameters:
        pytest.skip("this version of gymnasium has one dtype")
    assert through_json(spaces.Discrete(3, dtype=np.int32)).dtype == np.int32


class Kind(enum.IntEnum):
    ONE = 1


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"network": [object()]}, r"tree\['network'\]\[0\].*type object"),
        ([print], r"tree\[0\].*builtin_function"),
        ([Kind.ONE], "Kind"),
        ([Point(1, 2)], "Point"),
        ([spaces.Text(3)], "Text"),
        ([spaces.Tuple([spaces.Text(3)])], "Text"),
        ([type("Box", (spaces.Box,), {})(0, 1)], "Box"),
        ([np.array([None])], "dtype object"),
        ([np.longdouble(1)], "longdouble"),
        ([np.zeros(2, np.longdouble)], "dtype"),
        ([np.ma.zeros(2)], "Masked"),
        ([{2}], "set"),
        ([{frozenset(): 1}], "frozenset"),
        ([np.random.RandomState(1)], "RandomState"),
    ],
)
def test_type_that_cannot_be_encoded_is_named(value: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        codec.copy(value)


def test_value_that_contains_itself_raises() -> None:
    value: Any = []
    value.append(value)
    with pytest.raises(ValueError, match=r"hidden.* must"):
        codec.copy({"hidden": value})


def box(**changes: Any) -> dict[str, Any]:
    scalar = {"$scalar": ["<f4", "0000803f"]}
    true = {"$scalar": ["|b1", "01"]}
    return {"$space": ["Box", {"shape": [2], "low": scalar, "high": scalar, "below": true, "above": true, **changes}]}


def binary(shape: Any) -> dict[str, Any]:
    return {"$space": ["MultiBinary", {"shape": shape, "flat": False}]}


MERSENNE, PHILOX = (
    json.loads(json.dumps(kind(0).state, default=np.ndarray.tolist)) for kind in (np.random.MT19937, np.random.Philox)
)
MALFORMED = [
    ({"$new": 1}, "does not write"),
    ({"$tuple": [1], "more": 2}, "does not write"),
    ({"$tuple": 1}, "expected list"),
    ({"$deque": [1, 2]}, "expected list"),
    ({"$deque": [[1], "x"]}, "deque"),
    ({"$deque": []}, "deque"),
    ({"$deque": 3}, "deque"),
    ({"$deque": [[1], -1]}, "deque"),
    ({"$dict": [["a"]]}, "dict"),
    ({"$dict": {"a": 1}}, "expected list"),
    ({"$dict": [[[], 1]]}, "unhashable"),
    ({"$dict": [["a", 1], ["a", 2]]}, "twice"),
    ({"$float": "1e3"}, "float"),
    ({"$int": "x"}, "int"),
    ({"$int": 12}, "int"),
    ({"$scalar": ["|O", "00"]}, "dtype"),
    ({"$scalar": ["<f4", "0000"]}, "scalar"),
    ({"$scalar": ["<f4", "00" * 8]}, "scalar"),
    ({"$scalar": ["<f4", "zz"]}, "scalar"),
    ({"$scalar": ["|b1", "02"]}, "bools"),
    ({"$scalar": "x"}, "scalar"),
    ({"$npy": "absent"}, "absent"),
    ({"$npy": {}}, "expected str"),
    ({"$bytes": 3}, "expected str"),
    ({"$packed": "matrix"}, "packed"),
    ({"$packed": "small"}, "packed"),
    ({"$generator": {}}, "KeyError"),
    ({"$generator": 3}, "TypeError"),
    ({"$generator": {"bit_generator": "os.system"}}, "KeyError"),
    ({"$generator": MERSENNE | {"state": MERSENNE["state"] | {"pos": 2**30}}}, "pos must be from 0 to 624"),
    ({"$generator": PHILOX | {"buffer_pos": 2**30}}, "buffer_pos must be from 0 to 4"),
    ({"$generator": {"bit_generator": "PCG64", "state": {"state": -1, "inc": 2**200}}}, "generator"),
    ({"$space": ["Text", {"max_length": 3}]}, "Text"),
    ({"$space": ["Discrete", {"n": -1, "start": {"$scalar": ["<i8", "00" * 8]}}]}, "space"),
    ({"$space": ["Discrete", {"n": 2.5, "start": {"$scalar": ["<i8", "00" * 8]}}]}, "space"),
    ({"$space": ["Discrete", {"n": 2**100, "start": {"$scalar": ["<i8", "00" * 8]}}]}, "space"),
    ({"$space": ["Discrete", {}]}, "space"),
    ({"$space": ["Discrete"]}, "space"),
    ({"$space": [{}, {}]}, "expected str"),
    ({"$space": ["Box", []]}, "expected dict"),
    ({"$space": ["Tuple", {"parts": [1]}]}, "space"),
    ({"$space": ["Dict", {"parts": [["a"]]}]}, "space"),
    ({"$space": ["Dict", {"parts": {"a": 3}}]}, "space"),
    ({"$space": ["Tuple", {"parts": [binary([2**25])] * 3}]}, "16,777,216 bytes"),
    (binary([2**13, 2**14]), "16,777,216 bytes"),
    (binary([2.5]), "non-negative"),
    (binary({"$tuple": [2**40]}), "expected list"),
    (box(shape=[10**6, 10**6]), "16,777,216 bytes"),
    (box(shape=[-1]), "non-negative"),
    (box(shape={"$tuple": [2**40]}), "expected list"),
    (box(low=1), "dtype"),
    (box(low={"$npy": "matrix"}, high={"$npy": "matrix"}), "shape"),
    (box(low={"$npy": "nine"}), "shape"),
    (box(below={"$npy": "matrix"}), "shape"),
    (box(below={"$npy": "nine"}), "shape"),
    (box(**{"\x1b[31m": 1}), r"unexpected.*\\x1b\[31m"),  # escaped: the message may be printed to a terminal
]
ARRAYS = {
    "matrix": np.zeros((2, 2)),
    "small": np.zeros(3, np.int16),
    "nine": np.ones(9, np.bool_),
}


@pytest.mark.parametrize(("structure", "reason"), MALFORMED, ids=lambda value: str(value)[:50])
def test_malformed_data_raises_with_its_place(structure: Any, reason: str) -> None:
    decode(box())
    with pytest.raises(FileError, match=reason) as caught:
        decode({"place": [structure]}, **ARRAYS)
    assert "absent" in str(caught.value) or "bools" in str(caught.value) or "tree['place'][0]" in str(caught.value)


@pytest.mark.parametrize("deep", [[], {"$tuple": []}, {"$space": ["Tuple", {"parts": []}]}], ids=str)
def test_deeply_nested_data_raises(deep: Any) -> None:
    for _ in range(900):
        if isinstance(deep, list):
            deep = [deep]
        elif "$tuple" in deep:
            deep = {"$tuple": [deep]}
        else:
            deep = {"$space": ["Tuple", {"parts": [deep]}]}
    with pytest.raises(FileError, match="nested more than 100 deep"):
        decode({"hidden": deep})


json_leaves = st.none() | st.integers() | st.text(max_size=4) | st.sampled_from(["<f4", "Box", "PCG64", "0x1", "nine"])
json_keys = st.sampled_from(
    ["$tuple", "$deque", "$dict", "$npy", "$bytes", "$scalar", "$generator", "$space", "$packed", "shape", "low", "a"]
)


@given(
    structure=st.recursive(
        json_leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(json_keys, inner, max_size=3)
    )
)
def test_any_json_is_decoded_or_refused(structure: Any) -> None:
    with contextlib.suppress(FileError):
        decode(structure, **ARRAYS)
