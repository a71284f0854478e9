"""The CUDA libraries in a container's root file system, by their file names alone.

The image is the tenant's: nothing in it is opened but directories, found from the root's descriptor as they would be
after chroot(2): each name by openat(2) without following links, links read and walked by ourselves, `..` never above
the root. So no link leads out, no FIFO blocks, and steps and names are counted. What cannot be read is not there.
Mounts of the spec are not seen.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from runtime_wrapper.requirement import version

COMPAT_FOLDERS = tuple(f"usr/local/cuda/compat{more}" for more in ("", "/lib.real", "/lib"))  # the others: NGC images
LIBRARY_FOLDERS = (
    "usr/local/cuda/lib64",
    "usr/local/cuda/targets/x86_64-linux/lib",
    "usr/local/cuda/targets/sbsa-linux/lib",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/lib",
)
MAX_STEPS, MAX_NAMES = 256, 20_000  # along one path, each link being a step; in one directory

_COMPAT = re.compile(r"libcuda\.so\.([0-9]{1,4}(?:\.[0-9]{1,6}){1,3})")
_LIBRARY = re.compile(r"lib(?:cudart|cudnn[a-z_]*)\.so\.[0-9]{1,4}(?:\.[0-9]{1,6}){0,3}")
_ALONG = os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def compat_driver(root: str) -> str | None:
    """The version of the newest user-mode driver among the image's compat libraries."""
    names = [name for folder in COMPAT_FOLDERS for name in _names(root, folder)]
    found = [match[1] for name in names if (match := _COMPAT.fullmatch(name))]
    return max(found, key=lambda text: version(text) or (), default=None)


def cuda_libraries(root: str) -> list[str]:
    """File names of the CUDA runtime and of cuDNN in the usual library directories, sorted."""
    return sorted({name for folder in LIBRARY_FOLDERS for name in _names(root, folder) if _LIBRARY.fullmatch(name)})


def _names(root: str, folder: str) -> list[str]:
    """At most `MAX_NAMES` names of a directory of the image; empty when it is not there."""
    try:
        with _inside(root, folder) as fd, os.scandir(fd) as entries:
            return [entry.name for entry in islice(entries, MAX_NAMES)]
    except (OSError, ValueError):  # or the root is no path
        return []


@contextmanager
def _inside(root: str, folder: str) -> Iterator[int]:
    """A descriptor for listing a directory below `root`. Raises OSError."""
    path = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]  # descriptors from the root to where we are
    try:
        todo = folder.split("/")[::-1]
        for _ in range(MAX_STEPS):
            name = todo.pop() if todo else ""
            if name == "..":
                _leave(path, max(len(path) - 1, 1))
            elif name not in ("", ".") and (target := _step(path, name)):
                todo += target.split("/")[::-1]
                _leave(path, 1 if target.startswith("/") else len(path))
        if todo:
            raise OSError(f"more than {MAX_STEPS} steps")
        path.append(os.open(".", _LIST, dir_fd=path[-1]))
        yield path[-1]
    finally:
        _leave(path, 0)


def _step(path: list[int], name: str) -> str | None:
    """Enter a directory, or give the text of the link that the name is. Raises OSError."""
    try:
        path.append(os.open(name, _ALONG, dir_fd=path[-1]))
    except NotADirectoryError:  # also what the kernel says of a link here
        return os.readlink(name, dir_fd=path[-1])
    return None


def _leave(path: list[int], depth: int) -> None:
    while len(path) > depth:
        os.close(path.pop())
