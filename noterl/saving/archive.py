"""State trees in files: one zip that holds JSON and arrays, and nothing that could run.

Owns: the format. `agent.json` is the tree (`saving_tree`) with the format's version and those of the libraries;
`variables.safetensors` holds the arrays below keys "variables", for other programs to read; every other array is an
uncompressed `.npy` member, the big ones written side by side. The same tree makes the same bytes.
"""

from __future__ import annotations

import functools
import importlib.metadata
import io
import json
import os
import platform
import re
import sys
import zipfile
from typing import IO, Any, BinaryIO

from noterl.saving.arrays import (
    Array,
    pack_tensors,
    read_npy,
    read_weights,
    unpack_tensors,
    write_npy,
    write_weights,
)
from noterl.saving.config import decode, encode
from noterl.saving.shards import is_shard, write_shards
from noterl.saving.tree import TreeDecoder, TreeEncoder
from noterl.utils.files import FileError, PathLike, check_writable, reading, replacing

__all__ = ["FileError", "check_writable", "decode", "encode", "read", "read_weights", "write", "write_weights"]

VERSION = 1

# Parsed JSON takes some twenty times the memory of its text.
_MAX_JSON = 2**26
_JSON, _TENSORS = "agent.json", "variables.safetensors"
_ARRAY_NAME = re.compile(r"arrays/[A-Za-z0-9_]+\.npy")
_LIBRARIES = ("gymnasium", "jax", "keras", "numpy", "tensorflow", "tensorflow-cpu", "torch")
_END_OF_ZIP = 22  # bytes of a zip's last record, when no comment follows
# Files without shards, up to so many bytes, are put together in memory and written at once: the zip module goes back to
# the header of each member, which costs a file several calls of the system.
_GATHERED = 2**24


def write(path: PathLike, tree: Any) -> None:
    """Write a state tree to one file, which takes the place of the old one all at once.

    Args:
        path: the file. Its directories are made; a symbolic link stays one.
        tree: nested dicts with str keys and lists of NumPy arrays and scalars, int, float, bool, str and None.
            Big arrays are streamed, never copied whole.

    Raises:
        TypeError: if the tree holds anything else (object arrays, tuples), naming its place. Nothing is written.
        ValueError: if it is nested more than 100 deep, or what is not arrays exceeds 64 MiB. Nothing is written.
        OSError: if it cannot be written (its `errno` says why); the old file is untouched.

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
    structure = encoder.structure(tree)
    document = {"format": "noterl", "version": VERSION, "libraries": _library_versions(), "tree": structure}
    text = json.dumps(document, allow_nan=False).encode("ascii")
    if len(text) > _MAX_JSON:
        raise ValueError(f"tree must be at most {_MAX_JSON} bytes of JSON beside its arrays, got {len(text)}")
    with replacing(path) as file:
        _write_zip(file, text, encoder)


def read(path: PathLike) -> Any:
    """Return the tree that `write` put into a file; nothing in the file is trusted, nothing in it can run.

    Raises:
        FileError: if the file is truncated, foreign, damaged or hostile in any way, or of a newer format.
        OSError: if there is no such file or it cannot be read.
    """
    with reading(path) as file:
        size = os.fstat(file.fileno()).st_size
        with zipfile.ZipFile(file) as archive:
            members = _members(archive, file, size)
            structure = _document(_bytes(archive, members.pop(_JSON), _MAX_JSON))
            for name in members:
                if name != _TENSORS and not _ARRAY_NAME.fullmatch(name):
                    raise FileError(f"its member {name!r:.80} is none that noterl writes")
            tensors = unpack_tensors(_bytes(archive, members.pop(_TENSORS), size)) if _TENSORS in members else {}
            tree = TreeDecoder(lambda name: _array(archive, members, name), tensors).value(structure)
            if members or tensors:
                raise FileError(f"{next(iter({**members, **tensors}))!r:.80} in it belongs to nothing")
            return tree


@functools.cache
def _library_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in ("noterl", *_LIBRARIES):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = getattr(sys.modules.get(name), "__version__", None)
            versions.update({name: version} if isinstance(version, str) else {})
    return versions


def _write_zip(file: BinaryIO, text: bytes, encoder: TreeEncoder) -> None:
    shards = {name: array for name, array in encoder.members.items() if is_shard(array)}
    if not shards and sum(array.nbytes for array in [*encoder.members.values(), *encoder.tensors.values()]) < _GATHERED:
        gathered = io.BytesIO()
        _write_members(gathered, text, encoder, shards)
        file.write(gathered.getbuffer())
    else:
        _write_members(file, text, encoder, shards)


def _write_members(file: BinaryIO, text: bytes, encoder: TreeEncoder, shards: dict[str, Array]) -> None:
    archive = zipfile.ZipFile(file, "w")
    try:
        with _new_member(archive, _JSON) as member:
            member.write(text)
        if encoder.tensors:
            with _new_member(archive, _TENSORS) as member:
                member.write(pack_tensors(encoder.tensors))
        for name, array in encoder.members.items():
            if name not in shards:
                with _new_member(archive, name) as member:
                    write_npy(member, array)
        write_shards(archive, file, {_info(name): array for name, array in shards.items()})
        archive.close()
    finally:
        # An archive that is given up would write its table of contents when it is collected, to a closed file.
        archive.fp = None


def _new_member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    return archive.open(_info(name), "w", force_zip64=True)


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)  # Dated 1980: a time of writing, or the platform, would make the bytes differ.
    info.create_system = 3
    return info


def _members(archive: zipfile.ZipFile, file: BinaryIO, size: int) -> dict[str, zipfile.ZipInfo]:
    """Return the members by name, after every check that needs no member's content."""
    members = {info.orig_filename: info for info in archive.infolist()}
    if _JSON not in members:
        raise FileError(f"it is a zip file, but none of noterl: it has no {_JSON}")
    if len(members) != len(archive.infolist()):
        raise FileError("it has two members of one name")
    for name, info in members.items():
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.compress_size != info.file_size:
            raise FileError(f"its member {name!r:.80} is compressed or encrypted, which noterl's are not")
    # Members that share bytes could make a small file a big tree; an array's bytes could hold a file of their own.
    if sum(info.file_size for info in members.values()) > size:
        raise FileError("its members are larger than the file")
    file.seek(size - _END_OF_ZIP)
    if min(info.header_offset for info in members.values()) != 0 or file.read(4) != b"PK\x05\x06":
        raise FileError("something stands before or behind the zip in it")
    return members


def _bytes(archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int) -> bytes:
    if info.file_size > limit:
        raise FileError(f"its member {info.filename!r} is larger than {limit} bytes")
    with archive.open(info) as member:
        return member.read()


def _array(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], name: str) -> Array:
    # Each member is given out once: a tree that names one member a thousand times would fill the memory.
    info = members.pop(name, None)
    if info is None:
        raise FileError(f"its member {name!r:.80} is missing or used twice")
    with archive.open(info) as member:
        return read_npy(member, info.file_size)


def _document(text: bytes) -> Any:
    """Return the tree's structure out of `agent.json`."""
    document = json.loads(text.decode("ascii"), object_pairs_hook=_unique, parse_constant=_no_constant)
    if not isinstance(document, dict) or document.get("format") != "noterl":
        raise FileError(f"its {_JSON} is not one of noterl")
    version = document.get("version")
    if type(version) is not int or version < 1:
        raise FileError(f"its format version is {version!r:.40}, which never was")
    if version > VERSION:
        raise FileError(f"its format version is {version}, and this noterl knows {VERSION}: install a newer noterl")
    if "tree" not in document:
        raise FileError(f"its {_JSON} has no tree")
    return document["tree"]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise FileError(f"its {_JSON} has a key twice")
    return result


def _no_constant(word: str) -> None:
    raise FileError(f"its {_JSON} holds {word}, which is no JSON")
