"""Replaces a file in one step: a reader sees the old content or the new, never a part.

Hot. Works on a directory descriptor, so that nothing on the path can be swapped between check and use.
"""

import contextlib
import os

_NEW = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def replace(
    dir_fd: int, name: str, data: bytes, mode: int = 0o600, *, fsync: bool = False, temporary: str | None = None
) -> None:
    """Put `data` under `name` in the directory `dir_fd`, with exactly `mode`. Raises OSError; `name` is then as before.

    `temporary` names the file that is written first, for callers that keep each other out; else a name is made up.

    Not guaranteed: without `fsync` the content survives a crash of this process but not of the machine (use it only on
    a tmpfs or for what can be made again), and even with it the directory entry itself is not synced; of two writers
    at once the last one wins; owner, extended attributes and hard links of the old file are not kept; a kill between
    open and rename leaves a temporary file `.<name>.<random>` behind.
    """
    flags = _NEW | (os.O_TRUNC if temporary else os.O_EXCL)
    temporary = temporary or f".{name}.{os.urandom(8).hex()}"
    fd = os.open(temporary, flags, mode, dir_fd=dir_fd)
    try:
        try:
            os.fchmod(fd, mode)
            _write_all(fd, data)
            if fsync:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=dir_fd)
        raise


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
