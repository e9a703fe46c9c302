"""Writing and reading state trees as zip files of JSON and arrays, without executable code.

`agent.json` holds the encoded tree and the versions of the format and the libraries. `variables.safetensors` holds the
arrays below keys "variables", so that other programs can read these arrays. Every other array is an uncompressed `.npy`
member. Equal trees give equal bytes.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import struct
import sys
import zipfile
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import IO, Any, BinaryIO

import numpy as np

from noterl.saving.arrays import pack_tensors, read_npy, read_npy_header, unpack_tensors, write_npy
from noterl.saving.codec import TreeDecoder, TreeEncoder
from noterl.utils.budget import LIMITS, UNPACKED_PER_BYTE, Budget, checked_size, count_values, parse
from noterl.utils.codec import Array, check_bools
from noterl.utils.files import FileError, PathLike, reading, replacing
from noterl.utils.memory import available_bytes

VERSION = 1

_ENTRY = 46 + 28  # most bytes of an entry without its name; the second part is for sizes and offsets above 4 GiB
_JSON = "agent.json"
_TENSORS = "variables.safetensors"
# The beginning of a zip whose first member is `agent.json`, or of a safetensors file, with the identity of a run.
_RUN = re.compile(
    rb'(?:PK\x03\x04.{26}agent\.json\{"format": "noterl", "version": \d+, "run": '
    rb'|.{8}\{"__metadata__":\{"run":)"([0-9a-f]{32})"',
    re.DOTALL,
)
_ARRAY_NAME = re.compile(r"arrays/[A-Za-z0-9_]+\.npy")
_LIBRARIES = ("noterl", "gymnasium", "jax", "keras", "numpy", "tensorflow", "torch")
_LOCAL_LENGTHS = 26  # where the header of a member has the lengths of its name and of further fields, of 2 bytes each
_END_OF_ZIP = 22  # bytes of a zip's last record without a comment
_END_OF_ZIP64 = 76  # bytes of the records before it in a zip of more than 4 GiB
# Small files are assembled in memory and written with one call, because zipfile seeks back to each member's header.
_MAX_BUFFERED = 2**24  # bytes

# Large arrays are written in parallel: their place in the file is known beforehand, and both checksums and writes
# release the interpreter's lock.
_MIN_MAPPED = 2**26  # bytes of a member that `read(mapped=True)` maps
_MIN_PARALLEL = 2**20  # bytes of an array; smaller ones are written without a thread
_THREADS = 8
_CHUNK = 2**24  # bytes of one checksum or write


def write(path: PathLike, tree: Any, run: str | None = None) -> None:
    """Write a state tree to one file, which replaces an old one atomically.

    Args:
        path: the file. Missing directories are created; a symbolic link is followed.
        tree: nested dicts, lists, tuples and deques of int, float, bool, str, bytes, None, NumPy arrays, scalars and
            generators, gymnasium spaces, `Configurable` objects such as policies, and Keras optimizers and
            learning-rate schedules. Large arrays are streamed, never copied whole.
        run: the identity of the run, 32 hexadecimal digits, which `run_of` returns.

    Raises:
        TypeError: if the tree holds any other type; the message names the place. Nothing is written.
        ValueError: if the tree is nested more than 100 deep, the JSON without the arrays exceeds 8 MiB or 262,144
            values, or the tree has so many arrays that the file's table of contents could exceed 4 MiB (some 40,000;
            arrays below "variables" do not count). Nothing is written.
        OSError: if the file cannot be written (see `errno`); the old file is unchanged then.

    Example:
    >>> import os, tempfile, numpy as np
    >>> from noterl import saving
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = os.path.join(directory, "state.noterl")
    ...     saving.write(path, {"variables": [np.ones(2, np.float32)], "steps": 2**70, "best": float("inf")})
    ...     saving.read(path)
    {'variables': [array([1., 1.], dtype=float32)], 'steps': 1180591620717411303424, 'best': inf}
    """
    encoder = TreeEncoder()
    content = {
        "format": "noterl",
        "version": VERSION,
        **({} if run is None else {"run": run}),  # near the beginning, where `run_of` expects it
        "libraries": library_versions(),
        "tree": encoder.encode(tree),
    }
    text = json.dumps(content, allow_nan=False).encode("ascii")
    if len(text) > LIMITS["bytes of JSON"] or count_values(text) > LIMITS["values"]:
        raise ValueError(
            f"tree must be at most {LIMITS['bytes of JSON']} bytes of JSON and {LIMITS['values']} values without its "
            f"arrays, got {len(text)} bytes and {count_values(text)} values: large states of environments or callbacks "
            "must be arrays"
        )
    directory = sum(_ENTRY + len(name) for name in [_JSON, _TENSORS, *encoder.arrays])
    if directory > LIMITS["bytes of directory"]:
        raise ValueError(
            f"tree must have fewer arrays, got {len(encoder.arrays)}, whose table of contents may take {directory} "
            f"of at most {LIMITS['bytes of directory']} bytes: large states of environments or callbacks must be few "
            "arrays"
        )
    with replacing(path) as file:
        _write_zip(file, text, encoder)


def read(path: PathLike, *, mapped: bool = False) -> Any:
    """Return the tree that `write` wrote to a file. The file is not trusted, and nothing in it can run.

    Objects are returned as descriptions, which `noterl.saving.build` replaces.

    Args:
        path: the file.
        mapped: whether arrays of at least 64 MiB are mapped from the file, read-only, instead of read. The checksums of
            these arrays are not compared.

    Raises:
        FileError: if the file is truncated, damaged or manipulated, was not written by noterl, or has a newer format.
        OSError: if the file does not exist or cannot be read.
    """
    with reading(path) as file:
        size = os.fstat(file.fileno()).st_size if mapped else checked_size(file.fileno())
        if file.read(10)[8:] == b'{"':
            raise FileError("it is a file of weights, not of an agent: load_weights(path) reads it")
        check_directory(file, size)
        with zipfile.ZipFile(file) as archive:
            members = _members(archive, file, size)
            encoded = _encoded_tree(_bytes(archive, members.pop(_JSON)))
            for name in members:
                if name != _TENSORS and not _ARRAY_NAME.fullmatch(name):
                    raise FileError(f"noterl does not write its member {name!r:.80}")
            if mapped:
                _check_mapped(members)
            tensors = unpack_tensors(_bytes(archive, members.pop(_TENSORS))) if _TENSORS in members else {}
            tree = TreeDecoder(lambda name: _array(archive, members, name, mapped), tensors).decode(encoded)
            if members or tensors:
                raise FileError(f"its tree does not use {next(iter({**members, **tensors}))!r:.80}")
            return tree


def run_of(path: PathLike) -> str | None:
    """Return the identity of the run that wrote a file, from the first bytes; None without an identity.

    Example:
    >>> import os, tempfile
    >>> from noterl import saving
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = os.path.join(directory, "state.noterl")
    ...     saving.write(path, {"steps": 1}, run="00112233445566778899aabbccddeeff")
    ...     saving.run_of(path)
    '00112233445566778899aabbccddeeff'
    """
    try:
        with reading(path) as file:
            match = _RUN.match(file.read(256))
    except (FileError, OSError):
        return None
    return None if match is None else match[1].decode()


def library_versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that have been imported."""
    imported = [name for name in _LIBRARIES if name in sys.modules]
    return {"python": platform.python_version(), **{name: sys.modules[name].__version__ for name in imported}}


def _write_zip(file: BinaryIO, text: bytes, encoder: TreeEncoder) -> None:
    """Write the zip of a tree: a small one in memory first, a large one directly, with large arrays in parallel."""
    parallel = {name: array for name, array in encoder.arrays.items() if _is_parallel(array)}
    size = sum(array.nbytes for array in [*encoder.arrays.values(), *encoder.tensors.values()])
    if parallel or size >= _MAX_BUFFERED:
        _write_members(file, text, encoder, parallel)
    else:
        buffer = io.BytesIO()
        _write_members(buffer, text, encoder, {})
        file.write(buffer.getbuffer())


def _write_members(file: BinaryIO, text: bytes, encoder: TreeEncoder, parallel: dict[str, Array]) -> None:
    """Write all members of a zip: the JSON first, which `run_of` reads, and the arrays of `parallel` last."""
    archive = zipfile.ZipFile(file, "w")
    try:
        archive.writestr(_info(_JSON), text)
        if encoder.tensors:
            archive.writestr(_info(_TENSORS), pack_tensors(encoder.tensors))
        for name, array in encoder.arrays.items():
            if name not in parallel:
                with archive.open(_info(name), "w", force_zip64=True) as member:
                    write_npy(member, array)
        _write_parallel(archive, file, {_info(name): array for name, array in parallel.items()})
        archive.close()
    finally:
        # After an error, the archive would write its table of contents to a closed file when it is garbage-collected.
        archive.fp = None


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)  # Dated 1980: with the time or the platform, the bytes would differ.
    info.create_system = 3
    return info


def _is_parallel(array: Array) -> bool:
    """Return whether the array is large and contiguous, so that `_write_parallel` can write the array."""
    return array.nbytes >= _MIN_PARALLEL and array.flags.c_contiguous and hasattr(os, "pwrite")


def _write_parallel(archive: zipfile.ZipFile, file: BinaryIO, arrays: Mapping[zipfile.ZipInfo, Array]) -> None:
    """Append `.npy` members to an archive that is open for writing to a file with a descriptor.

    Raises:
        OSError: if a member cannot be written.
    """
    if not arrays:
        return
    file.seek(archive.start_dir)
    file.flush()
    position = file.tell()
    jobs = []
    for info, array in arrays.items():
        stream = io.BytesIO()
        np.lib.format.write_array_header_1_0(stream, np.lib.format.header_data_from_array_1_0(array))
        header = stream.getvalue()
        info.header_offset = position
        info.CRC = 0
        info.file_size = info.compress_size = len(header) + array.nbytes
        jobs.append((info, header, array.data.cast("B"), position))
        position += len(info.FileHeader(zip64=True)) + info.file_size
    descriptor = file.fileno()
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1, len(jobs)), "noterl-saving") as pool:
        for written in [pool.submit(_write_member, descriptor, *job) for job in jobs]:
            written.result()
    for info in arrays:
        archive.filelist.append(info)
        archive.NameToInfo[info.filename] = info
    archive.start_dir = position
    archive._didModify = True  # type: ignore[attr-defined]
    file.seek(position)


def _write_member(descriptor: int, info: zipfile.ZipInfo, header: bytes, data: memoryview, position: int) -> None:
    """Write a `.npy` member at a position of the file, and set the checksum in `info`; called in several threads."""
    checksum = zlib.crc32(header)
    for offset in range(0, len(data), _CHUNK):
        checksum = zlib.crc32(data[offset : offset + _CHUNK], checksum)
    info.CRC = checksum
    position = _put(descriptor, memoryview(info.FileHeader(zip64=True) + header), position)
    _put(descriptor, data, position)


def _put(descriptor: int, data: memoryview, position: int) -> int:
    """Write all of `data` at `position` and return the position of the end."""
    while len(data):
        written = os.pwrite(descriptor, data[:_CHUNK], position)
        position += written
        data = data[written:]
    return position


def check_directory(file: BinaryIO, size: int) -> None:
    """Raise a FileError if the zip's table of contents is too large to be parsed."""
    file.seek(max(0, size - _END_OF_ZIP - _END_OF_ZIP64))
    end = file.read()
    if end[-_END_OF_ZIP:][:4] != b"PK\x05\x06":
        return  # not a zip, or one with bytes after it, which `_members` refuses
    (length,) = struct.unpack("<12xL6x", end[-_END_OF_ZIP:])
    if end[:4] == b"PK\x06\x06":
        length = max(length if length != 2**32 - 1 else 0, struct.unpack("<40xQ8x", end[:56])[0])
    Budget("its table of contents").spend("bytes of directory", length)


def _members(archive: zipfile.ZipFile, file: BinaryIO, size: int) -> dict[str, zipfile.ZipInfo]:
    """Return the members by name, after the checks that do not need the contents."""
    members = {info.orig_filename: info for info in archive.infolist()}
    if _JSON not in members:
        raise FileError(f"it is a zip file, but noterl did not write it: it has no {_JSON}")
    if len(members) != len(archive.infolist()):
        raise FileError("it has two members of one name")
    for name, info in members.items():
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.compress_size != info.file_size:
            raise FileError(f"its member {name!r:.80} is compressed or encrypted; noterl does not do that")
    # Overlapping members could make a large tree of a small file, and the bytes of an array could hold another zip.
    if sum(info.file_size for info in members.values()) > size:
        raise FileError("its members are larger than the file")
    file.seek(size - _END_OF_ZIP)
    if min(info.header_offset for info in members.values()) != 0 or file.read(4) != b"PK\x05\x06":
        raise FileError("there are other bytes before or after the zip")
    return members


def _bytes(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Return the contents of a member; raise a FileError for JSON above the limit."""
    if info.filename == _JSON:
        Budget(f"its member {_JSON!r}").spend("bytes of JSON", info.file_size)
    with archive.open(info) as member:
        return member.read()


def _array(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], name: str, mapped: bool) -> Array:
    """Return the array of a member, and remove the member from `members`."""
    # Each member is used once, because a tree that names one member a thousand times would fill the memory.
    info = members.pop(name, None)
    if info is None:
        raise FileError(f"its member {name!r:.80} is missing or used twice")
    with archive.open(info) as member:
        try:
            if mapped and info.file_size >= _MIN_MAPPED:
                return _mapped(archive.fp, info, member)
            return read_npy(member, info.file_size)
        except FileError as error:
            raise FileError(f"its member {name!r:.80}: {error}") from error


def _check_mapped(members: dict[str, zipfile.ZipInfo]) -> None:
    """Raise a FileError if the members that are not mapped do not fit in memory, or belong to an agent."""
    size = sum(info.file_size for info in members.values() if info.file_size < _MIN_MAPPED)
    if size > available_bytes():
        raise FileError(f"its smaller arrays take {size:,} bytes, which do not fit in memory")
    if _TENSORS in members:  # which would be read whole
        raise FileError("it is the file of an agent, not of data: noterl.load(path) or restore(path) reads it")


def _mapped(file: Any, info: zipfile.ZipInfo, member: IO[bytes]) -> Array:
    """Return the array of a stored member, mapped from the file."""
    status = os.fstat(file.fileno())
    # A sparse file has fewer blocks of 512 bytes than bytes; reading the holes of terabytes would take hours.
    if getattr(status, "st_blocks", status.st_size) * 512 * UNPACKED_PER_BYTE < status.st_size:
        raise FileError(f"of the {status.st_size:,} bytes of the file, most are a hole")
    shape, order, dtype = read_npy_header(member, info.file_size)
    file.seek(info.header_offset + _LOCAL_LENGTHS)
    begin = info.header_offset + _LOCAL_LENGTHS + 4 + sum(struct.unpack("<2H", file.read(4)))
    return check_bools(np.asarray(np.memmap(file, dtype, "r", begin + member.tell(), shape, order)))


def _encoded_tree(text: bytes) -> Any:
    """Return the encoded tree of `agent.json`."""
    load = partial(json.loads, object_pairs_hook=_unique, parse_constant=_no_constant)
    document = parse(text, load, f"its member {_JSON!r}")
    if not isinstance(document, dict) or document.get("format") != "noterl":
        raise FileError(f"its {_JSON} was not written by noterl")
    version = document.get("version")
    if type(version) is not int or version < 1:
        raise FileError(f"its format version is {version!r:.40}, which does not exist")
    if version > VERSION:
        raise FileError(f"its format version is {version}, and this noterl reads {VERSION}: install a newer noterl")
    if "tree" not in document:
        raise FileError(f"its {_JSON} has no tree")
    return document["tree"]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict; raise a FileError for a repeated key, of which `json` would use the last."""
    result = dict(pairs)
    if len(result) != len(pairs):
        raise FileError(f"its {_JSON} has a key twice")
    return result


def _no_constant(word: str) -> None:
    raise FileError(f"its {_JSON} holds {word}, which is not JSON")
