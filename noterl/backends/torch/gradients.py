"""Taking gradients and applying optimizers on torch, inside and outside of updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import keras
import torch
from torch.utils import _pytree as pytree

from noterl.backends import replicas
from noterl.backends.common import LARGEST_COUNT, Loss, NonFiniteError, Stack, Variables, count_period
from noterl.backends.torch.rollback import Rollback
from noterl.backends.torch.tensors import host_number, increment
from noterl.backends.torch.tracing import TracedGradients, eager_gradients

# If the sum of |loss| and the gradients' norms is above this, the squares that optimizers accumulate may overflow.
_LARGE_GRADIENT = 1e9

# Optimizers of Keras and torch whose steps are bounded for smaller gradients and usual rules.
_BOUNDED = ("SGD", "RMSprop", "Adam", "AdamW")


class _Call(NamedTuple):
    """What the compiled call in progress provides to `minimize`.

    Attributes:
        traces: of losses.
        rollback: undoes an update; None outside of updates.
        totals: receives the sum of |loss| and the gradients' norms, which the caller checks. None to check each sum
            before the optimizer is applied; this waits for the device.
    """

    traces: TracedGradients
    rollback: Rollback | None
    totals: list[torch.Tensor] | None


_calls: Stack[_Call] = Stack()


def calling(
    traces: TracedGradients, rollback: Rollback | None = None, totals: list[torch.Tensor] | None = None
) -> AbstractContextManager[None]:
    """Make `minimize` use these inside the context; see `_Call`."""
    return _calls.holding(_Call(traces, rollback, totals))


def minimize(
    loss_fn: Loss, trained: Variables, optimizer: Any, args: tuple, *, traceable: bool = False, **unused: Any
) -> tuple[torch.Tensor, Any]:
    """Take a gradient step; the optimizer receives the gradients of the variables that the loss depends on.

    Raises:
        NonFiniteError: if the loss or a gradient is not finite; the optimizer is not applied. Inside an update also if
            the step leaves weights or slots that are not finite; the caller then undoes the update.
    """
    call = _calls.top
    with torch.enable_grad():
        traced = call.traces.find(loss_fn, trained, args) if call and traceable else None
        loss, aux, grads = eager_gradients(loss_fn, trained, args) if traced is None else traced()
    rollback = call.rollback if call else None
    loss = loss.detach()
    with torch.no_grad():
        if (over := replicas.active.top) is not None:
            loss, grads = replicas.mean_of_step(over, loss, grads)
        pairs = [pair for pair in zip(grads, trained, strict=True) if pair[0] is not None]
        # One number for the loss and all gradients: a sum with NaN or infinity is not finite.
        total = torch.stack(torch._foreach_norm([gradient for gradient, _ in pairs])).sum() + loss.abs()
        changed = [variable for _, variable in pairs]
        may_overflow = False
        # Reading the number would wait for the device, so the caller checks a group of updates at once.
        if call is not None and call.totals is not None:
            call.totals.append(total)
        elif not math.isfinite(number := float(total)):
            raise NonFiniteError(float(loss))
        else:
            may_overflow = rollback is not None and (number > _LARGE_GRADIENT or not _has_bounded_steps(optimizer))
        if rollback is not None:
            rollback.before_apply(optimizer, changed, may_overflow=may_overflow)
        _apply(optimizer, [gradient for gradient, _ in pairs], changed)
        if rollback is not None:
            rollback.after_apply()
        if may_overflow and not all_finite(state_of(optimizer, changed)):
            raise NonFiniteError(float(loss))
    return loss, aux


def gradients(function: Callable[[], Any], variables: Variables) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the scalar `function()` and the gradients."""
    with torch.enable_grad():
        value, _, grads = eager_gradients(function, variables, ())
    value = value.detach()
    grads = _zeros_for_none(grads, variables)
    if (over := replicas.active.top) is not None:
        value, *grads = over.mean_of_all([value, *grads])
    return value, grads


def hessian_product(function: Callable[[], Any], variables: Variables) -> Callable[[list[Any]], list[Any]]:
    """Build the graph of the gradient once; each product is one backward pass through the graph."""
    values = [variable.value for variable in variables]
    with torch.enable_grad():
        first = torch.autograd.grad(function(), values, create_graph=True, allow_unused=True)
    is_used = [gradient is not None and gradient.requires_grad for gradient in first]
    outputs = [gradient for gradient, used in zip(first, is_used, strict=True) if used]

    def product(vector: list[Any]) -> list[Any]:
        if not outputs:
            return [torch.zeros_like(value) for value in values]
        slopes = [part for part, used in zip(vector, is_used, strict=True) if used]
        products = torch.autograd.grad(outputs, values, slopes, retain_graph=True, allow_unused=True)
        result = _zeros_for_none(products, variables)
        over = replicas.active.top
        return result if over is None else over.mean_of_all(result)

    return product


def _zeros_for_none(grads: Sequence[torch.Tensor | None], variables: Sequence[keras.Variable]) -> list[torch.Tensor]:
    pairs = zip(grads, variables, strict=True)
    return [torch.zeros_like(variable.value) if gradient is None else gradient for gradient, variable in pairs]


def _has_bounded_steps(optimizer: Any) -> bool:
    """Return whether steps on gradients below `_LARGE_GRADIENT` always leave finite weights and slots.

    These optimizers then move a weight by less than 1e25, so no variables need to be copied before each step and
    checked afterwards.
    """
    optimizer_class = type(optimizer)
    # A class of the user with such a name may have other rules, so the module counts too.
    if optimizer_class.__name__ not in _BOUNDED or not optimizer_class.__module__.startswith(("keras.", "torch.")):
        return False
    if isinstance(optimizer, torch.optim.Optimizer):
        rules = [
            (group["lr"], group["weight_decay"], group.get("eps", 1.0), group.get("centered"))
            for group in optimizer.param_groups
        ]
    else:
        epsilon = getattr(optimizer, "epsilon", 1.0)
        centered = getattr(optimizer, "centered", False)
        rules = [(optimizer.learning_rate, optimizer.weight_decay, epsilon, centered)]
    return all(
        host_number(rate) <= 1.0 and (decay or 0.0) <= 1.0 and epsilon >= 1e-12 and not centered
        for rate, decay, epsilon, centered in rules
    )


def state_of(optimizer: Any, variables: Sequence[keras.Variable]) -> list[Any]:
    """Return the values of the variables and everything that the optimizer holds."""
    tensors = [variable.value for variable in variables]
    if isinstance(optimizer, torch.optim.Optimizer):
        return tensors + pytree.tree_leaves(optimizer.state_dict()["state"])
    return tensors + [variable.value for variable in optimizer.variables]


def all_finite(values: Sequence[Any]) -> bool:
    """Return whether all tensors are finite; waits for the device once. Other values are ignored."""
    flags = [torch.isfinite(value).all() for value in values if isinstance(value, torch.Tensor)]
    return bool(torch.stack([flag.to(flags[0].device) for flag in flags]).all())


def _apply(optimizer: Any, grads: list[torch.Tensor], variables: list[keras.Variable]) -> None:
    """Apply an optimizer of torch or Keras, or an object with the method `apply`."""
    if isinstance(optimizer, torch.optim.Optimizer):
        for gradient, variable in zip(grads, variables, strict=True):
            variable.value.grad = gradient
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    elif _is_plain_adam(optimizer) and not any(variable.constraint for variable in variables):
        _fused_adam(optimizer, grads, variables)
    else:
        if isinstance(optimizer, keras.optimizers.Optimizer):  # others record gradients
            count = optimizer._iterations._value
            with torch.no_grad():  # the comparison stays on the device, which is not waited for
                count.sub_((count >= LARGEST_COUNT) * count_period(optimizer))
        optimizer.apply(grads, variables)


def _is_plain_adam(optimizer: Any) -> bool:
    """Whether `_fused_adam` supports all settings of the optimizer."""
    # The name too, because AdamW and optimizers of users are subclasses of Adam.
    return (
        type(optimizer).__name__ == "Adam"
        and isinstance(optimizer, keras.optimizers.Adam)
        and not (optimizer.amsgrad or optimizer.use_ema or optimizer.weight_decay or optimizer.loss_scale_factor)
        and (optimizer.clipnorm, optimizer.clipvalue) == (None, None)
        and optimizer.gradient_accumulation_steps is None
    )


def _fused_adam(optimizer: keras.optimizers.Adam, grads: list[torch.Tensor], variables: list[keras.Variable]) -> None:
    """Apply Keras's Adam by torch's fused kernel.

    Keras adds epsilon to sqrt(v) before the bias correction ("epsilon hat" of Kingma and Ba, section 2), torch
    afterwards. Torch's formula with epsilon / sqrt(1 - beta_2^t) equals Keras's.
    """
    indices = [optimizer._get_variable_index(variable) for variable in variables]
    # `_value` instead of `value`, whose lookup of Keras's scopes costs more than a small operation.
    weights = [variable._value for variable in variables]
    # The kernel ignores strides, and the gradient of a convolution may have other strides than its weights.
    grads = [
        gradient if gradient.stride() == weight.stride() else torch.empty_like(weight).copy_(gradient)
        for gradient, weight in zip(grads, weights, strict=True)
    ]
    if optimizer.global_clipnorm:
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        grads = torch._foreach_mul(grads, torch.clamp(optimizer.global_clipnorm / norm, max=1.0))
    step = host_number(optimizer.iterations) + 1.0
    beta_2 = float(optimizer.beta_2)
    torch._fused_adam_(
        weights,
        grads,
        [optimizer._momentums[index]._value for index in indices],
        [optimizer._velocities[index]._value for index in indices],
        [],
        [torch.full((), step, device=weights[0].device)] * len(weights),
        lr=host_number(optimizer.learning_rate),
        beta1=float(optimizer.beta_1),
        beta2=beta_2,
        weight_decay=0.0,
        eps=float(optimizer.epsilon) / (1.0 - beta_2**step) ** 0.5,
        amsgrad=False,
        maximize=False,
    )
    # Keras's count would overflow; see `LARGEST_COUNT`.
    if step <= LARGEST_COUNT:
        increment(optimizer.iterations)
