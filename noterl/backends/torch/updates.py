"""Groups of gradient updates on torch: run one by one, with traced losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch

from noterl.backends.common import GatheredRows, GroupResult, NonFiniteError, Rows, UpdateProgram
from noterl.backends.torch.gradients import all_finite, calling, state_of
from noterl.backends.torch.rollback import Rollback
from noterl.backends.torch.seeding import SEEDED_DEVICES, SeededCalls
from noterl.backends.torch.tensors import device_name, stack, take, unbind
from noterl.backends.torch.threads import UpdateThreads, limited
from noterl.backends.torch.tracing import TracedGradients
from noterl.types import Batch

# Tracing a loss takes as long as some hundreds of eager updates, and a short run makes fewer. The number is that of the
# agent's updates, which a file stores: a resumed run uses traces from the same update on as an uninterrupted one.
EAGER_UPDATES = 100


def waits_for_device(device: str) -> bool:
    """Return whether the host waits for all work of the device before reading a number."""
    return torch.device(device).type in SEEDED_DEVICES


class Updates(UpdateProgram):
    """Updates one by one, with traces from update `EAGER_UPDATES` on; see `UpdateProgram`.

    On CUDA and XPU devices, a group of updates is checked once, at the end, with room for a copy of all variables.

    Attributes:
        rollback: undoes an update.
    """

    def __post_init__(self) -> None:
        self._device = device_name()
        self._seeded = SeededCalls(self.torch_seed, self._device, calls=self.period)
        self._traces = TracedGradients(self.variables, self.jit_compile, self.on_trace, self.recording)
        self.rollback: Rollback = Rollback(self.variables)
        self._threads = UpdateThreads(self.variables)

    def __call__(self, rows: Rows, count: int, first: int = 0) -> GroupResult:
        """Make `count` updates, of which the first has the number `first`."""
        batch = self._batches(rows, count)
        of_group = rows.indices if isinstance(rows, GatheredRows) else rows.reward  # [K, B], or [K, T, N] of sequences
        with limited(self._threads.number(math.prod(of_group.shape[1:]), first, count)):
            # A group that fails can be repeated if no update samples numbers, and none stops the group. On the CPU, a
            # check does not wait, so each update is checked, and copies of the state are avoided.
            repeatable = self.stop is None and not self._seeded.may_sample
            if count > 1 and waits_for_device(self._device) and repeatable:
                result = self._checked_together(batch, count, first)
                if result is not None:
                    return result
            return self._checked_one_by_one(batch, count, first)

    def _checked_together(self, batch: Callable[[int], Batch], count: int, first: int) -> GroupResult | None:
        """Make all updates, and wait for the device once; if one is not finite, undo all and return None."""
        rollback = self.rollback
        totals = list[torch.Tensor]()
        rollback.begin_group()
        try:
            with calling(self._traces, rollback, totals):
                results = [self._update(batch(k), first + k) for k in range(count)]
        except Exception:
            # After weights that are not finite, an update may raise anything; its own errors are raised again.
            rollback.restore()
            return None
        state = [value for applied in (rollback.applied or {}).values() for value in state_of(*applied)]
        if not all_finite([*totals, *state]):
            rollback.restore()
            return None
        logs, feedback = zip(*results, strict=True)
        return GroupResult(stack(logs), stack(feedback), count)

    def _checked_one_by_one(self, batch: Callable[[int], Batch], count: int, first: int) -> GroupResult:
        """Make updates until one is not finite or `stop` is true; that one is undone."""
        rollback = self.rollback
        logs: list[dict[str, Any]] = []
        feedback: list[dict[str, Any]] = []
        with calling(self._traces, rollback):
            for k in range(count):
                started = perf_counter()
                rollback.begin((first + k) % self.period)
                try:
                    result = self._update(batch(k), first + k)
                except NonFiniteError as error:
                    rollback.restore()
                    return GroupResult(stack([*logs, self._logs_of_failed(error, logs)]), {}, k)
                except BaseException:
                    rollback.restore_after_error()
                    raise
                if self._threads.times is not None:
                    self._threads.times.append(perf_counter() - started)
                logs.append(result[0])
                feedback.append(result[1])
                rollback.end(may_restore=self.stop is not None)
                if self.stop is not None and bool(self.stop(result[0])):
                    rollback.restore()
                    return GroupResult(stack(logs), {}, k, stopped_early=True)
        return GroupResult(stack(logs), stack(feedback), count)

    def _update(self, batch: Batch, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Make the update with this number."""
        self._traces.are_due = self.jit_compile is True or number >= EAGER_UPDATES
        if self._seeded.may_sample:
            return self._seeded(self.step, batch, number % self.period)
        return self.step(batch, number % self.period)

    def _logs_of_failed(self, error: NonFiniteError, before: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Return the logs of an update that was undone: only the loss is known. `before` are the earlier logs."""
        values = dict.fromkeys(self.log_names, math.nan) | {"loss": error.loss}
        shapes = {name: torch.as_tensor(value).shape for name, value in before[-1].items()} if before else {}
        return {name: torch.full(shapes.get(name, ()), value, device=self._device) for name, value in values.items()}

    def _batches(self, rows: Rows, count: int) -> Callable[[int], Batch]:
        """Return a function that returns the batch of the k-th update of this call."""
        if isinstance(rows, GatheredRows):
            indices = torch.from_numpy(np.ascontiguousarray(rows.indices)).to(self._device)
            return lambda k: take(rows.data, indices[k])
        return unbind(rows, count, self._device).__getitem__
