"""The memory of this machine, and how much this process can still allocate."""

from __future__ import annotations

from pathlib import Path


def available_bytes() -> int:
    """Return how many bytes can be allocated without swapping, on this machine and in this process's control groups."""
    import psutil

    return min([psutil.virtual_memory().available, *(left for _, left in _control_groups())])


def total_bytes() -> int:
    """Return the memory of this machine, or the limit of this process's control groups if that is lower."""
    import psutil

    return min([psutil.virtual_memory().total, *(limit for limit, _ in _control_groups())])


def _control_groups(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> list[tuple[int, int]]:
    """Return each limit from this process's group up to the root (cgroup version 2), with the bytes left."""
    lines = [line.partition("::")[2] for line in _read(own).splitlines() if line.startswith("0::")]
    group = root / (lines[0].lstrip("/") if lines else "")
    groups = [group, *(parent for parent in group.parents if parent.is_relative_to(root))]
    return [limit for group in groups if (limit := _limit(group)) is not None]


def _limit(group: Path) -> tuple[int, int] | None:
    """Return the limit of a control group and the bytes left; None if the group has no limit."""
    limit = _read(group / "memory.max").strip()
    usage = _read(group / "memory.current").strip()
    if not limit.isdigit() or not usage.isdigit():
        return None
    # The usage includes file cache, which the kernel drops before it refuses an allocation.
    statistics = dict(line.split() for line in _read(group / "memory.stat").splitlines())
    return int(limit), max(0, int(limit) - int(usage) + int(statistics.get("inactive_file", 0)))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
