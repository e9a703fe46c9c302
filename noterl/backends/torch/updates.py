"""Groups of gradient updates on torch: run one by one, with traced losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import keras
import numpy as np
import torch

from noterl.backends.common import GatheredRows, GroupResult, NonFiniteError, Step
from noterl.backends.torch.gradients import calling
from noterl.backends.torch.rollback import Rollback
from noterl.backends.torch.seeding import SeededCalls
from noterl.backends.torch.tensors import device_name, stack, take, to_device, unbind
from noterl.backends.torch.tracing import TracedGradients, traced_gradients
from noterl.types import Batch

Rows = Batch | GatheredRows


def compile_updates(
    step: Step,
    variables: Sequence[keras.Variable],
    *,
    period: int = 1,
    stop: Callable[[dict[str, Any]], Any] | None = None,
    report: Sequence[keras.Variable] = (),
    jit_compile: bool | str = "auto",
    on_trace: Callable[[], None] = lambda: None,
    log_names: Collection[str] = ("loss",),
    torch_seed: Callable[[bool], int] | None = None,
) -> Callable[..., GroupResult]:
    """Build the program of gradient updates, `program(rows, count, first=0) -> GroupResult`.

    The program takes the batches of K updates and makes the first `count <= K` of them. `rows` is a `Batch` of host
    arrays `[K, B, ...]`, or `GatheredRows` of data on the device. `first` is the number of the first update; only its
    remainder by `period` matters.

    Args:
        step: makes one update, `step(batch, index) -> (logs, feedback)`, on tensors `[B, ...]`. `index` is the number
            of the update modulo `period`.
        variables: all variables that `step` may read or assign.
        period: number of updates after which `index` starts again from 0.
        stop: returns, given the logs of an update, whether it was one too many. That update is undone, and the
            remaining ones are skipped. None if this never happens.
        report: not used on torch, where weights on the CPU are read without a copy.
        jit_compile: False traces nothing; True compiles traces with inductor.
        on_trace: called for each loss that is traced.
        log_names: the names of everything that `step` logs. An update that is not finite logs NaN under them.
        torch_seed: the seed of torch's global generator during an update; see `SeededCalls`.
    """
    traces = traced_gradients(variables, jit_compile, on_trace)
    return _Updates(step, variables, period, stop, log_names, torch_seed, traces)


class _Updates:
    """The program of one `step`."""

    def __init__(
        self,
        step: Step,
        variables: Sequence[keras.Variable],
        period: int,
        stop: Callable[[dict[str, Any]], Any] | None,
        log_names: Collection[str],
        torch_seed: Callable[[bool], int] | None,
        traces: TracedGradients | None,
    ) -> None:
        self._step, self._period, self._stop, self._log_names = step, period, stop, log_names
        self._device, self._traces = device_name(), traces
        self._seeded = SeededCalls(torch_seed)
        self.rollback = Rollback(variables)

    def __call__(self, rows: Rows, count: int, first: int = 0) -> GroupResult:
        """Make `count` updates; see `compile_updates`."""
        rollback, batch = self.rollback, self._batches(rows, count)
        logs: list[dict[str, Any]] = []
        feedback: list[dict[str, Any]] = []
        with calling(self._traces, rollback):
            for k in range(count):
                index = (first + k) % self._period
                rollback.begin(index)
                try:
                    result = self._seeded(self._step, batch(k), index)
                except NonFiniteError as error:
                    rollback.restore()
                    return GroupResult(stack([*logs, self._logs_of_failed(error)]), {}, k)
                logs.append(result[0])
                feedback.append(result[1])
                rollback.end(may_restore=self._stop is not None)
                if self._stop is not None and bool(self._stop(result[0])):
                    rollback.restore()
                    return GroupResult(stack(logs), {}, k, stopped_early=True)
        return GroupResult(stack(logs), stack(feedback), count)

    def _logs_of_failed(self, error: NonFiniteError) -> dict[str, torch.Tensor]:
        """Return the logs of an update that was undone: only its loss is known."""
        values = dict.fromkeys(self._log_names, math.nan) | {"loss": error.loss}
        return {name: torch.tensor(value, device=self._device) for name, value in values.items()}

    def _batches(self, rows: Rows, count: int) -> Callable[[int], Batch]:
        """Return the function from the number of an update to its batch."""
        if isinstance(rows, GatheredRows):
            indices = torch.from_numpy(np.ascontiguousarray(rows.indices)).to(self._device)
            return lambda k: take(rows.data, indices[k])
        return unbind(to_device(rows, self._device), count).__getitem__
