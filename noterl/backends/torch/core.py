"""The torch backend; `noterl.backends.interface` documents the functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import keras
import numpy as np
import torch

from noterl.backends.common import CallProgram, Variables
from noterl.backends.interface import Backend, Capabilities
from noterl.backends.torch import modules, placement, tensors
from noterl.backends.torch.gradients import calling, gradients, hessian_product, minimize
from noterl.backends.torch.rollback import restoring
from noterl.backends.torch.seeding import SeededCalls, restored_generators
from noterl.backends.torch.tensors import device_name, device_names, fetch, to_device
from noterl.backends.torch.threads import number_of_python_thread, update_threads
from noterl.backends.torch.tracing import TracedGradients, is_tracing
from noterl.backends.torch.updates import Updates
from noterl.random import GLOBAL_GENERATORS

T = TypeVar("T")

capabilities: Capabilities = {
    "modules": modules,
    "tables": tensors,
    "choose_device": placement.choose_device,
    "device_reason": placement.reason,
    "live_numbers": True,
}


def scan(step: Callable[[Any, Any], Any], start: Any, rows: Any) -> Any:
    """Return the values that a loop takes; a traced loss holds the operations of all rows, one after another."""
    values = [start]
    columns = keras.tree.map_structure(torch.unbind, rows)
    for t in range(len(keras.tree.flatten(rows)[0])):
        values.append(step(values[-1], keras.tree.map_structure_up_to(rows, lambda column: column[t], columns)))  # noqa: B023
    return keras.tree.map_structure(lambda *leaves: torch.stack(leaves), *values[1:])


def weights_reader(variables: Sequence[keras.Variable]) -> Callable[[], list[np.ndarray]]:
    """Return a function that returns the weights as NumPy arrays; on the CPU, views that show later updates."""
    if variables[0].value.device.type == "cpu":
        views = [variable.value.detach().numpy() for variable in variables]
        return lambda: views
    return lambda: [variable.value.detach().cpu().numpy() for variable in variables]


def copy_variables(sources: Sequence[keras.Variable], targets: Sequence[keras.Variable], tau: Any) -> None:
    """Move the targets towards the sources by `tau`, by fused operations."""
    coefficient = float(tau)
    pairs = [(source.value.detach(), target.value.detach()) for source, target in zip(sources, targets, strict=True)]
    with torch.no_grad():
        floating = [pair for pair in pairs if coefficient != 1.0 and pair[1].is_floating_point()]
        if floating:
            torch._foreach_lerp_([target for _, target in floating], [source for source, _ in floating], coefficient)
        # A hard copy, or integers, which cannot be interpolated.
        copied = [pair for pair in pairs if coefficient == 1.0 or not pair[1].is_floating_point()]
        if copied:
            torch._foreach_copy_([target for _, target in copied], [source for source, _ in copied])


def dry_run(function: Callable[[], None], variables: Variables, jit_compile: bool | str = "auto") -> None:
    """Call `function` for the side effects in Python, and undo the assignments to `variables`."""
    with GLOBAL_GENERATORS, restored_generators(device_name()):
        isolated(function, variables)
    for module in modules.modules_with(variables):
        modules.check_storage(module)


def isolated(function: Callable[[], T], variables: Sequence[keras.Variable]) -> T:
    """Return `function()`, and undo the assignments to `variables`."""
    with restoring([variable.value.detach() for variable in variables]):
        return function()


class Call(CallProgram):
    """A function that records no gradients; see `CallProgram`."""

    def __post_init__(self) -> None:
        self._device = device_name()
        self._seeded = SeededCalls(self.torch_seed, self._device)
        self._traces = TracedGradients(self.variables, self.jit_compile, self.on_trace, self.recording)
        self._modules = [part for module in modules.modules_with(self.variables) for part in module.modules()]

    def __call__(self, inputs: Any) -> Any:
        """Return the result of the function."""
        number_of_python_thread()  # sets it in a new Python thread; results depend on it
        with torch.no_grad(), calling(self._traces), self._mode():
            if not self.acting:
                return self._seeded(self.function, to_device(inputs, self._device))
            result = self.function(keras.tree.map_structure(self._tensor, inputs))
            return keras.tree.map_structure(lambda tensor: tensor.cpu().numpy(), result)

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    @contextmanager
    def _mode(self) -> Iterator[None]:
        """Unless `training`, set evaluation mode: modules update no running means and drop nothing out."""
        modes = [] if self.training else [(module.__dict__, module.training) for module in self._modules]
        try:
            for attributes, _ in modes:
                attributes["training"] = False  # `module.eval()` would traverse every tree again
            yield
        finally:
            for attributes, mode in modes:
                attributes["training"] = mode


compile_updates = Updates
compile_call = Call

if TYPE_CHECKING:
    from noterl.backends.torch import core

    _contract: Backend = core
