"""Reproducible numbers from torch's global generator, which layers such as dropout use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from noterl.random import GLOBAL_GENERATORS

SEEDED_DEVICES = ("cuda", "xpu")  # types, beside the CPU, whose generators can be restored


class SeededCalls:
    """Seeds torch's global generators during calls, and restores them afterwards. Other threads wait until then.

    If a call samples no number, later calls are not seeded.

    Args:
        seed: `seed(advance)` returns the seed of the next call. It is called with False before a call, and with True
            after a call that sampled numbers. If it is None, calls are not seeded.
        device: the name of the device whose generator the calls use, beside the CPU's.
    """

    def __init__(self, seed: Callable[[bool], int] | None, device: str) -> None:
        self._seed, where = seed, torch.device(device)
        self._devices = [where.index or 0] if where.type in SEEDED_DEVICES else []
        self._type = where.type if self._devices else "cuda"  # not used without devices

    @property
    def may_sample(self) -> bool:
        """Whether later calls may sample numbers."""
        return self._seed is not None

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return `function(*args)`."""
        if self._seed is None:
            return function(*args)
        with GLOBAL_GENERATORS, torch.random.fork_rng(devices=self._devices, device_type=self._type):
            torch.manual_seed(self._seed(False))
            before = self._states()
            result = function(*args)
            drew = not all(map(torch.equal, before, self._states()))
        if drew:
            self._seed(True)
        else:
            self._seed = None
        return result

    def _states(self) -> list[torch.Tensor]:
        others = [torch.get_device_module(self._type).get_rng_state(index) for index in self._devices]
        return [torch.get_rng_state(), *others]
