"""Checks of arguments. Each error names the argument, the value and the allowed values."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

Check = Callable[[str, Any], Any]


def check_int(name: str, value: Any, *, least: int = 1, word: str | None = None) -> int:
    """Return the value as an int. NumPy ints are accepted, bools are not.

    Args:
        name: name of the argument, for the error message.
        value: value of the argument.
        least: the smallest allowed value.
        word: a str that the error message names as allowed too.

    Raises:
        ValueError: if the value is not an int, or less than `least`.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        expected = "a positive int" if least == 1 else f"an int of at least {least}"
        raise ValueError(f"{name} must be {expected}{f' or {word!r}' if word else ''}, got {value!r:.200}")
    return int(value)


def check_int_or_word(name: str, value: Any, word: str) -> int | str:
    """Return the value, which must be a positive int or the given word.

    Raises:
        ValueError: if the value is neither.
    """
    return word if isinstance(value, str) and value == word else check_int(name, value, word=word)


def check_positive(name: str, value: Any, *, none: bool = False) -> Any:
    """Return the value as a positive int. If `none` is True, None is allowed as well.

    Raises:
        ValueError: if the value is not a positive int.

    Example:
    >>> import numpy as np
    >>> from noterl.utils.checks import check_positive
    >>> check_positive("episodes", np.int64(3))
    3
    """
    return None if none and value is None else check_int(name, value)


def check_count(name: str, value: Any) -> int:
    """Return a number of steps, episodes, updates or transitions, which may be a float such as 1e6, as a positive int.

    Raises:
        ValueError: if the value is not a positive whole number.
    """
    return check_int(name, whole(value))


def whole(value: Any) -> Any:
    """Return a float without a fraction, such as 1e6, as an int; return any other value unchanged."""
    return int(value) if isinstance(value, float | np.floating) and float(value).is_integer() else value


def check_number(
    name: str, value: Any, *, low: float = -math.inf, high: float = math.inf, above: bool = False
) -> float:
    """Return the value as a float.

    Args:
        name: name of the argument, for the error message.
        value: value of the argument.
        low: the smallest allowed value.
        high: the largest allowed value.
        above: whether `low` itself is not allowed.

    Raises:
        ValueError: if the value is not a finite number, or out of bounds.
    """
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not low <= value <= high or (above and value == low):
        bounds = "" if low == -math.inf else f" above {low:g}" if above else f" of at least {low:g}"
        bounds += "" if high == math.inf else f"{' and' if bounds else ' of'} at most {high:g}"
        raise ValueError(f"{name} must be a finite number{bounds}, got {value!r:.200}")
    return float(value)


def finite(name: str, value: Any) -> float:
    """Return the value as a float; raise a ValueError for NaN and infinities."""
    return check_number(name, value)


def non_negative(name: str, value: Any) -> float:
    """Return the value as a float; raise a ValueError unless finite and at least 0."""
    return check_number(name, value, low=0)


def positive(name: str, value: Any) -> float:
    """Return the value as a float; raise a ValueError unless finite and above 0."""
    return check_number(name, value, low=0, above=True)


def probability(name: str, value: Any) -> float:
    """Return the value as a float; raise a ValueError unless between 0 and 1, both included."""
    return check_number(name, value, low=0, high=1)


def increasing_pair(name: str, value: Any) -> tuple[float, float]:
    """Return the value as `(low, high)`; raise a ValueError unless a pair of finite numbers with low < high."""
    with suppress(TypeError, ValueError):
        low, high = (check_number(name, bound) for bound in value)
        if low < high and isinstance(value, tuple | list):
            return low, high
    raise ValueError(f"{name} must be a pair (low, high) of finite numbers with low < high, got {value!r:.200}")


def check_word(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Return the value, which must be one of the allowed words.

    Raises:
        ValueError: if the value is not one of these words.
    """
    if not (isinstance(value, str) and value in allowed):
        raise ValueError(f"{name} must be {', '.join(map(repr, allowed[:-1]))} or {allowed[-1]!r}, got {value!r:.200}")
    return str(value)


def check_bool(name: str, value: Any) -> bool:
    """Return the value as a bool. NumPy bools are accepted, numbers are not.

    Raises:
        ValueError: if the value is not a bool.
    """
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {value!r:.200}")
    return bool(value)


def is_plain(value: Any) -> bool:
    """Return whether a value is None, a bool, a number or a word."""
    return value is None or isinstance(value, bool | int | float | str)
