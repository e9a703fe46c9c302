"""Constructor arguments in files: objects come back with their arguments, and a file cannot run anything."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from noterl import registry, saving
from noterl.registry import Configurable, register
from noterl.saving import Arguments
from tests.support.encoding import decoded, encoded, through_json

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
def no_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import no modules to look up unknown names: some of them import Keras."""
    monkeypatch.setattr(registry, "_modules", [])


def test_configurable_comes_back_with_its_arguments() -> None:
    policy = ConfigTestPolicy(0.3, inner=ConfigTestPolicy(inner=(1, [spaces.Discrete(2)])), clip=(-500, 500))
    again = through_json({"policy": policy})["policy"]
    assert type(again) is ConfigTestPolicy and again.eps == 0.3 and again.options == {"clip": (-500, 500)}
    assert again.inner.get_config() == {"inner": (1, [spaces.Discrete(2)])}


def test_custom_objects_take_precedence_over_the_registry(no_modules: None) -> None:
    class ConfigTestUnregistered(Configurable):
        pass

    structure, _ = encoded(ConfigTestUnregistered())
    with pytest.raises(ValueError, match=r"'ConfigTestUnregistered'.*custom_objects"):
        decoded(structure)
    custom_objects = {"ConfigTestUnregistered": ConfigTestUnregistered}
    assert type(decoded(structure, custom_objects=custom_objects)) is ConfigTestUnregistered


def test_class_with_the_name_of_a_registered_one_raises() -> None:
    impostor = type("ConfigTestPolicy", (Configurable,), {})
    with pytest.raises(TypeError, match=r"policy.*as 'ConfigTestPolicy'"):
        encoded({"policy": impostor()})
    with pytest.raises(ValueError, match=r"was built with policy=.*ConfigTestPolicy"):
        through_json(Arguments({"policy": impostor()}))


UNSUPPORTED = [
    ({"network": [object()]}, r"network.*\[0\].*type object", r"network\[0\]=object"),
    ({"env": gymnasium.Env()}, "env.*gymnasium.core.Env", "env=gymnasium.core.Env"),
    ({"make": print}, "make.*builtin_function", "make="),
    ({"space": type("Box", (spaces.Box,), {})(0, 1)}, "space.*Box", "space="),
    ({"data": np.array([None])}, "data.*dtype object", "data=numpy.ndarray"),
    ({"policy": ConfigTestPolicy(inner={2})}, r"policy.*inner.*set", r"policy\['inner'\]=set"),
]


@pytest.mark.parametrize(("value", "type_error", "value_error"), UNSUPPORTED)
def test_argument_that_a_file_cannot_hold_is_named_when_it_is_built(
    value: dict[str, Any], type_error: str, value_error: str
) -> None:
    with pytest.raises(TypeError, match=type_error):
        encoded(value)
    structure, encoder = encoded(Arguments({"good": (1,), **value}))
    with pytest.raises(ValueError, match=rf"built with {value_error}.*agent\.restore"):
        decoded(structure, encoder.arrays)
    del structure[next(iter(value))]
    assert decoded(structure) == {"good": (1,)}


def test_only_arguments_may_hold_unsupported_types() -> None:
    with pytest.raises(TypeError, match=r"tree\['state'\]"):
        encoded({"config": Arguments({"make": print}), "state": print})


@pytest.mark.parametrize("wrap", [Arguments, dict])
def test_deep_nesting_raises(wrap: Any) -> None:
    value: Any = []
    value.append(value)
    with pytest.raises(ValueError, match=r"hidden.* must"):
        encoded(wrap({"hidden": value}))
    deep: Any = {"inner": spaces.Tuple([])}
    for _ in range(12):
        deep = ConfigTestPolicy(inner=({"$x": deep},))
    assert encoded(through_json(deep))[0] == encoded(deep)[0]


def test_arguments_are_read_as_descriptions_and_written_again(tmp_path: Path) -> None:
    value = {"policy": ConfigTestPolicy(math.inf, inner=([spaces.Discrete(2)], {"$dict": 1})), "big": 2**200}
    saving.write(tmp_path / "a", {"arguments": Arguments({**value, "make": print})})
    tree = saving.read(tmp_path / "a")
    saving.write(tmp_path / "b", tree)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert isinstance(tree["arguments"]["policy"], saving.Description)
    assert tree["arguments"].pop("make").kind == "$opaque"
    assert encoded(saving.build(tree["arguments"]))[0] == encoded(value)[0]


FORGED = [
    {"$new": 1},
    {"$object": ["ConfigTestPlain", {}]},
    {"$object": ["ConfigTestPolicy", [1]]},
    {"$object": ["ConfigTestPolicy", {"eps": {"$object": ["os.system", {}]}}]},
    {"$object": ["ConfigTestPolicy", {}, {}]},
    {"$object": [{}, {}]},
    {"$object": "ConfigTestPolicy"},
    {"$opaque": ["env", {}]},
    {"$opaque": "env"},
]


@pytest.mark.parametrize("value", FORGED, ids=json.dumps)
def test_forged_object_raises_with_its_place(value: Any, no_modules: None) -> None:
    with pytest.raises(ValueError, match=r"arguments|is not registered"):
        decoded({"arguments": value})
    assert not ConfigTestPlain.built


def test_failing_constructor_is_named_with_its_place() -> None:
    with pytest.raises(ValueError, match=r"policy\[0\]: ConfigTestPolicy cannot"):
        decoded({"policy": [{"$object": ["ConfigTestPolicy", {"self": 1}]}]})


@given(
    value=st.recursive(
        st.none() | st.integers() | st.text(max_size=4) | st.sampled_from(["<f4", "Box", "ConfigTestPolicy"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["$tuple", "$npy", "$object", "$keras", "$opaque", "$space", "$dict", "low", "n"]),
                inner,
                max_size=3,
            )
        ),
    )
)
def test_any_json_is_built_or_refused(value: Any) -> None:
    modules, registry._modules = registry._modules, []
    try:
        decoded(value, {"<f4": np.zeros(1)})
    except (ValueError, KeyError):  # KeyError is what this test's arrays raise for an unknown name
        pass
    finally:
        registry._modules = modules
