"""The Keras models of `noterl.networks` on TensorFlow and JAX; on torch, the builders make native modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from noterl.backends import keras, renorm
from noterl.backends.nested import split_columns
from noterl.networks.layers import NORM_EPSILON, num_values, stacks


def keras_network(plan: tuple[Any, ...], shape: tuple[int, ...]) -> keras.Model:
    """Build the network of a plan, which `noterl.networks.builders` describes.

    Kernels are zeros, because Keras's own initializers would be compiled on JAX. The builders set the initial weights.
    """
    created: list[keras.layers.Layer] = []

    def stack(shape: tuple[int, ...], layers: Sequence[tuple]) -> keras.Sequential:
        """Build a stack of layers for inputs of this shape, and add the layers to `created`."""
        built = [nested[layer[0]](layer[1]) if layer[0] in nested else _keras_layer(layer) for layer in layers]
        created.extend(built)
        return keras.Sequential([keras.Input(shape), *built])

    def encoders(plans: Sequence[tuple[int, int, Sequence[tuple]]]) -> Encoders:
        places = [(start, stop) for start, stop, _ in plans]
        return Encoders(places, [stack((stop - start,), inner or [("flatten",)]) for start, stop, inner in plans])

    # The last layer of a residual block is dense, of as many units as the inputs.
    nested: dict[str, Any] = {"encoders": encoders, "residual": lambda inner: Residual(stack((inner[-1][1],), inner))}
    first, *streams = stacks(plan)
    network = stack(shape, first or [("flatten",)])
    if streams:
        branches = (stack(network.output_shape[1:], layers) for layers in streams)
        network = Dueling(network, *branches, values=num_values(plan))
        network(np.zeros((1, *shape), "float32"))
    for layer in created:
        if hasattr(layer, "kernel_initializer"):  # a network that is rebuilt from its config must not be all zeros
            layer.kernel_initializer = keras.initializers.GlorotUniform()
    return network


def _keras_layer(layer: tuple) -> keras.layers.Layer:
    """Return the Keras layer of a layer of a plan that has no inner layers."""
    options: dict[str, Any] = {"kernel_initializer": "zeros"}
    match layer:
        case ("dense", units, activation, *_):
            return keras.layers.Dense(units, activation=activation, **options)
        case ("convolution", filters, size, stride, activation, *_):
            options["data_format"] = "channels_last"
            return keras.layers.Conv2D(filters, size, stride, activation=activation, **options)
        case ("scale", factor):
            return keras.layers.Rescaling(factor)
        case ("rearrange", axes, shape):
            return Rearrange(axes, shape)
        case ("log_std", _):
            return LogStd()
        case ("layer_norm",):
            return keras.layers.LayerNormalization(epsilon=NORM_EPSILON)
        case ("batch_renorm",):
            return BatchRenorm()
        case ("activation", name):
            return keras.layers.Activation(name)
        case ("dropout", rate):
            return keras.layers.Dropout(rate)
    return keras.layers.Flatten(data_format="channels_last")


class _Nested(keras.layers.Layer):
    """A layer that passes its arguments on to copies: the attributes `nested`, among which are networks."""

    nested: tuple[str, ...] = ("network",)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor, for copies of a network that holds this layer."""
        networks = {name: keras.saving.serialize_keras_object(getattr(self, name)) for name in self.nested}
        return {**super().get_config(), **networks}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Build a layer from what `get_config` returned."""
        return cls(**{**config, **{name: keras.saving.deserialize_keras_object(config[name]) for name in cls.nested}})


@keras.saving.register_keras_serializable("noterl")
class Dueling(_Nested, keras.Model):
    """A dueling network: `value + advantage - mean(advantage)` on a shared trunk.

    Args:
        trunk: the shared layers.
        value: the value stream, `values` outputs.
        advantage: the advantage stream, `values` outputs for each action.
        values: 1, or the number of atoms of a distribution.
    """

    nested = ("trunk", "value", "advantage", "values")

    def __init__(
        self,
        trunk: keras.Sequential,
        value: keras.Sequential,
        advantage: keras.Sequential,
        *,
        values: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.trunk = trunk
        self.value = value
        self.advantage = advantage
        self.values = values

    def call(self, observation: Any) -> Any:
        """Return the Q values `[B, A]`, or the atoms of their distributions, `[B, Z A]`."""
        features = self.trunk(observation)
        value = self.value(features)
        advantage = self.advantage(features)
        if self.values == 1:
            return value + advantage - keras.ops.mean(advantage, axis=-1, keepdims=True)
        atoms = keras.ops.reshape(advantage, (-1, self.values, advantage.shape[-1] // self.values))
        centered = keras.ops.expand_dims(value, -1) + atoms - keras.ops.mean(atoms, axis=-1, keepdims=True)
        return keras.ops.reshape(centered, (-1, advantage.shape[-1]))


@keras.saving.register_keras_serializable("noterl")
class Encoders(_Nested):
    """Passes parts of the columns of inputs `[B, D]` through a network each, and concatenates the outputs."""

    nested = ("places", "networks")

    def __init__(self, places: Sequence[tuple[int, int]], networks: Sequence[keras.Sequential], **options: Any) -> None:
        super().__init__(**options)
        self.places = list(places)
        self.networks = list(networks)

    def call(self, inputs: Any) -> Any:
        """Return the features `[B, F]`."""
        places = zip(self.places, self.networks, strict=True)
        return keras.ops.concatenate([network(inputs[:, start:stop]) for (start, stop), network in places], axis=-1)


@keras.saving.register_keras_serializable("noterl")
class BatchRenorm(keras.layers.Layer):
    """Batch renormalization of rows; see `noterl.backends.renorm`. All numbers are float32, also under bfloat16."""

    def __init__(self, **options: Any) -> None:
        super().__init__(autocast=False, **options)

    def build(self, input_shape: tuple) -> None:
        """Add the weights, of which updates train scale and offset."""
        for name, value in renorm.WEIGHTS.items():
            shape = () if name == "updates" else input_shape[-1:]
            options: dict[str, Any] = {"trainable": name in renorm.TRAINED, "autocast": False, "name": name}
            self.add_weight(shape, "ones" if value else "zeros", **options)

    def call(self, rows: Any, training: bool = False) -> Any:
        """Return `[B, D]`."""
        values = [variable.value for variable in self.variables]
        is_trained = bool(training and self.trainable)
        outputs, moved = renorm.renormalize(keras.ops.cast(rows, "float32"), values, training=is_trained)
        for variable, value in zip(self.variables[len(renorm.TRAINED) :], moved, strict=False):
            variable.assign(value)
        return outputs


@keras.saving.register_keras_serializable("noterl")
class Residual(_Nested):
    """Adds the outputs of a network to its inputs."""

    def __init__(self, network: keras.Sequential, **options: Any) -> None:
        super().__init__(**options)
        self.network = network

    def call(self, inputs: Any) -> Any:
        """Return `inputs + network(inputs)`."""
        return inputs + self.network(inputs)


@keras.saving.register_keras_serializable("noterl")
class MultiInput(_Nested, keras.Model):
    """Passes the parts of rows `[B, D]` to a model that takes a dict; `backends.nested` describes `places`."""

    nested = ("model", "places")

    def __init__(self, model: keras.Model, places: dict[str, Any], **options: Any) -> None:
        super().__init__(**options)
        self.model = model
        self.places = places

    def call(self, rows: Any) -> Any:
        """Return what the model returns."""
        rows = keras.ops.cast(rows, "float32")
        return self.model(split_columns(rows, self.places, keras.ops.reshape))


@keras.saving.register_keras_serializable("noterl")
class Rearrange(_Nested):
    """Transposes the axes of each row, and then reshapes the row."""

    nested = ("axes", "shape")

    def __init__(self, axes: Sequence[int], shape: Sequence[int], **options: Any) -> None:
        super().__init__(**options)
        self.axes = tuple(axes)
        self.shape = tuple(shape)

    def call(self, rows: Any) -> Any:
        """Return `[B, *shape]`."""
        return keras.ops.reshape(keras.ops.transpose(rows, (0, *(axis + 1 for axis in self.axes))), (-1, *self.shape))


@keras.saving.register_keras_serializable("noterl")
class LogStd(keras.layers.Layer):
    """Appends trained values `[A]` to every row of the inputs `[B, A]`: outputs `[B, 2 A]`."""

    def build(self, input_shape: tuple) -> None:
        """Add the trained values."""
        self.log_std = self.add_weight(shape=(input_shape[-1],), initializer="zeros", name="log_std")

    def call(self, mean: Any) -> Any:
        """Return `[B, 2 A]`."""
        return keras.ops.concatenate([mean, keras.ops.zeros_like(mean) + self.log_std], axis=-1)
