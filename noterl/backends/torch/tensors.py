"""Batches as torch tensors: transfer to the device, splitting, gathering and stacking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from noterl.types import Batch, map_arrays


def fetch(value: Any) -> np.ndarray:
    """Copy a device value (tensor or `keras.Variable`) to a NumPy array."""
    tensor = value.value if isinstance(value, keras.Variable) else value
    return np.array(tensor.detach().cpu().numpy() if isinstance(tensor, torch.Tensor) else tensor)


# The number in a tensor, and the tensor's version when it was read.
_numbers: Any = WeakIdKeyDictionary()


def host_number(value: Any) -> float:
    """Return a number, or the value of a scalar variable.

    Reading a variable waits for the device. So a number is kept until an operation changes the tensor in place; torch
    counts these changes, except those through `tensor.data`.
    """
    if not isinstance(value, keras.Variable):
        return float(value)
    tensor = value._value
    version, number = _numbers.get(tensor, (None, 0.0))
    if version != tensor._version:
        number = float(tensor.item())
        _numbers[tensor] = tensor._version, number
    return number


def increment(counter: keras.Variable) -> None:
    """Add 1 to an integer variable, and to the number that `host_number` keeps."""
    number = host_number(counter) + 1.0
    tensor = counter._value
    with torch.no_grad():
        tensor.add_(1)
    _numbers[tensor] = tensor._version, number


def device_name() -> str:
    """Return the device that Keras places tensors on."""
    return str(keras.ops.zeros(()).device)


def device_names() -> list[str]:
    """Return the CPU and every accelerator that torch detects."""
    count = torch.accelerator.device_count()  # 0 if there is no accelerator
    return ["cpu", *(f"{torch.accelerator.current_accelerator()}:{index}" for index in range(count))]


def to_device(value: Any, device: str) -> Any:
    """Return an array, or a batch or dict of arrays, as tensors on the device; tensors are returned as given."""
    return map_arrays(
        lambda array: array if isinstance(array, torch.Tensor) else torch.from_numpy(array).to(device), value
    )


def unbind(batch: Batch, count: int, device: str) -> list[Batch]:
    """Split batches `[K, B, ...]`, arrays or tensors, into the first `count` batches `[B, ...]` on the device."""

    def split(value: Any) -> Any:
        if isinstance(value, dict):
            columns = {name: split(column) for name, column in value.items()}
            return [{name: column[k] for name, column in columns.items()} for k in range(count)]
        tensor = value if isinstance(value, torch.Tensor) else torch.from_numpy(value).to(device)
        return tensor.unbind(0)

    return [Batch(*fields) for fields in zip(*(split(value)[:count] for value in batch), strict=True)]


def take(value: Any, indices: torch.Tensor) -> Any:
    """Return these rows of a tensor, or of each tensor in a batch or dict."""
    return map_arrays(lambda tensor: tensor.index_select(0, indices), value)


def empty_table(shape: tuple[int, ...], dtype: np.dtype[Any], variable: keras.Variable) -> torch.Tensor:
    """Return a tensor on the device of the variable, whose values are not set."""
    return torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, device=variable.value.device)


def write_rows(table: torch.Tensor, rows: np.ndarray, values: np.ndarray) -> torch.Tensor:
    """Write host arrays `[n, ...]` to rows `[n]` of a table, and return the table."""
    return table.index_copy_(0, _on_device_of(table, rows).long(), _on_device_of(table, values))


def take_rows(table: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
    """Return the rows `[...]` of a table, `[..., *row]`."""
    taken = table.index_select(0, _on_device_of(table, rows.reshape(-1)))
    return taken.reshape(*rows.shape, *table.shape[1:])


def take_rows_of_two(first: torch.Tensor, second: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
    """Return rows `[...]` of two tables; row `len(first) + i` is row i of the second one."""
    # Rows of the second table take row 0 of the first one, and are replaced below.
    taken = take_rows(first, np.where(rows < len(first), rows, 0))
    (positions,) = np.nonzero(rows.reshape(-1) >= len(first))
    if len(positions):
        others = take_rows(second, rows.reshape(-1)[positions] - len(first))
        taken.view(-1, *first.shape[1:]).index_copy_(0, _on_device_of(first, positions), others)
    return taken


def _on_device_of(table: torch.Tensor, array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(table.device)


def stack(dicts: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Stack the values under the names of the last dict."""
    return {name: torch.stack([torch.as_tensor(values[name]).detach() for values in dicts]) for name in dicts[-1]}
