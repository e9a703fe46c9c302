"""The torch backend: updates on native modules or Keras models.

Owns: taking and applying gradients, groups of updates, and the forward pass, on torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import torch

from noterl.backends.common import GroupResult, NonFiniteError, split_loss
from noterl.backends.torch.modules import (
    adopt,
    build_module,
    clone_module,
    module_weights,
    set_module_weights,
    stack_modules,
    to_keras_layout,
)
from noterl.backends.torch.rollback import Undo
from noterl.backends.torch.tracing import TracedGradients, is_traceable, traces_in_progress
from noterl.learning.update import log_names
from noterl.networks import is_module
from noterl.random import Generators
from noterl.types import Batch

if TYPE_CHECKING:
    from noterl.agent import Agent

__all__ = [
    "HostWeights",
    "adopt",
    "build_module",
    "clone_module",
    "compile_forward",
    "compile_update",
    "copy_variables",
    "device_name",
    "fetch",
    "is_tracing",
    "minimize",
    "module_weights",
    "set_module_weights",
    "stack_modules",
    "to_keras_layout",
]


def fetch(value: Any) -> np.ndarray:
    """Return a device value (tensor or `keras.Variable`) as a NumPy array of its own."""
    tensor = value.value if isinstance(value, keras.Variable) else value
    return np.array(tensor.detach().cpu().numpy() if isinstance(tensor, torch.Tensor) else tensor)


def is_tracing() -> bool:
    """Return whether what runs now is being traced, so that it is run once and numbers in it never change."""
    return bool(traces_in_progress)


def device_name() -> str:
    """Return the device that Keras places tensors on."""
    return str(keras.ops.zeros(()).device)


class HostWeights:
    """Weights as NumPy arrays; on the CPU these are views, which updates in place keep current.

    Args:
        variables: whose weights.
    """

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        self._variables = variables
        self._views: list[np.ndarray] | None = None

    def __call__(self) -> list[np.ndarray]:
        """Return the present weights."""
        if self._views is not None:
            return self._views
        weights = [variable.value.detach().cpu().numpy() for variable in self._variables]
        if self._variables[0].value.device.type == "cpu":
            self._views = weights
        return weights


def copy_variables(sources: Sequence[keras.Variable], targets: Sequence[keras.Variable], tau: Any) -> None:
    """Move the targets towards the sources by `tau`, all in one fused call."""
    coefficient = float(tau)
    pairs = [(source.value.detach(), target.value.detach()) for source, target in zip(sources, targets, strict=True)]
    with torch.no_grad():
        floating = [pair for pair in pairs if coefficient != 1.0 and pair[1].is_floating_point()]
        if floating:
            torch._foreach_lerp_([target for _, target in floating], [source for source, _ in floating], coefficient)
        rest = [pair for pair in pairs if coefficient == 1.0 or not pair[1].is_floating_point()]
        if rest:
            torch._foreach_copy_([target for _, target in rest], [source for source, _ in rest])


def minimize(
    agent: Agent, loss_fn: Callable[..., Any], variables: Sequence[keras.Variable], optimizer: Any, args: tuple
) -> tuple[torch.Tensor, Any]:
    """Take the gradient of `loss_fn(*args)` and let the optimizer apply it.

    Raises:
        NonFiniteError: if the loss or a gradient is not finite; nothing was applied then.
    """
    traces: TracedGradients | None = agent.backend_state.get("traces")
    traced = traces.find(loss_fn, variables, optimizer, args) if traces is not None else None
    if traced is not None:
        loss, aux, gradients = traced()
    else:
        loss, aux = split_loss(loss_fn(*args))
        gradients = list(torch.autograd.grad(loss, [variable.value for variable in variables], allow_unused=True))
    used = [
        (gradient, variable) for gradient, variable in zip(gradients, variables, strict=True) if gradient is not None
    ]
    loss = loss.detach()
    with torch.no_grad():
        total = torch.stack(torch._foreach_norm([gradient for gradient, _ in used])).sum() + loss
        undo: Undo = agent.backend_state.get("undo") or Undo(agent)
        undo.note()
        if not torch.isfinite(total):
            raise NonFiniteError(float(loss))
        changed = [variable for _, variable in used]
        undo.before(optimizer, changed)
        _apply(optimizer, [gradient for gradient, _ in used], changed)
        undo.after()
    return loss, aux


def _apply(optimizer: Any, gradients: list[torch.Tensor], variables: list[keras.Variable]) -> None:
    if isinstance(optimizer, torch.optim.Optimizer):
        for gradient, variable in zip(gradients, variables, strict=True):
            variable.value.grad = gradient
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    elif _is_plain_adam(optimizer):
        _fused_adam(optimizer, gradients, variables)
    else:
        optimizer.apply(gradients, variables)


def _is_plain_adam(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether `_fused_adam` says all that this optimizer does."""
    return (
        type(optimizer).__name__ == "Adam"
        and isinstance(optimizer, keras.optimizers.Adam)
        and not (optimizer.amsgrad or optimizer.use_ema or optimizer.weight_decay or optimizer.loss_scale_factor)
        and (optimizer.clipnorm, optimizer.clipvalue) == (None, None)
        and optimizer.gradient_accumulation_steps is None
    )


def _fused_adam(
    optimizer: keras.optimizers.Adam, gradients: list[torch.Tensor], variables: list[keras.Variable]
) -> None:
    """Apply Keras's Adam by torch's fused kernel.

    Keras adds epsilon to sqrt(v) before the bias correction ("epsilon hat" of Kingma and Ba, section 2), torch after
    it: torch's formula with epsilon / sqrt(1 - beta_2^t) is Keras's.
    """
    indices = [optimizer._get_variable_index(variable) for variable in variables]
    # Not `value`, whose look into Keras's scopes costs more than a small operation.
    weights = [variable._value for variable in variables]
    # The kernel walks memory, not indices: a convolution's gradient may lie in another order than its kernel.
    gradients = [
        gradient if gradient.stride() == weight.stride() else torch.empty_like(weight).copy_(gradient)
        for gradient, weight in zip(gradients, weights, strict=True)
    ]
    if optimizer.global_clipnorm:
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        gradients = torch._foreach_mul(gradients, torch.clamp(optimizer.global_clipnorm / norm, max=1.0))
    step = int(optimizer.iterations._value) + 1
    beta_1, beta_2 = float(optimizer.beta_1), float(optimizer.beta_2)
    torch._fused_adam_(
        weights,
        gradients,
        [optimizer._momentums[index]._value for index in indices],
        [optimizer._velocities[index]._value for index in indices],
        [],
        [torch.tensor(float(step))] * len(weights),
        lr=float(optimizer.learning_rate),
        beta1=beta_1,
        beta2=beta_2,
        weight_decay=0.0,
        eps=float(optimizer.epsilon) / (1.0 - beta_2**step) ** 0.5,
        amsgrad=False,
        maximize=False,
    )
    optimizer.iterations.value.add_(1)


def rehearse(agent: Agent, known: Sequence[keras.Variable], function: Callable[[], None]) -> None:
    """Call `function` for what it notes about the agent."""
    function()


def compile_update(agent: Agent, jit_compile: bool | str) -> Callable[[Batch, int], GroupResult]:
    """Return the function that runs `count` updates on a group's batches `[K, B, ...]`."""
    device = device_name()
    traced = jit_compile is not False and is_traceable(agent)
    agent.backend_state["traces"] = TracedGradients(agent, inductor=jit_compile is True) if traced else None
    agent.backend_state["undo"] = undo = Undo(agent)
    noise = _Noise(agent)

    def group(batch: Batch, count: int) -> GroupResult:
        batches = _unbound(_to_device(batch, device), count)
        rows: list[tuple[dict, dict]] = []
        for k in range(count):
            index = (agent.updates + k) % agent.update_period
            undo.begin(index)
            try:
                rows.append(noise.seeded(batches[k], index) if noise.needed else agent.update_once(batches[k], index))
            except NonFiniteError as error:
                undo.take_back()
                return _broken_off(agent, rows, error)
            undo.end()
        logs = {name: _stacked(rows, 0, name) for name in rows[0][0]}
        return GroupResult(logs, {name: _stacked(rows, 1, name) for name in rows[0][1]}, count)

    return group


def _broken_off(agent: Agent, rows: list[tuple[dict, dict]], error: NonFiniteError) -> GroupResult:
    """Return what updates gave up to one that was taken back, of which its loss alone is known."""
    failed = dict.fromkeys(log_names(agent), torch.tensor(math.nan)) | {"loss": torch.tensor(error.loss)}
    logs = {name: _stacked([*rows, (failed, {})], 0, name) for name in failed}
    return GroupResult(logs, {}, len(rows))


def _to_device(batch: Batch, device: str) -> Batch:
    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: convert(part) for name, part in value.items()}
        return torch.from_numpy(value).to(device)

    return Batch(*map(convert, batch))


def _unbound(batch: Batch, count: int) -> list[Batch]:
    """Split batches `[K, B, ...]` into the first `count` of them."""

    def split(value: Any) -> Any:
        if isinstance(value, dict):
            parts = {name: split(part) for name, part in value.items()}
            return [{name: part[k] for name, part in parts.items()} for k in range(count)]
        return value.unbind(0)

    return [Batch(*fields) for fields in zip(*(split(value)[:count] for value in batch), strict=True)]


def _stacked(rows: list[tuple[dict, dict]], part: int, name: str) -> torch.Tensor:
    return torch.stack([torch.as_tensor(row[part][name]).detach() for row in rows])


class _Noise:
    """Seeds torch's own generator, from which dropout and the like draw, from the agent's seed for every update.

    Whether updates draw at all is learned from the first one.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.needed = True

    def seeded(self, batch: Batch, index: int) -> tuple[dict, dict]:
        """Make an update whose random numbers depend on the agent's state alone; torch's generator is put back."""
        generators = Generators(self._agent.generators.seed)
        generators.set_state(self._agent.generators.get_state())
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(generators("torch").integers(2**63)))
            before = torch.get_rng_state()
            result = self._agent.update_once(batch, index)
            self.needed = not torch.equal(before, torch.get_rng_state())
        if self.needed:
            self._agent.generators("torch").integers(2**63)
        return result


def compile_forward(agent: Agent, jit_compile: bool | str) -> Callable[[Any], np.ndarray]:
    """Return the forward pass from observations `[N, ...]` to host arrays.

    Modules act in evaluation mode, as Keras layers do: acting leaves running means alone and drops nothing out.
    """
    device = device_name()
    modules = [part for network in agent.networks().values() if is_module(network) for part in network.modules()]

    def forward(observation: np.ndarray) -> np.ndarray:
        modes = [module.training for module in modules]
        try:
            for module in modules:
                module.__dict__["training"] = False  # `train(False)` would walk every tree again
            with torch.no_grad():
                return agent.outputs(torch.from_numpy(np.ascontiguousarray(observation)).to(device)).cpu().numpy()
        finally:
            for module, mode in zip(modules, modes, strict=True):
                module.__dict__["training"] = mode

    return forward
