"""Traced gradients on torch: a loss and the gradients as one straight list of tensor operations.

What an eager step spends in Python (layer calls, `keras.ops`, the autograd tape) is spent once, when the loss is
traced. With `jit_compile=True` and a C++ compiler, inductor compiles the list, which takes tens of seconds.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import keras
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from noterl.backends.common import Stack, no_gradient, split_loss
from noterl.backends.process_group import first_line
from noterl.backends.reads import Reading
from noterl.backends.torch.modules import modules_with
from noterl.backends.torch.rollback import restoring
from noterl.backends.torch.seeding import restored_generators
from noterl.backends.torch.tensors import device_name
from noterl.random import GLOBAL_GENERATORS

_traces_in_progress: Stack[Any] = Stack()

# The holder and the name of a tensor: a parameter or buffer of a module, or the value of a Keras variable.
_Slot = tuple[dict[str, Any], str]

# (leaves of the arguments of a loss) -> (loss, aux, gradients)
Gradient = Callable[[list[torch.Tensor]], tuple[torch.Tensor, Any, list[torch.Tensor | None]]]


def is_tracing() -> bool:
    """Whether the current code is being traced: the code runs once, and Python numbers become constants."""
    return _traces_in_progress.top is not None


class _Keeping(TorchFunctionMode):
    """Keeps the results of all operations.

    A backward pass may read a result whose Python object is gone. PyTorch 2.8 then makes the value a constant of the
    trace.
    """

    def __init__(self) -> None:
        super().__init__()
        self._results: list[Any] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self._results.append(result)
        return result


class TracedGradients:
    """Traces of loss functions, made at the first use.

    Losses run eagerly if `jit_compile` is False or there is a Keras seed generator. Keras generates seeds in
    Python, and a trace would turn the seeds into constants.

    Args:
        variables: all variables that the loss functions read or assign.
        jit_compile: False to run eagerly, True to compile the traces with inductor.
        on_trace: called for each loss that is traced.
        recording: returns the context in which a loss is traced, which records what the loss assigns.

    Attributes:
        are_due: whether `find` makes and returns traces.
    """

    def __init__(
        self,
        variables: Sequence[keras.Variable],
        jit_compile: bool | str,
        on_trace: Callable[[], None],
        recording: Callable[[], AbstractContextManager[Reading]],
    ) -> None:
        self.are_due = True
        self._is_eager = jit_compile is False or any("seed_generator" in variable.path for variable in variables)
        self._inductor = jit_compile is True and any(map(shutil.which, ("g++", "clang++", "c++")))
        self._on_trace = on_trace
        self._recording = recording
        self._slots = _slots(variables)
        self._modules = [part for module in modules_with(variables) for part in module.modules()]
        self._known: dict[tuple, Gradient | None] = {}  # None for a loss that must run eagerly

    def find(
        self, loss_fn: Callable[..., Any], variables: Sequence[keras.Variable], args: tuple
    ) -> Callable[[], tuple[torch.Tensor, Any, list[torch.Tensor | None]]] | None:
        """Return the traced gradients of `loss_fn(*args)`, or None if the loss must run eagerly.

        The first call for a loss and such arguments traces the loss; later calls look up the trace.

        Args:
            loss_fn: a function that depends on nothing but the arguments and the variables.
            variables: the variables to differentiate with respect to.
            args: the arguments.
        """
        if self._is_eager or not self.are_due:
            return None
        leaves, structure = pytree.tree_flatten(args)
        signature = tuple(
            [(leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else type(leaf) for leaf in leaves]
        )
        # A trace is valid for these variables, shapes, dtypes and modes of modules only.
        modes = tuple([part.training for part in self._modules])
        key = (loss_fn, tuple(map(id, variables)), structure, signature, modes)
        if key not in self._known:
            # Tracing runs the loss several times, and restores the generators after it.
            with GLOBAL_GENERATORS, self._recording() as reading:
                self._known[key] = self._traced(loss_fn, variables, args, reading)
                reading.is_kept = self._known[key] is not None
            if reading.assigned:
                self._known[key] = None
                _warn(loss_fn, f"assigns {min(reading.assigned)}, which a trace would not repeat")
        gradient = self._known[key]
        return None if gradient is None else partial(gradient, leaves)

    def _traced(
        self, loss_fn: Callable[..., Any], variables: Sequence[keras.Variable], args: tuple, reading: Reading
    ) -> Gradient | None:
        """Trace a loss, and compare the trace with an eager run; return None if the loss must run eagerly.

        `reading` records what the eager run assigns. The state is restored after each run.
        """
        leaves, structure = pytree.tree_flatten(args)
        if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            return None
        positions = {id(holder[name]): position for position, (holder, name) in enumerate(self._slots)}
        if any(id(variable.value) not in positions for variable in variables):
            return None
        trained = [positions[id(variable.value)] for variable in variables]
        state = [holder[name].detach() for holder, name in self._slots]
        pointers = [tensor.data_ptr() for tensor in state if tensor.numel()]
        if len(set(pointers)) < len(pointers):
            return None  # tracing would silently merge tensors that share storage
        # Other rows, because on the rows of the trace a value that became a constant of the trace is right.
        shifted = [leaf.roll(1, 0) if leaf.ndim else leaf for leaf in leaves]

        def run_eagerly(rows: list[torch.Tensor]) -> Any:
            arguments = pytree.tree_unflatten(rows, structure)
            return _with_rollback(lambda: eager_gradients(loss_fn, variables, arguments), state)

        # The function runs eagerly first, so that its own errors are not reported as errors of tracing.
        eager = [run_eagerly(leaves), run_eagerly(shifted)]
        if reading.assigned:
            return None
        shape: dict[str, Any] = {}

        def pure(*flat: torch.Tensor) -> list[torch.Tensor]:
            tensors = [t.detach().requires_grad_(k in trained) for k, t in enumerate(flat[: len(state)])]
            with _swapped(self._slots, tensors), _Keeping():
                loss, aux = split_loss(loss_fn(*pytree.tree_unflatten(flat[len(state) :], structure)))
                gradients = torch.autograd.grad(loss, [tensors[k] for k in trained], allow_unused=True)
            aux_leaves, shape["aux"] = pytree.tree_flatten(aux)
            shape["used"] = [gradient is not None for gradient in gradients]
            return [loss.detach(), *(leaf.detach() for leaf in aux_leaves), *(g for g in gradients if g is not None)]

        program = self._program(pure, loss_fn, state, leaves)
        if program is None:
            return None
        gradient = _gradient(*program, shape)
        try:
            traced = [_with_rollback(partial(gradient, rows), state) for rows in (leaves, shifted)]
        except Exception as error:  # some operations, such as those of an LSTM, run only outside of a trace
            _warn(loss_fn, f"cannot run as a trace ({type(error).__name__}: {first_line(error)})")
            return None
        if not _same(traced, eager):
            _warn(loss_fn, "returns different numbers if it is traced")
            return None
        self._on_trace()
        return gradient

    def _program(
        self, pure: Callable, loss_fn: Callable, state: list[torch.Tensor], leaves: list[torch.Tensor]
    ) -> tuple[Callable, list[int]] | None:
        """Return `pure` as a function of some leaves alone, and the positions; the function itself reads the state."""
        from torch.fx.experimental.proxy_tensor import make_fx

        examples = [*(tensor.clone() for tensor in state), *leaves]
        try:
            with _traces_in_progress.holding(loss_fn):
                # The random state is restored, because tracing runs the function an extra time.
                with restored_generators(device_name()):
                    with _one_fake_mode():
                        traced = make_fx(pure)(*examples)
                    module, used = _simplified(traced)
                    examples = [examples[k] for k in used]
                    if not self._inductor:
                        program = _without_python(module, examples)
                if self._inductor:
                    program = torch._inductor.compile(module, examples)
        except Exception as error:  # a user's loss may do anything; it can still run eagerly
            if "value out of a tracing tensor" in str(error):
                _warn(
                    loss_fn,
                    "reads a number of a tensor, by item(), float(), `if`, or a distribution of torch that checks its "
                    "arguments (validate_args=False prevents that), so it cannot be traced",
                )
            else:
                _warn(loss_fn, f"cannot be traced ({type(error).__name__}: {first_line(error)})")
            return None
        read = [state[k] for k in used if k < len(state)]
        taken = [k - len(state) for k in used if k >= len(state)]
        return partial(program, *read), taken


def _one_fake_mode() -> AbstractContextManager[Any]:
    """Let `make_fx` describe all tensors by one mode; making one for each takes half of the time of `make_fx`."""
    from torch._guards import TracingContext, tracing
    from torch._subclasses import FakeTensorMode

    return tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True)))


def _gradient(program: Callable, taken: list[int], shape: dict[str, Any]) -> Gradient:
    """Return a program of `_program` as a function of all leaves of the arguments, with nested results.

    Args:
        program: returns the loss, the leaves of the auxiliary values, and the gradients of the used variables.
        taken: the positions of the leaves that the program needs.
        shape: the structure of the auxiliary values ("aux"), and which variables are used ("used").
    """
    count = shape["aux"].num_leaves
    used = shape["used"]

    def gradient(leaves: list[torch.Tensor]) -> tuple[torch.Tensor, Any, list[torch.Tensor | None]]:
        with torch.no_grad():
            loss, *outputs = program(*[leaves[k] for k in taken])
        gradients = iter(outputs[count:])
        aux = pytree.tree_unflatten(outputs[:count], shape["aux"])
        return loss, aux, [next(gradients) if used_here else None for used_here in used]

    return gradient


def _simplified(module: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, list[int]]:
    """Remove operations without effect where no gradient is recorded: each costs as much as any small operation.

    Returns:
        the module, and the positions of the used inputs; the others are removed.
    """
    aten = torch.ops.aten
    for node in module.graph.nodes:
        if node.target in (aten.detach.default, aten.alias.default):
            node.replace_all_uses_with(node.args[0])
        elif node.target is aten.t.default and getattr(node.args[0], "target", None) is aten.t.default:
            node.replace_all_uses_with(node.args[0].args[0])
    module.graph.eliminate_dead_code()
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    used = [position for position, node in enumerate(inputs) if node.users]
    for node in inputs:
        if not node.users:
            module.graph.erase_node(node)
    module.recompile()
    return module, used


def _without_python(module: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Callable:
    """Return the operations as a TorchScript program, which calls small ones in half the time that Python takes.

    Nothing is fused, so that all calls return the same bits. Without TorchScript, Python calls the operations.
    """
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated as a file format
            script = torch.jit.trace(module.eval(), tuple(examples), check_trace=False)
            script = torch.jit.freeze(script, optimize_numerics=False)
    except Exception:  # TorchScript may not support an operation
        # `forward` instead of the module, whose call looks for hooks.
        return module.forward

    def run(*tensors: torch.Tensor) -> Any:
        with torch.jit.optimized_execution(False):
            return script(*tensors)

    return run


def eager_gradients(
    loss_fn: Callable[..., Any], variables: Sequence[keras.Variable], args: tuple
) -> tuple[torch.Tensor, Any, list[torch.Tensor | None]]:
    """Return `(loss, aux, gradients)` of `loss_fn(*args)`; None is the gradient of an unused variable."""
    loss, aux = split_loss(loss_fn(*args))
    if not loss.requires_grad:
        raise no_gradient(loss_fn)
    return loss, aux, list(torch.autograd.grad(loss, [variable.value for variable in variables], allow_unused=True))


def _with_rollback(run: Callable[[], Any], state: list[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
    """Return the result of `run` and the state afterwards; then restore the state and torch's random numbers."""
    with restoring(state), restored_generators(device_name()):
        result = run()
        return result, [tensor.clone() for tensor in state]


def _same(traced: Any, eager: Any) -> bool:
    """Whether the numbers are equal up to the order of additions."""
    ours = pytree.tree_leaves(traced)
    theirs = pytree.tree_leaves(eager)
    try:
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5, equal_nan=True)
    except AssertionError:
        return False
    return True


def _warn(function: Any, why: str) -> None:
    warnings.warn(f"{function.__qualname__} {why}; it runs eagerly", RuntimeWarning, stacklevel=2)


def _slots(variables: Sequence[keras.Variable]) -> list[_Slot]:
    """Return the places of all tensors of the state, each tensor once."""
    slots = [
        (holder, name)
        for root in modules_with(variables)
        for module in root.modules()
        for holder in (module._parameters, module._buffers)
        for name, tensor in holder.items()
        if tensor is not None
    ]
    slots += [(variable.__dict__, "_value") for variable in variables]
    # The first slot of each tensor.
    return list({id(holder[name]): (holder, name) for holder, name in reversed(slots)}.values())[::-1]


@contextmanager
def _swapped(slots: list[_Slot], tensors: list[torch.Tensor]) -> Iterator[None]:
    """Replace the tensors in the slots inside the context."""
    before = [holder[name] for holder, name in slots]
    for (holder, name), tensor in zip(slots, tensors, strict=True):
        holder[name] = tensor
    try:
        yield
    finally:
        for (holder, name), tensor in zip(slots, before, strict=True):
            holder[name] = tensor
