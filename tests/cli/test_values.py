"""Values of options: literals, constructed objects and words, without `eval`."""

from __future__ import annotations

import math
from typing import Any

import keras
import pytest

import noterl
from noterl.callbacks import Rate
from noterl.cli.errors import UsageError
from noterl.cli.values import alternatives, parse_call, parse_value

pytestmark = pytest.mark.backends("torch")


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("1e-3", "float", 1e-3), ("-2", "int", -2), ("100_000", "int | None", 100_000), ("none", "int | None", None),
        ("true", "bool", True), ("False", "bool", False), ("inf", "float", math.inf), ("-inf", "float", -math.inf),
        ("64", "Sequence[int]", (64,)), ("64,32", "Sequence[int]", (64, 32)), ("[1, 2]", "Sequence[int]", [1, 2]),
        ("episode", "int | str", "episode"), ("pass", "int | str", "pass"), ("3", "str | Path", "3"),
        ("runs/x.csv", "str | Path | Callable[[Any], None]", "runs/x.csv"), ("CartPole-v1", "Any", "CartPole-v1"),
        ("model.toml", "Any", "model.toml"), ("a b", "Any", "a b"), ("{'x': 'mean'}", "Any", {"x": "mean"}),
    ],
)  # fmt: skip
def test_literals_and_words(text: str, annotation: str, value: Any) -> None:
    parsed = parse_value(text, annotation)
    assert parsed == value and type(parsed) is type(value)


def test_objects_are_constructed_with_their_arguments() -> None:
    adam = parse_value("Adam(1e-4, beta_1=0.5)", "Any")
    assert isinstance(adam, keras.optimizers.Adam)
    assert (float(adam.learning_rate), adam.beta_1) == (pytest.approx(1e-4), 0.5)
    replay = parse_value("Replay(1_000, sampler=Prioritized(alpha=0.5), n_step=3)", "Any")
    assert isinstance(replay, noterl.Replay) and replay.get_config()["sampler"].alpha == 0.5
    assert parse_value("Linear(1.0, 0.1, 100)", "float | Schedule")(100) == 0.1
    assert isinstance(parse_value("GreedyQPolicy", "Policy | str | None"), noterl.policies.GreedyQPolicy)
    assert isinstance(parse_value("Rate(0.1, 0, 1)", "Any"), Rate)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('false')",
        "(lambda: 1)()",
        "[x for x in (1,)]",
        "open",
        "Adam.__init__",
        "1 + 1",
        "f'{1}'",
    ],
)
def test_code_is_not_run(text: str) -> None:
    assert parse_value(text, "Any") == text


def test_text_that_python_cannot_parse_is_a_word() -> None:
    for text in ("-" * 200_000 + "1", "f(" * 90_000 + ")" * 90_000, "1" + "+1" * 100_000):
        assert parse_value(text, "Any") == text


@pytest.mark.parametrize("text", ["Adma(1e-3)", "open('x')", "Replay(1, sampler=eval('1'))"])
def test_unknown_class_raises_with_the_nearest_name(text: str) -> None:
    with pytest.raises(UsageError, match="unknown class"):
        parse_value(text, "Any")
    with pytest.raises(UsageError, match="Adam"):
        parse_value("Adma(1e-3)", "Any")


@pytest.mark.parametrize("text", ["Replay(-1)", "Replay()", "Replay(10, size=3)", "Linear(1)"])
def test_wrong_arguments_raise_and_name_the_class(text: str) -> None:
    with pytest.raises(UsageError, match=text.partition("(")[0]):
        parse_value(text, "Any")


def test_call_of_other_names() -> None:
    found = parse_call("a(1, b=(2, 3))", lambda name: lambda *args, **keywords: (name, args, keywords))
    assert found == ("a", (1,), {"b": (2, 3)})
    for text in ("1", "a.b()", "a(", "a(**{})"):
        with pytest.raises(UsageError, match=r"Name\(1"):
            parse_call(text, lambda name: dict)


def test_alternatives_keep_brackets_together() -> None:
    assert alternatives("dict[str, int | None] | None | str") == ["dict[str, int | None]", "str"]
