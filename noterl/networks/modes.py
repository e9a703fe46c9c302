"""How networks compute in an update: Keras layers in training mode, and all layers in bfloat16 if `compile` says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from noterl.backends import keras, ops
from noterl.networks.access import Network, find_networks, is_module, is_network, native_modules

PRECISIONS = ("float32", "bfloat16")


@contextmanager
def training_mode(networks: Sequence[Any], precision: str = "float32", mode: bool | None = None) -> Iterator[None]:
    """Inside the context, these networks compute as in an update.

    A call of a Keras network has `training=True`, or False if the network is not trainable, unless the call passes
    `training` itself. Keras has no mode of a whole network. So inside the context, the class of each network is
    replaced by a subclass with another `__call__`.

    Args:
        networks: Keras networks; with "bfloat16", modules of torch too.
        precision: "bfloat16" makes all layers compute in bfloat16. Weights and outputs stay float32.
        mode: what Keras networks receive as `training` instead.
    """
    classes: list[Any] = [type(network) for network in networks]
    for network, original in zip(networks, classes, strict=True):
        training = None if is_module(network) else bool(network.trainable) if mode is None else mode
        object.__setattr__(network, "__class__", _with_mode(original, training, precision))
    try:
        yield
    finally:
        for network, original in zip(networks, classes, strict=True):
            object.__setattr__(network, "__class__", original)


@contextmanager
def inference_mode(*networks: Any) -> Iterator[None]:
    """Inside the context, these networks compute as while acting, even in an update.

    The networks use the stored statistics, and do not change the statistics.
    """
    networks = tuple(find_networks({"": networks}).values())  # the parts of composites
    # Torch stores the mode in each module; Keras receives the mode in each call.
    modes = [(part, part.training) for network in networks if is_module(network) for part in network.modules()]
    for part, _ in modes:
        part.training = False
    try:
        with training_mode([network for network in networks if not is_module(network)], mode=False):
            yield
    finally:
        for part, was_training in modes:
            part.training = was_training


def returns_pair(network: Network, shape: tuple[int, ...]) -> bool:
    """Return whether a network returns two outputs, such as logits and a value, for observations of this shape.

    A network without known outputs is called on zeros, which builds a Keras network that is not built.
    """
    if isinstance(network, keras.Model) and getattr(network, "outputs", None):
        return len(network.outputs) == 2
    if not is_network(network):
        return False
    try:
        with inference_mode(network):  # batch normalization in training mode takes no single row
            outputs = network(ops.zeros((1, *shape), "float32"))
    except Exception:  # the dry run of updates raises a clearer error for a network that does not fit
        return False
    return isinstance(outputs, tuple | list) and len(outputs) == 2


@cache
def _with_mode(original: Any, training: bool | None, precision: str) -> type:
    """Return the subclass of a network's class for `training_mode`; None as `training` passes no mode."""
    mode = {} if training is None else {"training": training}

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        compute = partial(original.__call__, self, *args, **{**mode, **kwargs})
        return compute() if precision == "float32" else _in_bfloat16(self, compute)

    return type(original.__name__, (original,), {"__call__": call, "__module__": original.__module__})


def _in_bfloat16(network: Any, compute: Callable[[], Any]) -> Any:
    """Return the outputs of a network whose layers compute in bfloat16, as float32."""
    if is_module(network):
        return native_modules().in_bfloat16(compute)
    # A layer of the user may have no inner layers.
    layers = [inner for inner in network._flatten_layers() if inner is not network] or [network]
    policies = [layer.dtype_policy for layer in layers]
    for layer in layers:
        layer.dtype_policy = "mixed_bfloat16"
    try:
        outputs = compute()
    finally:
        for layer, policy in zip(layers, policies, strict=True):
            layer.dtype_policy = policy
    return keras.tree.map_structure(_as_float32, outputs)


def _as_float32(value: Any) -> Any:
    is_narrow = keras.ops.is_tensor(value) and keras.backend.standardize_dtype(value.dtype) == "bfloat16"
    return ops.cast(value, "float32") if is_narrow else value
