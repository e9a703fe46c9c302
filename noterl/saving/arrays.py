"""Arrays as bytes: `.npy` and safetensors, without pickle and without trust.

Owns: which dtypes a file holds, and the checks that come before memory is asked for.
"""

from __future__ import annotations

import math
import os
import re
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from safetensors import numpy as safetensors_numpy

from noterl.utils.files import FileError, PathLike, reading, replacing

Array = npt.NDArray[Any]

_CHUNK = 2**20
_DTYPE = re.compile(r"[<>|](b1|[iu][1248]|f[248]|c8|c16)")
# Version 1.0 of the format as NumPy writes it; parsed by this alone, because NumPy's own reader evaluates a literal.
_NPY_MAGIC = b"\x93NUMPY\x01\x00"
_NPY_HEADER = re.compile(
    rb"\{'descr': '([^']{3,4})', 'fortran_order': (True|False), 'shape': \(((?:\d{1,19}(?:, )?)*),?\), \} *\n"
)
_NPY_HEADER_LIMIT = 4096
_SAFETENSORS_DTYPES = frozenset(["|b1", "|i1", "|u1", "<i2", "<u2", "<f2", "<i4", "<u4", "<f4", "<i8", "<u8", "<f8"])


def fits_file(dtype: np.dtype[Any]) -> bool:
    """Say whether a file can hold the dtype: bool, integers, floats to 64 and complex to 128 bits."""
    return _DTYPE.fullmatch(dtype.str) is not None


def check_array(value: Array, name: str) -> None:
    """Refuse what a file cannot hold exactly.

    Raises:
        TypeError: for dtypes that `fits_file` denies, and for masked arrays.
    """
    if not fits_file(value.dtype):
        raise TypeError(f"{name}: a file holds arrays of bool, int, float and complex dtypes, got dtype {value.dtype}")
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name}: a file holds no masked arrays; fill it, or save data and mask")


def parse_dtype(text: object) -> np.dtype[Any]:
    """Return the dtype of a file's text, which must be one that `check_array` lets pass."""
    if not isinstance(text, str) or not _DTYPE.fullmatch(text):
        raise FileError(f"there is no dtype {text!r:.40} in files of noterl")
    return np.dtype(text)


def pack_scalar(value: np.generic, name: str) -> list[str]:
    """Return a NumPy scalar as its dtype and its bytes in hexadecimal digits."""
    check_array(np.asarray(value), name)
    return [value.dtype.str, value.tobytes().hex()]


def unpack_scalar(packed: object) -> np.generic:
    """Return the scalar that `pack_scalar` took apart."""
    if not isinstance(packed, list) or len(packed) != 2 or not isinstance(packed[1], str):
        raise FileError("a scalar is malformed")
    dtype, data = parse_dtype(packed[0]), bytes.fromhex(packed[1])
    scalar: np.generic = from_bytes(data, dtype, (1,))[0]
    return scalar


def from_bytes(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return a writable array made of `data`, whose length must fit."""
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise FileError(f"{len(data)} bytes are no array of shape {shape} and dtype {dtype}")
    return _checked(np.frombuffer(bytearray(data), np.uint8).view(dtype).reshape(shape))


def write_npy(stream: IO[bytes], array: Array) -> None:
    """Write one array in pieces, so that a big one is never in memory twice."""
    np.lib.format.write_array(stream, array, version=(1, 0), allow_pickle=False)


def read_npy(stream: IO[bytes], size: int) -> Array:
    """Read one array that `write_npy` wrote, header and data together being `size` bytes.

    Raises:
        FileError: if the header is another, or promises more or less than `size`; no memory was asked for then.
    """
    start = stream.read(len(_NPY_MAGIC) + 2)
    length = int.from_bytes(start[len(_NPY_MAGIC) :], "little")
    header = stream.read(min(length, _NPY_HEADER_LIMIT))
    match = _NPY_HEADER.fullmatch(header)
    if not start.startswith(_NPY_MAGIC) or match is None:
        raise FileError("an array has no header that noterl writes")
    dtype = parse_dtype(match[1].decode("latin-1"))
    shape = tuple(int(number) for number in re.findall(rb"\d+", match[3]))
    if math.prod(shape) * dtype.itemsize != size - len(start) - len(header):
        raise FileError(f"an array of shape {shape} and dtype {dtype} is not what {size} bytes hold")
    if match[2] == b"True":
        return _checked(_fill(np.empty(shape[::-1], dtype), stream).T)
    return _checked(_fill(np.empty(shape, dtype), stream))


def fits_safetensors(array: Array) -> bool:
    """Say whether safetensors knows the dtype, byte order included."""
    return array.dtype.str in _SAFETENSORS_DTYPES


def pack_tensors(arrays: dict[str, Array]) -> bytes:
    """Return the bytes of a safetensors file."""
    # The library reads memory from the first byte on, whatever the strides.
    return safetensors_numpy.save({name: np.asarray(array, order="C") for name, array in arrays.items()})


def unpack_tensors(data: bytes) -> dict[str, Array]:
    """Return the arrays of a safetensors file, writable."""
    arrays = safetensors_numpy.load(data)
    return {
        name: _checked(array if array.flags.writeable and array.flags.aligned else array.copy())
        for name, array in sorted(arrays.items())
    }


def write_weights(path: PathLike, arrays: dict[str, Array]) -> None:
    """Write named arrays as one plain `.safetensors` file, which takes the place of the old one all at once.

    Raises:
        TypeError: if a name is no str, or safetensors has no such dtype (it has bool, ints, and floats to 64 bits).
        OSError: if it cannot be written; the old file is untouched.
    """
    for name, array in arrays.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise TypeError(f"arrays[{name!r}]: a name must be a str other than '__metadata__'")
        if not isinstance(array, np.ndarray) or not fits_safetensors(array):
            what = getattr(array, "dtype", type(array))
            raise TypeError(f"arrays[{name!r}] must be an array of a dtype that safetensors has, got {what}")
    data = pack_tensors(arrays)
    with replacing(path) as file:
        file.write(data)


def read_weights(path: PathLike) -> dict[str, Array]:
    """Read the arrays of a `.safetensors` file, by name, in the order of their names.

    Raises:
        FileError: if it is truncated, foreign or holds dtypes that NumPy has not.
        OSError: if there is no such file or it cannot be read.
    """
    with reading(path) as file:
        data = file.read(os.fstat(file.fileno()).st_size)
        return unpack_tensors(data)


def _fill(array: Array, stream: IO[bytes]) -> Array:
    view = array.reshape(-1).view(np.uint8)
    position = 0
    while position < len(view):
        piece = stream.read(min(_CHUNK, len(view) - position))
        if not piece:
            raise FileError("an array ends early")
        view[position : position + len(piece)] = np.frombuffer(piece, np.uint8)
        position += len(piece)
    return array


def _checked(array: Array) -> Array:
    """Let no bool through that is neither 0 nor 1: compilers take other bytes for whatever they like."""
    if array.dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
        raise FileError("an array of bools holds other bytes than 0 and 1")
    return array
