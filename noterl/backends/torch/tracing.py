"""Traced gradients on torch: a loss and its gradient as one straight list of tensor operations.

Owns: tracing a loss function of an agent, and the check of the trace against the function itself. What an eager step
spends in Python (layer calls, `keras.ops`, the autograd tape) is paid once, when it is traced. With `jit_compile=True`
and a C++ compiler the list is compiled by inductor, which takes tens of seconds.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import torch
from torch.utils import _pytree as pytree

from noterl import networks
from noterl.backends.common import split_loss

if TYPE_CHECKING:
    from noterl.agent import Agent

traces_in_progress: list[Callable[..., Any]] = []

# (leaves of the arguments of a loss) -> (loss, aux, gradients)
Gradient = Callable[[list[torch.Tensor]], tuple[torch.Tensor, Any, list[torch.Tensor | None]]]


class TracedGradients:
    """The traces of one agent's loss functions, made when first needed; None stands for one that runs eagerly.

    Args:
        agent: whose state the loss functions read.
        inductor: whether to compile the traces.
    """

    def __init__(self, agent: Agent, *, inductor: bool) -> None:
        self._agent = agent
        self._inductor = inductor and any(map(shutil.which, ("g++", "clang++", "c++")))
        self._slots = _slots(agent)
        self._known: dict[tuple, Gradient | None] = {}

    def find(
        self, loss_fn: Callable[..., Any], variables: Sequence[keras.Variable], optimizer: Any, args: tuple
    ) -> Callable[[], tuple[torch.Tensor, Any, list[torch.Tensor | None]]] | None:
        """Return the traced gradient of this call, or None where it must run eagerly.

        Only a method of the agent is traced: what another function closes over may differ at every call, and a trace
        would hold on to what it saw.
        """
        if getattr(loss_fn, "__self__", None) is not self._agent:
            return None
        leaves, structure = pytree.tree_flatten(args)
        function, trained = loss_fn.__func__, tuple(map(id, variables))  # type: ignore[attr-defined]
        key = (function, trained, structure, tuple(map(_signature, leaves)))
        if key not in self._known:
            self._known[key] = self._traced(loss_fn, variables, args, leaves, structure)
        gradient = self._known[key]
        return None if gradient is None else partial(gradient, leaves)

    def _traced(
        self,
        loss_fn: Callable[..., Any],
        variables: Sequence[keras.Variable],
        args: tuple,
        leaves: list,
        structure: Any,
    ) -> Gradient | None:
        if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            return None
        state = [slot.read().detach() for slot in self._slots]
        trained = _positions(self._slots, variables)
        if trained is None or len({tensor.data_ptr() for tensor in state if tensor.numel()}) < sum(
            t.numel() > 0 for t in state
        ):
            return None  # tracing would silently merge tensors that share storage
        # First as it is: an error in the function itself is nothing that tracing should speak of.
        eager = _undone(lambda: _eager(loss_fn, variables, args), state)
        shape: dict[str, Any] = {}

        def pure(*flat: torch.Tensor) -> list[torch.Tensor]:
            tensors = [t.detach().requires_grad_(k in trained) for k, t in enumerate(flat[: len(state)])]
            with _swapped(self._slots, tensors):
                loss, aux = split_loss(loss_fn(*pytree.tree_unflatten(flat[len(state) :], structure)))
                gradients = torch.autograd.grad(loss, [tensors[k] for k in trained], allow_unused=True)
            found, shape["aux"] = pytree.tree_flatten(aux)
            shape["used"] = [gradient is not None for gradient in gradients]
            return [loss.detach(), *(leaf.detach() for leaf in found), *(g for g in gradients if g is not None)]

        program = self._program(pure, loss_fn, state, leaves)
        if program is None:
            return None
        gradient = _gradient(program, shape)
        if not _same(_undone(lambda: gradient(leaves), state), eager):
            _say(loss_fn, "gives other numbers when it is traced")
            return None
        self._agent.trace_counts["update"] += 1
        return gradient

    def _program(
        self, pure: Callable, loss_fn: Callable, state: list[torch.Tensor], leaves: list[torch.Tensor]
    ) -> Callable | None:
        """Return `pure` as a function of the leaves alone, which reads what it needs of the state."""
        from torch.fx.experimental.proxy_tensor import make_fx

        examples = [*(tensor.clone() for tensor in state), *leaves]
        traces_in_progress.append(loss_fn)
        try:
            # The random state is put back: tracing runs the function once more than an eager run would.
            with torch.random.fork_rng(devices=[]):
                module, used = _slimmed(make_fx(pure)(*examples))
                examples = [examples[k] for k in used]
                if not self._inductor:
                    program = _without_python(module, examples)
            if self._inductor:
                program = torch._inductor.compile(module, examples)
        except Exception as error:  # whatever a user's loss does that cannot be traced, it can be run
            _say(loss_fn, f"cannot be traced ({type(error).__name__}: {error})")
            return None
        finally:
            traces_in_progress.pop()
        read = [state[k] for k in used if k < len(state)]
        taken = [k - len(state) for k in used if k >= len(state)]
        return lambda leaves: program(*read, *[leaves[k] for k in taken])


def _gradient(program: Callable, shape: dict[str, Any]) -> Gradient:
    count, used = shape["aux"].num_leaves, shape["used"]

    def gradient(leaves: list[torch.Tensor]) -> tuple[torch.Tensor, Any, list[torch.Tensor | None]]:
        with torch.no_grad():
            loss, *rest = program(leaves)
        gradients = iter(rest[count:])
        aux = pytree.tree_unflatten(rest[:count], shape["aux"])
        return loss, aux, [next(gradients) if used_here else None for used_here in used]

    return gradient


def _slimmed(module: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, list[int]]:
    """Drop operations that do nothing where no gradient is recorded: each costs as much as a small one that does.

    Returns:
        the module, and the positions of its inputs that it needs; the others are dropped.
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
    """Return the operations as a TorchScript program: called from C++, small ones cost half of what they do in Python.

    Nothing is fused, so that the first call gives the bits of all later ones. Where TorchScript is not to be had, the
    operations are called one by one.
    """
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as a file format TorchScript is on its way out
            script = torch.jit.trace(module.eval(), tuple(examples), check_trace=False)
            script = torch.jit.freeze(script, optimize_numerics=False)
    except Exception:  # whatever TorchScript lacks
        # Not the module itself: its call looks for hooks that nobody set.
        return module.forward

    def run(*tensors: torch.Tensor) -> Any:
        with torch.jit.optimized_execution(False):
            return script(*tensors)

    return run


def _eager(
    loss_fn: Callable[..., Any], variables: Sequence[keras.Variable], args: tuple
) -> tuple[torch.Tensor, Any, list[torch.Tensor | None]]:
    loss, aux = split_loss(loss_fn(*args))
    return loss, aux, list(torch.autograd.grad(loss, [v.value for v in variables], allow_unused=True))


def _undone(run: Callable[[], Any], state: list[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
    """Return what `run` gives and what it does to the state, which is put back, as are torch's random numbers."""
    saved = [(tensor, tensor.clone(), tensor._version) for tensor in state]
    with torch.random.fork_rng(devices=[]):
        result = run()
    after = [tensor.clone() for tensor in state]
    with torch.no_grad():
        for tensor, value, version in saved:
            if tensor._version != version:
                tensor.copy_(value)
    return result, after


def _same(traced: Any, eager: Any) -> bool:
    """Whether both give the same numbers, up to the order of additions."""
    ours, theirs = pytree.tree_leaves(traced), pytree.tree_leaves(eager)
    if len(ours) != len(theirs):
        return False
    return all(
        a is b
        or (a is not None and b is not None and torch.allclose(a, b.detach(), rtol=1e-3, atol=1e-5, equal_nan=True))
        for a, b in zip(ours, theirs, strict=True)
    )


def _say(function: Any, why: str) -> None:
    warnings.warn(f"{function.__qualname__} {why}; it runs eagerly", RuntimeWarning, stacklevel=2)


def _signature(leaf: Any) -> Any:
    return (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else type(leaf)


class _Slot:
    """Where a tensor of the agent's state is found: a module's parameter or buffer, or a Keras variable's value."""

    def __init__(self, holder: dict[str, Any], name: str) -> None:
        self.holder, self.name = holder, name

    def read(self) -> torch.Tensor:
        return self.holder[self.name]


def _slots(agent: Agent) -> list[_Slot]:
    slots = []
    seen: set[int] = set()
    for network in agent.networks().values():
        if networks.is_module(network):
            for module in network.modules():
                for holder in (module._parameters, module._buffers):
                    slots += [_Slot(holder, name) for name, tensor in holder.items() if tensor is not None]
    slots = [slot for slot in slots if not (id(slot.read()) in seen or seen.add(id(slot.read())))]  # type: ignore[func-returns-value]
    slots += [_Slot(variable.__dict__, "_value") for variable in agent.all_variables if id(variable._value) not in seen]
    return slots


def _positions(slots: list[_Slot], variables: Sequence[keras.Variable]) -> list[int] | None:
    places = {id(slot.read()): position for position, slot in enumerate(slots)}
    found = [places.get(id(variable.value)) for variable in variables]
    return None if None in found else found  # type: ignore[return-value]


class _swapped:
    """Put other tensors in the slots for the duration."""

    def __init__(self, slots: list[_Slot], tensors: list[torch.Tensor]) -> None:
        self._slots, self._tensors = slots, tensors

    def __enter__(self) -> None:
        self._before = [slot.read() for slot in self._slots]
        self._put(self._tensors)

    def __exit__(self, *args: object) -> None:
        self._put(self._before)

    def _put(self, tensors: list[torch.Tensor]) -> None:
        for slot, tensor in zip(self._slots, tensors, strict=True):
            slot.holder[slot.name] = tensor


def is_traceable(agent: Agent) -> bool:
    """Whether losses of this agent may be traced: Keras draws seeds in Python, which a trace would freeze."""
    return not any(
        isinstance(network, keras.random.SeedGenerator) for network in agent.networks().values()
    ) and not any("seed_generator" in variable.path for variable in agent.all_variables)
