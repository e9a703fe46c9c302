"""Constructor arguments as JSON: what comes back is equal, and what cannot be said is named."""

from __future__ import annotations

import collections
import enum
import inspect
import json
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from noterl import registry, saving
from noterl.registry import Configurable, register
from noterl.saving import decode, encode

pytestmark = pytest.mark.backend_free


@register
class ConfigTestPolicy(Configurable):
    def __init__(self, eps: float = 0.1, *, inner: Any = None, **options: Any) -> None:
        self.eps, self.inner, self.options = eps, inner, options


@register
class ConfigTestPlain:
    built = 0

    @classmethod
    def from_config(cls, config: Any) -> None:
        cls.built += 1


@pytest.fixture
def no_builtins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown names are looked up in this library's modules, some of which import Keras."""
    monkeypatch.setattr(registry, "_BUILTIN_MODULES", ())


def through_json(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value), allow_nan=False)))


def same(first: Any, second: Any) -> bool:
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, np.ndarray | np.generic):
        return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()
    return repr(first) == repr(second)


leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.floats(width=32).map(np.float32))
keys = st.one_of(st.text(max_size=5), st.sampled_from(["__array__", "__dict__", "__opaque__", "____", "__init__"]))
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner),
    max_leaves=10,
)


@given(value=values)
def test_plain_values_come_back_the_same(value: Any) -> None:
    assert same(value, through_json(value))


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6.0).reshape(2, 3).T,
        np.array([True, False]),
        np.array(7, np.uint8),
        np.empty((0, 3), np.float32),
        np.full((84, 84, 4), 255, np.uint8),
        np.array([-0.0, 0.0]),
        np.array([math.nan, math.nan]),
        np.array([1, 2], ">i4"),
        np.complex64(1 + 2j),
        np.bool_(True),
    ],
)
def test_arrays_and_scalars_come_back_to_the_bit(value: Any) -> None:
    assert same(value, through_json(value))


def test_an_array_of_one_value_is_short_in_json() -> None:
    assert len(json.dumps(encode(np.full((84, 84, 4), 255, np.uint8)))) < 100


SPACES = [
    spaces.Box(-1.5, 2.5, (3,), np.float32),
    spaces.Box(np.array([-np.inf, 0.1]), np.array([1.0, np.inf]), dtype=np.float64),
    spaces.Box(0, 255, (84, 84, 4), np.uint8),
    spaces.Box(-np.inf, 2**62 + 1, (2,), np.int64),
    spaces.Discrete(5, start=-2),
    spaces.Discrete(2**40),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [0, -1]], dtype=np.int32),
    spaces.MultiBinary(4),
    spaces.MultiBinary([2, 3]),
    spaces.Tuple([spaces.Discrete(2), spaces.Tuple([spaces.MultiBinary(1)])]),
    spaces.Dict(collections.OrderedDict(z=spaces.Discrete(2), a=spaces.Dict(__array__=spaces.Box(0, 1, (2,))))),
]


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_spaces_come_back_equal(space: Any) -> None:
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


def test_discrete_keeps_its_dtype() -> None:
    if "dtype" not in inspect.signature(spaces.Discrete).parameters:
        pytest.skip("gymnasium here knows one dtype")
    assert through_json(spaces.Discrete(3, dtype=np.int32)).dtype == np.int32


def test_configurables_come_back_with_their_arguments() -> None:
    policy = ConfigTestPolicy(0.3, inner=ConfigTestPolicy(inner=(1, [spaces.Discrete(2)])), clip=(-500, 500))
    again = through_json({"policy": policy})["policy"]
    assert type(again) is ConfigTestPolicy and again.eps == 0.3 and again.options == {"clip": (-500, 500)}
    assert again.inner.get_config() == {"inner": (1, [spaces.Discrete(2)])}


def test_custom_objects_go_before_the_registry(no_builtins: None) -> None:
    class ConfigTestUnregistered(Configurable):
        pass

    encoded = encode(ConfigTestUnregistered())
    with pytest.raises(ValueError, match=r"'ConfigTestUnregistered' is not registered.*custom_objects"):
        decode(encoded)
    assert type(decode(encoded, {"ConfigTestUnregistered": ConfigTestUnregistered})) is ConfigTestUnregistered


def test_a_class_that_only_has_the_name_of_a_registered_one_is_refused() -> None:
    impostor = type("ConfigTestPolicy", (Configurable,), {})
    with pytest.raises(TypeError, match=r"policy.*another class is registered as 'ConfigTestPolicy'"):
        encode({"policy": impostor()})
    with pytest.raises(ValueError, match=r"was built with policy=.*ConfigTestPolicy"):
        decode(encode({"policy": impostor()}, opaque=True))


class Kind(enum.IntEnum):
    ONE = 1


Point = collections.namedtuple("Point", "x y")

UNSAYABLE = [
    ({"network": [object()]}, r"network\[0\].*type object"),
    ({"env": gymnasium.Env()}, "env.*gymnasium.core.Env"),
    ({"make": print}, "make.*builtin_function"),
    ({"kind": Kind.ONE}, "kind.*Kind"),
    ({"point": Point(1, 2)}, "point.*Point"),
    ({"table": {1: 2}}, "table.*dict"),
    ({"space": spaces.Text(3)}, "space.*Text"),
    ({"space": type("Box", (spaces.Box,), {})(0, 1)}, "space.*Box"),
    ({"space": spaces.Dict({1: spaces.Discrete(2)})}, "space.*Dict"),
    ({"data": b"x"}, "data.*bytes"),
    ({"data": np.array([None])}, "data.*ndarray"),
    ({"data": np.longdouble(1)}, "data.*longdouble"),
    ({"data": np.zeros(2, np.longdouble)}, "data.*ndarray"),
    ({"data": np.ma.zeros(2)}, "data.*Masked"),
    ({"data": np.zeros(2**24 + 1, np.uint8)}, "data.*ndarray"),
    ({"policy": ConfigTestPolicy(inner={2})}, r"policy\['inner'\].*set"),
]


@pytest.mark.parametrize(
    ("value", "reason"), UNSAYABLE, ids=lambda value: "".join(value) if type(value) is dict else ""
)
def test_what_a_file_cannot_hold_is_named(value: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        encode(value)
    encoded = json.loads(json.dumps(encode({"good": (1,), **value}, opaque=True)))
    name = next(iter(value))
    with pytest.raises(
        ValueError, match=rf"was built with {name}.*=.*which a file cannot hold.*agent\.restore\(path\)"
    ):
        decode(encoded)
    del encoded[name]
    assert decode(encoded) == {"good": (1,)}


def test_nesting_has_an_end() -> None:
    value: Any = []
    value.append(value)
    for opaque in (False, True):
        with pytest.raises(ValueError, match="hidden must not be nested more than 16 deep"):
            encode({"hidden": value}, opaque=opaque)
    deep: Any = {"inner": spaces.Tuple([])}
    for _ in range(4):
        deep = ConfigTestPolicy(inner=({"__x__": deep},))
    assert encode(through_json(deep)) == encode(deep)


def test_what_encode_says_fits_into_a_file(tmp_path: Any) -> None:
    value = {"policy": ConfigTestPolicy(math.inf, inner=(SPACES, {"__dict__": 1})), "big": 2**200}
    saving.write(tmp_path / "a", {"arguments": encode(value)})
    assert encode(decode(saving.read(tmp_path / "a")["arguments"])) == encode(value)


FORGED = [
    {"__new__": 1},
    {"__tuple__": [1], "more": 2},
    {"__tuple__": 1},
    {"__dict__": [["a"]]},
    {"__dict__": {"a": 1}},
    {"__float__": "1e3"},
    {"__scalar__": ["|O", "00"]},
    {"__scalar__": ["<f4", "0000"]},
    {"__scalar__": ["<f4", "zz"]},
    {"__scalar__": "x"},
    {"__array__": [1]},
    {"__array__": {"dtype": "<f4", "shape": [2**40], "fill": "00000000"}},
    {"__array__": {"dtype": "<f4", "shape": [-1], "data": ""}},
    {"__array__": {"dtype": "<f4", "shape": [2], "data": "AAAA"}},
    {"__array__": {"dtype": "<f4", "shape": [1], "data": "!!!!"}},
    {"__array__": {"dtype": "|O", "shape": [1], "data": "AAAAAAAAAAA="}},
    {"__array__": {"dtype": "<f4", "shape": [0] * 40, "data": ""}},
    {"__object__": ["ConfigTestPlain", {}]},
    {"__object__": ["ConfigTestPolicy", [1]]},
    {"__object__": ["ConfigTestPolicy", {"eps": {"__object__": ["os.system", {}]}}]},
    {"__object__": [{}, {}]},
    {"__object__": "ConfigTestPolicy"},
    {"__space__": ["Text", {"max_length": 3}]},
    {"__space__": ["Discrete", {"n": -1, "start": 0, "dtype": "<i8"}]},
    {"__space__": ["Discrete", {}]},
    {"__space__": ["Box", {"low": 0, "high": 1, "bounded": []}]},
    {"__space__": ["Box", {**encode(spaces.Box(0, 1))["__space__"][1], "bounded": [encode(np.ones(9, bool))] * 2}]},
    {"__space__": ["Tuple", {"spaces": [1]}]},
    {"__opaque__": "env"},
]


@pytest.mark.parametrize("value", FORGED, ids=json.dumps)
def test_nonsense_is_a_value_error_that_names_its_place(value: Any, no_builtins: None) -> None:
    with pytest.raises(ValueError, match=r"arguments|is not registered"):
        decode({"arguments": value})
    assert not ConfigTestPlain.built


def test_decode_names_the_place() -> None:
    with pytest.raises(ValueError, match=r"policy\['eps'\]: '__new__' is no note"):
        decode({"policy": {"eps": {"__new__": 1}}})
    with pytest.raises(ValueError, match=r"space: Discrete cannot be built"):
        decode({"space": {"__space__": ["Discrete", {"n": -1, "start": 0, "dtype": "<i8"}]}})
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deeply"):
        decode(deep)


@given(
    value=st.recursive(
        st.none() | st.integers() | st.text(max_size=4) | st.sampled_from(["<f4", "Box", "ConfigTestPolicy", "AAAA"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["__tuple__", "__array__", "__object__", "__space__", "__dict__", "low", "n", "dtype", "fill"]
                ),
                inner,
                max_size=3,
            )
        ),
    )
)
def test_any_json_is_decoded_or_refused(value: Any) -> None:
    registry_modules, registry._BUILTIN_MODULES = registry._BUILTIN_MODULES, ()
    try:
        decode(value)
    except ValueError:
        pass
    finally:
        registry._BUILTIN_MODULES = registry_modules
