"""Classes by name, and objects that remember what they were built with."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import noterl
from noterl import noise, policies, registry, replay  # their classes are registered from here on
from noterl.registry import Configurable, lookup, register

pytestmark = pytest.mark.backend_free


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no class of a test stay registered, and look for others where no backend is needed."""
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    modules = tuple(module.__name__ for module in (policies, noise, replay))
    assert set(modules) < set(registry._modules)
    monkeypatch.setattr(registry, "_modules", modules)


def test_a_registered_class_is_found_by_its_name() -> None:
    @register
    class Found:
        pass

    assert lookup("Found") is Found
    assert noterl.register is register


def test_an_unknown_name_says_what_to_do() -> None:
    with pytest.raises(
        ValueError, match=r"'Nowhere' is not registered: .*@noterl\.register.*custom_objects=\{'Nowhere'"
    ):
        lookup("Nowhere")


def test_custom_objects_go_first() -> None:
    class Replay:
        pass

    assert lookup("Replay") is noterl.Replay
    assert lookup("Replay", {"Replay": Replay}) is Replay
    assert lookup("Replay", {"Other": Replay}) is noterl.Replay


def test_built_in_classes_are_known_without_being_imported_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(registry, "_registry", {})
    monkeypatch.setattr(registry.importlib, "import_module", asked.append)
    with pytest.raises(ValueError, match="not registered"):
        lookup("os.system")
    assert asked == list(registry._modules), "only modules of noterl are imported, whatever the name"


def test_two_classes_of_one_name_are_refused() -> None:
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
    with pytest.raises(ValueError, match=r"'Twin' is taken by .*first.*; rename .*second"):
        second()
    assert lookup("Twin") is known


def test_a_class_that_is_defined_again_replaces_itself() -> None:
    def define() -> type:
        @register
        class Notebook:
            pass

        return Notebook

    first, second = define(), define()
    assert lookup("Notebook") is second is not first


class Part(Configurable):
    def __init__(self, size: int, *rest: int, name: str = "part", **options: Any) -> None:
        self.seen = dict(self._config)
        self.size = size


class Bigger(Part):
    def __init__(self, factor: float = 2.0) -> None:
        super().__init__(int(3 * factor), name="bigger")


def test_arguments_are_remembered_as_they_were_given() -> None:
    part = Part(3, name="x", deep=1)
    assert part.get_config() == {"size": 3, "name": "x", "deep": 1}
    assert part.seen == part._config, "they should be there before the constructor runs"
    assert Part(size=4).get_config() == {"size": 4}, "defaults are not written down: a later release may better them"


def test_a_subclass_remembers_its_own() -> None:
    bigger = Bigger(4.0)
    assert bigger.get_config() == {"factor": 4.0} and bigger.size == 12
    assert type(Bigger.from_config(bigger.get_config())) is Bigger


def test_a_config_builds_the_object_again() -> None:
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


def test_a_class_says_its_arguments() -> None:
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


def test_a_config_is_a_copy() -> None:
    part = Part(3)
    part.get_config()["size"] = 5
    assert part.get_config() == {"size": 3}


@pytest.mark.parametrize("arguments", [{}, {"nothing": 1}, {"size": 1, "size_": 2}])
def test_wrong_arguments_are_a_type_error(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Bigger(**arguments) if arguments else Part()
