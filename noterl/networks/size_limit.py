"""A limit of the networks that are built from the arguments in a file.

A file of a few bytes may name layers of any size. Their weights are in the file too, so `noterl.load` allows no more.
Layers without weights, such as one that concatenates its input with itself, are limited by the size of their outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from noterl.utils.files import FileError

# Networks that share layers build some that they do not keep, so twice the weights of the file are allowed.
_SPARE_VALUES = 2**16
_SPARE_ARRAYS = 64

# The largest network that noterl builds from a description or a file of Keras: 1 GiB of float32.
LARGEST = 2**28

# The most values that all layers of a model in a file return for one observation: 256 MiB of float32.
LARGEST_OUTPUTS = 2**26


class NetworkSizeError(ValueError):
    """A network has more than `LARGEST` weights or `LARGEST_OUTPUTS` outputs of layers; nothing was allocated."""


class _Limit:
    """What may still be built: numbers of values and of arrays."""

    def __init__(self, weights: Sequence[np.ndarray]) -> None:
        self.values = 2 * sum(weight.size for weight in weights) + _SPARE_VALUES
        self.arrays = 2 * len(weights) + _SPARE_ARRAYS


_limit: ContextVar[_Limit | None] = ContextVar("limit", default=None)


@contextmanager
def size_limit(variables: Any) -> Iterator[None]:
    """Limit the networks that are built in this block to the weights of a saved agent.

    Args:
        variables: the entry "variables" of a saved state, which may be malformed.
    """
    lists = [each for each in variables.values() if isinstance(each, list)] if isinstance(variables, dict) else []
    weights = [weight for each in lists for weight in each if isinstance(weight, np.ndarray)]
    token = _limit.set(_Limit(weights))
    try:
        yield
    finally:
        _limit.reset(token)


def is_limited() -> bool:
    """Return whether the code runs inside `size_limit`, with arguments from a file."""
    return _limit.get() is not None


def claim(sizes: Iterable[int]) -> None:
    """Count the weights of a network before it is built.

    Args:
        sizes: the number of values in each weight.

    Raises:
        FileError: inside `size_limit`, if the networks have more weights than the file.
        NetworkSizeError: outside, if the network has more than `LARGEST` weights.
    """
    limit = _limit.get()
    if limit is None:
        if (total := sum(sizes)) > LARGEST:
            raise NetworkSizeError(f"a network may have at most {LARGEST:,} weights, this one has {total:,}")
        return
    for size in sizes:
        limit.values -= size
        limit.arrays -= 1
        if limit.values < 0 or limit.arrays < 0:
            raise FileError(
                "the arguments in its member 'agent.json' describe larger networks than those whose weights are in "
                "its member 'variables.safetensors'"
            )


def plan_sizes(plan: tuple, shape: tuple[int, ...]) -> Iterator[int]:
    """Yield the number of values in each weight of a plan, which `noterl.networks.builders` describes.

    Args:
        plan: the plan of the network.
        shape: the shape of its inputs.
    """
    if plan[0] == "sequential":
        yield from _stack_sizes(plan[1], shape)
        return
    _, trunk, stream, outputs = plan
    yield from _stack_sizes(trunk, shape)
    units = _output_shape(trunk or [("flatten",)], shape)
    for last in (1, outputs):
        yield from _stack_sizes([*stream, ("dense", last, "linear")], units)


def _stack_sizes(layers: Iterable[tuple], shape: tuple[int, ...]) -> Iterator[int]:
    for layer in layers:
        kind, *rest = layer
        if kind == "encoders":
            for start, stop, inner in rest[0]:
                yield from _stack_sizes(inner, (stop - start,))
        elif kind in ("dense", "convolution"):
            window = rest[1] ** 2 if kind == "convolution" else 1
            yield window * shape[-1] * rest[0]
            yield rest[0]
        elif kind == "log_std":
            yield shape[-1]
        shape = _output_shape([layer], shape)


def _output_shape(layers: Iterable[tuple], shape: tuple[int, ...]) -> tuple[int, ...]:
    for kind, *rest in layers:
        if kind == "dense":
            shape = (*shape[:-1], rest[0])
        elif kind == "convolution":
            filters, size, stride, *_ = rest
            shape = (*((side - size) // stride + 1 for side in shape[:2]), filters)
        elif kind == "encoders":
            parts = [_output_shape(inner or [("flatten",)], (stop - start,)) for start, stop, inner in rest[0]]
            shape = (sum(part[-1] for part in parts),)
        elif kind == "rearrange":
            shape = rest[1]
        elif kind == "flatten":
            shape = (math.prod(shape),)
        elif kind == "log_std":
            shape = (*shape[:-1], 2 * shape[-1])
    return shape
