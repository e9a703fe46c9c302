"""Arrays as bytes: `.npy` and safetensors, without pickle, checked before memory is allocated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from safetensors import numpy as safetensors_numpy

from noterl.utils.budget import checked_size
from noterl.utils.codec import Array, check_bools, is_encodable
from noterl.utils.files import FileError, PathLike, reading, write_bytes

# NumPy writes headers of 128 bytes, 1408 for 64 axes. Parsing a longer one takes much memory.
_MAX_HEADER = 2048
_MAX_PIECE = 2**26  # bytes
SAFETENSORS_DTYPES = frozenset(["|b1", "|i1", "|u1", "<i2", "<u2", "<f2", "<i4", "<u4", "<f4", "<i8", "<u8", "<f8"])


def write_npy(stream: IO[bytes], array: Array) -> None:
    """Write one array in pieces, so that a large one is never in memory twice."""
    np.lib.format.write_array(stream, array, version=(1, 0), allow_pickle=False)


def read_npy(stream: IO[bytes], size: int) -> Array:
    """Read one array that `write_npy` wrote.

    Args:
        stream: a stream that can seek, at the beginning.
        size: number of bytes of header and data together.

    Raises:
        FileError: if the header is malformed, declares a dtype that `is_encodable` rejects, or does not match `size`;
            no memory is allocated for the data then. Also if a bool is stored as a byte other than 0 and 1.
    """
    read_npy_header(stream, size)
    stream.seek(0)
    return check_bools(np.lib.format.read_array(stream, allow_pickle=False, max_header_size=_MAX_HEADER))


def read_npy_header(stream: IO[bytes], size: int) -> tuple[tuple[int, ...], Any, np.dtype[Any]]:
    """Return the shape, the order "C" or "F", and the dtype; the stream is then at the data.

    Arguments and errors are as in `read_npy`.
    """
    try:
        version = np.lib.format.read_magic(stream)
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=_MAX_HEADER)
    except Exception as error:  # A literal from a file may make the parser raise anything.
        raise FileError(f"the header of an array is malformed ({error!s:.200})") from error
    if version != (1, 0) or not is_encodable(dtype):
        raise FileError(f"a file cannot hold an array of dtype {dtype}")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size - stream.tell():
        raise FileError(f"an array of shape {shape} and dtype {dtype} does not fit in {size} bytes")
    return shape, "F" if fortran_order else "C", dtype


def pieces(array: Array) -> list[Array]:
    """Split an array along the first axis into views of about 64 MiB, which threads can write in parallel."""
    return [array[rows] for rows in row_slices(array)] or [array]


def row_slices(array: Array) -> Iterator[slice]:
    """Return slices of about 64 MiB of the rows of an array, which may be mapped from a file and exceed the memory."""
    rows = max(1, _MAX_PIECE * len(array) // max(1, array.nbytes))
    return (slice(start, start + rows) for start in range(0, len(array), rows))


def pack_tensors(arrays: dict[str, Array], metadata: dict[str, str] | None = None) -> bytes:
    """Return the bytes of a safetensors file."""
    # The library ignores strides.
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    return safetensors_numpy.save(contiguous, metadata)


def unpack_tensors(data: bytes) -> dict[str, Array]:
    """Return the arrays of a safetensors file, sorted by name and writable."""
    arrays = safetensors_numpy.load(data)
    return {
        name: check_bools(array if array.flags.writeable and array.flags.aligned else array.copy())
        for name, array in sorted(arrays.items())
    }


def write_weights(path: PathLike, arrays: dict[str, Array], run: str | None = None) -> None:
    """Write named arrays as one plain `.safetensors` file, which replaces an old one atomically.

    Args:
        path: the file.
        arrays: the arrays by name.
        run: the identity of the run, 32 hexadecimal digits, which `run_of` returns.

    Raises:
        safetensors.SafetensorError: if safetensors does not support a dtype. Supported are bool, ints, and floats to 64
            bits.
        OSError: if the file cannot be written; the old file is unchanged then.
    """
    write_bytes(path, pack_tensors(arrays, None if run is None else {"run": run}))


def read_weights(path: PathLike, largest: int | None = None) -> dict[str, Array]:
    """Return the arrays of a `.safetensors` file by name, sorted by name.

    Args:
        path: the file.
        largest: the most bytes that the file may have; None for the memory that is free.

    Raises:
        FileError: if the file is too large or truncated, is not a safetensors file, or holds dtypes that NumPy does not
            have.
        OSError: if the file does not exist or cannot be read.
    """
    with reading(path) as file:
        content = file.read(checked_size(file.fileno(), largest))
        if content[:2] == b"PK":
            raise FileError("it is the file of an agent, not of weights: noterl.load(path) or restore(path) reads it")
        return unpack_tensors(content)
