"""Big arrays in a zip, written side by side.

Owns: the members whose bytes lie in memory as they will lie in the file. Where each begins is known beforehand, so
threads write them at once, each at its place; checksums and writes both let other threads run.
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

import numpy as np

from noterl.saving.arrays import Array

# Arrays below this many bytes are not worth a thread.
SMALLEST = 2**20
# A memory's columns are cut into pieces of about so many bytes, so that the largest one keeps all threads busy.
LARGEST = 2**26
_THREADS = 8
_CHUNK = 2**24


def is_shard(array: Array) -> bool:
    """Say whether `write_shards` can write the array: big, and in one piece in memory."""
    return array.nbytes >= SMALLEST and array.flags.c_contiguous and hasattr(os, "pwrite")


def write_shards(archive: zipfile.ZipFile, file: BinaryIO, shards: Mapping[zipfile.ZipInfo, Array]) -> None:
    """Append `.npy` members to an archive that is being written, several at once.

    Args:
        archive: open for writing to `file`, with no member open.
        file: a file of the operating system.
        shards: for each member an array that `is_shard` lets pass; its name and date are set.

    Raises:
        OSError: if one cannot be written.
    """
    if not shards:
        return
    file.seek(archive.start_dir)
    file.flush()
    position = file.tell()
    jobs = []
    for info, array in shards.items():
        start = _npy_header(array)
        info.header_offset, info.CRC = position, 0
        info.file_size = info.compress_size = len(start) + array.nbytes
        jobs.append((info, start, memoryview(array).cast("B"), position))  # type: ignore[arg-type]
        position += len(info.FileHeader(zip64=True)) + info.file_size
    descriptor = file.fileno()
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1, len(jobs)), "noterl-shards") as pool:
        for written in [pool.submit(_write, descriptor, *job) for job in jobs]:
            written.result()
    for info in shards:
        archive.filelist.append(info)
        archive.NameToInfo[info.filename] = info
    archive.start_dir = position
    archive._didModify = True  # type: ignore[attr-defined]
    file.seek(position)


def pieces(array: Array) -> list[Array]:
    """Cut an array along its first axis into views of about `LARGEST` bytes."""
    if array.nbytes <= LARGEST:
        return [array]
    rows = max(1, LARGEST * len(array) // array.nbytes)
    return [array[start : start + rows] for start in range(0, len(array), rows)]


def _npy_header(array: Array) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(array))
    return stream.getvalue()


def _write(descriptor: int, info: zipfile.ZipInfo, start: bytes, data: memoryview, position: int) -> None:
    checksum = zlib.crc32(start)
    for offset in range(0, len(data), _CHUNK):
        checksum = zlib.crc32(data[offset : offset + _CHUNK], checksum)
    info.CRC = checksum
    position = _put(descriptor, memoryview(info.FileHeader(zip64=True) + start), position)
    _put(descriptor, data, position)


def _put(descriptor: int, data: memoryview, position: int) -> int:
    """Write all of `data` at `position`; return where it ends."""
    while len(data):
        written = os.pwrite(descriptor, data[:_CHUNK], position)
        position += written
        data = data[written:]
    return position
