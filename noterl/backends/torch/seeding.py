"""Reproducible numbers from torch's global generator, which layers such as dropout use."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from noterl.random import GLOBAL_GENERATORS

SEEDED_DEVICES = ("cuda", "xpu")  # types, beside the CPU, whose generators can be restored


def _numbers(device: str) -> tuple[list[int], str]:
    """Return the number of a device, in a list that is empty if the generator cannot be restored, and the type."""
    where = torch.device(device)
    return ([where.index or 0], where.type) if where.type in SEEDED_DEVICES else ([], "cuda")


def restored_generators(device: str) -> AbstractContextManager[None]:
    """Return a context at whose end torch's generators of the CPU and of a device are as at the start."""
    numbers, device_type = _numbers(device)
    return torch.random.fork_rng(devices=numbers, device_type=device_type)


class SeededCalls:
    """Seeds torch's global generators during calls, and restores the generators afterwards; other threads wait.

    If some calls in a row sample no number, later calls are not seeded.

    Args:
        seed: `seed(advance)` returns the seed of the next call. `seed` is called with False before a call, and with
            True after a call that sampled numbers. If `seed` is None, calls are not seeded.
        device: the name of the device whose generator the calls use, beside the CPU's.
        calls: number of these calls in a row.

    Attributes:
        may_sample: whether later calls may sample numbers.
    """

    def __init__(self, seed: Callable[[bool], int] | None, device: str, calls: int = 1) -> None:
        self._seed = seed
        self._device = device
        self._calls = self._calls_left = calls
        self.may_sample: bool = seed is not None

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return `function(*args)`, called with seeded generators; a call that samples numbers advances the seed."""
        if self._seed is None:
            return function(*args)
        with GLOBAL_GENERATORS, restored_generators(self._device):
            torch.manual_seed(self._seed(False))
            before = self._states()
            result = function(*args)
            drew = not all(map(torch.equal, before, self._states()))
        if drew:
            self._seed(True)
            self._calls_left = self._calls
        else:
            # Comparing the states of the generators takes time, so calls that never sample are no longer seeded.
            self._calls_left -= 1
            if not self._calls_left:
                self._seed = None
                self.may_sample = False
        return result

    def _states(self) -> list[torch.Tensor]:
        numbers, device_type = _numbers(self._device)
        others = [torch.get_device_module(device_type).get_rng_state(number) for number in numbers]
        return [torch.get_rng_state(), *others]
