"""Bare programs on torch: eager updates with `torch.optim.Adam(fused=True)`, torch's fastest one on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.bare.updates import EPSILON, Update


class Ops:
    relu, tanh, exp, softplus = torch.relu, torch.tanh, torch.exp, functional.softplus
    square, sqrt, minimum, maximum, clip = torch.square, torch.sqrt, torch.minimum, torch.maximum, torch.clamp
    mean, dense, huber = torch.mean, functional.linear, functional.huber_loss
    log_softmax = staticmethod(lambda values: torch.log_softmax(values, -1))
    stop_gradient = staticmethod(lambda values: values.detach())
    conv = staticmethod(lambda images, kernel, bias, stride: functional.conv2d(images, kernel, bias, stride))
    concat = staticmethod(lambda parts: torch.cat(parts, -1))
    max_last = staticmethod(lambda values: torch.amax(values, -1))
    sum_last = staticmethod(lambda values: torch.sum(values, -1))
    take = staticmethod(lambda values, action: values.gather(1, action[:, None].long())[:, 0])
    image = staticmethod(lambda images: images.permute(0, 3, 1, 2).float() / 255)  # the strides stay those of NHWC
    flatten = staticmethod(lambda images: images.permute(0, 2, 3, 1).flatten(1))  # in Keras's order


def _to_torch(array: np.ndarray) -> torch.Tensor:
    """Return a kernel of Keras's layout in torch's; other arrays as they are."""
    order = {2: (1, 0), 4: (3, 2, 0, 1)}.get(array.ndim)
    tensor = torch.tensor(array if order is None else np.ascontiguousarray(array.transpose(order)))
    # The strides of the gradient, which the fused Adam reads as if they were those of the weights.
    return tensor.contiguous(memory_format=torch.channels_last) if array.ndim == 4 else tensor


def _to_keras(tensor: torch.Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().numpy()
    order = {2: (1, 0), 4: (2, 3, 1, 0)}.get(array.ndim)
    return array.copy() if order is None else array.transpose(order)


class Program:
    """Runs groups of updates.

    Args:
        update: the algorithm.
        weights: initial weights by group, in Keras's layout.
        learning_rate: of Adam.
        action_factor: scales stored actions to [-1, 1].
        data: arrays `[rows, ...]` that batches are taken from; each batch then holds "indices" only.
        separate: not used here: each update is a series of calls.
    """

    ops = Ops
    no_grad = staticmethod(torch.no_grad)

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
        del separate
        self.update, self.action_factor = update, action_factor
        self._data = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in (data or {}).items()}
        self.weights = {
            name: [_to_torch(each).requires_grad_(name in update.trained) for each in arrays]
            for name, arrays in weights.items()
        }
        self._optimizers = {
            name: torch.optim.Adam(self.weights[name], learning_rate, eps=EPSILON, fused=True)
            for name in update.trained
        }

    def __call__(self, rows: Mapping[str, np.ndarray]) -> None:
        """Make the updates of batches `[K, B, ...]`."""
        tensors = {name: torch.from_numpy(array) for name, array in rows.items()}
        period = self.update.period
        for first in range(0, len(next(iter(tensors.values()))), period):
            batches = [{name: each[first + k] for name, each in tensors.items()} for k in range(period)]
            if self._data:
                batches = [{name: each[one["indices"]] for name, each in self._data.items()} for one in batches]
            self.update.run(self, batches)

    def read(self) -> dict[str, list[np.ndarray]]:
        """Return the weights in Keras's layout."""
        return {name: [_to_keras(each) for each in tensors] for name, tensors in self.weights.items()}

    def minimize(self, name: str, loss: Callable[[Sequence[Any]], tuple[Any, Any]]) -> tuple[Any, Any]:
        """Take a step of Adam on a group of weights; return the loss and the auxiliary value."""
        weights, optimizer = self.weights[name], self._optimizers[name]
        optimizer.zero_grad()
        value, aux = loss(weights)
        value.backward(inputs=weights)
        if self.update.clipnorm is not None:
            torch.nn.utils.clip_grad_norm_(weights, self.update.clipnorm)
        optimizer.step()
        return value, aux

    def polyak(self, source: str, target: str, tau: float) -> None:
        with torch.no_grad():
            torch._foreach_lerp_(self.weights[target], self.weights[source], tau)


def product(size: int) -> Callable[[int], None]:
    """Return a function that multiplies two float32 matrices of this size a number of times."""
    left, right = torch.from_numpy(np.random.default_rng(0).standard_normal((2, size, size), np.float32))

    def run(count: int) -> None:
        for _ in range(count):
            torch.mm(left, right)

    return run
