"""The interface of the torch backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import keras
import numpy as np
import torch

from noterl.backends.common import Step, UpdateProgram
from noterl.backends.torch.gradients import calling, minimize
from noterl.backends.torch.modules import (
    adopt,
    build_module,
    clone_module,
    keras_layout,
    module_weights,
    modules_with,
    set_module_weights,
)
from noterl.backends.torch.rollback import restoring
from noterl.backends.torch.seeding import SeededCalls
from noterl.backends.torch.tensors import device_name, fetch, to_device
from noterl.backends.torch.tracing import is_tracing, traced_gradients
from noterl.backends.torch.updates import Updates

T = TypeVar("T")


def weights_reader(variables: Sequence[keras.Variable]) -> Callable[[], list[np.ndarray]]:
    """Return a function that returns the weights as NumPy arrays; on the CPU views, which follow updates in place."""
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
        rest = [pair for pair in pairs if coefficient == 1.0 or not pair[1].is_floating_point()]
        if rest:
            torch._foreach_copy_([target for _, target in rest], [source for source, _ in rest])


def dry_run(
    function: Callable[[], None], variables: Sequence[keras.Variable], jit_compile: bool | str = "auto"
) -> None:
    """Call `function` for its side effects in Python, and undo what it assigns to `variables`."""
    isolated(function, variables)


def isolated(function: Callable[[], T], variables: Sequence[keras.Variable]) -> T:
    """Return `function()`, and undo what it assigns to `variables`."""
    with restoring([variable.value.detach() for variable in variables]):
        return function()


def compile_updates(step: Step, variables: Sequence[keras.Variable], **options: Any) -> UpdateProgram:
    """Compile gradient updates; the arguments are those of `UpdateProgram`."""
    return Updates(step, variables, **options)


def compile_call(
    function: Callable[[Any], Any],
    variables: Sequence[keras.Variable],
    *,
    acting: bool = False,
    jit_compile: bool | str = "auto",
    on_trace: Callable[[], None] = lambda: None,
    torch_seed: Callable[[bool], int] | None = None,
) -> Callable[[Any], Any]:
    """Return the call of a function of a host array, or of a `Batch` of host arrays. Gradients are not recorded.

    Args:
        function: takes and returns tensors.
        variables: all variables that `function` may read or assign.
        acting: whether it is a forward pass for observations `[N, ...]`. Modules are then in evaluation mode, as Keras
            layers are: acting updates no running means and drops nothing out. The result is copied to the host.
            Otherwise the result stays on the device.
        jit_compile: False traces no loss that is minimized inside.
        on_trace: called for each loss that is traced.
        torch_seed: the seed of torch's global generator during a call; see `SeededCalls`. Not used for acting.
    """
    if acting:
        return _compile_acting(function, variables)
    device, seeded = device_name(), SeededCalls(torch_seed)
    traces = traced_gradients(variables, jit_compile, on_trace)

    def call(inputs: Any) -> Any:
        with torch.no_grad(), calling(traces):
            return seeded(function, to_device(inputs, device))

    return call


def _compile_acting(
    function: Callable[[torch.Tensor], torch.Tensor], variables: Sequence[keras.Variable]
) -> Callable[[np.ndarray], np.ndarray]:
    device = device_name()
    modules = [part for module in modules_with(variables) for part in module.modules()]

    def call(observations: np.ndarray) -> np.ndarray:
        modes = [module.training for module in modules]
        try:
            for module in modules:
                module.__dict__["training"] = False  # `module.eval()` would traverse every tree again
            with torch.no_grad():
                return function(torch.from_numpy(np.ascontiguousarray(observations)).to(device)).cpu().numpy()
        finally:
            for module, mode in zip(modules, modes, strict=True):
                module.__dict__["training"] = mode

    return call
