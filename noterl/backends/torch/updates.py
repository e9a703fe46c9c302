"""Groups of gradient updates on torch: run one by one, with traced losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from noterl.backends.common import GatheredRows, GroupResult, NonFiniteError, Rows, UpdateProgram, transitions_of_update
from noterl.backends.torch.gradients import calling
from noterl.backends.torch.rollback import Rollback
from noterl.backends.torch.seeding import SeededCalls
from noterl.backends.torch.tensors import device_name, stack, take, to_device, unbind
from noterl.backends.torch.threads import UpdateThreads, limited
from noterl.backends.torch.tracing import TracedGradients
from noterl.types import Batch

# Tracing a loss takes as long as some hundreds of eager updates, and a short run makes fewer. The number is that of the
# agent's updates, which a file stores: a resumed run uses traces from the same update on as an uninterrupted one.
EAGER_UPDATES = 100


class Updates(UpdateProgram):
    """Updates one by one, with traces from update `EAGER_UPDATES` on; see `UpdateProgram`.

    Attributes:
        rollback: undoes an update.
    """

    def __post_init__(self) -> None:
        self._device, self._seeded = device_name(), SeededCalls(self.torch_seed)
        self._traces = TracedGradients(self.variables, self.jit_compile, self.on_trace)
        self.rollback = Rollback(self.variables)
        self._threads = UpdateThreads(self.variables)

    def __call__(self, rows: Rows, count: int, first: int = 0) -> GroupResult:
        """Make `count` updates, of which the first has the number `first`."""
        rollback, batch = self.rollback, self._batches(rows, count)
        logs: list[dict[str, Any]] = []
        feedback: list[dict[str, Any]] = []
        with calling(self._traces, rollback), limited(self._threads.number(transitions_of_update(rows))):
            for k in range(count):
                index = (first + k) % self.period
                self._traces.are_due = self.jit_compile is True or first + k >= EAGER_UPDATES
                rollback.begin(index)
                try:
                    result = self._seeded(self.step, batch(k), index)
                except NonFiniteError as error:
                    rollback.restore()
                    return GroupResult(stack([*logs, self._logs_of_failed(error)]), {}, k)
                logs.append(result[0])
                feedback.append(result[1])
                rollback.end(may_restore=self.stop is not None)
                if self.stop is not None and bool(self.stop(result[0])):
                    rollback.restore()
                    return GroupResult(stack(logs), {}, k, stopped_early=True)
        return GroupResult(stack(logs), stack(feedback), count)

    def _logs_of_failed(self, error: NonFiniteError) -> dict[str, torch.Tensor]:
        """Return the logs of an update that was undone: only its loss is known."""
        values = dict.fromkeys(self.log_names, math.nan) | {"loss": error.loss}
        return {name: torch.tensor(value, device=self._device) for name, value in values.items()}

    def _batches(self, rows: Rows, count: int) -> Callable[[int], Batch]:
        """Return a function that returns the batch of the k-th update of this call."""
        if isinstance(rows, GatheredRows):
            indices = torch.from_numpy(np.ascontiguousarray(rows.indices)).to(self._device)
            return lambda k: take(rows.data, indices[k])
        return unbind(to_device(rows, self._device), count).__getitem__
