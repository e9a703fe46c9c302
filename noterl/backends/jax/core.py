"""The interface of the JAX backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from noterl.backends.common import Step, UpdateProgram
from noterl.backends.jax.scope import Scope, compiler, dry_run, is_tracing, isolated, minimize, read_values
from noterl.backends.jax.updates import Updates


def fetch(value: Any) -> np.ndarray:
    """Copy a device value (array or `keras.Variable`) to a NumPy array."""
    return np.array(value._value if isinstance(value, keras.Variable) else value)


def device_name() -> str:
    """Return JAX's default device."""
    return str(jax.devices()[0])


def weights_reader(variables: Sequence[keras.Variable]) -> Callable[[], list[np.ndarray]]:
    """Return a function that returns the current weights as NumPy arrays; on the CPU views of JAX's constant arrays."""
    return lambda: [np.asarray(variable._value) for variable in variables]


def copy_variables(sources: Sequence[keras.Variable], targets: Sequence[keras.Variable], tau: Any) -> None:
    """Move the targets towards the sources by `tau`: one compiled call, or inside one a part of its trace."""
    if is_tracing():
        coefficient = keras.ops.convert_to_tensor(tau)
        for source, target in zip(sources, targets, strict=True):
            target.assign(_polyak(source.value, target.value, coefficient))
        return
    coefficient = float(tau)
    moved = read_values(sources)  # shared, not copied: arrays never change, and none is donated
    if coefficient != 1.0:
        moved = _moved(moved, read_values(targets), coefficient)
    for target, value in zip(targets, moved, strict=True):
        target._value = value


@jax.jit
def _moved(sources: list[jax.Array], targets: list[jax.Array], tau: float) -> list[jax.Array]:
    return [_polyak(source, target, tau) for source, target in zip(sources, targets, strict=True)]


def _polyak(source: Any, target: Any, tau: Any) -> Any:
    if not jnp.issubdtype(jnp.result_type(target), jnp.floating):
        return source
    return jnp.where(tau == 1.0, source, target + tau * (source - target))


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
    """Compile a function of a host array, or of a `Batch` of host arrays. Assigned variables are written back.

    Args:
        function: takes and returns tensors.
        variables: all variables that `function` may read or assign.
        acting: whether it is a forward pass for observations `[N, ...]`; the result is then copied to the host.
            Otherwise the result stays on the device.
        jit_compile: False runs it operation by operation.
        on_trace: called for each program that is traced.
        torch_seed: used on torch only.
    """

    def traced(state: list[Any], inputs: Any) -> tuple[Any, dict[int, Any]]:
        on_trace()
        with Scope(variables, state) as scope:
            result = function(inputs)
        return result, {k: value for k, value in enumerate(scope.values()) if value is not state[k]}

    compiled = compiler(jit_compile)(traced)

    def call(inputs: Any) -> Any:
        result, assigned = compiled(read_values(variables), inputs)
        for k, value in assigned.items():
            variables[k]._value = value
        return np.asarray(result) if acting else result

    return call
