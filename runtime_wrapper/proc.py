"""Processes and cgroups as the kernel shows them: is this very process, or anything in that cgroup, still alive?

Hot. A process is its pid and its start time (field 22 of /proc/<pid>/stat, clock ticks since boot; proc(5)), so that a
reused pid is another process. A zombie is dead: it holds no device. What cannot be told raises OSError: taking a live
container for dead would give its GPUs away.
"""

import errno
import os
from dataclasses import dataclass
from typing import Self

_GONE = (FileNotFoundError, ProcessLookupError, NotADirectoryError)


@dataclass(frozen=True, slots=True)
class Process:
    """One process of this boot; `start` in clock ticks since boot."""

    pid: int
    start: int

    @classmethod
    def current(cls) -> Self:
        """The calling process; its identity survives exec."""
        found = cls.of(os.getpid())
        if found is None:
            raise RuntimeError("/proc does not show the calling process")
        return found

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The process that has a pid now, or None."""
        fields = _stat_fields(pid)
        return cls(pid, int(fields[19])) if fields else None

    def parent(self) -> int | None:
        """The pid of its parent, or None when it is gone."""
        fields = _stat_fields(self.pid)
        return int(fields[1]) if fields and int(fields[19]) == self.start else None

    def to_json(self) -> dict[str, int]:
        """The process as JSON values."""
        return {"pid": self.pid, "start": self.start}

    def alive(self) -> bool:
        """Whether this very process still runs."""
        fields = _stat_fields(self.pid)
        return fields is not None and int(fields[19]) == self.start and fields[0] not in (b"Z", b"X")


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A cgroup as its absolute path and the inode of its directory, so that a path used again is another cgroup."""

    path: str
    inode: int

    @classmethod
    def at(cls, path: str) -> Self | None:
        """The cgroup at a path, or None when there is none. Raises OSError when that cannot be told."""
        try:
            return cls(path, os.stat(path).st_ino)
        except (*_GONE, ValueError):  # or no path at all
            return None

    def to_json(self) -> dict[str, str | int]:
        """The cgroup as JSON values."""
        return {"path": self.path, "inode": self.inode}

    def populated(self) -> bool:
        """Whether any process lives in it; on v2 its children count too (cgroups(7)). Raises OSError as `at`."""
        if Cgroup.at(self.path) != self:
            return False
        events = read(f"{self.path}/cgroup.events")
        return b"populated 1" in events if events is not None else bool(read(f"{self.path}/cgroup.procs"))


def read(path: str, *, at_once: bool = False, limit: int = 1 << 28) -> bytes | None:
    """A small file of the kernel or the runtime, or None when it is gone. Raises OSError when that cannot be told.

    `at_once`: one read gives it all, as for files of /proc/<pid> that fit a page. Of more than `limit` bytes the rest
    is left out.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except _GONE:
        return None
    try:
        if at_once:
            return os.read(fd, 4096)
        chunks = []
        while limit > 0 and (chunk := os.read(fd, 1 << 16)):
            chunks.append(chunk)
            limit -= len(chunk)
        return b"".join(chunks)
    except _GONE:
        return None
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.EISDIR):  # a cgroup that was removed while its file was open; no file
            return None
        error.filename = path
        raise
    finally:
        os.close(fd)


def boot_id() -> str:
    """The kernel's random id of this boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _stat_fields(pid: int) -> list[bytes] | None:
    """The fields of /proc/<pid>/stat after the command name (which may hold anything), or None when it is gone."""
    text = read(f"/proc/{pid}/stat", at_once=True)
    return text.rpartition(b")")[2].split() if text else None
