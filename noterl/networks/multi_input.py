"""Networks that take the parts of a Dict observation as separate inputs."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

from noterl import backends
from noterl.envs.observation import ObservationEncoder
from noterl.networks.access import Network, check_network, is_module, native_modules
from noterl.networks.keras_layers import MultiInput
from noterl.utils.checks import check_int


def multi_input(network: Network, space: spaces.Space[Any], *, actions: int = 0) -> Network:
    """Wrap a network that takes a dict of inputs as one that takes the vector of a Dict observation.

    Args:
        network: a Keras model, or with the torch backend a `torch.nn.Module`. It is called with a dict that has the
            keys of the observation, nested as in the space. The values of a Box have its shape, `[B, ...]`, in float32;
            bytes are not divided by 255. Discrete values are one-hot, `[B, n]`. A goal environment's dict holds
            "observation" and "desired_goal".
        space: the Dict space of the environment's observations.
        actions: the number of values of an action, for a critic of observation and action. They are appended to the
            vector, and `network` receives them as "action", `[B, actions]`.

    Returns:
        A network `[B, D + actions] -> what network returns`, with the weights of `network`.

    Raises:
        ValueError: if `space` is not a Dict, `network` is not a network, or `actions` is negative or clashes with a
            part named "action".

    Example:
    >>> import keras
    >>> from gymnasium import spaces
    >>> from noterl import networks
    >>> space = spaces.Dict({"gear": spaces.Discrete(3), "speed": spaces.Box(-1, 1, (2,))})
    >>> inputs = {"gear": keras.Input((3,), name="gear"), "speed": keras.Input((2,), name="speed")}
    >>> outputs = keras.layers.Dense(4)(keras.layers.Concatenate()(list(inputs.values())))
    >>> network = networks.multi_input(keras.Model(inputs, outputs), space)
    >>> tuple(network(keras.ops.zeros((8, 5))).shape)
    (8, 4)
    """
    if not isinstance(space, spaces.Dict):
        raise ValueError(f"space must be a Dict, got {space}")
    check_network("network", network)
    check_int("actions", actions, least=0)
    places: dict[str, Any] = {}
    stop = 0
    for path, part, columns in ObservationEncoder(space).parts:
        inner = places
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        stop = columns.stop
        shape = part.shape if isinstance(part, spaces.Box) and part.shape else (stop - columns.start,)
        inner[path[-1]] = (columns.start, stop, tuple(shape))
    if actions:
        if "action" in places:
            raise ValueError('actions must be 0 for a space with a part named "action"')
        places["action"] = (stop, stop + actions, (actions,))
    if is_module(network):
        return native_modules().MultiInput(network, places)
    wrapped = MultiInput(network, places)
    wrapped(backends.ops.zeros((1, stop + actions), "float32"))  # builds it
    return wrapped
