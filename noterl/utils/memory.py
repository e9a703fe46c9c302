"""How much memory this process can still allocate."""

from __future__ import annotations

from pathlib import Path

import psutil


def available_bytes() -> int:
    """Return how many bytes can be allocated without swapping, on this machine and in this process's control groups."""
    return min([psutil.virtual_memory().available, *_left_in_control_groups()])


def _left_in_control_groups(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[int]:
    """Return the bytes left under each limit, from our own group up to the root (version 2)."""
    lines = [line.partition("::")[2] for line in _read(own).splitlines() if line.startswith("0::")]
    group = root / (lines[0].lstrip("/") if lines else "")
    groups = [group, *(parent for parent in group.parents if parent.is_relative_to(root))]
    return [left for group in groups if (left := _left(group)) is not None]


def _left(group: Path) -> int | None:
    limit, usage = _read(group / "memory.max").strip(), _read(group / "memory.current").strip()
    if not limit.isdigit() or not usage.isdigit():
        return None
    # The usage includes file cache, which the kernel drops before it refuses an allocation.
    statistics = dict(line.split() for line in _read(group / "memory.stat").splitlines())
    return max(0, int(limit) - int(usage) + int(statistics.get("inactive_file", 0)))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
