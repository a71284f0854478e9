"""Paths of a container's root file system, as they would be after chroot(2).

The image is the tenant's. A path is walked from the root's descriptor: each name by openat(2) without following links
and without opening what it names, links read and walked by ourselves, `..` never above the root. So no link leads out,
no FIFO blocks, and steps, names and bytes are counted. Mounts of the spec are not seen. Only directories and regular
files are ever opened.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

MAX_STEPS, MAX_NAMES = 256, 20_000  # along one path, each link being a step; in one directory

_NAME = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path leads: `path` without links, from the root; `kind` as in `st_mode`, None when nothing is there.

    The kind of a path that cannot be walked is that of a link.
    """

    path: str
    kind: int | None

    @property
    def is_file(self) -> bool:
        """Whether a regular file lies there."""
        return self.kind == stat.S_IFREG

    @property
    def is_folder(self) -> bool:
        """Whether a directory lies there."""
        return self.kind == stat.S_IFDIR


def place(root: str, path: str) -> Place:
    """Where a path of the image leads; names below a missing one are taken as they stand."""
    try:
        with _end_of(root, path) as (found, fd):
            return Place(found, None if fd is None else stat.S_IFMT(os.fstat(fd).st_mode))
    except (OSError, ValueError):
        return Place(path, stat.S_IFLNK)


def places(root: str, folder: str, names: Iterable[str]) -> dict[str, Place]:
    """Where several names in one directory of the image lead."""
    try:
        with _end_of(root, folder) as (found, fd):
            return {name: _place_in(root, found, fd, name) for name in names}
    except (OSError, ValueError):
        return {name: Place(f"{folder}/{name}", stat.S_IFLNK) for name in names}


def names(root: str, folder: str) -> list[str]:
    """At most `MAX_NAMES` names of a directory of the image; empty when it is not there."""
    try:
        with _end_of(root, folder) as (_, fd):
            listing = os.open(".", _LIST, dir_fd=-1 if fd is None else fd)
            try:
                with os.scandir(listing) as entries:
                    return [entry.name for entry in islice(entries, MAX_NAMES)]
            finally:
                os.close(listing)
    except (OSError, ValueError):
        return []


def read(root: str, path: str, limit: int) -> bytes:
    """The content of a regular file of the image; empty when there is none, or a longer one."""
    try:
        with _end_of(root, path) as (_, fd):
            if fd is None or not stat.S_ISREG(os.fstat(fd).st_mode):
                return b""
            with open(f"/proc/self/fd/{fd}", "rb", opener=lambda name, _: os.open(name, _READ)) as file:
                data = file.read(limit + 1)
    except (OSError, ValueError):
        return b""
    return data if len(data) <= limit else b""


def _place_in(root: str, folder: str, fd: int | None, name: str) -> Place:
    path = f"{folder.rstrip('/')}/{name}"
    if fd is None:
        return Place(path, None)
    try:
        kind = stat.S_IFMT(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return Place(path, None)
    return place(root, path) if kind == stat.S_IFLNK else Place(path, kind)


@contextmanager
def _end_of(root: str, path: str) -> Iterator[tuple[str, int | None]]:
    """The path without links, and a descriptor of what lies there, None for nothing.

    Raises OSError, ValueError for a text that is no path.
    """
    fds, passed = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)], list[str]()
    try:
        todo = path.split("/")[::-1]
        for _ in range(MAX_STEPS):
            name = todo.pop() if todo else ""
            if name == "..":
                _back_to(max(len(passed) - 1, 0), fds, passed)
            elif name not in ("", ".") and (target := _step(fds, passed, name)):
                todo += target.split("/")[::-1]
                _back_to(0 if target.startswith("/") else len(passed), fds, passed)
        if todo:
            raise OSError(errno.ELOOP, f"more than {MAX_STEPS} steps")
        yield "/" + "/".join(passed), fds[-1] if len(fds) > len(passed) else None
    finally:
        for fd in fds:
            os.close(fd)


def _step(fds: list[int], passed: list[str], name: str) -> str | None:
    """Go on to a name, there or not, or give the text of the link that it is. Raises OSError."""
    fd = None
    if len(fds) > len(passed):  # else we are below a name that is missing
        try:
            fd = os.open(name, _NAME, dir_fd=fds[-1])
        except FileNotFoundError:
            fd = None
    if fd is not None and stat.S_ISLNK(os.fstat(fd).st_mode):
        try:
            return os.readlink("", dir_fd=fd)
        finally:
            os.close(fd)
    passed.append(name)
    if fd is not None:
        fds.append(fd)
    return None


def _back_to(depth: int, fds: list[int], passed: list[str]) -> None:
    del passed[depth:]
    while len(fds) > depth + 1:
        os.close(fds.pop())
