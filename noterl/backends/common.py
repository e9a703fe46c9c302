"""Types and rules that the three backends share."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypedDict, TypeVar

import numpy as np

from noterl.backends.reads import Reading
from noterl.types import Batch, map_arrays

T = TypeVar("T")

# Each framework has its own classes of tensors and variables.
Tensor = Any
Variables = Sequence[Any]
# loss_fn(*args) -> a scalar, or a pair of a scalar and anything.
Loss = Callable[..., Any]
# A function of one argument, such as a forward pass.
Function = Callable[[Any], Any]
# step(batch, index) -> (logs, feedback): one gradient update on tensors [B, ...].
Step = Callable[[Batch, int], tuple[dict[str, Any], dict[str, Any]]]


class Stack(threading.local, Generic[T]):
    """A stack whose items are separate for each thread, so that agents can train in several threads."""

    def __init__(self) -> None:
        self._items: list[T] = []

    @property
    def top(self) -> T | None:
        """The item that was pushed last; None if there is none."""
        return self._items[-1] if self._items else None

    def push(self, item: T) -> None:
        """Put an item on top."""
        self._items.append(item)

    def pop(self) -> None:
        """Remove the top item."""
        self._items.pop()

    @contextmanager
    def holding(self, item: T) -> Iterator[None]:
        """Keep an item on top inside the context."""
        self._items.append(item)
        try:
            yield
        finally:
            self._items.pop()


# Keras counts updates in int32, except on TensorFlow, and Nadam adds 2. Beyond that the count would be negative, and a
# bias correction infinite. Bias corrections are 1 long before.
LARGEST_COUNT = 2**31 - 2


def count_period(optimizer: Any) -> int:
    """Return the number by which a Keras optimizer's count can be reduced: what is done every n updates stays due."""
    return math.lcm(optimizer.gradient_accumulation_steps or 1, optimizer.ema_overwrite_frequency or 1)


class NonFiniteError(FloatingPointError):
    """Raised if a loss, a gradient or the state after a step is not finite; the agent keeps the last finite state."""

    def __init__(self, loss: float, *, update: int | None = None, step: int | None = None) -> None:
        where = "" if update is None else f" at update {update} (environment step {step})"
        super().__init__(
            f"the loss ({loss}), a gradient of it or the state after the step is not finite{where}; the agent keeps "
            "the last finite state"
        )
        self.loss: float = loss
        self.update: int | None = update
        self.step: int | None = step


class GatheredRows(NamedTuple):
    """The batches of K updates, as indices of rows that are already on the device.

    Attributes:
        data: tensors `[T N, ...]`.
        indices: the rows of each batch, a host array `[K, B]` of int32.
    """

    data: Batch
    indices: Any


class GroupResult(NamedTuple):
    """The result of a compiled call of K gradient updates. Arrays stay on the device until fetched.

    Attributes:
        logs: values by name, each `[K, ...]`; the first `applied` rows belong to updates that were applied.
        feedback: values for the memory by name, each `[K, B]`.
        applied: number of updates that were applied: fewer than requested if an update was not finite, or if `stop`
            returned true. The state is then the one before that update.
        stopped_early: whether `stop` returned true for update number `applied`, which was undone.
        weights: the flat weights of the variables to report, or None.
    """

    logs: dict[str, Any]
    feedback: dict[str, Any]
    applied: int
    stopped_early: bool = False
    weights: Any = None


Rows = Batch | GatheredRows


class Program(Protocol):
    """Compiled gradient updates; `UpdateProgram` documents the call."""

    def __call__(self, rows: Rows, count: int, first: int = 0) -> GroupResult:
        """Run `count` updates; the first one has the number `first`."""


class Options(TypedDict, total=False):
    """The optional arguments of every compiled program."""

    jit_compile: bool | str
    on_trace: Callable[[], None]
    torch_seed: Callable[[bool], int] | None
    recording: Callable[[], AbstractContextManager[Reading]]


class UpdateOptions(Options, total=False):
    """The optional arguments of `UpdateProgram`."""

    period: int
    stop: Callable[[dict[str, Any]], Any] | None
    report: Sequence[Any]
    log_names: Collection[str]


class CallOptions(Options, total=False):
    """The optional arguments of `CallProgram`."""

    acting: bool
    training: bool


@dataclass(eq=False, kw_only=True)
class CompiledProgram:
    """Base of compiled programs.

    Args:
        jit_compile: False runs the program eagerly. On torch, True compiles traces with inductor, and "auto" does not.
        on_trace: called for each program that is traced, or on torch for each loss that is minimized inside.
        torch_seed: on torch, the seed of the global generator during an update. `torch_seed(advance)` is called with
            False before an update, and with True after an update that sampled random numbers. Not used for acting.
        recording: on torch, returns the context in which a loss is traced.
    """

    jit_compile: bool | str = "auto"
    on_trace: Callable[[], None] = lambda: None
    torch_seed: Callable[[bool], int] | None = None
    recording: Callable[[], AbstractContextManager[Reading]] = lambda: nullcontext(Reading())  # records nothing

    def __post_init__(self) -> None:
        """Prepare the program, after `__init__` has set the arguments."""


@dataclass(eq=False)
class UpdateProgram(CompiledProgram):
    """Compiled gradient updates, called as `program(rows, count, first=0)`.

    The program receives the batches of K updates and runs the first `count <= K` updates. `rows` is a `Batch` of host
    arrays `[K, B, ...]`, or `GatheredRows` of data on the device. `first` is the number of the first update; only
    `first % period` matters. `count` and `first` do not change the compiled code, so splitting updates into calls
    cannot change a result.

    Args:
        step: runs one update, `step(batch, index) -> (logs, feedback)`, on tensors `[B, ...]`. `index` is the number
            of the update modulo `period`, a Python int.
        variables: all variables that `step` may read or assign.
        period: number of updates after which `index` starts again from 0.
        stop: receives the logs of an update and returns whether to stop. If so, that update is undone and the remaining
            ones are skipped. None to run all updates.
        report: variables whose flat float32 weights are returned as `GroupResult.weights`. Not used on torch, where
            weights on the CPU are read without a copy.
        log_names: the names of all logs of `step`. On torch, an update that is not finite logs NaN under these names.

    `CompiledProgram` documents the other arguments.
    """

    step: Step
    variables: Sequence[Any]
    _: KW_ONLY
    period: int = 1
    stop: Callable[[dict[str, Any]], Any] | None = None
    report: Sequence[Any] = ()
    log_names: Collection[str] = ("loss",)


@dataclass(eq=False)
class CallProgram(CompiledProgram):
    """A compiled function, called with a host array or a `Batch` of host arrays. Assigned variables are written back.

    Args:
        function: takes and returns tensors.
        variables: all variables that `function` may read or assign.
        acting: whether `function` is a forward pass for observations `[N, ...]`. TensorFlow then does not retrace the
            function for another N, and the result is copied to the host. Otherwise the result stays on the device.
        training: whether torch modules keep their mode. Otherwise modules are in evaluation mode.

    `CompiledProgram` documents the other arguments.
    """

    function: Callable[[Any], Any]
    variables: Sequence[Any]
    _: KW_ONLY
    acting: bool = False
    training: bool = False

    def __call__(self, inputs: Any) -> Any:
        """Return the result of the function."""
        raise NotImplementedError


def num_updates(rows: Rows) -> int:
    """Return the number of batches, K."""
    return int((rows.indices if isinstance(rows, GatheredRows) else rows.reward).shape[0])


def split_loss(result: Any) -> tuple[Any, Any]:
    """Split the result of a loss function, a scalar or `(scalar, aux)`, into `(loss, aux)`.

    Raises:
        ValueError: if the result is neither.
    """
    pair = result if isinstance(result, tuple) else (result, {})
    if len(pair) != 2:
        raise ValueError(f"a loss function must return a scalar or (scalar, feedback), got a tuple of {len(pair)}")
    # TensorFlow would sum a loss of shape [B] without an error.
    shape = getattr(pair[0], "shape", None)
    if shape is None or len(shape):
        got = f"{pair[0]!r:.80}" if shape is None else f"the shape {tuple(shape)}: take the mean over the batch"
        raise ValueError(f"a loss must be a scalar tensor, got {got}")
    return pair


def no_gradient(loss_fn: Loss) -> ValueError:
    """Return the error of a loss that depends on none of the trained variables."""
    name = getattr(loss_fn, "__qualname__", repr(loss_fn))
    return ValueError(
        f"loss: {name} does not depend on the variables that it trains, so it has no gradient; stop_gradient, argmax "
        "and NumPy operations have none"
    )


def apply_finite(
    apply: Callable[[int], GroupResult | None], find_non_finite: Callable[[], tuple[Any, tuple[dict, dict]]], count: int
) -> GroupResult:
    """Apply `count` updates, or the first ones that leave a finite state.

    Args:
        apply: runs this number of updates. If the state would not be finite, `apply` changes nothing and
            returns None.
        find_non_finite: computes all updates without applying them, and returns (number, (logs, feedback)). The number
            counts the updates before the first one with a loss or gradient that is not finite. If only the state
            overflows, the number is `count`.
        count: the requested number of updates.
    """
    result = apply(count)
    if result is not None:
        return result
    num_finite, (logs, feedback) = find_non_finite()
    # `apply(count)` has failed already. If only the state overflowed, fewer updates may still leave a finite state.
    applied = min(int(num_finite), count - 1)
    while applied and apply(applied) is None:
        applied -= 1
    return GroupResult(logs, feedback, applied)


def is_single(rows: Rows, variables: Sequence[Any]) -> bool:
    """Return whether the rows are one batch whose update needs no compiled loop.

    Splitting a group into calls must not change a bit of the result. Dense layers give the same bits inside and outside
    of a loop, so dense layers skip the loop, which takes as long as a small update.
    """
    return is_dense(variables) and isinstance(rows, Batch) and num_updates(rows) == 1


def is_dense(variables: Sequence[Any]) -> bool:
    """Return whether no variable is the kernel of a convolution."""
    return all(len(variable.shape) <= 2 for variable in variables)


class SeparateUpdates:
    """Updates that run one by one, without a compiled loop or branch; called like an `UpdateProgram`.

    The class serves eager updates of TensorFlow, and convolutions on the CPU: inside of loops and branches, XLA
    computes gradients of convolutions ten times slower (https://github.com/jax-ml/jax/issues/12868).

    Args:
        compile_step: returns the program of a step, which makes a single update for each call.
        step: as for `UpdateProgram`.
        period: as for `UpdateProgram`; each index has a separate program.
    """

    def __init__(self, compile_step: Callable[[Step], Program], step: Step, period: int) -> None:
        def with_index(index: int) -> Step:
            return lambda batch, _: step(batch, index)

        self._programs = [compile_step(with_index(index)) for index in range(period)]

    def __call__(self, rows: Rows, count: int, first: int = 0) -> GroupResult:
        """Make `count` updates, of which the first has the number `first`."""
        results: list[GroupResult] = []
        applied = 0
        # An update that was not applied ends the group, as in a compiled loop.
        while applied == len(results) < count:
            program = self._programs[(first + applied) % len(self._programs)]
            results.append(program(_only(rows, applied), 1))
            applied += results[-1].applied
        logs = joined([result.logs for result in results])
        feedback = joined([result.feedback for result in results])
        return GroupResult(logs, feedback, applied, results[-1].stopped_early, results[-1].weights)


def _only(rows: Rows, k: int) -> Rows:
    """Return the rows of batch `k` alone, `[1, B, ...]`."""
    if isinstance(rows, GatheredRows):
        return rows._replace(indices=rows.indices[k : k + 1])
    return map_arrays(lambda array: array[k : k + 1], rows)


def joined(results: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return the values by name of all results, on the host."""
    return {name: np.concatenate([np.asarray(values[name]) for values in results]) for name in results[0]}
