"""How much memory this machine, or the container we run in, can still give.

Owns the question alone; who asks decides what to do about the answer.
"""

from __future__ import annotations

import os
from pathlib import Path


def available_bytes() -> int | None:
    """Return how many bytes can still be had without swapping; None where the system does not say.

    The kernel's estimate (`MemAvailable`) and the limits of the control groups this process lives in, whichever is
    less. Elsewhere than on Linux the size of the physical memory stands in, which is an upper bound.
    """
    figures = [figure for figure in (_from_meminfo(), *_from_control_groups()) if figure is not None]
    return min(figures) if figures else _physical()


def _from_meminfo(path: Path = Path("/proc/meminfo")) -> int | None:
    for line in _read(path).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _from_control_groups(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[int]:
    """Return what is left under each limit from our own group up to the root (version 2), or of version 1's root."""
    lines = [line.partition("::")[2] for line in _read(own).splitlines() if line.startswith("0::")]
    group = root / (lines[0].lstrip("/") if lines else "")
    groups = [group, *(parent for parent in group.parents if parent.is_relative_to(root))]
    figures = [_left(group, "memory.max", "memory.current", "inactive_file") for group in groups]
    figures.append(
        _left(root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    return [figure for figure in figures if figure is not None]


def _left(group: Path, limit_name: str, usage_name: str, reclaimable_name: str) -> int | None:
    limit, usage = _read(group / limit_name).strip(), _read(group / usage_name).strip()
    if not limit.isdigit() or not usage.isdigit():
        return None
    # The usage counts file cache, which the kernel drops before it refuses an allocation.
    statistics = dict(line.split() for line in _read(group / "memory.stat").splitlines())
    return max(0, int(limit) - int(usage) + int(statistics.get(reclaimable_name, 0)))


def _physical() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
