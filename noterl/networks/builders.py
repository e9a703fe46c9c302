"""Builders of the default networks.

The builders return Keras models on TensorFlow and JAX, and native modules on torch. There, calling a Keras layer takes
two to three times as long as calling a native one. Initial weights are sampled in NumPy from the agent's generator, so
that a seed gives the same network on every backend. The weights are uniform (Lillicrap et al., 2016), as in PyTorch's
layers, or orthogonal for on-policy agents.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from noterl import backends
from noterl.backends import keras, ops
from noterl.envs.observation import ObservationEncoder, Part
from noterl.networks.access import Network, get_weights, is_module, recipe, set_weights, stacked_layers
from noterl.networks.description import HiddenLayers
from noterl.networks.initializers import initial_weights
from noterl.networks.keras_layers import keras_network
from noterl.networks.layers import ACTIVATION_TABLE, ACTIVATIONS
from noterl.networks.size_limit import claim, plan_weights
from noterl.random import network_generator
from noterl.utils.checks import check_bool, check_word, finite, non_negative, probability

# A plan describes a network for every backend. It is a tuple: "sequential" and its layers; or "dueling", the layers of
# the trunk, the layers of each stream before its last, the number of outputs and, if it is not 1, that of the value
# stream. A layer is a tuple of its kind and arguments. The kinds are
# - dense, with units, activation and gain;
# - convolution, with filters, size, stride, activation and gain;
# - encoders, with a list of (first column, end column, layers) for the parts of a vector;
# - rearrange, with axes and shape;
# - scale, with a factor;
# - log_std, with the initial value;
# - layer_norm; batch_renorm; activation, with a name; dropout, with a rate;
# - residual, with a list of layers whose outputs are added to their inputs;
# - flatten.
# The gain is that of orthogonal weights, ("gates", N) for those of N gates, "glorot_uniform", or None for uniform
# weights, which is also the default.

_DENSE = ("Dense", "Linear")
_OTHER_LAYERS = ("LayerNormalization", "LayerNorm", "Residual")

# The smallest height and width from which the convolutions of `nature_cnn` leave one pixel.
LEAST_PIXELS = 36


def mlp(
    inputs: int | tuple[int, ...],
    hidden: Sequence[int],
    outputs: int,
    *,
    activation: str = "relu",
    gain: float | None = None,
    log_std: float | None = None,
    layer_norm: bool = False,
    dropout: float = 0.0,
) -> Network:
    """Build a multi-layer perceptron with a linear last layer.

    Args:
        inputs: the number of features, or the shape of an observation, which is flattened.
        hidden: the units of each hidden layer; may be empty.
        outputs: the number of outputs.
        activation: of the hidden layers, one of `ACTIVATIONS`.
        gain: the gain of the last layer, if kernels are orthogonal (Saxe et al., 2014); hidden layers then have the
            gain sqrt(2). None for uniform weights, `initializers.fan_in_uniform`.
        log_std: the initial log standard deviations for `heads.Gaussian`, which are trained and do not depend on the
            observation. None for a network without log standard deviations.
        layer_norm: whether hidden layers normalize their values before the activation (Ba et al., 2016).
        dropout: the share of the values of hidden layers that is 0 in each update, before the normalization.

    Returns:
        A network `[B, inputs] -> [B, outputs]`; with `log_std`, `[B, 2 * outputs]`.

    Raises:
        ValueError: if a size is not a positive int, the activation is unknown, `gain` is negative, `log_std` is not
            finite or `dropout` is not between 0 and 1.

    Example:
    >>> from noterl import networks
    >>> [weight.shape for weight in networks.get_weights(networks.mlp(4, [8], 2))]
    [(4, 8), (8,), (8, 2), (2,)]
    """
    layers = _hidden_layers(hidden, activation, _hidden_gain(gain), layer_norm, dropout)
    return _dense_network([], inputs, layers, outputs, gain, log_std)


def cell_layer(inputs: int, units: int, gates: int, *, layer_norm: bool) -> Network:
    """Build a part of a recurrent cell: a dense layer of its gates, a layer normalization, or both.

    Args:
        inputs: the number of inputs.
        units: of the cell.
        gates: how many times so many outputs the dense layer has; 0 for no dense layer.
        layer_norm: whether the result is normalized (Ba et al., 2016).
    """
    layers: list[tuple] = [("dense", gates * units, "linear", ("gates", gates))] if gates else []
    return _build(("sequential", [*layers, *([("layer_norm",)] if layer_norm else [])]), (inputs,))


def dueling_mlp(
    inputs: int | tuple[int, ...], hidden: Sequence[int], outputs: int, *, activation: str = "relu"
) -> Network:
    """Build the dueling network of Wang et al. (2016), equation 9, on dense layers.

    `q = value + advantage - mean(advantage)`. All hidden layers but the last are shared. The value and the advantage
    stream have one hidden layer each, of the last size. Arguments, shapes and errors as in `mlp`.
    """
    return _dense_network([], inputs, _hidden_layers(hidden, activation, None), outputs, dueling=True)


def nature_cnn(
    shape: tuple[int, ...],
    outputs: int,
    *,
    dueling: int = False,
    gain: float | None = None,
    log_std: float | None = None,
    scale: float | None = 1 / 255,
    layer_norm: bool = False,
    dropout: float = 0.0,
) -> Network:
    """Build the convolutional network of Mnih et al. (2015).

    Three convolutions (32 of 8x8 stride 4, 64 of 4x4 stride 2, 64 of 3x3 stride 1), then 512 units, all with ReLU.
    Observations are images `[B, *shape]` of one of these shapes; the others are rearranged to the first:

    - (height, width, channels);
    - (height, width);
    - (channels, height, width), as from `gymnasium.wrappers.FrameStackObservation`;
    - (frames, height, width, channels), a stack of images with channels.

    `gain` and `log_std` are as in `mlp`; a dueling network ignores both. `layer_norm` and `dropout`, also as in `mlp`,
    are for the 512 units. Pixel values are multiplied by `scale`. The default is for values from 0 to 255; None is for
    values that are small already.

    Raises:
        ValueError: if the images are smaller than 36x36.
    """
    check_sizes(shape=shape, outputs=(outputs,))
    if not is_image_shape(shape):
        raise ValueError(f"shape must be (height, width, channels) with at least 36x36 pixels, got {tuple(shape)}")
    hidden_gain = None if dueling else _hidden_gain(gain)
    stream = _hidden_layer(512, "relu", hidden_gain, (layer_norm, dropout))
    last = [] if dueling else _last_layers(outputs, gain, log_std)
    return _build(_plan(_convolutions(tuple(shape), scale, hidden_gain), stream, last, outputs, dueling), tuple(shape))


def is_image_shape(shape: tuple[int, ...]) -> bool:
    """Whether `nature_cnn` accepts observations of this shape.

    Example:
    >>> from noterl import networks
    >>> [networks.is_image_shape(shape) for shape in ((84, 84, 3), (84, 84), (4, 84, 84), (4, 84, 84, 1), (3, 32, 32))]
    [True, True, True, True, False]
    """
    sides = {2: [shape], 3: [shape[:2], shape[1:]], 4: [shape[1:3]]}.get(len(shape), [])
    return any(min(pair) >= LEAST_PIXELS for pair in sides)


def default_network(
    space: spaces.Space[Any],
    hidden: Sequence[int] | HiddenLayers,
    outputs: int,
    *,
    activation: str = "relu",
    dueling: int = False,
    gain: float | None = None,
    log_std: float | None = None,
    **norm: Any,
) -> Network:
    """Build the default network for observations: `nature_cnn` for images, otherwise `mlp` or `dueling_mlp`.

    Bytes with the bounds 0 and 255, and images of floats with these bounds, are divided by 255. Each image in a Dict
    goes through the convolutions of `nature_cnn` and 256 units, whose outputs join the other values of the Dict.

    Args:
        space: the space of observations. Networks receive a Box unchanged, and any other space as a vector.
        hidden: the units of each hidden layer, unless the observations are images; or layers of a description, whose
            convolutions receive the images and whose other layers follow.
        outputs: the number of outputs.
        activation: of the hidden layers, unless the observations are images or layers are described.
        dueling: whether the network has a value and an advantage stream. A number counts the values of the value
            stream, each for as many outputs as there are actions.
        gain: as in `mlp`; a dueling network ignores the gain.
        log_std: as in `mlp`; a dueling network has no log standard deviations.
        **norm: `layer_norm` and `dropout`, as in `mlp`; not for layers of a description. For images, both are for the
            512 units.

    Raises:
        ValueError: if the space is not supported, or another argument is not one of the allowed values.

    Warns:
        UserWarning: if images are flattened because the images are too small for the convolutions.
    """
    encoder = ObservationEncoder(space)
    shape = tuple(encoder.space.shape)
    described = hidden if isinstance(hidden, HiddenLayers) else None
    if described is None and is_image_shape(shape):
        options: dict[str, Any] = {"gain": gain, "log_std": log_std, **norm}
        return nature_cnn(shape, outputs, dueling=dueling, scale=pixel_scale(encoder.space), **options)
    hidden_gain = None if dueling else _hidden_gain(gain)
    layers = _hidden_layers(hidden, activation, hidden_gain, **norm)
    first = _first_layers(encoder, hidden_gain, described)
    for part in encoder.parts if described is None else ():
        _warn_if_flattened(part.space)
    last = None if described is None else described.last(outputs, gain)
    return _dense_network(first, shape, layers, outputs, gain, log_std, dueling, last)


def default_encoder(
    space: spaces.Space[Any], gain: float | None, hidden: Sequence[int] | None = None
) -> tuple[Network, int]:
    """Return the first layers of a default network, and the number F of their outputs.

    Images go through the convolutions of `nature_cnn` and 512 units, or 256 units if a Dict has other parts. Other
    observations are flattened.

    Args:
        space: as in `default_network`.
        gain: of the last layer of the network, as in `mlp`.
        hidden: the units of dense layers that follow; None for 512 units after an image, and none otherwise.

    Returns:
        A network `[B, observation] -> [B, F]`, and F.
    """
    encoder = ObservationEncoder(space)
    shape = tuple(encoder.space.shape)
    hidden_gain = _hidden_gain(gain)
    if is_image_shape(shape):
        layers = _convolutions(shape, pixel_scale(encoder.space), hidden_gain)
        hidden = (512,) if hidden is None else hidden
    else:
        layers = _first_layers(encoder, hidden_gain)
        layers += [("flatten",)] if encoder.is_identity or not layers else []
    layers += [("dense", int(units), "relu", hidden_gain) for units in hidden or ()]
    network = _build(("sequential", layers), shape)
    return network, int(network(ops.zeros((1, *shape), "float32")).shape[-1])


def default_critic(
    space: spaces.Space[Any] | Sequence[spaces.Space[Any]],
    hidden: Sequence[int] | HiddenLayers,
    actions: int,
    activation: str = "relu",
    gain: float | None = None,
    outputs: int = 1,
    layer_norm: bool = False,
    dropout: float = 0.0,
) -> Network:
    """Build the default critic `[B, D + A] -> [B, outputs]` for observations with D values and A values of actions.

    An image goes through the convolutions of `nature_cnn` and 512 units, or 256 units if there are other parts. The
    outputs of the units join the other values. Values are divided by 255 as in `default_network`.

    Args:
        space: of the observations, or the spaces of several agents, whose observations are one after another.
        hidden: the units of each hidden layer; or layers of a description, as in `default_network`.
        actions: A, of all agents together.
        activation: of the hidden layers, unless layers are described.
        gain: as in `mlp`.
        outputs: the number of outputs.
        layer_norm: as in `mlp`; not for layers of a description.
        dropout: as in `mlp`; not for layers of a description.
    """
    encoders = list(map(ObservationEncoder, [space] if isinstance(space, spaces.Space) else space))
    sections: list[Part] = []
    size = 0
    for encoder in encoders:
        columns = [slice(size + part.columns.start, size + part.columns.stop) for part in encoder.parts]
        sections += [part._replace(columns=place) for part, place in zip(encoder.parts, columns, strict=True)]
        size += int(np.prod(encoder.space.shape))
    units = 512 if len(encoders) == 1 and encoders[0].is_identity else 256
    sections.append(Part((), None, slice(size, size + actions)))
    described = hidden if isinstance(hidden, HiddenLayers) else None
    first = _encoders(sections, units, _hidden_gain(gain), described)
    dense = _hidden_layers(hidden, activation, _hidden_gain(gain), layer_norm, dropout)
    last = None if described is None else described.last(outputs, gain)
    return _dense_network(first, size + actions, dense, outputs, gain, described_last=last)


def pixel_scale(space: spaces.Space[Any]) -> float | None:
    """Return 1/255 for bytes, and images of floats, with the bounds 0 and 255; None for other observations.

    Example:
    >>> import numpy as np
    >>> from gymnasium.spaces import Box
    >>> from noterl import networks
    >>> networks.pixel_scale(Box(0, 255, (128,), np.uint8)) == 1 / 255, networks.pixel_scale(Box(0, 255, (128,)))
    (True, None)
    """
    if not isinstance(space, spaces.Box) or not (space.dtype == np.uint8 or is_image_shape(space.shape)):
        return None
    return 1 / 255 if (space.low == 0).all() and (space.high == 255).all() else None


def column_scales(space: spaces.Space[Any]) -> np.ndarray:
    """Return a factor for each of the D values of an observation: 1/255 for pixels as in `pixel_scale`, otherwise 1."""
    encoder = ObservationEncoder(space)
    scales = np.ones(int(np.prod(encoder.space.shape)), np.float32)
    for part in encoder.parts:
        scales[part.columns] = pixel_scale(part.space) or 1.0
    return scales


def _first_layers(
    encoder: ObservationEncoder, gain: float | None, described: HiddenLayers | None = None
) -> list[tuple]:
    """Return the layers of a plan that precede the dense ones; without a description, no convolutions of a Box."""
    if not encoder.is_identity:
        return _encoders(encoder.parts, 256, gain, described)
    layers = _scale(pixel_scale(encoder.space))
    convolutions = [] if described is None else described.convolutions(gain)
    if described is not None and convolutions:
        described.check_images(_sides(encoder.space.shape))
        layers += [*_channels_last(encoder.space.shape), *convolutions]
    return layers


def _scale(factor: float | None) -> list[tuple]:
    """Return the layer of a plan that multiplies values by a factor; [] for None."""
    return [] if factor is None else [("scale", factor)]


def _encoders(
    parts: Sequence[Part], units: int, gain: float | None, described: HiddenLayers | None = None
) -> list[tuple]:
    """Return the layers of a plan that encode images and bytes among the parts of a vector; [] if there are none.

    If a description has convolutions, images go through these.
    """
    convolutions = [] if described is None else described.convolutions(gain)
    images = [space for _, space, _ in parts if _sides(() if space is None else space.shape or ()) is not None]
    if described is not None and not images:
        described.check_images(None)
    plans: list[tuple[int, int, list[tuple]]] = []
    for _, space, columns in parts:
        layers = _scale(pixel_scale(space))
        if described is not None and convolutions and any(space is image for image in images):
            shape = tuple(space.shape)
            described.check_images(_sides(shape))
            layers = [("rearrange", (0,), shape), *layers, *_channels_last(shape), *convolutions, ("flatten",)]
        elif isinstance(space, spaces.Box) and is_image_shape(space.shape):
            shape = tuple(space.shape)
            layers = [("rearrange", (0,), shape), *layers, *_convolutions(shape, None, gain)]
            layers += [("dense", units, "relu", gain)]
        plans.append((columns.start, columns.stop, layers))
    return [("encoders", plans)] if any(layers for _, _, layers in plans) else []


def _warn_if_flattened(space: spaces.Space[Any]) -> None:
    """Warn of images that are too small for the convolutions: matrices of pixels, and arrays of three or more axes."""
    if not isinstance(space, spaces.Box) or is_image_shape(space.shape):
        return
    if len(space.shape) > 2 or (len(space.shape) == 2 and pixel_scale(space) is not None):
        warnings.warn(
            f"observations of the shape {space.shape} are flattened for dense layers, because the default convolutions "
            f"need images of at least {LEAST_PIXELS}x{LEAST_PIXELS} pixels; pass a convolutional network of your own",
            stacklevel=3,
        )


def _convolutions(shape: tuple[int, ...], scale: float | None, gain: float | None) -> list[tuple]:
    """Return the layers of a plan for the convolutions of `nature_cnn`."""
    convolutions = [("convolution", *sizes, "relu", gain) for sizes in ((32, 8, 4), (64, 4, 2), (64, 3, 1))]
    return [*_scale(scale), *_channels_last(shape), *convolutions, ("flatten",)]


def _channels_last(shape: tuple[int, ...]) -> list[tuple]:
    """Return the layers of a plan that rearrange images to (height, width, channels)."""
    if len(shape) == 2:
        return [("rearrange", (0, 1), (*shape, 1))]
    if len(shape) == 4:
        frames, height, width, channels = shape
        return [("rearrange", (1, 2, 0, 3), (height, width, frames * channels))]
    is_channels_first = min(shape[:2]) < LEAST_PIXELS <= min(shape[1:])
    return [("rearrange", (1, 2, 0), (*shape[1:], shape[0]))] if is_channels_first else []


def _sides(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the height and the width of images of a shape, also of small ones; None for other observations."""
    if len(shape) not in (2, 3, 4):
        return None
    rearranged = _channels_last(shape)
    height, width = (rearranged[0][2] if rearranged else shape)[:2]
    return height, width


def share_trunk(
    network: Network,
    outputs: int,
    *,
    gain: float | None = None,
    hidden: HiddenLayers | None = None,
    own_layers: int = 0,
) -> Network:
    """Build a network that shares all layers of another one except the last, such as a critic for an actor.

    Args:
        network: a network of `mlp` or `nature_cnn`.
        outputs: the number of outputs.
        gain: of the last layer, as in `mlp`.
        hidden: a description of the new network, whose own layers follow the shared ones; None for none.
        own_layers: the number of dense, normalization and residual layers before the last that are not shared either.

    Raises:
        ValueError: if `network` is not a stack of layers.
    """
    layers = stacked_layers(network)
    for names in (_DENSE, *[_DENSE + _OTHER_LAYERS] * own_layers):
        while layers and type(layers[-1]).__name__ not in names:
            layers.pop()
        if not layers:
            raise ValueError(f"network must be a Sequential stack with a dense last layer, got {network!r}")
        kernel = get_weights(layers.pop())[0]
    if hidden is None:
        last = mlp(kernel.shape[0], [], outputs, gain=gain)
    else:
        plan = [*hidden.dense(_hidden_gain(gain), own=True), hidden.last(outputs, gain)]
        last = _build(("sequential", plan), kernel.shape[:1])
    layers += [layer for layer in stacked_layers(last) if type(layer).__name__ != "Float"]
    if is_module(last):
        return type(last)(*layers)
    return keras.Sequential([keras.Input(network.input_shape[1:]), *layers])


def batch_renormalized(network: Network) -> Network:
    """Return a new network with the layers of this one, whose dense layers receive renormalized inputs.

    Dense layers inside of residual blocks and encoders stay as before. `noterl.backends.renorm` has the formula. In an
    update, the new layers compute with the statistics of the batch; while acting, with running statistics.

    Args:
        network: a network of `mlp`, `nature_cnn`, `default_network` or `default_critic`, not a dueling one.

    Example:
    >>> from noterl import networks
    >>> network = networks.batch_renormalized(networks.mlp(4, [8], 2))
    >>> [weight.shape for weight in networks.get_weights(network)][:6]
    [(4,), (4,), (4,), (4,), (), (4, 8)]
    """
    (_, layers), shape = recipe(network)  # type: ignore[misc]
    renorm = {"dense": [("batch_renorm",)]}
    return _build(("sequential", [part for layer in layers for part in (*renorm.get(layer[0], []), layer)]), shape)


def _hidden_gain(gain: float | None) -> float | None:
    """Return the gain of hidden layers (He et al., 2015); None if the last layer has no gain."""
    return None if gain is None else 2**0.5


def _build(plan: tuple, shape: tuple[int, ...]) -> Network:
    """Build the network of a plan on this backend, with weights from the agent's generator.

    The attribute `noterl_recipe` of the network keeps the plan, for copies, files and the NumPy functions of acting.
    """
    weights = list(plan_weights(plan, shape))
    claim(weight.size for weight in weights)
    modules = backends.current().capabilities.get("modules")
    # The names of torch's classes are arguments, because backends lie on a floor below networks.
    names = {name: activation.torch for name, activation in ACTIVATION_TABLE.items()}
    network = keras_network(plan, shape) if modules is None else modules.build(plan, shape, names)
    set_weights(network, initial_weights(weights, get_weights(network), network_generator()))
    network.noterl_recipe = (plan, shape)
    return network


def build_plan(plan: Any, shape: tuple[int, ...]) -> Network:
    """Build the network of a plan from a file.

    Raises:
        ValueError: if `plan` is not a plan.
    """
    match plan:
        case ("sequential", list(layers)):
            _check_layers(layers)
        case ("dueling", list(trunk), list(stream), int(outputs)) if outputs > 0:
            _check_layers([*trunk, *stream])
        case ("dueling", list(trunk), list(stream), int(outputs), int(values)) if (
            outputs >= values > 1 > outputs % values
        ):
            _check_layers([*trunk, *stream])
        case _:
            raise ValueError(f"layers must be a plan, got {plan!r:.80}")
    return _build(plan, shape)


def _check_layers(layers: Sequence[Any]) -> None:
    """Raise a ValueError if one of the layers of a plan is malformed."""
    for layer in layers:
        match layer:
            case ("dense", int(units), str(activation), *gain) if units > 0 and len(gain) < 2:
                check_word("activation", activation, ACTIVATIONS)
            case ("convolution", int(), int(), int(), str(activation), *gain) if min(layer[1:4]) > 0 and len(gain) < 2:
                check_word("activation", activation, ACTIVATIONS)
            case ("encoders", list(plans)):
                _check_encoders(plans)
            case ("rearrange", tuple(axes), tuple(shape)) if all(type(length) is int for length in (*axes, *shape)):
                pass
            case ("scale" | "log_std" | "dropout", float() | int()) | ("flatten" | "layer_norm" | "batch_renorm",):
                pass
            case ("residual", [*_, ("dense", int(), str(), *_)] as inner):
                _check_layers(inner)
            case ("activation", str(activation)):
                check_word("activation", activation, ACTIVATIONS)
            case _:
                raise ValueError(f"a plan must have known layers, got {layer!r:.80}")


def check_hidden(hidden: Any) -> tuple[int, ...]:
    """Return the units of hidden layers, of which there must be at least one, as a tuple.

    Raises:
        ValueError: if they are not positive ints.
    """
    check_sizes(hidden=hidden)
    if not len(hidden):
        raise ValueError(f"hidden must hold the units of at least one layer, got {hidden!r}")
    return tuple(map(int, hidden))


def _check_encoders(plans: Sequence[Any]) -> None:
    """Raise a ValueError if the columns or the layers of one of the encoders are malformed."""
    end = 0
    for start, stop, inner in plans:
        if not (type(start) is type(stop) is int and end <= start < stop):
            raise ValueError(f"an encoder must have columns, got {start!r:.40} to {stop!r:.40} after {end}")
        end = stop
        _check_layers(inner)


def check_sizes(**sizes: Sequence[Any]) -> None:
    """Raise a ValueError that names the argument, unless each value is a sequence of positive ints."""
    for name, values in sizes.items():
        if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str):
            raise ValueError(f"{name} must be a sequence of positive ints, such as (64, 64), got {values!r}")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must hold positive ints, got {value!r}")


def _dense_network(
    first: list[tuple],
    inputs: Any,
    hidden: Sequence[list[tuple]],
    outputs: int,
    gain: float | None = None,
    log_std: float | None = None,
    dueling: int = False,
    described_last: tuple | None = None,
) -> Network:
    """Build the network of `mlp` or `dueling_mlp` behind the layers `first` of a plan; `hidden` of `_hidden_layers`.

    `first` may scale the observation, or encode an image or the parts of an observation. The last hidden layer becomes
    a layer of each stream of a dueling network. `dueling` is as in `default_network`. `described_last` is the last
    layer of a description of layers, in place of the linear one; a dueling network ignores this layer.
    """
    shape = tuple(inputs) if isinstance(inputs, Sequence | np.ndarray) else (inputs,)
    check_sizes(inputs=shape, outputs=(outputs,))
    flatten: list[tuple] = [("flatten",)] if len(shape) > 1 else []
    last = [] if dueling else _last_layers(outputs, gain, log_std, described_last)
    before = [layer for layers in hidden[:-1] for layer in layers]
    return _build(_plan([*first, *flatten, *before], hidden[-1] if hidden else [], last, outputs, dueling), shape)


def _hidden_layers(
    hidden: Sequence[int] | HiddenLayers,
    activation: str,
    gain: float | None,
    layer_norm: bool = False,
    dropout: float = 0.0,
) -> list[list[tuple]]:
    """Return the layers of a plan for each hidden layer; see `mlp`. The other arguments are not for a description."""
    if isinstance(hidden, HiddenLayers):
        return [[layer] for layer in hidden.dense(gain)]
    check_sizes(hidden=hidden)
    check_word("activation", activation, ACTIVATIONS)
    return [_hidden_layer(int(units), activation, gain, (layer_norm, dropout)) for units in hidden]


def _hidden_layer(units: int, activation: str, gain: float | None, norm: tuple[bool, float]) -> list[tuple]:
    """Return the layers of a plan for one hidden layer.

    Args:
        units: of the dense layer.
        activation: of the layer.
        gain: of the dense layer.
        norm: whether its values are normalized, and the share of them that is dropped before.
    """
    layer_norm = check_bool("layer_norm", norm[0])
    dropout = probability("dropout", norm[1])
    layers: list[tuple] = [("dropout", dropout)] if dropout else []
    layers += [("layer_norm",)] if layer_norm else []
    if not layers:
        return [("dense", units, activation, gain)]
    return [("dense", units, "linear", gain), *layers, ("activation", activation)]


def _plan(trunk: list[tuple], stream: list[tuple], last: list[tuple], outputs: int, dueling: int) -> tuple:
    """Return the plan of a dueling network, or without `dueling` the plan of a stack that ends in `last`."""
    if not dueling:
        return ("sequential", [*trunk, *stream, *last])
    return ("dueling", trunk, stream, int(outputs), *([int(dueling)] if dueling > 1 else []))


def _last_layers(
    outputs: int, gain: float | None, log_std: float | None, described: tuple | None = None
) -> list[tuple]:
    """Return the last layers of a plan: a linear one, and the log standard deviations if there are any."""
    last = described or ("dense", int(outputs), "linear", None if gain is None else non_negative("gain", gain))
    return [last] if log_std is None else [last, ("log_std", finite("log_std", log_std))]
