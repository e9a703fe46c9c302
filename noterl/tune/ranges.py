"""Ranges of a search space."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from noterl.utils.checks import check_bool, check_int, check_number, is_plain


class Float:
    """A float between two bounds, both included.

    Args:
        low: the lower bound.
        high: the upper bound, above `low`.
        log: whether the logarithm of the value is uniform; `low` must then be above 0.

    Raises:
        ValueError: if an argument is not one of the allowed values.
    """

    def __init__(self, low: float, high: float, log: bool = False) -> None:
        self.log: bool = check_bool("log", log)
        self.low: float = check_number("low", low, low=0, above=True) if log else check_number("low", low)
        self.high: float = check_number("high", high, low=self.low, above=True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.low:g}, {self.high:g}{', log=True' * self.log})"

    def suggest(self, trial: Any, name: str) -> float:
        """Return the trial's value."""
        return float(trial.suggest_float(name, self.low, self.high, log=self.log))


class OneMinus(Float):
    """1 minus a number between two bounds, whose logarithm is uniform: for discounts, which are close to 1.

    Args:
        low: the lower bound of the number, above 0.
        high: the upper bound of the number, above `low`.

    Raises:
        ValueError: if an argument is not one of the allowed values.
    """

    def __init__(self, low: float, high: float) -> None:
        super().__init__(low, high, log=True)

    def suggest(self, trial: Any, name: str) -> float:
        """Return the trial's value."""
        # Another name than the argument's, because the trial stores the number and not the discount.
        return 1.0 - super().suggest(trial, f"one_minus_{name}")


class Int:
    """An int between two bounds, both included.

    Args:
        low: the lower bound.
        high: the upper bound, above `low`.
        log: whether the logarithm of the value is uniform; `low` must then be above 0.

    Raises:
        ValueError: if an argument is not one of the allowed values.
    """

    def __init__(self, low: int, high: int, log: bool = False) -> None:
        self.log: bool = check_bool("log", log)
        self.low: int = check_int("low", low, least=1 if log else -(2**53))
        self.high: int = check_int("high", high, least=self.low + 1)

    def __repr__(self) -> str:
        return f"Int({self.low}, {self.high}{', log=True' * self.log})"

    def suggest(self, trial: Any, name: str) -> int:
        """Return the trial's value."""
        return int(trial.suggest_int(name, self.low, self.high, log=self.log))


class Choice:
    """One of several values of any kind.

    Optuna stores labels of values that are not None, bool, int, float or str. A label is the value's `repr`; if two are
    equal, or one holds an address in memory, labels are positions and names, such as "1: make_networks". So a search
    that is resumed must have the same values in the same order.

    Args:
        *values: the values, at least two.

    Raises:
        ValueError: if there are fewer than two values.
    """

    def __init__(self, *values: Any) -> None:
        if len(values) < 2:
            raise ValueError(f"values must be at least two, got {values!r}")
        self.values = values

    def __repr__(self) -> str:
        return f"Choice({', '.join(map(repr, self.values))})"

    def suggest(self, trial: Any, name: str) -> Any:
        """Return the trial's value."""
        labels = _labels(self.values)
        return self.values[labels.index(trial.suggest_categorical(name, labels))]


def _labels(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a label for each value of a `Choice`, the same in each process."""
    # Optuna's choices are plain values; a text stands for any other value.
    if all(map(is_plain, values)) and len(set(values)) == len(values):  # 1 and True are equal
        return values
    texts = tuple(map(repr, values))
    # An address differs in each process, and equal texts would be one choice.
    if len(set(texts)) == len(texts) and not any(re.search(r" at 0x[0-9a-fA-F]+", text) for text in texts):
        return texts
    names = [getattr(value, "__qualname__", type(value).__qualname__) for value in values]
    return tuple(f"{position}: {name}" for position, name in enumerate(names))


RANGES = (Float, Int, Choice)


def sample(space: Mapping[str, Any], trial: Any) -> dict[str, Any]:
    """Return the trial's values; what is not a range is a constant."""
    return {name: value.suggest(trial, name) if isinstance(value, RANGES) else value for name, value in space.items()}
