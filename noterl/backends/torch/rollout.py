"""Rollouts on torch: the rows are taken on the device, the updates are those of `noterl.backends.torch.core`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from noterl.backends.common import GroupResult, NonFiniteError
from noterl.backends.torch.core import _broken_off, _Noise, _stacked, _to_device, device_name
from noterl.backends.torch.rollback import Undo
from noterl.backends.torch.tracing import TracedGradients, is_traceable
from noterl.learning.rollout_learner import prepared
from noterl.types import Batch

if TYPE_CHECKING:
    from noterl.agent import Agent


def compile_prepare(agent: Agent, jit_compile: bool | str) -> Callable[[Batch], Any]:
    """Return the function from a rollout `[T, N, ...]` on the host to its prepared rows `[T N, ...]` on the device."""
    device = device_name()

    def run(rollout: Batch) -> Any:
        with torch.no_grad():
            return prepared(agent, _to_device(rollout, device))

    return run


def compile_minibatches(agent: Agent, jit_compile: bool | str) -> Callable[[Any, np.ndarray, int], GroupResult]:
    """Return the function that makes `count` updates on minibatches, given as rows `[K, B]` of a prepared rollout."""
    device, undo, noise = device_name(), Undo(agent), _Noise(agent)
    traced = jit_compile is not False and is_traceable(agent)
    agent.backend_state["traces"] = TracedGradients(agent, inductor=jit_compile is True) if traced else None
    agent.backend_state["undo"] = undo

    def run(data: Any, rows: np.ndarray, count: int) -> GroupResult:
        index = torch.from_numpy(np.ascontiguousarray(rows)).to(device)
        found: list[tuple[dict, dict]] = []
        for k in range(count):
            undo.begin()
            batch = _taken(data, index[k])
            try:
                logs, feedback = noise.seeded(batch, 0) if noise.needed else agent.update_once(batch)
            except NonFiniteError as error:
                undo.take_back()
                return _broken_off(agent, found, error)
            found.append((logs, feedback))
            enough = agent.enough(logs)
            undo.end(may_be_needed=enough is not None)
            if enough is not None and bool(enough):
                undo.take_back()
                return GroupResult({name: _stacked(found, 0, name) for name in logs}, {}, k, True)
        return GroupResult({name: _stacked(found, 0, name) for name in found[0][0]}, {}, count)

    return run


def _taken(value: Any, index: torch.Tensor) -> Any:
    if isinstance(value, Batch):
        return Batch(*(_taken(part, index) for part in value))
    if isinstance(value, dict):
        return {name: _taken(part, index) for name, part in value.items()}
    return value.index_select(0, index)
