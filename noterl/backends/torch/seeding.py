"""Reproducible numbers from torch's global generator, which layers such as dropout use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from noterl.random import GLOBAL_GENERATORS


class SeededCalls:
    """Seeds torch's global generator during calls, and restores it afterwards. Other threads wait until then.

    If a call samples no number, later calls are not seeded.

    Args:
        seed: `seed(advance)` returns the seed of the next call. It is called with False before a call, and with True
            after a call that sampled numbers. If it is None, calls are not seeded.
    """

    def __init__(self, seed: Callable[[bool], int] | None) -> None:
        self._seed = seed

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return `function(*args)`."""
        if self._seed is None:
            return function(*args)
        with GLOBAL_GENERATORS, torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed(False))
            before = torch.get_rng_state()
            result = function(*args)
            drew = not torch.equal(before, torch.get_rng_state())
        if drew:
            self._seed(True)
        else:
            self._seed = None
        return result
