"""Native torch modules: modules that `noterl.networks` builds on this backend, and modules of users.

Parameters and buffers are adopted as `keras.Variable`s. Weights have torch's layout in memory and Keras's in files.
"""

from __future__ import annotations

import copy as python_copy
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary

from noterl.backends import renorm
from noterl.backends.nested import split_columns
from noterl.backends.torch.tensors import device_name

_lock = threading.Lock()  # agents in several threads share both dicts
_adopted = WeakIdKeyDictionary()
_variables: weakref.WeakKeyDictionary[nn.Module, list[keras.Variable]] = weakref.WeakKeyDictionary()

# The axes that transpose a kernel of torch to Keras's layout.
_KERNEL_AXES = {nn.Linear: (1, 0), nn.Conv1d: (2, 1, 0), nn.Conv2d: (2, 3, 1, 0)}


def adopt(module: nn.Module) -> list[keras.Variable]:
    """Return the parameters and buffers of a module as `keras.Variable`s in the same storage.

    A module is searched once, so layers that are added later are not found.
    """
    variables = _variables.get(module)
    if variables is None:
        with _lock:
            variables = _variables[module] = [_adopt(tensor, name) for name, tensor in _tensors(module)]
    return variables


def in_bfloat16(compute: Callable[[], Any]) -> Any:
    """Return `compute()`, whose layers compute in bfloat16, with outputs of float32."""
    with torch.autocast(device_name().partition(":")[0], torch.bfloat16):
        outputs = compute()

    def widened(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16 else value

    return pytree.tree_map(widened, outputs)


def materialize(module: nn.Module, shape: Sequence[int]) -> None:
    """If a module has parameters without a shape, as `nn.LazyLinear` does, call the module on a row of zeros."""
    if not any(map(nn.parameter.is_lazy, module.parameters())):
        return
    # In evaluation mode, a row of zeros does not change running means.
    modes = [(part, part.training) for part in module.modules()]
    with torch.no_grad():
        module.eval()(torch.zeros((1, *shape), device=device_name()))
    for part, mode in modes:
        part.training = mode


def check_storage(module: nn.Module) -> None:
    """Check that all buffers of an adopted module are in the storage of the module's variables.

    Raises:
        ValueError: if a buffer was replaced, such as by `self.mean = 0.9 * self.mean` in `forward`.
    """
    pointers = {variable.value.data_ptr() for variable in adopt(module)}
    name = next((name for name, tensor in _tensors(module) if tensor.data_ptr() not in pointers), None)
    if name is not None:
        raise ValueError(
            f"forward of {type(module).__name__} replaces the buffer {name!r} by another tensor, which target networks "
            f"and files do not see: change the buffer in place, such as by self.{name}.copy_(value)"
        )


def modules_with(variables: Sequence[keras.Variable]) -> list[nn.Module]:
    """Return the adopted modules whose parameters and buffers are all among the variables."""
    ids = set(map(id, variables))
    with _lock:
        return [module for module, adopted in _variables.items() if all(id(variable) in ids for variable in adopted)]


def _tensors(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return parameters and then buffers by name: the order of weights in files.

    Raises:
        ValueError: if a parameter has no shape yet.
    """
    if any(map(nn.parameter.is_lazy, module.parameters())):
        raise ValueError(
            f"network {type(module).__name__} has parameters without a shape: call it once, such as "
            "network(torch.zeros(1, observation_size)), before you keep or copy it"
        )
    return [*module.named_parameters(), *module.named_buffers()]


def _adopt(tensor: torch.Tensor, name: str) -> keras.Variable:
    """Return the variable in the storage of a tensor; modules that share a tensor share the variable."""
    variable = _adopted.get(tensor)
    if variable is None:
        # Keras adopts a parameter as given, but converts other tensors.
        shared = tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor.detach(), requires_grad=False)
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        variable = keras.Variable(shared, dtype=dtype, trainable=shared.requires_grad, name=name.replace("/", "."))
        _adopted[tensor] = variable
    return variable


def clone(module: nn.Module) -> nn.Module:
    """Return a deep copy that is not trainable and in evaluation mode, as Keras layers that are not trainable are."""
    return python_copy.deepcopy(module).requires_grad_(False).eval()


class Convolutions(nn.Module):
    """Convolutions on images `[B, H, W, C]`, flattened in that order, as in Keras."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return the features `[B, F]`."""
        features = self.layers(observation.permute(0, 3, 1, 2))
        return features.permute(0, 2, 3, 1).flatten(1)


class Scale(nn.Module):
    """Multiplies by a constant, in float32."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return `observation * factor`."""
        return observation.float() * self.factor


class Rearrange(nn.Module):
    """Transposes the axes of each row, and then reshapes the row."""

    def __init__(self, axes: Sequence[int], shape: Sequence[int]) -> None:
        super().__init__()
        self.axes: tuple[int, *tuple[int, ...]] = (0, *(axis + 1 for axis in axes))
        self.shape: tuple[int, ...] = tuple(shape)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return `[B, *shape]`."""
        return rows.permute(self.axes).reshape(-1, *self.shape)


class Encoders(nn.Module):
    """Passes parts of the columns of inputs `[B, D]` through a module each, and concatenates the outputs."""

    def __init__(self, places: Sequence[tuple[int, int]], modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.places: list[tuple[int, int]] = list(places)
        self.parts = nn.ModuleList(modules)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the features `[B, F]`."""
        places = zip(self.places, self.parts, strict=True)
        return torch.cat([part(inputs[:, start:stop]) for (start, stop), part in places], dim=-1)


class Residual(nn.Module):
    """Adds the outputs of layers to the inputs."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return `inputs + layers(inputs)`."""
        return inputs + self.layers(inputs)


class BatchRenorm(nn.Module):
    """Batch renormalization of rows; see `noterl.backends.renorm`. All numbers are float32, also under bfloat16.

    Statistics are parameters without a gradient, because weights are in the order of parameters and then buffers.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        for name, value in renorm.WEIGHTS.items():
            start = torch.full(() if name == "updates" else (size,), value)
            self.register_parameter(name, nn.Parameter(start, requires_grad=name in renorm.TRAINED))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return `[B, D]`."""
        weights = list(self._parameters.values())
        outputs, moved = renorm.renormalize(rows.float(), weights, training=self.training)
        for weight, value in zip(weights[len(renorm.TRAINED) :], moved, strict=False):
            weight.copy_(value)
        return outputs


class MultiInput(nn.Module):
    """Passes the parts of rows `[B, D]` to a module that takes a dict; `backends.nested` describes `places`."""

    def __init__(self, module: nn.Module, places: dict[str, Any]) -> None:
        super().__init__()
        self.module = module
        self.places: dict[str, Any] = places

    def forward(self, rows: torch.Tensor) -> Any:
        """Return what the module returns."""
        return self.module(split_columns(rows.float(), self.places, torch.reshape))


class Float(nn.Module):
    """Converts bytes to float32, as Keras's layers do."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return `observation` in float32."""
        return observation.float()


class Dueling(nn.Module):
    """A dueling network: `value + advantage - mean(advantage)` on a shared trunk.

    Args:
        trunk: the shared layers.
        value: the value stream, `values` outputs.
        advantage: the advantage stream, `values` outputs for each action.
        values: 1, or the number of atoms of a distribution.
    """

    def __init__(self, trunk: nn.Module, value: nn.Module, advantage: nn.Module, values: int = 1) -> None:
        super().__init__()
        self.trunk = trunk
        self.value = value
        self.advantage = advantage
        self.values: int = values

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return the Q values `[B, A]`, or the atoms of return distributions, `[B, Z A]`."""
        features = self.trunk(observation)
        value = self.value(features)
        advantage = self.advantage(features)
        if self.values == 1:
            return value + advantage - advantage.mean(-1, keepdim=True)
        atoms = advantage.unflatten(-1, (self.values, -1))
        return (value.unsqueeze(-1) + atoms - atoms.mean(-1, keepdim=True)).flatten(1)


class LogStd(nn.Module):
    """Appends a trained vector `[A]` to each row of inputs `[B, A]`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.zeros(size))

    def forward(self, mean: torch.Tensor) -> torch.Tensor:
        """Return the outputs `[B, 2 A]`."""
        return torch.cat([mean, self.log_std.expand_as(mean)], dim=-1)


def build(plan: tuple, shape: tuple[int, ...], activations: Mapping[str, str]) -> nn.Module:
    """Build the native module of a plan; `noterl.networks.builders` describes plans, and sets the initial weights.

    Args:
        plan: the plan.
        shape: the shape of one observation.
        activations: the classes in `torch.nn` of the activations.
    """
    first = plan[1][:1]
    layers = plan[1] if first and first[0][0] == "scale" else [("float",), *plan[1]]
    module, features = _sequence(layers, shape, activations)
    if plan[0] == "dueling":
        values = plan[4] if len(plan) > 4 else 1
        value, advantage = (
            _sequence([*plan[2], ("dense", outputs, "linear")], features, activations)[0]
            for outputs in (values, plan[3])
        )
        module = Dueling(module, value, advantage, values)
    return module.to(device_name())


# The modules of plan layers with the arguments of the layer, and with the number of their inputs.
_PLAIN: dict[str, type[nn.Module]] = {"scale": Scale, "float": Float, "dropout": nn.Dropout}
_OF_SIZE: dict[str, type[nn.Module]] = {"log_std": LogStd, "layer_norm": nn.LayerNorm, "batch_renorm": BatchRenorm}


def _sequence(
    layers: Sequence[tuple], shape: tuple[int, ...], activations: Mapping[str, str]
) -> tuple[nn.Sequential, tuple[int, ...]]:
    """Return the modules of a stack of layers of a plan, and the shape of one output.

    Args:
        layers: the layers, in order; `noterl.networks.builders` lists the kinds.
        shape: the shape of one input.
        activations: the classes in `torch.nn` of the activations.
    """
    modules: list[nn.Module] = []
    convolutions: list[nn.Module] = []
    for name, *settings in layers:
        if name == "dense":
            units, activation, *_ = settings
            modules.append(nn.Linear(shape[-1], units))
            shape = (units,)
            modules += [getattr(nn, activations[activation])()] * (activation != "linear")
        elif name == "convolution":
            # Collected, because one module flattens the images after the last convolution.
            filters, size, stride, activation, *_ = settings
            convolutions += [nn.Conv2d(shape[-1], filters, size, stride), getattr(nn, activations[activation])()]
            shape = ((shape[0] - size) // stride + 1, (shape[1] - size) // stride + 1, filters)
        elif name == "encoders":
            encoders = [_sequence(inner, (stop - start,), activations) for start, stop, inner in settings[0]]
            places = [(start, stop) for start, stop, _ in settings[0]]
            modules.append(Encoders(places, [encoder for encoder, _ in encoders]))
            shape = (sum(features for _, (features,) in encoders),)
        elif name == "rearrange":
            modules.append(Rearrange(*settings))
            shape = settings[1]
        elif name == "residual":
            modules.append(Residual(_sequence(settings[0], shape, activations)[0]))
        elif name in _PLAIN:
            modules.append(_PLAIN[name](*settings))
        elif name in _OF_SIZE:
            modules.append(_OF_SIZE[name](shape[-1]))
        elif name == "activation":
            modules.append(getattr(nn, activations[settings[0]])())
        else:
            # "flatten": the collected convolutions become one module, which flattens their outputs too.
            modules.append(Convolutions(convolutions) if convolutions else nn.Flatten())
            shape = (int(np.prod(shape)),)
    return nn.Sequential(*modules), shape


def get_weights(module: nn.Module) -> list[np.ndarray]:
    """Return the weights in Keras's layout and the order of `adopt`."""
    return [
        np.array(tensor.detach().cpu().numpy().transpose(axes), order="C")
        for (_, tensor), axes in zip(_tensors(module), _keras_axes(module), strict=True)
    ]


def state_dict(module: nn.Module) -> dict[str, np.ndarray]:
    """Return `module.state_dict()` as arrays, in torch's layout."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in module.state_dict().items()}


def set_weights(module: nn.Module, weights: Sequence[np.ndarray]) -> None:
    """Set what `get_weights` returned."""
    with torch.no_grad():
        for (_, tensor), axes, weight in zip(_tensors(module), _keras_axes(module), weights, strict=True):
            tensor.copy_(torch.as_tensor(np.array(weight).transpose(np.argsort(axes))))  # the inverse axes


def keras_layout(networks: Iterable[Any]) -> dict[int, Sequence[int]]:
    """Return the axes that transpose each variable of native modules to Keras's layout, by the variable's id."""
    return {
        id(variable): axes
        for network in networks
        if isinstance(network, nn.Module) and not isinstance(network, keras.layers.Layer)
        for variable, axes in zip(adopt(network), _keras_axes(network), strict=True)
    }


def _keras_axes(module: nn.Module) -> list[Sequence[int]]:
    """Return for each parameter and buffer the axes that transpose the tensor to Keras's layout."""
    kernels = {}
    for layer in module.modules():
        for layer_class, axes in _KERNEL_AXES.items():
            if isinstance(layer, layer_class):
                kernels[id(layer.weight)] = axes
    return [kernels.get(id(tensor), range(tensor.ndim)) for _, tensor in _tensors(module)]
