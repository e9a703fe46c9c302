"""The spread of gradients on torch, through the gradients that updates have traced; what a loss assigns is put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from noterl.backends.torch.core import _to_device, _unbound, device_name
from noterl.learning.gradient_noise import gradients_of
from noterl.types import Batch

if TYPE_CHECKING:
    from noterl.agent import Agent


def compile_spread(agent: Agent) -> Callable[[Batch], tuple[float, float, int]]:
    """Return the function from batches `[K, B, ...]` to the sum of |g_k - G|^2, |G|^2 and the length of a gradient."""
    device = device_name()

    def gradients(row: Batch) -> torch.Tensor:
        tensors = [variable.value.detach() for variable in agent.all_variables]
        versions = [tensor._version for tensor in tensors]
        saved = [tensor.clone() for tensor in tensors]
        found = gradients_of(agent, row)
        with torch.no_grad():
            for tensor, version, value in zip(tensors, versions, saved, strict=True):
                if tensor._version != version:
                    tensor.copy_(value)
            return torch.cat([gradient.reshape(-1) for gradient in found])

    def run(batch: Batch) -> tuple[float, float, int]:
        rows = _unbound(_to_device(batch, device), len(batch.reward))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(agent.updates)  # of layers that draw
            mean = gradients(rows[0])
            squares: Any = torch.zeros(())
            for count, row in enumerate(rows[1:], 2):
                found = gradients(row)
                before = found - mean
                mean = mean + before / count
                squares = squares + torch.dot(before, found - mean)
        return float(squares), float(torch.dot(mean, mean)), len(mean)

    return run
