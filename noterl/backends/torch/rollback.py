"""Taking back a torch update of which a loss turned out not to be finite.

Owns: what is copied for it. An optimizer is applied once its loss and its gradients are known to be finite: only what
the optimizers before it in the update did may have to be taken back, and nothing of what comes after the last.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import torch

if TYPE_CHECKING:
    from noterl.agent import Agent

_Native = tuple[torch.optim.Optimizer, dict[str, Any]]


class _Copy(NamedTuple):
    """Tensors, what they held, and what torch's own optimizers said of themselves."""

    tensors: list[torch.Tensor]
    saved: list[torch.Tensor]
    native: list[_Native]

    def take_back(self) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self.tensors, self.saved)
        for optimizer, state in self.native:
            optimizer.load_state_dict(state)


class Undo:
    """Takes back updates of an agent.

    Before an optimizer is applied, what it is about to change is copied, unless it is the update's last. Where an
    update changes more than that before its last loss is known (a loss assigns the running mean of a normalisation),
    or may be taken back after its end, the whole state is copied as it begins. How many optimizers an update applies,
    and whether it changes more, is learned from the first update of each index within `update_period`, for which
    everything is copied.

    Args:
        agent: built.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._whole = False
        self._applied: dict[int, int] = {}  # optimizers that updates of an index apply
        self._index = self._count = 0
        self._versions: list[int] | None = None  # of all tensors, while it is learned what changes them
        self._copies: list[_Copy] = []
        self._memory: dict[tuple[int, int], list[torch.Tensor]] = {}

    def begin(self, index: int = 0) -> None:
        """Note the start of an update of this index within `update_period`."""
        self._index, self._count, self._copies, self._versions = index, 0, [], None
        learning = index not in self._applied
        if learning or self._whole:
            optimizers = self._agent.optimizers.values()
            native = [found for found in optimizers if isinstance(found, torch.optim.Optimizer)]
            self._copy((-1, -1), self._state(), native)
            if learning:
                self._note_versions()
        else:
            self._memory.pop((-1, -1), None)

    def before(self, optimizer: Any, variables: Sequence[keras.Variable]) -> None:
        """Note that an optimizer is about to change the variables."""
        self._count += 1
        if self._versions is not None or self._whole or self._count >= self._applied.get(self._index, 0):
            return
        native = isinstance(optimizer, torch.optim.Optimizer)
        held = variables if native else [*variables, *optimizer.variables]
        self._copy((self._index, self._count), _tensors(held), [optimizer] if native else [])

    def after(self) -> None:
        """Note that it has done so."""
        if self._versions is not None:
            self._note_versions()

    def note(self) -> None:
        """Learn, once a loss is known, whether anything has been assigned since the last optimizer was applied."""
        if self._versions is not None and not self._whole:
            self._whole = self._versions != [tensor._version for tensor in self._state()]

    def end(self, *, may_be_needed: bool = False) -> None:
        """Note that an update is whole; and that others like it may be taken back even so."""
        self._applied[self._index] = max(self._count, self._applied.get(self._index, 0))
        self._whole |= may_be_needed

    def take_back(self) -> None:
        """Return to the state at the start of the update."""
        for copied in reversed(self._copies):
            copied.take_back()

    def _state(self) -> list[torch.Tensor]:
        return _tensors(self._agent.all_variables)

    def _note_versions(self) -> None:
        self._versions = [tensor._version for tensor in self._state()]

    def _copy(self, key: tuple[int, int], tensors: list[torch.Tensor], native: Sequence[torch.optim.Optimizer]) -> None:
        # Into the same memory each time: to get new memory costs more than to fill it.
        saved = self._memory.get(key)
        if saved is None or len(saved) != len(tensors):
            saved = self._memory[key] = [torch.empty_like(tensor) for tensor in tensors]
        with torch.no_grad():
            torch._foreach_copy_(saved, tensors)
        self._copies.append(_Copy(tensors, saved, [(found, copy.deepcopy(found.state_dict())) for found in native]))


def _tensors(variables: Sequence[keras.Variable]) -> list[torch.Tensor]:
    # Not `value`, whose look into Keras's scopes costs more than to copy a small tensor.
    return [variable._value for variable in variables]
