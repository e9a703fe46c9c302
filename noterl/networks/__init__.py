"""Networks: builders of the default ones, and access to the variables and weights of any network."""

from noterl.networks.access import (
    Network,
    PolyakAveraging,
    averaging,
    check_network,
    clone,
    copy,
    ends_in_softmax,
    find_networks,
    get_weights,
    is_module,
    is_network,
    keras_layout,
    network_or_default,
    returns_pair,
    set_weights,
    split_networks,
    trainable_tensors,
    trainable_variables,
    unique,
    variables,
)
from noterl.networks.builders import (
    column_scales,
    default_critic,
    default_network,
    dueling_mlp,
    is_image_shape,
    mlp,
    nature_cnn,
    pixel_scale,
    share_trunk,
)
from noterl.networks.description import HiddenLayers, NetworkDescription
from noterl.networks.files import read_network, resolve_network
from noterl.networks.layers import ACTIVATIONS
from noterl.networks.modes import PRECISIONS, training_mode
from noterl.networks.multi_input import multi_input
from noterl.networks.size_limit import size_limit
