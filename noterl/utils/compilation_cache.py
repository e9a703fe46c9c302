"""The folder of compiled programs that outlive a process, and files there that are complete or absent.

`NOTERL_CACHE=0` switches the cache off and `NOTERL_CACHE=path` moves it to `path/noterl`. An error of the file system
never reaches the caller: a program that cannot be read is compiled, and one that cannot be written is not stored.

Files are only removed with the name of an entry, in a folder with the name of a version, in a cache with the marker. So
files of the user in or beside the cache are kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import secrets
import shutil
import warnings
import zlib
from pathlib import Path

from noterl.utils.cores import available_cores

# TensorFlow ends a run if it cannot write a program, so a disk that is almost full is not used.
FREE = 2**30
MARKER = ".noterl-cache"  # a file in each folder that `root` returned and that is used
VERSION = r"-[\w.+-]+-[0-9a-f]{12}"  # follows the framework in the name of a folder
PROCESS = r"[a-z0-9_]{8}"  # the end of a name by `tempfile.mkdtemp`
_ENDING = ".program"
_ENTRY = re.compile(rf".+\{_ENDING}|\.[0-9a-f]{{16}}\.part")
_CHECKSUM = 4
_VARIABLES = ("XLA_FLAGS", "NPROC", "TF_NUM_INTRAOP_THREADS", "CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS")


class _RefusedError(OSError):
    """The folder of the cache is not trusted."""


def root() -> Path | None:
    """Return the folder of the cache, which holds nothing else; None if the cache is switched off."""
    chosen = os.environ.get("NOTERL_CACHE", "")
    if chosen == "0":
        return None
    if chosen:
        return Path(chosen).expanduser().absolute() / "noterl"
    import platformdirs

    return platformdirs.user_cache_path("noterl")


def folder(framework: str, version: str) -> Path | None:
    """Create and return the folder of one version of a framework on this machine.

    Machine code depends on the processor and on the number of threads, which the frameworks' own keys do not contain.

    Returns:
        the folder, or None if the cache is switched off, cannot be written or is not trusted. There is a warning if the
        folder is not trusted, or if `NOTERL_CACHE` names one that cannot be written.
    """
    parent = root()
    if parent is None:
        return None
    version_folder = parent / f"{framework}-{version}-{_machine()}"
    # Who can write the folder that the user has chosen can replace the folder in it.
    chosen = [parent.parent] if os.environ.get("NOTERL_CACHE") else []
    try:
        for path in (*chosen, parent, version_folder):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            _check_private(path)
            if path == parent:
                _mark(parent)
        if not os.access(version_folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{version_folder} is not writable")
        if shutil.disk_usage(version_folder).free < FREE:
            raise OSError(f"less than {FREE >> 30} GiB is free")
    except OSError as error:
        if chosen or isinstance(error, _RefusedError):
            warnings.warn(f"NOTERL_CACHE: compiled programs are not stored ({error})", stacklevel=2)
        return None
    return version_folder


def _check_private(path: Path) -> None:
    """Raise an error if other users can write a folder: compiled programs are trusted code."""
    status = path.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise _RefusedError(
            f"{path} belongs to another user, or others can write it: set NOTERL_CACHE to a folder that only you "
            "can write, or to 0"
        )


def _mark(parent: Path) -> None:
    """Write the marker into a folder, unless the folder holds files that are not of a cache."""
    if not (parent / MARKER).exists():
        entry = re.compile(rf"(jax|tensorflow){VERSION}|\.tensorflow-{PROCESS}|{re.escape(MARKER)}")
        if not all(entry.fullmatch(name) for name in os.listdir(parent)):
            raise _RefusedError(f"{parent} holds other files: set NOTERL_CACHE to another folder, or to 0")
        (parent / MARKER).touch()


def own_folders(parent: Path, names: str) -> list[Path]:
    """Return the folders of compiled programs in the cache `parent` that noterl has made; none without the marker.

    Args:
        parent: the folder of the cache.
        names: a regular expression, which the whole name of a folder matches.
    """
    if not (parent / MARKER).is_file():
        return []
    with os.scandir(parent) as entries:
        return [
            Path(entry) for entry in entries if re.fullmatch(names, entry.name) and entry.is_dir(follow_symlinks=False)
        ]


def _machine() -> str:
    """Return a digest of the processor, the cores, and the variables that change what XLA compiles."""
    descriptions = [platform.machine()]
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        wanted = {"model name", "flags", "Features", "CPU part"}
        for line in lines:
            name = line.partition(":")[0].strip()
            if name in wanted:
                wanted.remove(name)
                descriptions.append(line)
            elif not name:  # the end of the first core
                break
    if len(descriptions) == 1:  # not on Linux, where it starts another process
        descriptions.append(platform.processor())
    descriptions += [str(available_cores()), *(os.environ.get(name, "") for name in _VARIABLES)]
    return digest("\0".join(descriptions))


def digest(text: str) -> str:
    """Return a short digest, for the name of a folder."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Store:
    """Files by key in a folder that several processes use at the same time.

    A file is written under a temporary name and renamed, and begins with a checksum. A file that is damaged counts as
    absent and is removed. If the folders of a framework exceed the limit, the files that were not used for the longest
    time are removed; `get` can leave the time of use unchanged.

    Args:
        folder: what `folder` returned.
        limit: bytes of all folders of this framework together, also of other versions.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder: Path = folder
        self.limit: int = limit
        self._until_trim = 0  # bytes that may be written before the folder is measured again

    def get(self, key: str, *, used: bool = True) -> bytes | None:
        """Return the content of a file, None if absent or damaged. `used` marks the file as the most recently used."""
        path = self.folder / f"{key}{_ENDING}"
        if path.is_symlink():  # noterl makes no links
            return None
        with contextlib.suppress(OSError):
            content = path.read_bytes()
            if len(content) > _CHECKSUM and zlib.crc32(content[_CHECKSUM:]) == int.from_bytes(content[:_CHECKSUM]):
                if used:
                    with contextlib.suppress(OSError):  # a folder that is not ours
                        os.utime(path)
                return content[_CHECKSUM:]
            path.unlink(missing_ok=True)
        return None

    def remove(self, key: str) -> None:
        """Remove a file, if there is one."""
        with contextlib.suppress(OSError):
            (self.folder / f"{key}{_ENDING}").unlink(missing_ok=True)

    def put(self, key: str, content: bytes) -> None:
        """Write a file, unless the file exists or cannot be written."""
        path = self.folder / f"{key}{_ENDING}"
        temporary = self.folder / f".{secrets.token_hex(8)}.part"
        try:
            if os.path.lexists(path):
                return
            temporary.write_bytes(zlib.crc32(content).to_bytes(_CHECKSUM) + content)
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            return
        self._until_trim -= len(content)
        if self._until_trim < 0:
            with contextlib.suppress(OSError):  # another process removed a folder
                self._trim()
            self._until_trim = self.limit // 16

    def _trim(self) -> None:
        """Remove the least recently used files until all folders of this framework take at most `limit` bytes."""
        framework = self.folder.name.partition("-")[0]
        folders = own_folders(self.folder.parent, framework + VERSION)
        files = [file for folder in folders for file in _entries(folder)]
        size = sum(entry[1] for entry in files)
        for _, length, path in sorted(files):
            if size <= self.limit:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
            size -= length

    def names(self) -> list[str]:
        """Return the keys of all files, sorted."""
        try:
            return sorted(name.removesuffix(_ENDING) for name in os.listdir(self.folder) if name.endswith(_ENDING))
        except OSError:
            return []


def _entries(folder: Path) -> list[tuple[float, int, str]]:
    """Return the time, the bytes and the path of each file that a `Store` has written into a folder."""
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if _ENTRY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):  # another process removed it
                    status = entry.stat(follow_symlinks=False)
                    files.append((status.st_mtime, status.st_size, entry.path))
    return files
