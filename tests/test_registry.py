"""Registered classes are found by name, and objects record their constructor arguments."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import noterl
from noterl import noise, policies, registry, replay  # registers their classes
from noterl.registry import Configurable, lookup, register

pytestmark = pytest.mark.backend_free


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the classes of a test afterwards, and import only modules that need no backend."""
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    modules = tuple(module.__name__ for module in (policies, noise, replay))
    assert set(modules) < set(registry._modules)
    monkeypatch.setattr(registry, "_modules", modules)


def test_registered_class_is_found_by_name() -> None:
    @register
    class Found:
        pass

    assert lookup("Found") is Found
    assert noterl.register is register


def test_error_for_unknown_name_names_the_remedy() -> None:
    with pytest.raises(ValueError, match="'Nowhere' is not registered"):
        lookup("Nowhere")


def test_control_characters_of_a_name_are_not_in_the_message() -> None:
    """The name may be from a file, and a message goes to the terminal."""
    with pytest.raises(ValueError, match="is not registered") as raised:
        lookup("A\x1b[2J")
    assert "\x1b" not in str(raised.value)


def test_custom_objects_take_precedence() -> None:
    class Replay:
        pass

    assert lookup("Replay") is noterl.Replay
    assert lookup("Replay", {"Replay": Replay}) is Replay
    assert lookup("Replay", {"Other": Replay}) is noterl.Replay


def test_unknown_name_imports_only_registered_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr(registry, "_registry", {})
    monkeypatch.setattr(registry.importlib, "import_module", imported.append)
    with pytest.raises(ValueError, match="not registered"):
        lookup("os.system")
    assert imported == list(registry._modules), "only registered modules are imported, whatever the name"


def test_second_class_of_one_name_raises() -> None:
    def first() -> type:
        @register
        class Twin:
            pass

        return Twin

    def second() -> type:
        @register
        class Twin:
            pass

        return Twin

    known = first()
    with pytest.raises(ValueError, match=r"'Twin' .*first.*second"):
        second()
    assert lookup("Twin") is known


def test_class_defined_again_replaces_itself() -> None:
    def define() -> type:
        @register
        class Notebook:
            pass

        return Notebook

    first, second = define(), define()
    assert lookup("Notebook") is second is not first


class Part(Configurable):
    def __init__(self, size: int, *rest: int, name: str = "part", **options: Any) -> None:
        self.config_in_constructor = dict(self._config)
        self.size = size


class Bigger(Part):
    def __init__(self, factor: float = 2.0) -> None:
        super().__init__(int(3 * factor), name="bigger")


def test_arguments_are_recorded_as_they_were_passed() -> None:
    part = Part(3, name="x", deep=1)
    assert part.get_config() == {"size": 3, "name": "x", "deep": 1}
    assert part.config_in_constructor == part._config, "arguments must be recorded before the constructor runs"
    assert Part(size=4).get_config() == {"size": 4}, "defaults must not be recorded: a later release may change them"


def test_recorded_containers_are_copies() -> None:
    size, deep = [3], {"inner": [4]}
    part = Part(size, deep=deep)
    size.append(5)
    deep["inner"].append(6)
    assert part.get_config() == {"size": [3], "deep": {"inner": [4]}}


def test_subclass_records_its_own_arguments() -> None:
    bigger = Bigger(4.0)
    assert bigger.get_config() == {"factor": 4.0} and bigger.size == 12
    assert type(Bigger.from_config(bigger.get_config())) is Bigger


def test_from_config_builds_an_equal_object() -> None:
    for part in (Part(3, name="x", deep=1), Part(3, 4, 5, name="x"), Part(size=3)):
        again = Part.from_config(part.get_config())
        assert again.get_config() == part.get_config() and again.size == 3
    assert Part(3, 4, 5, name="x").get_config() == {"size": 3, "rest": (4, 5), "name": "x"}


class Wrapped(Part):
    def __init__(self, factor: float, **passed_on: Any) -> None:
        super().__init__(3, **passed_on)


class Whole(Bigger):
    def __init__(self, depth: int, **passed_on: Any) -> None:
        super().__init__(**passed_on)


def test_signature_includes_arguments_of_base_classes() -> None:
    class Bare(Configurable):
        pass

    found = {kind: str(inspect.signature(kind)) for kind in (Bare, Part, Bigger, Wrapped, Whole)}
    assert found == {
        Bare: "()",
        Part: "(size: 'int', *rest: 'int', name: 'str' = 'part', **options: 'Any')",
        Bigger: "(factor: 'float' = 2.0)",
        Wrapped: "(factor: 'float', *, size: 'int', name: 'str' = 'part', **options: 'Any')",
        Whole: "(depth: 'int', *, factor: 'float' = 2.0)",
    }
    assert list(inspect.signature(noterl.Replay).parameters)[:4] == ["capacity", "sampler", "relabel", "n_step"]


def test_get_config_returns_a_copy() -> None:
    part = Part(3)
    part.get_config()["size"] = 5
    assert part.get_config() == {"size": 3}


@pytest.mark.parametrize("arguments", [{}, {"nothing": 1}, {"size": 1, "size_": 2}])
def test_wrong_arguments_raise_type_error(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Bigger(**arguments) if arguments else Part()
