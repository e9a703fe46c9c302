"""Networks that are described layer by layer, without their inputs and outputs.

An agent adds what depends on the spaces: the encoding of observations before the layers, and the outputs behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noterl.networks.layers import ACTIVATIONS, PLAN_LAYERS
from noterl.registry import Configurable, register
from noterl.utils.checks import check_int
from noterl.utils.files import Keys, key_path
from noterl.utils.words import explain_name

INITIALIZERS = ("orthogonal", "glorot_uniform", "fan_in_uniform")

# The activations of outputs. The head applies its own one, so the network of an agent has linear outputs.
_OUTPUT_ACTIVATIONS = ("linear", "softmax", "tanh")

_OPTIONS = ("activation", "initializer", "gain")
# The arguments that precede the activation and the gain.
_SIZES = {layer: PLAN_LAYERS[layer][:-2] for layer in ("dense", "convolution", "flatten")}
# Layers of the builder `simba` that a description also has; a residual block has as many units as its inputs.
_SIZES |= {"layer_norm": (), "residual": ("units",)}
_ROLES = ("actor", "critic", "q", "network")
_NETWORK_KEYS = ("layers", "output")
_KEYS = (*_NETWORK_KEYS, "shared", *_ROLES)

# A layer of a plan; see `noterl.networks.builders`.
PlanLayer = tuple[Any, ...]


@dataclass(frozen=True)
class Origin:
    """The file that a description was read from.

    Attributes:
        path: of the file.
        lines: the line of each table and key.
    """

    path: str
    lines: Mapping[Keys, int]

    def place(self, keys: Keys) -> str:
        """Return the file and the line of a key, or of the innermost table around the key."""
        lines = (self.lines[keys[:end]] for end in range(len(keys), 0, -1) if keys[:end] in self.lines)
        line = next(lines, None)
        return self.path if line is None else f"{self.path}, line {line}"


@register
class NetworkDescription(Configurable):
    """The layers of an agent's networks, as a file describes these; the result of `noterl.networks.read_network`.

    The document has the list `layers` and the table `output`, which hold for all networks of the agent. A table with
    the name of one network, such as `actor`, has further layers and other outputs of this network. If `shared` is True,
    the networks share the weights of the common layers.

    Args:
        document: the tables and keys.

    Raises:
        ValueError: if a key is unknown or has a wrong value.

    Example:
    >>> import noterl
    >>> from noterl import networks
    >>> layers = [{"layer": "dense", "units": 64, "activation": "tanh"}]
    >>> critic = {"layers": [{"layer": "dense", "units": 8}]}
    >>> described = networks.NetworkDescription({"layers": layers, "critic": critic})
    >>> agent = noterl.PPO("CartPole-v1", network=described)
    >>> [weight.shape for weight in networks.get_weights(agent.critic)]
    [(4, 64), (64,), (64, 8), (8,), (8, 1), (1,)]
    """

    origin: Origin | None = None

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self._check()

    @classmethod
    def from_file(cls, document: Mapping[str, Any], origin: Origin) -> NetworkDescription:
        """Return a description whose errors name the file and the line.

        Raises:
            ValueError: as the constructor.
        """
        try:
            described = cls(document)
        except _DescriptionError as error:
            raise ValueError(f"network: {origin.place(error.keys)}: {error.text}") from None
        described.origin = origin
        return described

    @property
    def shared(self) -> bool | None:
        """Whether networks share the common layers; None if the document has no entry."""
        return self.document.get("shared")

    def error(self, keys: Keys, text: str) -> ValueError:
        """Return an error about a key of the document."""
        if self.origin is None:
            return _DescriptionError(keys, text)
        return ValueError(f"network: {self.origin.place(keys)}: {text}")

    def part(self, role: str, roles: Sequence[str]) -> HiddenLayers | None:
        """Return the layers of one network; None if the document describes only others.

        Args:
            role: the network, one of `roles`.
            roles: the names of the agent's networks.

        Raises:
            ValueError: if the document has a table for a network that the agent does not have.
        """
        for name in _ROLES:
            if name in self.document and name not in roles:
                raise self.error((name,), f"there is no network {name!r}: {explain_name(name, dict.fromkeys(roles))}")
        if role not in self.document and not self.document.get("layers"):
            return None
        return HiddenLayers(self, role)

    def check_activations(self, allowed: str, roles: Sequence[str] = _ROLES) -> None:
        """Check the activations of the outputs.

        Args:
            allowed: the activation that the head of the agent applies to the outputs of the network that acts.
            roles: the networks that the description is used for.

        Raises:
            ValueError: if the network that acts has another one, or the outputs of the critic are not linear.
        """
        for role in roles:
            if role in self.document or "layers" in self.document:
                HiddenLayers(self, role).check_activation("linear" if role == "critic" else allowed)

    def _check(self) -> None:
        """Raise a `_DescriptionError` for the first key that is unknown or has a wrong value."""
        document = self.document
        if not isinstance(document, Mapping):
            raise _DescriptionError((), f"a description must be a dict, got {document!r:.80}")
        _check_names(document, _KEYS, ())
        if not any(name in document for name in ("layers", *_ROLES)):
            raise _DescriptionError((), f"there are no layers: write the list 'layers', or a table {', '.join(_ROLES)}")
        _check_network(document, ())
        for role in _ROLES:
            if role in document:
                if not isinstance(document[role], Mapping):
                    raise _DescriptionError((role,), f"{role} must be a table, got {document[role]!r:.80}")
                _check_names(document[role], _NETWORK_KEYS, (role,))
                _check_network(document[role], (role,))
        shared = document.get("shared")
        if shared is not None and type(shared) is not bool:
            raise _DescriptionError(("shared",), f"shared must be true or false, got {shared!r}")
        if shared and not document.get("layers"):
            raise _DescriptionError(("shared",), "shared needs the list 'layers', which the networks have in common")


def simba(width: int = 256, blocks: int = 1) -> NetworkDescription:
    """Return the layers of SimBa, for the argument `network` of agents on vectors.

    Lee et al., "SimBa: simplicity bias for scaling up parameters in deep reinforcement learning" (2025), section 4: a
    dense layer, residual blocks `x + dense(relu(dense(layer_norm(x))))` with four times as many units inside, and a
    layer normalization. Its normalization of observations is `normalize_observation=True`.

    Args:
        width: units of the first layer and of each block.
        blocks: the number of blocks.

    Example:
    >>> import noterl
    >>> agent = noterl.SAC("Pendulum-v1", network=noterl.networks.simba(width=16), normalize_observation=True)
    >>> actor, critic = noterl.networks.simba(16), noterl.networks.simba(32, blocks=2)
    >>> agent = noterl.SAC("Pendulum-v1", network=(actor, critic), normalize_observation=True)
    """
    first = {"layer": "dense", "units": check_int("width", width)}
    block = {"layer": "residual", "units": width}
    return NetworkDescription({"layers": [first, *[block] * check_int("blocks", blocks), {"layer": "layer_norm"}]})


class _DescriptionError(ValueError):
    """A mistake in a description, at a key."""

    def __init__(self, keys: Keys, text: str) -> None:
        place = f"{key_path(keys)}: " if keys else ""
        super().__init__(f"network: {place}{text}")
        self.keys = keys
        self.text = text


@dataclass(frozen=True)
class HiddenLayers:
    """The layers of one network of a description; a value of `hidden` for `noterl.networks.default_network`.

    Attributes:
        description: the description.
        role: the name of the network, such as "actor".
    """

    description: NetworkDescription
    role: str

    @property
    def num_own(self) -> int:
        """The number of layers of this network alone, without flatten layers."""
        return len(self.dense(None, own=True))

    @property
    def is_shareable(self) -> bool:
        """Whether there are common layers."""
        return bool(self.description.document.get("layers"))

    def convolutions(self, gain: float | None) -> list[PlanLayer]:
        """Return the convolutions as layers of a plan; `gain` is the gain of layers without an initializer."""
        return [_plan_layer(layer, gain) for _, layer in self._layers() if layer["layer"] == "convolution"]

    def dense(self, gain: float | None, *, own: bool = False) -> list[PlanLayer]:
        """Return the dense layers as layers of a plan.

        Args:
            gain: the gain of layers without an initializer.
            own: whether to return the layers of this network only.

        Raises:
            ValueError: if a convolution follows a dense or flatten layer; if `own`, also if there is a convolution.
        """
        layers: list[PlanLayer] = []
        flat = False
        for keys, layer in self._layers():
            if layer["layer"] == "convolution" and (flat or (own and keys[0] == self.role)):
                raise self.description.error(keys, "a convolution must precede all dense and flatten layers")
            flat |= layer["layer"] != "convolution"
            if layer["layer"] not in ("convolution", "flatten") and (not own or keys[0] == self.role):
                layers.append(_plan_layer(layer, gain))
        return layers

    def last(self, outputs: int, gain: float | None) -> PlanLayer:
        """Return the layer of the outputs as a layer of a plan.

        Raises:
            ValueError: if the document has another number of outputs.
        """
        place, output = self._output()
        if output.get("units", outputs) != outputs:
            raise self.description.error(
                (*place, "units"), f"the {self.role} has {outputs} outputs in these spaces, got {output['units']} units"
            )
        return _plan_layer({"layer": "dense", **output, "units": outputs, "activation": "linear"}, gain)

    def check_activation(self, allowed: str) -> None:
        """Raise a ValueError if the activation of the outputs is neither linear nor this one."""
        place, output = self._output()
        activation = output.get("activation", "linear")
        names = list(dict.fromkeys(("linear", allowed)))
        if activation not in names:
            raise self.description.error(
                (*place, "activation"),
                f"the activation of the {self.role}'s outputs must be {' or '.join(names)}, got {activation!r}",
            )

    def check_images(self, sides: Sequence[int] | None) -> None:
        """Check that the convolutions fit images.

        Args:
            sides: the height and the width of the images; None if observations hold no images.

        Raises:
            ValueError: if a convolution does not fit.
        """
        for keys, layer in self._layers():
            if layer["layer"] != "convolution":
                continue
            if sides is None:
                raise self.description.error(keys, "observations are not images, so no convolution is possible")
            if min(sides) < layer["size"]:
                text = f"a convolution of the size {layer['size']} does not fit in its inputs of {sides[0]}x{sides[1]}"
                raise self.description.error(keys, text)
            sides = [(side - layer["size"]) // layer["stride"] + 1 for side in sides]

    def _own(self) -> Mapping[str, Any]:
        """Return the table of this network; empty if there is none."""
        return self.description.document.get(self.role, {})

    def _output(self) -> tuple[Keys, Mapping[str, Any]]:
        """Return the place and the table of this network's outputs: its own one, or else the common one."""
        if "output" in self._own():
            return (self.role, "output"), self._own()["output"]
        return ("output",), self.description.document.get("output", {})

    def _layers(self) -> Iterator[tuple[Keys, Mapping[str, Any]]]:
        """Yield the place and the table of each layer: the common layers, then those of this network."""
        for place, table in (((), self.description.document), ((self.role,), self._own())):
            for index, layer in enumerate(table.get("layers", ())):
                yield (*place, "layers", index), layer


def _check_network(table: Mapping[str, Any], place: Keys) -> None:
    """Raise a `_DescriptionError` if the layers or the outputs of one table are malformed."""
    layers = table.get("layers", [])
    if not isinstance(layers, list | tuple):
        raise _DescriptionError((*place, "layers"), f"layers must be a list of tables, got {layers!r:.80}")
    for index, layer in enumerate(layers):
        keys = (*place, "layers", index)
        layer_name = layer.get("layer") if isinstance(layer, Mapping) else None
        if not isinstance(layer_name, str):
            raise _DescriptionError(keys, f"a layer needs the key 'layer', one of {', '.join(_SIZES)}")
        if layer_name not in _SIZES:
            raise _DescriptionError(
                (*keys, "layer"), f"unknown layer {layer_name!r}: {explain_name(layer_name, _SIZES)}"
            )
        sizes = _SIZES[layer_name]
        _check_names(layer, ("layer", *sizes, *(_OPTIONS if layer_name in ("dense", "convolution") else ())), keys)
        for name in sizes:
            if name not in layer:
                raise _DescriptionError(keys, f"the layer {layer_name} needs the key {name!r}")
            _check_size(layer, name, keys)
        _check_options(layer, keys, ACTIVATIONS)
    output = table.get("output", {})
    keys = (*place, "output")
    if not isinstance(output, Mapping):
        raise _DescriptionError(keys, f"output must be a table, got {output!r:.80}")
    _check_names(output, ("units", *_OPTIONS), keys)
    if "units" in output:
        _check_size(output, "units", keys)
    _check_options(output, keys, _OUTPUT_ACTIVATIONS)


def _check_names(table: Mapping[str, Any], allowed: Sequence[str], place: Keys) -> None:
    for name in table:
        if name not in allowed:
            raise _DescriptionError((*place, name), f"unknown key {name!r}: {explain_name(str(name), allowed)}")


def _check_size(table: Mapping[str, Any], name: str, place: Keys) -> None:
    value = table[name]
    if type(value) is not int or value < 1:
        raise _DescriptionError((*place, name), f"{name} must be a positive int, got {value!r}")


def _check_options(table: Mapping[str, Any], place: Keys, activations: Sequence[str]) -> None:
    """Raise a `_DescriptionError` if the activation, the initializer or the gain of a layer is not allowed."""
    for name, allowed in (("activation", activations), ("initializer", INITIALIZERS)):
        value = table.get(name, allowed[0])
        if value not in allowed:
            raise _DescriptionError((*place, name), f"unknown {name} {value!r}: {explain_name(str(value), allowed)}")
    gain = table.get("gain", 1.0)
    if type(gain) not in (int, float) or not 0 <= gain < float("inf"):
        raise _DescriptionError((*place, "gain"), f"gain must be a finite number of at least 0, got {gain!r}")
    if "gain" in table and table.get("initializer") != "orthogonal":
        raise _DescriptionError((*place, "gain"), "gain needs initializer = 'orthogonal'")


def _plan_layer(layer: Mapping[str, Any], gain: float | None) -> PlanLayer:
    """Return a layer of a plan; `gain` is the default."""
    if layer["layer"] == "layer_norm":
        return ("layer_norm",)
    if layer["layer"] == "residual":
        units = layer["units"]
        return ("residual", [("layer_norm",), ("dense", 4 * units, "relu", gain), ("dense", units, "linear", gain)])
    initializer = layer.get("initializer")
    if initializer == "orthogonal":
        weights: Any = float(layer.get("gain", 1.0))
    elif initializer is None:
        weights = gain
    else:
        weights = None if initializer == "fan_in_uniform" else initializer
    sizes = (layer[name] for name in _SIZES[layer["layer"]])
    return (layer["layer"], *sizes, layer.get("activation", "linear"), weights)
