"""The contract of the backends: `Backend` has what all backends share, `Capabilities` what only some have.

Each `noterl/backends/*/core.py` is a `Backend`, and mypy compares the two. Tensors and variables are `Any`, because
each framework has different classes. Arguments before `/` are passed by position: mypy does not compare the names of
such arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypedDict, TypeVar, Unpack

import numpy as np

from noterl.backends import common, on_device
from noterl.backends.common import CallOptions, CallProgram, Function, Loss, Step, Tensor, UpdateOptions, Variables

Variable = Any
# A `torch.nn.Module`.
Module = Any

T = TypeVar("T")


class Modules(Protocol):
    """Native modules as networks. Weights have the framework's layout in memory and Keras's in files."""

    def build(self, plan: tuple, shape: tuple[int, ...], activations: Mapping[str, str], /) -> Module:
        """Build the module of a plan; `noterl.networks.builders` describes plans, and sets the initial weights.

        `activations` has the classes in `torch.nn` of the activations.
        """

    def materialize(self, module: Module, shape: Sequence[int], /) -> None:
        """If a module has parameters without a shape, as `nn.LazyLinear` does, call the module on a row of zeros."""

    def MultiInput(self, module: Module, places: dict[str, Any], /) -> Module:
        """Return a module that passes the parts of rows `[B, D]` to a module that takes a dict.

        `noterl.backends.nested` describes `places`.
        """

    def clone(self, module: Module, /) -> Module:
        """Return a deep copy in evaluation mode that is not trainable, as a Keras layer with `trainable=False` is."""

    def adopt(self, module: Module, /) -> list[Variable]:
        """Return the parameters and buffers of a module as `keras.Variable`s in the same storage.

        A module is searched once, so layers that are added later are not found.
        """

    def get_weights(self, module: Module, /) -> list[np.ndarray]:
        """Return the weights in Keras's layout and the order of `adopt`."""

    def set_weights(self, module: Module, weights: Sequence[np.ndarray], /) -> None:
        """Set what `get_weights` returned."""

    def keras_layout(self, networks: Iterable[Any], /) -> dict[int, Sequence[int]]:
        """Return the axes that transpose each variable of native modules to Keras's layout, by the variable's id."""

    def state_dict(self, module: Module, /) -> dict[str, np.ndarray]:
        """Return `module.state_dict()` as arrays, in the framework's layout."""

    def in_bfloat16(self, compute: Callable[[], Any], /) -> Any:
        """Return `compute()`, whose layers compute in bfloat16, with outputs of float32."""


class Tables(Protocol):
    """Tables of rows on the device."""

    def empty_table(self, shape: tuple[int, ...], dtype: np.dtype[Any], variable: Variable, /) -> Tensor:
        """Return a table on the device of the variable, whose values do not matter."""

    def write_rows(self, table: Tensor, rows: np.ndarray, values: np.ndarray, /) -> Tensor:
        """Write host arrays `[n, ...]` to rows `[n]` of a table, which must not be used again; return the new table."""

    def take_rows(self, table: Tensor, rows: np.ndarray, /) -> Tensor:
        """Return the rows `[...]` of a table, `[..., *row]`."""

    def take_rows_of_two(self, first: Tensor, second: Tensor, rows: np.ndarray, /) -> Tensor:
        """Return rows `[...]` of two tables; row `len(first) + i` is row i of the second one."""


class DevicePrograms(Protocol):
    """Training on the device: environments of pure functions and updates in one compiled call."""

    @property
    def DeviceProgram(self) -> type[on_device.DeviceProgram]:
        """The class of programs that learn from rollouts."""

    @property
    def ReplayProgram(self) -> type[on_device.ReplayProgram]:
        """The class of programs that learn from a replay memory."""

    def make_members(self, program: on_device.DeviceProgram, members: int, /) -> on_device.Members:
        """Return what makes the calls of this number of members of a population with the program of one member."""

    def loops_are_fast(self, variables: Variables, /) -> bool:
        """Return whether updates of these variables are fast inside of compiled loops; see `SeparateUpdates`."""


class Capabilities(TypedDict, total=False):
    """What only some backends can do: by the name of the capability, what is called for that capability.

    Attributes:
        modules: native modules as networks, and native optimizers.
        device_programs: training on the device.
        tables: the observations of a replay memory on the device.
        scopes: a function of variables and optimizers that makes what was built in the scope of a strategy independent
            of the scope: `fit(strategy=)` makes separate copies.
        choose_device: a function that chooses the device before an agent builds networks. The argument is whether the
            networks will be small.
        device_reason: a function that returns why the process uses its device, for `summary`.
        live_numbers: True if an update reads Python numbers, such as rules of optimizers, each time. Otherwise a
            compiled update contains the numbers as constants.
    """

    modules: Modules
    device_programs: DevicePrograms
    tables: Tables
    scopes: Callable[[Variables, Iterable[Any]], None]
    choose_device: Callable[[bool], None]
    device_reason: Callable[[], str]
    live_numbers: bool


class Backend(Protocol):
    """What every backend has.

    Attributes:
        capabilities: what this backend can do beside that.
    """

    capabilities: Capabilities

    # Compiling

    def compile_updates(self, step: Step, variables: Variables, /, **options: Unpack[UpdateOptions]) -> common.Program:
        """Compile gradient updates; `UpdateProgram` documents the arguments."""

    def compile_call(self, function: Function, variables: Variables, /, **options: Unpack[CallOptions]) -> CallProgram:
        """Compile a function of one argument; `CallProgram` documents the arguments."""

    def is_tracing(self) -> bool:
        """Return whether the current code is being compiled: code runs once, and Python numbers become constants."""

    # Gradients

    def minimize(
        self,
        loss_fn: Loss,
        trained: Variables,
        optimizer: Any,
        args: tuple,
        /,
        *,
        known: Variables = (),
        traceable: bool = False,
    ) -> tuple[Tensor, Any]:
        """Take the gradients of `loss_fn(*args)`, apply the optimizer and return `(loss, aux)`.

        Args:
            loss_fn: returns a scalar, or a pair of a scalar and anything, which is `aux`.
            trained: the variables to differentiate with respect to.
            optimizer: receives the gradients; on TensorFlow, None for a variable that the loss does not depend on.
            args: the arguments of `loss_fn`.
            known: all variables that `loss_fn` may read or assign. Needed by JAX outside of compiled calls.
            traceable: whether the result depends on nothing but `args` and variables. Inside a compiled call of torch,
                the function is then traced once, and the trace is used for every equal `loss_fn`.
        """

    def gradients(self, function: Callable[[], Tensor], variables: Variables, /) -> tuple[Tensor, list[Tensor]]:
        """Return the scalar `function()` and its gradients, which are zero for unused variables; in a compiled call."""

    def hessian_product(
        self, function: Callable[[], Tensor], variables: Variables, /
    ) -> Callable[[list[Tensor]], list[Tensor]]:
        """Return the function that multiplies the Hessian of the scalar `function()` by a vector; in a compiled call.

        The vector has one tensor for each variable. The gradient is computed once, so the product may be called in a
        loop of `keras.ops`.
        """

    def isolated(self, function: Callable[[], T], variables: Variables, /) -> T:
        """Return `function()`, and undo the assignments to `variables`; also inside a compiled call."""

    def dry_run(self, function: Callable[[], None], variables: Variables, jit_compile: bool | str = "auto", /) -> None:
        """Call `function` for the side effects in Python, and undo the assignments to `variables`.

        Unless `jit_compile` is False, a backend may compute shapes instead of values.
        """

    # Loops

    def scan(self, step: Callable[[Any, Any], Any], start: Any, rows: Any, /) -> Any:
        """Return the values `[T, ...]` that a loop over rows takes: `value = step(value, row)`, from `start` on.

        Args:
            step: returns the next value, a tensor or a nested dict or tuple of tensors like `start`.
            start: the value before the first row.
            rows: tensors `[T, ...]`, nested in the same way; each call receives one row of each.
        """

    # Values

    def fetch(self, value: Tensor | Variable, /) -> np.ndarray:
        """Copy a tensor or variable to a NumPy array."""

    def weights_reader(self, variables: Variables, /) -> Callable[[], list[np.ndarray]]:
        """Return a function that returns the current weights as arrays; on torch, views that later updates change."""

    def copy_variables(self, sources: Variables, targets: Variables, tau: Any, /) -> None:
        """Move the targets towards the sources by `tau`, a number or tensor; 1 is a hard copy."""

    # Devices

    def device_name(self) -> str:
        """Return the device on which updates run."""

    def device_names(self) -> list[str]:
        """Return all devices that the framework detects."""

    def update_threads(self, variables: Variables, batch_size: int, /) -> int:
        """Return the number of threads of an update with this batch size, on the CPU."""
