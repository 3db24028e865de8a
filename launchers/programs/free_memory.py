"""Find out how much memory of a host a process may still allocate, within its cgroups' limits."""

from __future__ import annotations

from pathlib import Path

from rank_io import number


def left_by_cgroups(root: Path, lines: list[str]) -> int | None:
    """Return the bytes left below the memory limits of a process's cgroups; None without a limit.

    `lines` are those of /proc/self/cgroup; `root` is the mount point of the cgroups. Both cgroup
    versions are read, with all ancestors, because each may have a limit. Cache that the kernel can
    drop (inactive_file) counts as free. https://docs.kernel.org/admin-guide/cgroup-v2.html
    """
    left = None
    for line in lines:
        _, controllers, path = line.strip().split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "memory" if controllers else root
        limit, used = ("limit_in_bytes", "usage_in_bytes") if controllers else ("max", "current")
        folder = base / path.lstrip("/")
        for group in (folder, *folder.parents):
            maximum = number(group / f"memory.{limit}")
            current = number(group / f"memory.{used}")
            if maximum is not None and current is not None:
                free = max(0, maximum - current + _droppable(group / "memory.stat"))
                left = free if left is None else min(left, free)
            if group == base:
                break
    return left


def _droppable(stat: Path) -> int:
    try:
        rows = (line.split() for line in stat.read_text().splitlines())
        return next(int(row[1]) for row in rows if row[0] == "inactive_file")
    except (OSError, ValueError, StopIteration, IndexError):
        return 0


def available() -> int:
    """Return the bytes of host memory that this process may still allocate."""
    text = Path("/proc/meminfo").read_text()
    free = next(int(r.split()[1]) << 10 for r in text.splitlines() if r.startswith("MemAvailable"))
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    left = left_by_cgroups(Path("/sys/fs/cgroup"), lines)
    return free if left is None else min(free, left)
