"""What the bare programs on JAX and TensorFlow share: a state of arrays, and Adam."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.bare.updates import EPSILON, Update

BETA_1, BETA_2 = 0.9, 0.999


class Functional(ABC):
    """A program whose state an update replaces.

    Attributes:
        weights: lists of arrays by group; during an update, its tensors.
        moments: for each trained group, the first and second moments, and the number of steps.
    """

    ops: Any

    def __init__(
        self,
        update: Update,
        weights: Mapping[str, Sequence[np.ndarray]],
        *,
        learning_rate: float,
        action_factor: float = 1.0,
        data: Mapping[str, np.ndarray] | None = None,
        separate: bool = False,
    ) -> None:
        self.update, self.learning_rate, self.action_factor = update, learning_rate, action_factor
        self.weights: dict[str, list[Any]] = {}
        self.moments: dict[str, Any] = {}
        self._separate = separate
        start = {name: [np.asarray(each, np.float32) for each in arrays] for name, arrays in weights.items()}
        moments = {
            name: (*([np.zeros_like(each) for each in start[name]] for _ in range(2)), np.float32(0))
            for name in update.trained
        }
        self._prepare((start, moments), data or {})

    @abstractmethod
    def _prepare(self, state: Any, data: Mapping[str, np.ndarray]) -> None:
        """Copy the state and the data to the framework, and compile the program."""

    @abstractmethod
    def gradients(self, loss: Callable[[Sequence[Any]], tuple[Any, Any]], weights: list[Any]) -> tuple[Any, Any, Any]:
        """Return the loss, the auxiliary value and the gradients."""

    def no_grad(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def minimize(self, name: str, loss: Callable[[Sequence[Any]], tuple[Any, Any]]) -> tuple[Any, Any]:
        """Take a step of Adam on a group of weights; return the loss and the auxiliary value."""
        ops, clipnorm = self.ops, self.update.clipnorm
        value, aux, found = self.gradients(loss, self.weights[name])
        if clipnorm is not None:
            norm = ops.sqrt(sum(ops.sum(ops.square(each)) for each in found))
            found = [each * (clipnorm / ops.maximum(norm, clipnorm)) for each in found]
        first, second, count = self.moments[name]
        count = count + 1.0
        first = [old + (1 - BETA_1) * (new - old) for old, new in zip(first, found, strict=True)]
        second = [old + (1 - BETA_2) * (ops.square(new) - old) for old, new in zip(second, found, strict=True)]
        rate = self.learning_rate * ops.sqrt(1 - BETA_2**count) / (1 - BETA_1**count)
        self.weights[name] = [
            weight - rate * mean / (ops.sqrt(variance) + EPSILON)
            for weight, mean, variance in zip(self.weights[name], first, second, strict=True)
        ]
        self.moments[name] = (first, second, count)
        return value, aux

    def polyak(self, source: str, target: str, tau: float) -> None:
        pairs = zip(self.weights[target], self.weights[source], strict=True)
        self.weights[target] = [old + tau * (new - old) for old, new in pairs]
