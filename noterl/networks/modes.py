"""The training mode of Keras networks, for layers such as Dropout and BatchNormalization."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any


@contextmanager
def training_mode(networks: Sequence[Any]) -> Iterator[None]:
    """Inside the context, calls of these Keras networks have `training=True`, or False if they are not trainable.

    A call that passes `training` itself is unchanged. Keras has no mode of a whole network. So inside the context, the
    class of each network is replaced by a subclass whose calls pass `training`.
    """
    kinds: list[Any] = [type(network) for network in networks]
    for network, kind in zip(networks, kinds, strict=True):
        object.__setattr__(network, "__class__", _with_mode(kind, bool(network.trainable)))
    try:
        yield
    finally:
        for network, kind in zip(networks, kinds, strict=True):
            object.__setattr__(network, "__class__", kind)


@cache
def _with_mode(kind: Any, training: bool) -> type:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return kind.__call__(self, *args, **{"training": training, **kwargs})

    return type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})
