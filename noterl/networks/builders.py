"""Builders of the default networks.

They return Keras models on TensorFlow and JAX, and native modules on torch, where a Keras layer call costs two to three
times a native one. Initial weights are sampled in NumPy from the agent's generator, so that a seed gives the same
network on every backend: uniform (Lillicrap et al., 2016), as in PyTorch's layers, or orthogonal for on-policy agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from noterl import backends
from noterl.backends import keras
from noterl.networks.access import Network, get_weights, is_module, set_weights, stacked_layers
from noterl.networks.initializers import initial_weights
from noterl.networks.keras_layers import keras_network
from noterl.random import network_generator
from noterl.utils.checks import check_word, finite, non_negative

_DENSE = ("Dense", "Linear")

# The smallest height and width from which the convolutions of `nature_cnn` leave one pixel.
LEAST_PIXELS = 36

ACTIVATIONS = ("relu", "tanh", "sigmoid", "elu", "silu", "gelu", "linear")


def mlp(
    inputs: int | tuple[int, ...],
    hidden: Sequence[int],
    outputs: int,
    *,
    activation: str = "relu",
    gain: float | None = None,
    log_std: float | None = None,
) -> Network:
    """Build a multi-layer perceptron with a linear last layer.

    Args:
        inputs: the number of features, or the shape of an observation, which is flattened.
        hidden: the units of each hidden layer; may be empty.
        outputs: the number of outputs.
        activation: of the hidden layers, one of `ACTIVATIONS`.
        gain: the last layer's gain of orthogonal kernels (Saxe et al., 2014), with sqrt(2) in hidden layers; None for
            `fan_in_uniform`.
        log_std: the initial log standard deviations for `heads.Gaussian`, trained and independent of the observation;
            None for none.

    Returns:
        A network `[B, inputs] -> [B, outputs]`; with `log_std`, `[B, 2 * outputs]`.

    Raises:
        ValueError: if a size is not a positive int, the activation is unknown, `gain` is negative or `log_std` is not
            finite.

    Example:
    >>> from noterl import networks
    >>> [weight.shape for weight in networks.get_weights(networks.mlp(4, [8], 2))]
    [(4, 8), (8,), (8, 2), (2,)]
    """
    shape, layers = _hidden_layers(inputs, hidden, outputs, activation, _hidden_gain(gain))
    return _build(("sequential", [*layers, *_last_layers(outputs, gain, log_std)]), shape)


def dueling_mlp(
    inputs: int | tuple[int, ...], hidden: Sequence[int], outputs: int, *, activation: str = "relu"
) -> Network:
    """Build the dueling network of Wang et al. (2016), equation 9, on dense layers.

    `q = value + advantage - mean(advantage)`. All hidden layers but the last are shared. The value and the advantage
    stream have one hidden layer each, of the last size. Arguments, shapes and errors as in `mlp`.
    """
    shape, layers = _hidden_layers(inputs, hidden, outputs, activation, None)
    trunk, stream = (layers[:-1], layers[-1:]) if len(hidden) else (layers, [])
    return _build(("dueling", trunk, stream, int(outputs)), shape)


def nature_cnn(
    shape: tuple[int, ...],
    outputs: int,
    *,
    dueling: bool = False,
    gain: float | None = None,
    log_std: float | None = None,
) -> Network:
    """Build the convolutional network of Mnih et al. (2015).

    Three convolutions (32 of 8x8 stride 4, 64 of 4x4 stride 2, 64 of 3x3 stride 1), then 512 units, all with ReLU.
    Observations are `[B, height, width, channels]` with values 0 to 255; the network divides by 255. Observations of
    shape (channels, height, width), as from `gymnasium.wrappers.FrameStackObservation`, are transposed first. `gain`
    and `log_std` are those of `mlp`, for a network that is not dueling.

    Raises:
        ValueError: if the images are smaller than 36x36.
    """
    _check_sizes(shape=shape, outputs=(outputs,))
    if not is_image_shape(shape):
        raise ValueError(f"shape must be (height, width, channels) with at least 36x36 pixels, got {tuple(shape)}")
    trunk: list[tuple] = [("scale", 1 / 255)]
    trunk += [("channels_last",)] if shape[0] < LEAST_PIXELS else []
    trunk += [("convolution", *sizes, "relu", _hidden_gain(gain)) for sizes in ((32, 8, 4), (64, 4, 2), (64, 3, 1))]
    trunk += [("flatten",)]
    if dueling:
        return _build(("dueling", trunk, [("dense", 512, "relu")], int(outputs)), tuple(shape))
    layers = [*trunk, ("dense", 512, "relu", _hidden_gain(gain)), *_last_layers(outputs, gain, log_std)]
    return _build(("sequential", layers), tuple(shape))


def is_image_shape(shape: tuple[int, ...]) -> bool:
    """Whether `nature_cnn` accepts observations of this shape, with channels last or first.

    Example:
    >>> from noterl import networks
    >>> [networks.is_image_shape(shape) for shape in ((84, 84, 3), (4, 84, 84), (84, 84), (3, 32, 32))]
    [True, True, False, False]
    """
    return len(shape) == 3 and max(min(shape[:2]), min(shape[1:])) >= LEAST_PIXELS


def share_trunk(network: Network, outputs: int, *, gain: float | None = None) -> Network:
    """Build a network that shares all layers of another one except the last, such as a critic for an actor.

    Args:
        network: a network of `mlp` or `nature_cnn`.
        outputs: the number of outputs.
        gain: of the last layer, as in `mlp`.

    Raises:
        ValueError: if `network` is not a stack of layers.
    """
    layers = stacked_layers(network)
    while layers and type(layers[-1]).__name__ not in _DENSE:
        layers.pop()
    if not layers:
        raise ValueError(f"network must be a Sequential stack with a dense last layer, got {network!r}")
    kernel = get_weights(layers.pop())[0]
    last = mlp(kernel.shape[0], [], outputs, gain=gain)
    layers += [layer for layer in stacked_layers(last) if type(layer).__name__ in _DENSE]
    if is_module(last):
        return type(last)(*layers)
    return keras.Sequential([keras.Input(network.input_shape[1:]), *layers])


def _hidden_gain(gain: float | None) -> float | None:
    """Return the gain of hidden layers (He et al., 2015), if the last layer has a gain."""
    return None if gain is None else 2**0.5


def _build(plan: tuple, shape: tuple[int, ...]) -> Network:
    """Build the network of a plan on this backend, with weights from the agent's generator."""
    native = getattr(backends.current(), "modules", None)
    network = keras_network(plan, shape) if native is None else native.build(plan, shape)
    set_weights(network, initial_weights(plan, get_weights(network), network_generator()))
    if native is None:
        network.noterl_recipe = (plan, shape)
    return network


def _check_sizes(**sizes: Sequence[Any]) -> None:
    for name, values in sizes.items():
        if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str):
            raise ValueError(f"{name} must be a sequence of positive ints, such as (64, 64), got {values!r}")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must hold positive ints, got {value!r}")


def _hidden_layers(
    inputs: Any, hidden: Sequence[int], outputs: int, activation: str, gain: float | None
) -> tuple[tuple[int, ...], list[tuple]]:
    """Return the shape of the inputs, and the plan of the layers before the last."""
    shape = tuple(inputs) if isinstance(inputs, Sequence | np.ndarray) else (inputs,)
    _check_sizes(inputs=shape, hidden=hidden, outputs=(outputs,))
    check_word("activation", activation, ACTIVATIONS)
    flatten: list[tuple] = [("flatten",)] if len(shape) > 1 else []
    return shape, flatten + [("dense", int(units), activation, gain) for units in hidden]


def _last_layers(outputs: int, gain: float | None, log_std: float | None) -> list[tuple]:
    """Return the plan of the linear last layer, and of the log standard deviations if there are any."""
    last: list[tuple] = [("dense", int(outputs), "linear", None if gain is None else non_negative("gain", gain))]
    return last if log_std is None else [*last, ("log_std", finite("log_std", log_std))]
