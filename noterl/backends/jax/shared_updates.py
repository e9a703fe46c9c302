"""Updates and other programs on JAX that several processes run together.

A program runs once on the device of each process, with the rows of that process. Outside of a program, every array
belongs to one process. So code that runs in one process only, such as a callback of the chief, cannot start a program
that waits for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import keras

from noterl.backends.common import GatheredRows, GroupResult, Rows
from noterl.backends.jax.core import Call
from noterl.backends.jax.processes import GROUPS, REPLICATED, ROWS, Processes
from noterl.backends.jax.updates import Updates
from noterl.types import Batch


class _Variables:
    """Variables that are arrays of all processes inside of programs, and arrays of this process outside.

    Args:
        variables: equal in all processes.
        processes: all processes.
    """

    def __init__(self, variables: Sequence[keras.Variable], processes: Processes) -> None:
        self._variables = list(variables)
        self._processes = processes
        self._pairs: list[tuple[Any, Any]] = [(None, None)] * len(self._variables)  # own array, array of all

    @contextmanager
    def of_all(self) -> Iterator[None]:
        """Make the variables arrays of all processes inside the context."""
        for k, variable in enumerate(self._variables):
            local, shared = self._pairs[k]
            # An array that code outside of programs has assigned since is sent again; others are reused.
            if variable._value is not local:
                local = variable._value
                shared = self._processes.replicated(local)
            self._pairs[k] = local, shared
            variable._value = shared
        try:
            yield
        finally:
            for k, variable in enumerate(self._variables):
                local, shared = self._pairs[k]
                if variable._value is not shared:
                    shared = variable._value
                    local = shared.addressable_data(0)
                    self._pairs[k] = local, shared
                variable._value = local


@dataclass(eq=False)
class SharedUpdates(Updates):
    """Updates of which each process computes a share; see `UpdateProgram`.

    Rows and feedback belong to this process, and logs are means over the processes.
    """

    processes: Processes = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.jit_compile is False:
            raise ValueError("jit_compile must not be False for updates of several processes on JAX")
        if self.stop is not None:  # it must see the logs of all processes
            self._own_step = self.step
            self.step = self._averaged_step
        self._shared = _Variables(self.variables, self.processes)
        # An array of all processes has the memory of this process's own: donating it would end both.
        self._reuses_memory = False
        feedback = (REPLICATED, GROUPS)  # with the logs
        self._run_all = self._program(self._all, (REPLICATED, REPLICATED, feedback))
        self._run_until_non_finite = self._program(self._until_non_finite, (REPLICATED, feedback))
        self._run_until_stop = self._program(self.until_stop, (REPLICATED, REPLICATED, REPLICATED, feedback))

    def _program(self, function: Callable[..., Any], results: Any) -> Any:
        return self.processes.program(function, _specs, results)

    def _averaged_step(self, batch: Batch, index: int) -> tuple[dict[str, Any], dict[str, Any]]:
        logs, feedback = self._own_step(batch, index)
        return self._averaged(logs), feedback

    def _averaged(self, logs: dict[str, Any]) -> dict[str, Any]:
        values = [jnp.asarray(value, jnp.result_type(value, jnp.float32)) for value in logs.values()]
        return dict(zip(logs, self.processes.mean_of_all(values), strict=True))

    def _repeat(self, *args: Any, **options: Any) -> tuple[Any, list[Any], Any, Any]:
        ran, state, good, result = super()._repeat(*args, **options)
        if self.stop is None:  # one reduction for all updates
            result = self._averaged(result[0]), result[1]
        return ran, state, good, result

    def _shapes(self, function: Callable[..., Any], state: list[Any], rows: Rows) -> Any:
        return self._program(function, REPLICATED).eval_shape(state, rows)

    def __call__(self, rows: Rows, count: int, first: int = 0) -> GroupResult:
        """Make `count` updates, of which the first has the number `first`."""
        spread = self.processes.parts
        if isinstance(rows, GatheredRows):
            data = jax.tree.map(lambda array: spread(array, 0), rows.data)
            shared: Rows = GatheredRows(data, spread(rows.indices, 1))
        else:
            shared = jax.tree.map(lambda array: spread(array, 1), rows)
        make = super().__call__
        with self._shared.of_all():
            result = self.processes.run(lambda: make(shared, count, first))
        return result._replace(logs=_own(result.logs), feedback=_own(result.feedback))


@dataclass(eq=False)
class SharedCall(Call):
    """A function with statistics over all processes; see `CallProgram`.

    The function receives and returns arrays with a first axis of rows or steps of this process.
    """

    processes: Processes = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._shared = _Variables(self.variables, self.processes)
        self._compiled = self.processes.program(self._traced, lambda *_: (REPLICATED, ROWS), (ROWS, REPLICATED))

    def __call__(self, inputs: Any) -> Any:
        """Return the result of the function."""
        inputs = jax.tree.map(lambda array: self.processes.parts(array, 0), inputs)
        call = super().__call__
        with self._shared.of_all():
            return _own(self.processes.run(lambda: call(inputs)))


def _specs(state: Any, rows: Rows, *numbers: Any) -> tuple[Any, ...]:
    """Return the `PartitionSpec`s of the arguments of an update program."""
    of_rows = GatheredRows(ROWS, GROUPS) if isinstance(rows, GatheredRows) else GROUPS
    return REPLICATED, of_rows, *[REPLICATED] * len(numbers)


def _own(arrays: Any) -> Any:
    """Return the parts of this process."""
    return jax.tree.map(lambda array: array.addressable_data(0) if isinstance(array, jax.Array) else array, arrays)
