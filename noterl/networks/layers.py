"""The names of layers and activations on all sides. This module imports no framework; each side resolves the names.

The operations of a graph are described in `noterl.networks.graph`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Activation(NamedTuple):
    """One activation.

    Attributes:
        torch: the class in `torch.nn` that computes the same without arguments; empty if there is none.
        torch_code: a template of the code in an exported file for torch.
    """

    torch: str
    torch_code: str


class Layer(NamedTuple):
    """One Keras layer that a file may hold.

    Attributes:
        arguments: the arguments that a file holds. No argument is a file, a function or another layer.
        has_activation: whether the layer applies an activation, whose name a file holds.
        merges: whether the layer receives a list of inputs.
        kind: the operation of a graph that computes the same; empty if there is none.
        fixed: the values that arguments must have, because the operation supports no others.
        settings: the arguments that are settings of the operation.
    """

    arguments: tuple[str, ...] = ()
    has_activation: bool = False
    merges: bool = False
    kind: str = ""
    fixed: Mapping[str, Any] = {}
    settings: tuple[str, ...] = ()

    @property
    def stored(self) -> frozenset[str]:
        """Everything that a file may hold of the layer."""
        return frozenset((*self.arguments, "trainable", *(["activation"] if self.has_activation else [])))


# The keys are names in `keras.activations`, and names of functions in `noterl.acting.numpy_layers`.
ACTIVATION_TABLE: dict[str, Activation] = {
    "relu": Activation("ReLU", "torch.relu({0})"),
    "tanh": Activation("Tanh", "torch.tanh({0})"),
    "sigmoid": Activation("Sigmoid", "torch.sigmoid({0})"),
    "elu": Activation("ELU", "functional.elu({0})"),
    "silu": Activation("SiLU", "functional.silu({0})"),
    "gelu": Activation("GELU", "functional.gelu({0})"),
    "linear": Activation("Identity", "{0}"),
    "softplus": Activation("Softplus", "functional.softplus({0})"),
    "softsign": Activation("Softsign", "functional.softsign({0})"),
    "selu": Activation("SELU", "torch.selu({0})"),
    "relu6": Activation("ReLU6", "functional.relu6({0})"),
    "mish": Activation("Mish", "functional.mish({0})"),
    "exponential": Activation("", "torch.exp({0})"),
    "softmax": Activation("", "torch.softmax({0}, dim=-1)"),
    "leaky_relu": Activation("", "functional.leaky_relu({0}, {negative_slope!r})"),  # torch has another default slope
}

# The activations that the builders accept, because their networks are native modules on torch.
ACTIVATIONS = tuple(name for name, activation in ACTIVATION_TABLE.items() if activation.torch)

# The arguments of activations in `torch.nn` that change the results, with the values for which they do not.
TORCH_DEFAULTS = (("alpha", 1.0), ("approximate", "none"), ("beta", 1.0), ("threshold", 20.0))

# Added to the variance by the layer normalization of plans, as in torch; Keras adds 1e-3 by default.
NORM_EPSILON = 1e-5

# Layers of the builders' plans, which `noterl.networks.builders` describes, and their arguments.
PLAN_LAYERS: dict[str, tuple[str, ...]] = {
    "dense": ("units", "activation", "gain"),
    "convolution": ("filters", "size", "stride", "activation", "gain"),
    "flatten": (),
    "layer_norm": (),
    "batch_renorm": (),
    "activation": ("activation",),
    "dropout": ("rate",),
    "residual": ("layers",),
    "encoders": ("plans",),
    "rearrange": ("axes", "shape"),
    "scale": ("factor",),
    "log_std": ("value",),
}


def stacks(plan: tuple) -> list[Any]:
    """Return the stacks of layers of a plan: one; or the trunk, the value stream and the advantage stream."""
    if plan[0] == "sequential":
        return [plan[1]]
    trunk, stream, outputs = plan[1:4]
    return [trunk, [*stream, ("dense", num_values(plan), "linear")], [*stream, ("dense", outputs, "linear")]]


def num_values(plan: tuple) -> int:
    """Return the number of outputs of the value stream of a plan: 1, or the atoms of a distribution."""
    return plan[4] if len(plan) > 4 else 1


_CONVOLUTION = ("filters", "kernel_size", "strides", "padding", "data_format", "dilation_rate", "groups", "use_bias")
_POOLING = ("pool_size", "strides", "padding", "data_format")
_GLOBAL_POOLING = ("data_format", "keepdims")
_LAYER_NORM = ("axis", "epsilon", "center", "scale")
_BATCH_NORM = ("axis", "momentum", "epsilon", "center", "scale")
_PLAIN_CONVOLUTION = {"padding": "valid", "data_format": "channels_last", "dilation_rate": [1, 1], "groups": 1}
_PLAIN_RELU = {"max_value": None, "negative_slope": 0, "threshold": 0}
_LAST = {"axis": -1}

# The keys are classes in `keras.layers`. The weights of an operation follow from its kind.
LAYER_TABLE: dict[str, Layer] = {
    "Activation": Layer(has_activation=True, kind="linear"),
    "Add": Layer(merges=True, kind="add"),
    "Average": Layer(merges=True, kind="add"),  # and divided by the number of inputs
    "AveragePooling1D": Layer(_POOLING),
    "AveragePooling2D": Layer(_POOLING),
    "BatchNormalization": Layer(_BATCH_NORM, kind="batch_norm", fixed=_LAST, settings=("epsilon",)),
    "Concatenate": Layer(("axis",), merges=True, kind="concatenate", fixed=_LAST),
    "Conv1D": Layer(_CONVOLUTION, has_activation=True),
    "Conv2D": Layer(_CONVOLUTION, True, kind="convolution", fixed=_PLAIN_CONVOLUTION, settings=("strides",)),
    "Dense": Layer(("units", "use_bias"), has_activation=True, kind="dense"),
    "Dropout": Layer(("rate", "seed"), kind="linear"),
    "ELU": Layer(("alpha",), kind="elu", fixed={"alpha": 1}),
    "Flatten": Layer(("data_format",), kind="flatten", fixed={"data_format": "channels_last"}),
    "GlobalAveragePooling1D": Layer(_GLOBAL_POOLING),
    "GlobalAveragePooling2D": Layer(_GLOBAL_POOLING),
    "GlobalMaxPooling1D": Layer(_GLOBAL_POOLING),
    "GlobalMaxPooling2D": Layer(_GLOBAL_POOLING),
    "LayerNormalization": Layer(_LAYER_NORM, kind="layer_norm", fixed=_LAST, settings=("epsilon",)),
    "LeakyReLU": Layer(("negative_slope",), kind="leaky_relu", settings=("negative_slope",)),
    "Maximum": Layer(merges=True, kind="maximum"),
    "MaxPooling1D": Layer(_POOLING),
    "MaxPooling2D": Layer(_POOLING),
    "Minimum": Layer(merges=True, kind="minimum"),
    "Multiply": Layer(merges=True, kind="multiply"),
    "Permute": Layer(("dims",)),
    "ReLU": Layer(("max_value", "negative_slope", "threshold"), kind="relu", fixed=_PLAIN_RELU),
    "Rescaling": Layer(("scale", "offset"), kind="rescale", settings=("scale", "offset")),
    "Reshape": Layer(("target_shape",), kind="reshape", settings=("target_shape",)),
    "Softmax": Layer(("axis",), kind="softmax", fixed=_LAST),
    "Subtract": Layer(merges=True, kind="subtract"),
}
