"""Undoing a torch update in which a loss was not finite.

An optimizer is applied only after the loss and the gradients are known to be finite. So only the changes by earlier
optimizers of the same update may have to be undone. Nothing is copied for the last optimizer, unless that optimizer's
step may overflow.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import keras
import torch


@contextmanager
def restoring(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Restore the values of tensors at the end of the context."""
    saved = [(tensor, tensor.clone(), tensor._version) for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value, version in saved:
                # Batch normalization writes its running statistics without a new version.
                if tensor._version != version or not torch.equal(tensor, value):
                    tensor.copy_(value)


class _Copy(NamedTuple):
    """Tensors with saved values, and torch optimizers with saved states."""

    tensors: list[torch.Tensor]
    saved: list[torch.Tensor]
    native: list[tuple[torch.optim.Optimizer, dict[str, Any]]]

    def restore(self) -> None:
        """Write the saved values and states back."""
        if self.tensors:
            with torch.no_grad():
                torch._foreach_copy_(self.tensors, self.saved)
        for optimizer, state in self.native:
            optimizer.load_state_dict(state)


class Rollback:
    """Undoes updates.

    Before an optimizer is applied, the optimizer's variables are copied, unless no optimizer follows in the update and
    the step cannot overflow. The whole state is copied at the start of an update in two cases:

    - The update assigns other variables before the last loss is known, such as the running mean of a normalization.
    - The update may be undone after the end of the update.

    The first update of each index within the period shows how many optimizers an update applies, and whether the
    update assigns other variables. For that update everything is copied.

    Args:
        variables: all variables that an update may assign.

    Attributes:
        applied: the optimizers that were applied in the current group, each with the changed variables; None
            if updates are undone one by one.
    """

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        self._variables = variables
        self._copies_all = False
        self._num_applied: dict[int, int] = {}  # optimizers that an update applies, by its index
        self._index = self._count = 0
        self._versions: list[int] | None = None  # of all tensors, during the first update of an index
        self._copies: list[_Copy] = []
        self.applied: dict[tuple[int, ...], tuple[Any, Sequence[keras.Variable]]] | None = None
        self._memory: dict[tuple[int, int], list[torch.Tensor]] = {}

    def begin_group(self) -> None:
        """Start a group of updates that are undone together."""
        self._copies = []
        self._versions = None
        self.applied = {}
        self._copy((-1, -1), _tensors(self._variables))

    def begin(self, index: int) -> None:
        """Start an update of this index within the period."""
        self._index = index
        self._count = 0
        self._copies = []
        self._versions = None
        self.applied = None
        first = index not in self._num_applied
        if first or self._copies_all:
            self._copy((-1, -1), _tensors(self._variables))
            if first:
                self._read_versions()
        else:
            self._memory.pop((-1, -1), None)

    def before_apply(self, optimizer: Any, variables: Sequence[keras.Variable], *, may_overflow: bool) -> None:
        """Copy what applying an optimizer to the variables will change, if the update may be undone afterwards."""
        # In the first update of an index, `_versions` are from the start or from just after the last optimizer was
        # applied. A version that has changed since then shows that the update itself has assigned a tensor.
        if self._versions is not None and not self._copies_all:
            self._copies_all = self._versions != [tensor._version for tensor in _tensors(self._variables)]
        self._count += 1
        if self.applied is not None:
            self.applied[id(optimizer), *map(id, variables)] = optimizer, variables
        native = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
        if self._versions is not None or self._copies_all or self.applied is not None:
            # All variables are copied already. The state of a torch optimizer is not among the variables, so the state
            # is copied before the optimizer is applied first.
            if native is not None and all(native is not other for saved in self._copies for other, _ in saved.native):
                self._copies.append(_Copy([], [], [_saved(native)]))
        # The last optimizer of an update needs no copy, unless its step may overflow.
        elif may_overflow or self._count < self._num_applied.get(self._index, 0):
            held = variables if native is not None else [*variables, *optimizer.variables]
            self._copy((self._index, self._count), _tensors(held), native)

    def after_apply(self) -> None:
        """Continue after an optimizer was applied."""
        if self._versions is not None:
            self._read_versions()

    def end(self, *, may_restore: bool = False) -> None:
        """End an update; `may_restore` is whether updates of this program may be undone later."""
        self._num_applied[self._index] = max(self._count, self._num_applied.get(self._index, 0))
        self._copies_all |= may_restore

    def restore(self) -> None:
        """Return to the state at the start of the update, or of the group."""
        for copied in reversed(self._copies):
            copied.restore()

    def restore_after_error(self) -> None:
        """Undo an update that has raised, unless the last optimizer was applied, before which nothing is copied."""
        is_copied = self._versions is not None or self._copies_all
        if is_copied or self._count < self._num_applied.get(self._index, 0):
            self.restore()

    def _read_versions(self) -> None:
        self._versions = [tensor._version for tensor in _tensors(self._variables)]

    def _copy(
        self, key: tuple[int, int], tensors: list[torch.Tensor], native: torch.optim.Optimizer | None = None
    ) -> None:
        """Copy tensors, and the state of a torch optimizer, so that `restore` writes the copies back.

        Args:
            key: identifies the memory for the copies: index and number of an optimizer; (-1, -1) for all variables.
            tensors: to be copied.
            native: the optimizer of torch, if there is one.
        """
        # The memory is reused: allocating it costs more than filling it.
        saved = self._memory.get(key)
        if saved is None or len(saved) != len(tensors):
            saved = self._memory[key] = [torch.empty_like(tensor) for tensor in tensors]
        with torch.no_grad():
            torch._foreach_copy_(saved, tensors)
        self._copies.append(_Copy(tensors, saved, [] if native is None else [_saved(native)]))


def _saved(optimizer: torch.optim.Optimizer) -> tuple[torch.optim.Optimizer, dict[str, Any]]:
    return optimizer, copy.deepcopy(optimizer.state_dict())


def _tensors(variables: Sequence[keras.Variable]) -> list[torch.Tensor]:
    # `_value` instead of `value`, whose lookup of Keras's scopes costs more than copying a small tensor.
    return [variable._value for variable in variables]
