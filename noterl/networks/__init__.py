"""Networks: the default builders, and the few things one can do to any network."""

from noterl.networks.access import (
    Network,
    averaging,
    checked,
    clone,
    copy,
    get_weights,
    given,
    is_module,
    is_network,
    parts,
    set_weights,
    trainable_variables,
    variables,
)
from noterl.networks.builders import ACTIVATIONS, LEAST_PIXELS, beside, dueling_mlp, is_image_shape, mlp, nature_cnn

__all__ = [
    "ACTIVATIONS",
    "LEAST_PIXELS",
    "Network",
    "averaging",
    "beside",
    "checked",
    "clone",
    "copy",
    "dueling_mlp",
    "get_weights",
    "given",
    "is_image_shape",
    "is_module",
    "is_network",
    "mlp",
    "nature_cnn",
    "parts",
    "set_weights",
    "trainable_variables",
    "variables",
]
