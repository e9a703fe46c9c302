"""A limit of the networks that are built from the arguments in a file.

A file of a few bytes may name layers of any size. Their weights are in the file too, so `noterl.load` allows no more.
Layers without weights, such as one that concatenates its input with itself, are limited by the size of their outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from noterl.backends import renorm
from noterl.networks.layers import PLAN_LAYERS, stacks
from noterl.utils import budget
from noterl.utils.files import FileError

# Networks that share layers build some that they do not keep, so twice the weights of the file are allowed.
_SPARE_VALUES = 2**16
_SPARE_ARRAYS = 64

# The initial weights of normalizations, which are constants.
_NORMS = {"layer_norm": {"gamma": 1.0, "beta": 0.0}, "batch_renorm": renorm.WEIGHTS}


class NetworkSizeError(ValueError):
    """A network has more weights, layers or outputs than `noterl.utils.budget` allows; nothing was allocated."""


def size_limit(variables: Any) -> AbstractContextManager[None]:
    """Return a context in which networks may have about twice the weights of a saved agent, together.

    Twice, because networks that share layers are built and partly discarded. `LIMITS` in `noterl.utils.budget` limits
    layers and outputs.

    Args:
        variables: the entry "variables" of a saved state, which may be malformed.
    """
    lists = [group for group in variables.values() if isinstance(group, list)] if isinstance(variables, dict) else []
    weights = [weight for group in lists for weight in group if isinstance(weight, np.ndarray)]
    limits = {
        "weights": 2 * sum(weight.size for weight in weights) + _SPARE_VALUES,
        "arrays of weights": 2 * len(weights) + _SPARE_ARRAYS,
    }
    place = (
        "the arguments in its member 'agent.json' describe larger networks than those whose weights are in its member "
        "'variables.safetensors'"
    )
    return budget.using(budget.Budget(place, FileError, **limits))


def claim(sizes: Iterable[int], own: budget.Budget | None = None) -> None:
    """Count the weights of a network before it is built.

    Args:
        sizes: the number of values in each weight.
        own: the budget of the network outside of `size_limit`; by default a new one.

    Raises:
        FileError: inside `size_limit`, if the networks have more weights than the file.
        NetworkSizeError: outside, if the network has more weights than one may have.
    """
    limit = budget.current() or own or budget.Budget("a network is too large", NetworkSizeError)
    for size in sizes:
        limit.spend("weights", size)
        limit.spend("arrays of weights")


class PlanWeight(NamedTuple):
    """One weight of a plan.

    Attributes:
        size: the number of its values.
        role: "kernel", "bias" or "constant".
        value: the initial value of a constant; for the others, the gain of the layer.
    """

    size: int
    role: str
    value: Any


def plan_weights(plan: tuple[Any, ...], shape: tuple[int, ...]) -> Iterator[PlanWeight]:
    """Yield the weights of a plan, which `noterl.networks.builders` describes.

    Args:
        plan: the plan of the network.
        shape: the shape of its inputs.
    """
    first, *streams = stacks(plan)
    yield from _stack_weights(first, shape)
    features = _output_shape(first or [("flatten",)], shape)
    for stream in streams:
        yield from _stack_weights(stream, features)


def _stack_weights(layers: Iterable[tuple], shape: tuple[int, ...]) -> Iterator[PlanWeight]:
    """Yield the weights of a stack of layers for inputs of this shape, in the order of the network's weights."""
    for layer in layers:
        kind, *args = layer
        if kind == "encoders":
            for start, stop, inner in args[0]:
                yield from _stack_weights(inner, (stop - start,))
        elif kind == "residual":
            if _output_shape(args[0], shape) != shape:
                raise ValueError(f"a residual block must have {shape} units, as the layer before, got {args[0]!r:.200}")
            yield from _stack_weights(args[0], shape)
        elif kind in ("dense", "convolution"):
            window = args[1] ** 2 if kind == "convolution" else 1
            gain = dict(zip(PLAN_LAYERS[kind], args, strict=False)).get("gain")
            yield PlanWeight(window * shape[-1] * args[0], "kernel", gain)
            yield PlanWeight(args[0], "bias", gain)
        elif kind == "log_std":
            yield PlanWeight(shape[-1], "constant", args[0])
        elif kind in _NORMS:
            for name, value in _NORMS[kind].items():
                yield PlanWeight(1 if name == "updates" else shape[-1], "constant", value)
        shape = _output_shape([layer], shape)


def _output_shape(layers: Iterable[tuple], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of one output of a stack of layers; layers that are not listed keep the shape."""
    for layer, *args in layers:
        if layer == "dense":
            shape = (*shape[:-1], args[0])
        elif layer == "convolution":
            filters, size, stride, *_ = args
            shape = (*((side - size) // stride + 1 for side in shape[:2]), filters)
        elif layer == "encoders":
            outputs = [_output_shape(inner or [("flatten",)], (stop - start,)) for start, stop, inner in args[0]]
            shape = (sum(part[-1] for part in outputs),)
        elif layer == "rearrange":
            shape = args[1]
        elif layer == "flatten":
            shape = (math.prod(shape),)
        elif layer == "log_std":
            shape = (*shape[:-1], 2 * shape[-1])
    return shape
