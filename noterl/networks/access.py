"""Variables, weights and copies of Keras and torch networks."""

from __future__ import annotations

import copy as python_copy
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import Any

import numpy as np

from noterl import backends
from noterl.backends import keras
from noterl.backends.interface import Modules
from noterl.hyperparameters import Hyperparameter
from noterl.networks.description import HiddenLayers, NetworkDescription
from noterl.networks.keras_layers import keras_network
from noterl.networks.size_limit import NetworkSizeError, plan_weights
from noterl.utils.checks import probability

Network = Any


class Composite:
    """Several networks that are used as one, such as the layers before and after a cell.

    Attributes:
        parts: the networks, by name; some of them may be composites.
    """

    parts: dict[str, Network]

    def clone(self) -> Composite:
        """Return an untrainable copy with the same weights."""
        copied = python_copy.copy(self)
        copied.parts = {name: self.clone_part(name) for name in self.parts}
        return copied

    def clone_part(self, name: str) -> Network:
        """Return an untrainable copy of a part."""
        return clone(self.parts[name])

    def members(self) -> list[Network]:
        """Return the networks that are no composites."""
        return list(find_networks({"": self}).values())


class PolyakAveraging:
    """The target updates that are part of an agent's gradient updates.

    Args:
        coefficient: what `copy` uses inside of `averaging` if `tau` is None.
    """

    def __init__(self, coefficient: Any) -> None:
        self.coefficient = coefficient
        # By the ids of two networks: their variables, which `copy` has checked, and the networks, which keeps the ids.
        self.pairs: dict[tuple[int, int], tuple[list[keras.Variable], list[keras.Variable], int, Network, Network]] = {}


_averaging: ContextVar[PolyakAveraging | None] = ContextVar("averaging", default=None)


def variables(network: Network) -> list[keras.Variable]:
    """Return all variables of a network as `keras.Variable`s, trainable or not.

    The variables of a torch module share the storage of its parameters and buffers.

    Raises:
        ValueError: if `network` is not a network, or is a Keras layer that is not built.
    """
    if isinstance(network, keras.Variable):
        return [network]
    if isinstance(network, keras.layers.Layer):
        if not network.built:
            raise ValueError(
                f"network {network.name!r} has no variables yet: add an Input, or call it on an observation once"
            )
        return list(network.variables)
    if isinstance(network, keras.random.SeedGenerator):
        return [network.state]
    if isinstance(network, Composite):
        return unique(variable for part in network.members() for variable in variables(part))
    return native_modules().adopt(check_network("network", network))


def is_seed_state(variable: keras.Variable) -> bool:
    """Return whether a variable is the state of a `keras.random.SeedGenerator`, such as of Dropout."""
    return bool(variable.path.endswith("seed_generator_state"))


def seed_states(network: Network) -> list[keras.Variable]:
    """Return the states of the random generators in a network, `[2]` each.

    Modules of torch have none, so files keep these states apart from the weights.
    """
    return [variable for variable in variables(network) if is_seed_state(variable)]


def weight_variables(network: Network) -> list[keras.Variable]:
    """Return all variables of a network but its `seed_states`: the same ones, in the same order, on every backend."""
    return [variable for variable in variables(network) if not is_seed_state(variable)]


def trainable_variables(network: Network) -> list[keras.Variable]:
    """Return the trainable variables of a network."""
    if isinstance(network, Composite):
        return unique(variable for part in network.members() for variable in trainable_variables(part))
    if isinstance(network, keras.layers.Layer):
        variables(network)  # raises unless it is built
        return list(network.trainable_variables)
    if is_module(network):  # parameters may be frozen at any time
        return [variable for variable in variables(network) if variable.value.requires_grad]
    return [variable for variable in variables(network) if variable.trainable]


def trainable_tensors(network: Network) -> list[Any]:
    """Return what a loss reads to depend on the trainable weights themselves, such as their sum of squares.

    For a torch module, these are the parameters. A traced loss replaces the parameters, but not the variables that
    `trainable_variables` returns, so the loss would read the variables as constants.
    """
    if is_module(network):
        return [parameter for parameter in network.parameters() if parameter.requires_grad]
    return trainable_variables(network)


def is_network(value: Any) -> bool:
    """Return whether a value is a Keras layer, variable or seed generator, or a torch module."""
    return isinstance(value, keras.layers.Layer | keras.Variable | keras.random.SeedGenerator) or is_module(value)


def split_networks(network: Any, *roles: str, shareable: bool = False) -> list[Any]:
    """Split an agent's argument `network` into one entry for each role; None if the agent builds that network.

    A description of layers becomes the `HiddenLayers` of each role, which `network_or_default` builds.

    Args:
        network: the network of the first role, or a list or tuple with all of them, or a description for all. If the
            last roles are equal, such as several critics, a description or None in a list may stand for all of them.
        roles: the roles of the agent's networks, such as "actor" and "critic".
        shareable: whether networks may share layers.

    Raises:
        ValueError: if a list does not have one entry for each role, or a description has networks of other roles.
    """
    if isinstance(network, NetworkDescription):
        return [_part(network, role, roles, shareable) for role in roles]
    if not isinstance(network, list | tuple):
        return [network, *[None for _ in roles[1:]]]
    further = roles.count(roles[-1]) - 1
    if further and len(network) == len(roles) - further and isinstance(network[-1], NetworkDescription | None):
        network = [*network, *[network[-1]] * further]  # built several times, with different initial weights
    if len(network) != len(roles):
        raise ValueError(
            f"network must be the {roles[0]}, or ({', '.join(roles)}) with None for networks to be built, "
            f"got {network!r:.200}"
        )
    return [
        _part(entry, role, roles, False) if isinstance(entry, NetworkDescription) else entry
        for entry, role in zip(network, roles, strict=True)
    ]


def _part(description: NetworkDescription, role: str, roles: Sequence[str], shareable: bool) -> HiddenLayers | None:
    """Return the layers of one role; None if the agent builds the network. Arguments and errors as `split_networks`."""
    if description.shared and not shareable:
        raise description.error(("shared",), "the networks of this agent cannot share layers")
    return description.part(role, roles)


def network_or_default(network: Any, hidden: Any, build: Callable[[Any], Network], shape: tuple[int, ...]) -> Network:
    """Return the argument `network`, or the result of `build` if it is None or describes layers.

    Args:
        network: a network, the `HiddenLayers` of a description, or None.
        hidden: the units of the default network's hidden layers.
        build: returns a network with these hidden layers: `hidden`, or the layers of the description.
        shape: the shape of the network's inputs. A network that has no weights yet, such as one with
            `torch.nn.LazyLinear`, is called on zeros.

    Raises:
        ValueError: if `network` is not a network, or takes a dict of inputs.
    """
    if network is None or isinstance(network, HiddenLayers):
        try:
            return build(hidden if network is None else network)
        except NetworkSizeError as error:
            if network is None:
                raise
            raise network.description.error((), str(error)) from None
    check_network("network", network)
    if isinstance(getattr(network, "input", None), dict):
        raise ValueError(
            f"network {network.name!r} takes a dict of inputs, but networks receive an observation as one array: "
            "use noterl.networks.multi_input(network, env.observation_space)"
        )
    if is_module(network):
        native_modules().materialize(network, shape)
    elif getattr(network, "losses", None):
        warnings.warn(
            f"network {network.name!r} has regularizers, which updates do not add to the loss; an optimizer with "
            "weight_decay, passed to compile, has that effect",
            stacklevel=2,
        )
    return network


def check_network(name: str, network: Any) -> Network:
    """Return `network` unchanged.

    Raises:
        ValueError: if `network` is not a network, or is compiled by `torch.compile`; the message contains the argument,
            `name`.
    """
    if isinstance(network, Composite):
        return network
    if not is_network(network):
        raise ValueError(
            f"{name} must be a Keras model, the path of a network file or, with the torch backend, a torch.nn.Module, "
            f"got {network!r}"
        )
    if any(base.__module__.startswith("torch._dynamo") for base in type(network).__mro__):
        raise ValueError(
            f"{name} must be the module itself, not what torch.compile returned: noterl traces the updates of modules, "
            "and cannot copy a compiled one"
        )
    return network


def is_module(value: Any) -> bool:
    """Return whether a value is a `torch.nn.Module`, without importing torch."""
    is_of_keras = isinstance(value, keras.layers.Layer)
    return not is_of_keras and any(base.__module__ == "torch.nn.modules.module" for base in type(value).__mro__)


def clone(network: Network) -> Network:
    """Return an untrainable copy with the same weights: a target network.

    Raises:
        ValueError: for a Keras model that is neither Sequential nor Functional and has no `get_config`.
    """
    variables(network)  # raises unless it is a built network
    if isinstance(network, Composite):
        return network.clone()
    if is_module(network):
        return native_modules().clone(network)
    recipe = getattr(network, "noterl_recipe", None)
    if recipe is not None:
        # Uses no random numbers, so networks that are built later have the same weights on every backend.
        copied = keras_network(*recipe)
        copied.noterl_recipe = recipe
        copied.set_weights(network.get_weights())
    else:
        try:
            copied = keras.models.clone_model(network)
            copied.set_weights(network.get_weights())
        except (NotImplementedError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"network {network.name!r} cannot be copied: make it Sequential or Functional, or define get_config"
            ) from error
    copied.trainable = False
    return copied


@contextmanager
def averaging(polyak: PolyakAveraging) -> Iterator[None]:
    """Within this context, `copy` uses the coefficient of `polyak` if `tau` is None.

    A pair of networks is checked in the first copy only.
    """
    token = _averaging.set(polyak)
    try:
        yield
    finally:
        _averaging.reset(token)


def copy(source: Network, target: Network, tau: Any = None) -> None:
    """Move `target` towards `source`: `target <- tau * source + (1 - tau) * target`.

    A `tau` of 1 is a hard copy. Variables that are not trained, such as the statistics of normalizations, are always
    copied hard, unless no variable of `source` is trained. `copy` works on the host and inside a compiled update.

    Args:
        source: the network with the new weights.
        target: the network that changes.
        tau: the coefficient, also as a hyperparameter or tensor. None for the coefficient of the target update that is
            running: with `compile(target_update=0.005)`, 0.005 inside of `update_target`; everywhere else 1.

    Raises:
        ValueError: if an argument is not a network, the weights have different shapes, or `tau` is a number that is not
            between 0 and 1.
    """
    polyak = _averaging.get()
    if tau is None:
        tau = 1.0 if polyak is None else polyak.coefficient
    elif isinstance(tau, np.generic) or not hasattr(tau, "dtype"):
        probability("tau", tau)
    pairs = {} if polyak is None else polyak.pairs
    key = id(source), id(target)
    if key not in pairs:
        is_hard = polyak is None and isinstance(tau, float) and tau == 1.0
        pairs[key] = *_checked_pair(source, target, is_hard), source, target
    sources, targets, count, *_ = pairs[key]
    backends.current().copy_variables(sources[:count], targets[:count], tau)
    if count < len(sources):
        backends.current().copy_variables(sources[count:], targets[count:], 1.0)


def _checked_pair(
    source: Network, target: Network, is_hard: bool
) -> tuple[list[keras.Variable], list[keras.Variable], int]:
    """Return the variables of two networks, and how many of each `copy` moves by `tau`; the others are copied hard.

    Args:
        source: the network with the new weights.
        target: the network that changes.
        is_hard: whether `tau` is 1, so that the order of the variables does not matter.

    Raises:
        ValueError: if one is not a network, or the weights have different shapes.
    """
    sources = variables(check_network("source", source))
    targets = variables(check_network("target", target))
    shapes = [[tuple(variable.shape) for variable in group] for group in (sources, targets)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"source and target must have the same architecture, but their weights have the shapes {shapes}"
        )
    if is_hard:
        return sources, targets, len(sources)
    trained = set(map(id, trainable_variables(source)))
    pairs = sorted(zip(sources, targets, strict=True), key=lambda pair: id(pair[0]) not in trained)
    return [first for first, _ in pairs], [second for _, second in pairs], len(trained) or len(pairs)


def get_weights(network: Network) -> list[np.ndarray]:
    """Return the weights as arrays in Keras's layout: kernels `[in, out]`, convolutions `[H, W, in, out]`."""
    if isinstance(network, Composite):
        return [weight for member in network.members() for weight in get_weights(member)]
    if is_module(network):
        return native_modules().get_weights(network)
    return [backends.current().fetch(variable) for variable in weight_variables(network)]


def recipe(network: Network) -> tuple[Any, tuple[int, ...]] | None:
    """Return the plan and the inputs' shape that a network was built from; None if none, or layers were replaced."""
    built = getattr(network, "noterl_recipe", None)
    if built is None:
        return None
    sizes = sorted(math.prod(variable.shape) for variable in weight_variables(network))
    return built if sizes == sorted(weight.size for weight in plan_weights(*built)) else None


def set_weights(network: Network, weights: Sequence[np.ndarray]) -> None:
    """Set weights that `get_weights` returned for a network of the same architecture, on any backend.

    Raises:
        ValueError: if the number or the shapes of weights differ; the network is then unchanged.
    """
    expected = [weight.shape for weight in get_weights(network)]
    received = [np.shape(weight) for weight in weights]
    if expected != received:
        raise ValueError(f"weights do not fit the network: expected the shapes {expected}, got {received}")
    if isinstance(network, Composite):
        remaining = iter(weights)
        for member in network.members():
            set_weights(member, list(islice(remaining, len(get_weights(member)))))
    elif is_module(network):
        native_modules().set_weights(network, weights)
    else:
        for variable, weight in zip(weight_variables(network), weights, strict=True):
            variable.assign(weight)


def keras_layout(networks: Iterable[Network]) -> dict[int, Sequence[int]]:
    """Return the axes that transpose each variable of torch modules to Keras's layout, by the variable's id."""
    modules = backends.current().capabilities.get("modules")
    return {} if modules is None else modules.keras_layout(networks)


def native_modules() -> Modules:
    """Return the capability of this backend that handles torch modules.

    Raises:
        ValueError: if this backend has no such capability.
    """
    modules = backends.current().capabilities.get("modules")
    if modules is None:
        raise ValueError(
            f"network: a torch.nn.Module needs the torch backend, but this process runs on {backends.name()}: set "
            "KERAS_BACKEND=torch before Keras is imported, or use a Keras model"
        )
    return modules


def unique(variables: Iterable[Any]) -> list[Any]:
    """Return the variables in order, without duplicates."""
    return list({id(variable): variable for variable in variables}.values())


def find_networks(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the networks, variables and seed generators in attributes, lists, tuples and dicts, by name."""
    networks: dict[str, Any] = {}
    for name, value in attributes.items():
        if isinstance(value, Composite):
            networks |= find_networks({f"{name}/{key}": part for key, part in value.parts.items()})
        elif isinstance(value, list | tuple | dict):
            members = value if isinstance(value, dict) else dict(enumerate(value))
            networks |= find_networks({f"{name}/{key}": member for key, member in members.items()})
        elif is_network(value) and not isinstance(value, Hyperparameter):
            networks[name] = value
    return networks


def check_parameters(attributes: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Check that parameters of torch in attributes belong to the found networks, which are trained and saved.

    Raises:
        ValueError: if a parameter, alone or in a list or a dict, belongs to no network.
    """
    held = {id(each) for network in found.values() if is_module(network) for each in network.parameters()}
    for name, value in attributes.items():
        members = value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else [value]
        for each in members:
            if type(each).__module__ == "torch.nn.parameter" and each.requires_grad and id(each) not in held:
                raise ValueError(
                    f"{name}: a parameter outside of a module would be neither trained nor saved; keep it in a module, "
                    f"such as self.{name} = torch.nn.ParameterList([...])"
                )


def ends_in_softmax(network: Network) -> bool:
    """Return whether the last layer of a Sequential or Functional network is, or ends in, a softmax."""
    outputs = getattr(network, "outputs", None)
    if isinstance(network, keras.Model) and outputs:
        last = outputs[0]._keras_history.operation
    else:
        last = (stacked_layers(network) or [None])[-1]
    return type(last).__name__ == "Softmax" or getattr(last, "activation", None) is keras.activations.softmax


def stacked_layers(network: Network) -> list[Any]:
    """Return the layers of a Keras Sequential model or a `torch.nn.Sequential`; an empty list for other networks."""
    if isinstance(network, keras.Sequential):
        return list(network.layers)
    return list(network) if is_module(network) and type(network).__name__ == "Sequential" else []
