"""Tables of rows on the device."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def empty_table(shape: tuple[int, ...], dtype: np.dtype[Any], variable: Any) -> jax.Array:
    """Return an array on the default device, whose values do not matter; `variable` is not used."""
    return jnp.zeros(shape, dtype)


def write_rows(table: jax.Array, rows: np.ndarray, values: np.ndarray) -> jax.Array:
    """Write host arrays `[n, ...]` to rows `[n]` of a table, which is consumed, and return the new one."""
    # The first row is repeated up to a power of two, so that few sizes are compiled.
    more = (1 << (len(rows) - 1).bit_length()) - len(rows)
    return _write(table, *(np.concatenate([array, array[:1].repeat(more, axis=0)]) for array in (rows, values)))


@partial(jax.jit, donate_argnums=0)
def _write(table: jax.Array, rows: jax.Array, values: jax.Array) -> jax.Array:
    return table.at[rows].set(values)


@jax.jit
def take_rows(table: jax.Array, rows: np.ndarray) -> jax.Array:
    """Return the rows `[...]` of a table, `[..., *row]`."""
    return jnp.take(table, rows, axis=0, mode="clip")


@jax.jit
def take_rows_of_two(first: jax.Array, second: jax.Array, rows: np.ndarray) -> jax.Array:
    """Return rows `[...]` of two tables; row `len(first) + i` is row i of the second one."""
    others = rows - first.shape[0]
    is_second = (others >= 0).reshape(*rows.shape, *[1] * (first.ndim - 1))
    return jnp.where(is_second, take_rows(second, others), take_rows(first, rows))
