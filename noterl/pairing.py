"""Which variables of two networks of one build belong together.

Owns: the memory of pairs found before. Looking the variables of a small Keras network up costs as much as copying them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, ref

from noterl import backends

backends.choose()

import keras  # noqa: E402  (the backend is chosen first)

_known: WeakKeyDictionary[keras.layers.Layer, tuple[ref[Any], list, list]] = WeakKeyDictionary()


def paired(source: Any, target: Any, variables: Callable[[str, Any], list]) -> tuple[list, list]:
    """Return the variables of two networks, in an order in which they belong together.

    Args:
        source: a network.
        target: another of the same build.
        variables: finds those of a network, given whether it is the "source" or the "target".

    Raises:
        ValueError: if the networks differ in the shapes of their weights.
    """
    is_layer = isinstance(source, keras.layers.Layer)  # a torch module may be given other parameters at any time
    if is_layer and source in _known and _known[source][0]() is target:
        return _known[source][1:]
    sources, targets = variables("source", source), variables("target", target)
    shapes = [[tuple(variable.shape) for variable in found] for found in (sources, targets)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"source and target must be of one build, their weights have the shapes {shapes}")
    if is_layer:
        _known[source] = ref(target), sources, targets
    return sources, targets
