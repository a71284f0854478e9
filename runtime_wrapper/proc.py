"""Processes and cgroups as the kernel shows them: is this very process, or anything in that cgroup, still alive?

Hot. A process is its pid and its start time (field 22 of /proc/<pid>/stat, clock ticks since boot; proc(5)), so that a
reused pid is another process. A zombie is dead: it holds no device.
"""

import os
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Process:
    """One process of this boot; `start` in clock ticks since boot."""

    pid: int
    start: int

    @classmethod
    def current(cls) -> Self:
        """The calling process; its identity survives exec."""
        pid = os.getpid()
        fields = _stat_fields(pid)
        if fields is None:
            raise RuntimeError("/proc does not show the calling process")
        return cls(pid, int(fields[19]))

    def to_json(self) -> dict[str, int]:
        """The process as JSON values."""
        return {"pid": self.pid, "start": self.start}

    def alive(self) -> bool:
        """Whether this very process still runs."""
        fields = _stat_fields(self.pid)
        return fields is not None and int(fields[19]) == self.start and fields[0] not in (b"Z", b"X")


def populated(cgroup: str) -> bool:
    """Whether any process lives in a cgroup, given as its absolute path; v2 counts its children too (cgroups(7))."""
    try:
        with open(f"{cgroup}/cgroup.events", "rb") as events:
            return b"populated 1" in events.read()
    except OSError:
        pass
    try:
        with open(f"{cgroup}/cgroup.procs", "rb") as procs:
            return bool(procs.read(1))
    except OSError:
        return False


def boot_id() -> str:
    """The kernel's random id of this boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _stat_fields(pid: int) -> list[bytes] | None:
    """The fields of /proc/<pid>/stat after the command name (which may hold anything), or None when it is gone."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, 4096).rpartition(b")")[2].split()
    except OSError:
        return None
    finally:
        os.close(fd)
