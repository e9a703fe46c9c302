"""Batches as torch tensors: transfer to the device, splitting, gathering and stacking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import torch

from noterl.types import Batch, map_arrays


def fetch(value: Any) -> np.ndarray:
    """Copy a device value (tensor or `keras.Variable`) to a NumPy array."""
    tensor = value.value if isinstance(value, keras.Variable) else value
    return np.array(tensor.detach().cpu().numpy() if isinstance(tensor, torch.Tensor) else tensor)


def device_name() -> str:
    """Return the device that Keras places tensors on."""
    return str(keras.ops.zeros(()).device)


def device_names() -> list[str]:
    """Return the CPU and every accelerator that torch detects."""
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return [
        "cpu",
        *([] if kind is None else [f"{kind.type}:{index}" for index in range(torch.accelerator.device_count())]),
    ]


def to_device(value: Any, device: str) -> Any:
    """Return a host array, or a batch or dict of them, as tensors on the device."""
    return map_arrays(lambda array: torch.from_numpy(array).to(device), value)


def unbind(batch: Batch, count: int) -> list[Batch]:
    """Split batches `[K, B, ...]` into the first `count` batches `[B, ...]`."""

    def split(value: Any) -> Any:
        if isinstance(value, dict):
            parts = {name: split(part) for name, part in value.items()}
            return [{name: part[k] for name, part in parts.items()} for k in range(count)]
        return value.unbind(0)

    return [Batch(*fields) for fields in zip(*(split(value)[:count] for value in batch), strict=True)]


def take(value: Any, indices: torch.Tensor) -> Any:
    """Return these rows of a tensor, or of each tensor in a batch or dict."""
    return map_arrays(lambda tensor: tensor.index_select(0, indices), value)


def stack(dicts: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Stack the values under the names of the last dict."""
    return {name: torch.stack([torch.as_tensor(one[name]).detach() for one in dicts]) for name in dicts[-1]}
