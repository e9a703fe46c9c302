"""The JAX backend; `noterl.backends.interface` documents the functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from noterl.backends.common import CallProgram, Program, SeparateUpdates, Step
from noterl.backends.interface import Backend, Capabilities
from noterl.backends.jax import on_device, tables
from noterl.backends.jax.scope import (
    Scope,
    compiler,
    dry_run,
    gradients,
    hessian_product,
    in_scope,
    is_tracing,
    isolated,
    loops_are_fast,
    minimize,
    read_values,
)
from noterl.backends.jax.updates import Updates
from noterl.utils.cores import available_cores

capabilities: Capabilities = {"device_programs": on_device, "tables": tables}


def fetch(value: Any) -> np.ndarray:
    """Copy a device value (array or `keras.Variable`) to a NumPy array."""
    return np.array(value._value if isinstance(value, keras.Variable) else value)


def device_name() -> str:
    """Return JAX's default device."""
    return str(jax.devices()[0])


def device_names() -> list[str]:
    """Return JAX's devices."""
    return [str(device) for device in jax.devices()]


def update_threads(variables: Sequence[keras.Variable], batch_size: int) -> int:
    """Return the number of threads of an update with this batch size, on the CPU.

    All programs of a process share XLA's threads. torch has one thread for updates of small networks.
    """
    return int(os.environ.get("NPROC") or available_cores())


def scan(step: Callable[[Any, Any], Any], start: Any, rows: Any) -> Any:
    """Return the values that a compiled loop takes."""

    def body(value: Any, row: Any) -> tuple[Any, Any]:
        value = step(value, row)
        return value, value

    return jax.lax.scan(body, start, rows)[1]


def weights_reader(variables: Sequence[keras.Variable]) -> Callable[[], list[np.ndarray]]:
    """Return a function that returns the current weights as NumPy arrays; on the CPU, views of immutable arrays."""
    return lambda: [np.asarray(variable._value) for variable in variables]


def copy_variables(sources: Sequence[keras.Variable], targets: Sequence[keras.Variable], tau: Any) -> None:
    """Move the targets towards the sources by `tau`; a hard copy outside of compiled calls shares the arrays."""
    if not in_scope() and float(tau) == 1.0:
        for source, target in zip(sources, targets, strict=True):
            target._value = source._value  # an array with two users is never overwritten
        return
    coefficient = keras.ops.convert_to_tensor(tau)
    for source, target in zip(sources, targets, strict=True):
        target.assign(_polyak(source.value, target.value, coefficient))


def _polyak(source: Any, target: Any, tau: Any) -> Any:
    if not jnp.issubdtype(jnp.result_type(target), jnp.floating):
        return source
    return jnp.where(tau == 1.0, source, target + tau * (source - target))


def compile_updates(step: Step, variables: Sequence[Any], *, period: int = 1, **options: Any) -> Program:
    """Compile gradient updates; `Updates` receives the other arguments."""
    if options.get("jit_compile") is False or loops_are_fast(variables):
        return Updates(step, variables, period=period, **options)
    return SeparateUpdates(lambda single: Updates(single, variables, is_separate=True, **options), step, period)


class Call(CallProgram):
    """A jitted pure function; see `CallProgram`."""

    def __post_init__(self) -> None:
        self._compiled = compiler(self.jit_compile)(self._traced)

    def __call__(self, inputs: Any) -> Any:
        """Return the result of the function, and set the variables that the function has assigned."""
        result, assigned = self._compiled(read_values(self.variables), inputs)
        for k, value in assigned.items():
            self.variables[k]._value = value
        return jax.tree.map(np.asarray, result) if self.acting else result

    def _traced(self, state: list[Any], inputs: Any) -> tuple[Any, dict[int, Any]]:
        """Return the result, and the assigned values by the positions of the variables; pure."""
        self.on_trace()
        with Scope(self.variables, state) as scope:
            result = self.function(inputs)
        return result, {k: value for k, value in enumerate(scope.values()) if value is not state[k]}


compile_call = Call

if TYPE_CHECKING:
    from noterl.backends.jax import core

    _contract: Backend = core
