"""The replicas of an update in progress, for statistics over the global batch.

A strategy that runs an update once for each share of a batch enters `averaging` around the update. If one program
computes the global batch, as on JAX, there is nothing to enter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from noterl.backends.common import Stack


class Replicas(Protocol):
    """The replicas that run the same update on different shares of a batch, as a backend's strategy makes them.

    Attributes:
        count: the number of replicas.
    """

    count: int

    def mean(self, value: Any) -> Any:
        """Return the mean of a tensor over the replicas, without a gradient; may be traced."""

    def mean_of_all(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the means of several tensors over the replicas, in one transfer."""


def means_by_dtype(tensors: Sequence[Any], mean: Callable[[list[Any]], Iterable[Any]]) -> list[Any]:
    """Return the means of tensors; `mean` computes the means of all tensors of one dtype by one reduction."""
    means: list[Any] = [None] * len(tensors)
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        places = [k for k, tensor in enumerate(tensors) if tensor.dtype == dtype]
        for k, value in zip(places, mean([tensors[k] for k in places]), strict=True):
            means[k] = value
    return means


def mean_of_step(replicas: Replicas, loss: Any, gradients: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return the means of a loss and its gradients over the replicas, in one transfer; a None stays None."""
    used = [gradient for gradient in gradients if gradient is not None]
    loss, *means = replicas.mean_of_all([loss, *used])
    remaining = iter(means)
    return loss, [None if gradient is None else next(remaining) for gradient in gradients]


# On top are the replicas of the update in progress; nothing if one program computes the global batch.
active: Stack[Replicas] = Stack()


def averaging(replicas: Replicas) -> AbstractContextManager[None]:
    """Average over these replicas inside the context."""
    return active.holding(replicas)


def num_replicas() -> int:
    """Return the number of replicas, each of which receives a share of the batch."""
    replicas = active.top
    return 1 if replicas is None else replicas.count


def mean_over_replicas(value: Any) -> Any:
    """Return the mean of a tensor over the replicas, without a gradient; without replicas the tensor itself.

    A loss that divides by a sum over the batch must divide by this mean of the sums. The mean of such losses over
    replicas is then the loss of the global batch.
    """
    replicas = active.top
    return value if replicas is None else replicas.mean(value)
