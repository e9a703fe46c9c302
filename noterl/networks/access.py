"""The few things one can do to any network: its variables, copies and weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from noterl import backends
from noterl.backends import keras
from noterl.hyperparameters import Hyperparameter
from noterl.networks.keras_layers import keras_network
from noterl.utils.checks import probability

Network = Any

_coefficient: ContextVar[Any] = ContextVar("coefficient", default=1.0)

_known: WeakKeyDictionary[keras.layers.Layer, tuple[ref[Any], list, list]] = WeakKeyDictionary()


def variables(network: Network) -> list[keras.Variable]:
    """Return a network's variables, trained or not, as `keras.Variable`s: the one way to them.

    Parameters and buffers of a torch module are adopted: the variable shares their storage.

    Raises:
        ValueError: if it is no network, or a Keras model that has not been built.
    """
    if isinstance(network, keras.Variable):
        return [network]
    if isinstance(network, keras.layers.Layer):
        if not network.built:
            raise ValueError(
                f"network {network.name!r} has no variables yet: give it an Input, or call it on an observation once"
            )
        return list(network.variables)
    if isinstance(network, keras.random.SeedGenerator):
        return [network.state]
    if is_module(network):
        return _modules().adopt(network)
    raise ValueError(f"a network is a Keras model or, with the torch backend, a torch.nn.Module; got {network!r}")


def trainable_variables(network: Network) -> list[keras.Variable]:
    """Return those of `variables` that gradients are taken for."""
    if isinstance(network, keras.layers.Layer):
        variables(network)
        return list(network.trainable_variables)
    if is_module(network):  # a parameter may have been frozen since it was adopted
        return [variable for variable in variables(network) if variable.value.requires_grad]
    return [variable for variable in variables(network) if variable.trainable]


def is_network(value: Any) -> bool:
    """Whether `value` holds variables: a Keras layer, variable or seed generator, or a torch module."""
    return isinstance(value, keras.layers.Layer | keras.Variable | keras.random.SeedGenerator) or is_module(value)


def parts(network: Any, *roles: str) -> list[Any]:
    """Return what an agent's argument `network` says for each role, None where a network is to be built.

    Args:
        network: the first role's, or a list or tuple of all.
        roles: what the agent's networks are for, such as "actor" and "critic".

    Raises:
        ValueError: if there is not one for each role.
    """
    if not isinstance(network, list | tuple):
        return [network, *[None for _ in roles[1:]]]
    if len(network) != len(roles):
        raise ValueError(
            f"network must be the {roles[0]}, or ({', '.join(roles)}) with None for what is to be built, "
            f"got {network!r}"
        )
    return list(network)


def given(network: Any, build: Callable[[], Network]) -> Network:
    """Return the network that was given as the argument `network`, or where that is None the one that `build` makes."""
    return build() if network is None else checked("network", network)


def checked(name: str, network: Any) -> Network:
    """Return a network that was given as the argument `name`.

    Raises:
        ValueError: naming the argument, if it is no network.
    """
    if not is_network(network):
        raise ValueError(f"{name} must be a Keras model or, with the torch backend, a torch.nn.Module, got {network!r}")
    return network


def is_module(value: Any) -> bool:
    """Whether `value` is a `torch.nn.Module` (of any process; frameworks are not imported to find out)."""
    return any(base.__module__ == "torch.nn.modules.module" for base in type(value).__mro__) and not isinstance(
        value, keras.layers.Layer
    )


def clone(network: Network) -> Network:
    """Return a copy with the same weights that is not trained: a target network.

    Raises:
        ValueError: for a Keras model that cannot be copied (neither Sequential, Functional nor with a `get_config`).
    """
    variables(network)  # refuses what is no network, or none yet
    if is_module(network):
        return _modules().clone_module(network)
    recipe = getattr(network, "noterl_recipe", None)
    if recipe is not None:
        # Without a draw: the networks that are built after it are the same on every backend.
        copied = keras_network(*recipe)
        copied.noterl_recipe = recipe
    elif isinstance(network, keras.Sequential) or type(network).__name__ == "Functional":
        copied = keras.models.clone_model(network)
    else:
        copied = _rebuilt(network)
    copied.set_weights(network.get_weights())
    copied.trainable = False
    return copied


@contextmanager
def averaging(coefficient: Any) -> Iterator[None]:
    """Let what `copy` is asked for as a whole step be one of this length: Polyak's coefficient."""
    token = _coefficient.set(coefficient)
    try:
        yield
    finally:
        _coefficient.reset(token)


def copy(source: Network, target: Network, tau: Any = 1.0) -> None:
    """Move `target` towards `source`: `target <- tau * source + (1 - tau) * target`.

    A plain `tau` of 1 is a hard copy, or under `compile(target_update=0.005)`, where the loop asks for `update_target`
    after every gradient update, the move by that coefficient. Works on the host and inside a compiled update.

    Raises:
        ValueError: if one of them is no network, they differ in the shapes of their weights, or a plain `tau` is not
            between 0 and 1.
    """
    if isinstance(tau, np.generic) or not hasattr(tau, "dtype"):
        probability("tau", tau)
    if isinstance(tau, int | float) and tau == 1.0:
        tau = _coefficient.get()
    sources, targets = paired(source, target, lambda name, network: variables(checked(name, network)))
    backends.current().copy_variables(sources, targets, tau)


def get_weights(network: Network) -> list[np.ndarray]:
    """Return the weights as arrays in Keras's layout (kernels `[in, out]`, convolutions `[H, W, in, out]`)."""
    if is_module(network):
        return _modules().module_weights(network)
    return [backends.current().fetch(variable) for variable in variables(network)]


def set_weights(network: Network, weights: Sequence[np.ndarray]) -> None:
    """Set what `get_weights` returned; from any backend, for a network of the same build.

    Raises:
        ValueError: if number or shapes differ; nothing is changed then.
    """
    expected = [weight.shape for weight in get_weights(network)]
    received = [np.shape(weight) for weight in weights]
    if expected != received:
        raise ValueError(f"weights do not fit the network: expected the shapes {expected}, got {received}")
    if is_module(network):
        _modules().set_module_weights(network, weights)
    else:
        for variable, weight in zip(variables(network), weights, strict=True):
            variable.assign(weight)


def _modules() -> Any:
    """Return the torch backend, which alone knows what to do with a torch module."""
    if backends.name() != "torch":
        raise ValueError(
            f"network: a torch.nn.Module needs the torch backend, but this process runs on {backends.name()}: set "
            "KERAS_BACKEND=torch before Keras is imported, or use a Keras model"
        )
    return backends.current()


def _rebuilt(network: keras.Model) -> keras.Model:
    try:
        copied = type(network).from_config(network.get_config())
        copied.build_from_config(network.get_build_config())
        if [weight.shape for weight in copied.weights] != [weight.shape for weight in network.weights]:
            raise ValueError("what get_config and get_build_config say builds other weights")
        copied.built = True  # Keras has built the parts, but may have left the whole unmarked
    except (NotImplementedError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"network {network.name!r} cannot be copied: make it Sequential or Functional, or give it get_config"
        ) from error
    return copied


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


def unique(variables: Iterable[Any]) -> list[Any]:
    """Return the variables in order, each once."""
    return list({id(variable): variable for variable in variables}.values())


def find_networks(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the networks, variables and seed generators among attributes, by name; also in lists, tuples and dicts."""
    found: dict[str, Any] = {}
    for name, value in attributes.items():
        _collect(name, value, found)
    return found


def _collect(name: str, value: Any, found: dict[str, Any]) -> None:
    if isinstance(value, Hyperparameter):
        return
    if is_network(value):
        found[name] = value
    elif isinstance(value, list | tuple):
        for position, part in enumerate(value):
            _collect(f"{name}/{position}", part, found)
    elif isinstance(value, dict):
        for key, part in value.items():
            _collect(f"{name}/{key}", part, found)


def stacked_layers(network: Network) -> list[Any]:
    """Return the layers of a Keras Sequential model or a `torch.nn.Sequential`; an empty list for other networks."""
    if isinstance(network, keras.Sequential):
        return list(network.layers)
    return list(network) if is_module(network) and type(network).__name__ == "Sequential" else []
