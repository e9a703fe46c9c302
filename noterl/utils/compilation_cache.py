"""The folder of compiled programs that outlive a process, and files in it that are complete or absent.

`NOTERL_CACHE=0` switches the cache off and `NOTERL_CACHE=path` moves it. An error of the file system never reaches the
caller: a program that cannot be read is compiled, and one that cannot be written is not stored.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import secrets
import shutil
import warnings
import zlib
from pathlib import Path

import platformdirs

from noterl.utils.cores import available_cores

# TensorFlow ends a run if it cannot write a program, so a disk that is almost full is not used.
FREE = 2**30
_CHECKSUM = 4
_VARIABLES = ("XLA_FLAGS", "NPROC", "TF_NUM_INTRAOP_THREADS", "CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS")


def root() -> Path | None:
    """Return the folder of the cache; None if it is switched off."""
    chosen = os.environ.get("NOTERL_CACHE", "")
    if chosen == "0":
        return None
    return Path(chosen).expanduser().absolute() if chosen else platformdirs.user_cache_path("noterl")


def folder(framework: str, version: str) -> Path | None:
    """Create and return the folder of one version of a framework on this machine.

    Machine code depends on the processor and on the number of threads, which the frameworks' own keys do not contain.

    Returns:
        the folder, or None if the cache is switched off or cannot be written. If `NOTERL_CACHE` names a folder that
        cannot be written, there is a warning.
    """
    parent = root()
    if parent is None:
        return None
    found = parent / f"{framework}-{version}-{_machine()}"
    try:
        # Compiled programs are trusted code, so other users must not write them.
        found.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(found, os.W_OK | os.X_OK):
            raise PermissionError(f"{found} is not writable")
        if shutil.disk_usage(found).free < FREE:
            raise OSError(f"less than {FREE >> 30} GiB is free")
    except OSError as error:
        if os.environ.get("NOTERL_CACHE"):
            warnings.warn(f"NOTERL_CACHE: compiled programs are not stored ({error})", stacklevel=2)
        return None
    return found


def _machine() -> str:
    """Return a digest of the processor, its cores, and the variables that change what XLA compiles."""
    parts = [platform.machine()]
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        wanted = {"model name", "flags", "Features", "CPU part"}
        for line in lines:
            name = line.partition(":")[0].strip()
            if name in wanted:
                wanted.remove(name)
                parts.append(line)
            elif not name:  # the end of the first core
                break
    if len(parts) == 1:  # not on Linux, where it starts another process
        parts.append(platform.processor())
    parts += [str(available_cores()), *(os.environ.get(name, "") for name in _VARIABLES)]
    return digest("\0".join(parts))


def digest(text: str) -> str:
    """Return a short digest, for the name of a folder."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Store:
    """Files by key in a folder that several processes use at the same time.

    A file is written under a temporary name and renamed, and it begins with a checksum. A file that is damaged counts
    as absent and is removed. If the folders of a framework exceed the limit, the files that were not used for the
    longest time are removed; `get` can leave the time of use unchanged.

    Args:
        folder: what `folder` returned.
        limit: bytes of all folders of this framework together, also those of other versions.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._until_trim = 0  # bytes that may be written before the folder is measured again

    def get(self, key: str, *, used: bool = True) -> bytes | None:
        """Return the content of a file; None if it is absent or damaged. `used` makes it the most recently used one."""
        path = self.folder / key
        try:
            content = path.read_bytes()
            if len(content) > _CHECKSUM and zlib.crc32(content[_CHECKSUM:]) == int.from_bytes(content[:_CHECKSUM]):
                if used:
                    with contextlib.suppress(OSError):  # a folder that is not ours
                        os.utime(path)
                return content[_CHECKSUM:]
            path.unlink(missing_ok=True)
        except OSError:
            pass
        return None

    def put(self, key: str, content: bytes) -> None:
        """Write a file, unless it exists or cannot be written."""
        path = self.folder / key
        temporary = self.folder / f".{secrets.token_hex(8)}.part"
        try:
            if path.exists():
                return
            temporary.write_bytes(zlib.crc32(content).to_bytes(_CHECKSUM) + content)
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            return
        self._until_trim -= len(content)
        if self._until_trim < 0:
            self._trim()
            self._until_trim = self.limit // 16

    def _trim(self) -> None:
        """Remove the least recently used files until all folders of this framework take at most `limit` bytes."""
        framework = self.folder.name.partition("-")[0]
        files = [one for folder in self.folder.parent.glob(f"{framework}-*") for one in _files(folder)]
        size = sum(one[1] for one in files)
        for _, length, path in sorted(files):
            if size <= self.limit:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
            size -= length

    def names(self) -> list[str]:
        """Return the keys of all files, sorted."""
        try:
            return sorted(entry.name for entry in os.scandir(self.folder) if not entry.name.startswith("."))
        except OSError:
            return []


def _files(folder: Path) -> list[tuple[float, int, str]]:
    """Return the time, the bytes and the path of each file below a folder."""
    found = []
    for directory, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # another process removed it
                status = os.stat(os.path.join(directory, name))
                found.append((status.st_mtime, status.st_size, os.path.join(directory, name)))
    return found
