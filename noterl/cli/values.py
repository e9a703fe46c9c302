"""Values of options: from text to Python objects, without `eval`.

A value is a literal of Python, such as `1e-3` or `(64, 64)`; the construction of an object, such as
`Adam(1e-3, beta_1=0.9)`; or a word. Only classes of the registry, optimizers and schedules of Keras, the rules `Rate`
and `Scale`, and the ranges of `noterl.tune` can be constructed.
"""

from __future__ import annotations

import ast
import functools
import importlib
import math
import re
from collections.abc import Callable
from typing import Any

from noterl import registry
from noterl.cli.errors import UsageError
from noterl.tune.ranges import RANGES, OneMinus
from noterl.utils.words import explain_name


class _NotAValueError(Exception):
    """A text does not consist of literals and calls of names."""


_CONSTANTS = {"true": True, "false": False, "none": None, "inf": math.inf, "nan": math.nan}


def alternatives(annotation: str) -> list[str]:
    """Return the types of an annotation, without None.

    Example:
    >>> from noterl.cli.values import alternatives
    >>> alternatives("int | str | None"), alternatives("Callable[[int], float] | Any")
    (['int', 'str'], ['Callable[[int], float]', 'Any'])
    """
    types = []
    depth = 0
    start = 0
    # A bar inside of brackets separates the types of a container's items.
    for position, character in enumerate(annotation + "|"):
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "|" and depth == 0:
            types.append(annotation[start:position].strip())
            start = position + 1
    return [part for part in types if part != "None"]


def is_sequence(annotation: str) -> bool:
    """Return whether the values of an annotation are sequences only."""
    return all(part.startswith(("Sequence", "tuple", "list")) for part in alternatives(annotation))


def parse_value(text: str, annotation: str) -> Any:
    """Return the value that a text stands for.

    Args:
        text: the text of the command line, or a string of a TOML file.
        annotation: the annotation of the parameter. If only strings and paths are allowed, the text is the value.

    Raises:
        UsageError: if the text names an unknown class, or a class does not accept the arguments.

    Example:
    >>> from noterl.cli.values import parse_value
    >>> parse_value("1e-3", "float"), parse_value("64, 64", "Sequence[int]"), parse_value("episode", "int | str")
    (0.001, (64, 64), 'episode')
    >>> parse_value("Linear(1.0, 0.1, 1_000)", "float | Schedule")
    Linear(start=1.0, end=0.1, steps=1000)
    """
    if alternatives(annotation) and set(alternatives(annotation)) <= {"str", "Path"}:
        return text
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # Not an expression of Python, such as a path or an id.
        return text
    # A word alone is a text, unless it is a constant or the name of a class.
    if isinstance(node, ast.Name) and node.id.lower() not in _CONSTANTS and not _looks_like_class(node.id):
        return text
    try:
        value = _evaluate(node, find_class)
    except _NotAValueError:
        return text
    return (value,) if is_sequence(annotation) and not isinstance(value, (tuple, list, *RANGES)) else value


def parse_call(text: str, find: Callable[[str], Any]) -> Any:
    """Return the result of a call such as `Name(1, key="value")`; a name alone is called without arguments.

    Args:
        text: the call.
        find: returns what a name stands for.

    Raises:
        UsageError: if the text is not a call.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Call | ast.Name):
            return _evaluate(node, find)
    except UsageError:
        raise
    except (_NotAValueError, SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    raise UsageError(f"{text!r} must be written like Name(1, key='value')")


def find_class(name: str) -> Any:
    """Return the class of a name that a value may construct.

    Raises:
        UsageError: if the name is unknown; the message suggests the nearest one.
    """
    classes = known_classes()
    if name not in classes:
        raise UsageError(f"unknown class {name!r}: {explain_name(name, sorted(classes))}")
    return classes[name]


@functools.cache
def known_classes() -> dict[str, type]:
    """Return the classes that values may construct, by name."""
    from keras import optimizers

    rules = importlib.import_module("noterl.callbacks")
    kinds = (optimizers.Optimizer, optimizers.schedules.LearningRateSchedule)
    members = {**vars(optimizers), **vars(optimizers.schedules)}
    keras_classes = {name: cls for name, cls in members.items() if isinstance(cls, type) and issubclass(cls, kinds)}
    ranges = {range_class.__name__: range_class for range_class in (*RANGES, OneMinus)}
    return {**keras_classes, **registry.arguments(), "Rate": rules.Rate, "Scale": rules.Scale, **ranges}


def _looks_like_class(name: str) -> bool:
    # A small letter besides the first capital: words such as "PPO" or "CPU" stay texts.
    return re.fullmatch(r"[A-Z]\w*[a-z]\w*", name) is not None and name in known_classes()


def _evaluate(node: ast.expr, find: Callable[[str], Any]) -> Any:
    """Return the value of a node that consists of literals and calls of names.

    Raises:
        _NotAValueError: if the node has other parts, such as the subtraction in CartPole-v1.
    """
    match node:
        case ast.Constant(value):
            return value
        case ast.Tuple(items):
            return tuple(_evaluate(item, find) for item in items)
        case ast.List(items):
            return [_evaluate(item, find) for item in items]
        case ast.Dict(keys, values) if None not in keys:  # None stands for `**`
            pairs = zip(keys, values, strict=True)
            return {_evaluate(key, find): _evaluate(value, find) for key, value in pairs if key is not None}
        case ast.UnaryOp(ast.USub() | ast.UAdd() as sign, ast.Constant() | ast.Name() as operand):
            number = _evaluate(operand, find)
            if not isinstance(number, int | float):
                raise UsageError(f"{ast.unparse(node)} is not a number")
            return -number if isinstance(sign, ast.USub) else number
        case ast.Name(name):
            return _CONSTANTS[name.lower()] if name.lower() in _CONSTANTS else _call(name, [], {}, find)
        case ast.Call(ast.Name(name), arguments, keywords) if all(keyword.arg for keyword in keywords):
            options = {str(keyword.arg): _evaluate(keyword.value, find) for keyword in keywords}
            return _call(name, [_evaluate(argument, find) for argument in arguments], options, find)
    raise _NotAValueError


def _call(name: str, arguments: list[Any], keywords: dict[str, Any], find: Callable[[str], Any]) -> Any:
    """Return the result of what `find` returns for the name; raise a `UsageError` if the arguments do not fit."""
    function = find(name)
    try:
        return function(*arguments, **keywords)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name}: {error}") from error
