"""How much of a host's memory may still be taken: what is free, and what its cgroups leave."""

from __future__ import annotations

from pathlib import Path

from rank_io import number


def left_by_cgroups(root: Path, lines: list[str]) -> int | None:
    """Bytes that the memory limits of a process' cgroups leave; None: none limits it.

    `lines` of /proc/self/cgroup; `root` is where cgroups are mounted. Both versions are read, and
    every ancestor, as each may limit: https://docs.kernel.org/admin-guide/cgroup-v2.html. What the
    kernel can drop again (inactive_file) counts as free.
    """
    left = None
    for line in lines:
        _, controllers, path = line.strip().split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "memory" if controllers else root
        limit, used = ("limit_in_bytes", "usage_in_bytes") if controllers else ("max", "current")
        folder = base / path.lstrip("/")
        for one in (folder, *folder.parents):
            most = number(one / f"memory.{limit}")
            now = number(one / f"memory.{used}")
            if most is not None and now is not None:
                free = max(0, most - now + _droppable(one / "memory.stat"))
                left = free if left is None else min(left, free)
            if one == base:
                break
    return left


def _droppable(stat: Path) -> int:
    try:
        rows = (line.split() for line in stat.read_text().splitlines())
        return next(int(row[1]) for row in rows if row[0] == "inactive_file")
    except (OSError, ValueError, StopIteration, IndexError):
        return 0


def available() -> int:
    """Bytes of the host's memory that may still be taken, cgroups heeded."""
    text = Path("/proc/meminfo").read_text()
    free = next(int(r.split()[1]) << 10 for r in text.splitlines() if r.startswith("MemAvailable"))
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    left = left_by_cgroups(Path("/sys/fs/cgroup"), lines)
    return free if left is None else min(free, left)
