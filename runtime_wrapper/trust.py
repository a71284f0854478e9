"""Opens everything that gpulatch reads or writes with root's rights, and refuses what a tenant could have put there.

Hot. Rules: a directory is owned by root and writable by nobody else; a file in it is opened by the directory's
descriptor, never through a symbolic link, never blocking on a FIFO, and is a regular file with one link of at most
`MAX_FILE_BYTES`. What is above the directory is the administrator's: the low-level runtime follows the same path.
"""

import os
import stat
from collections.abc import Sequence

from runtime_wrapper.errors import NotRootError, UntrustedPathError, errno_name

STATE_DIR = "/run/gpulatch"
MAX_FILE_BYTES = 16 * 1024 * 1024
ROOT_UID = 0

_WHOLE_HOST = ["0", "0", "4294967295"]  # user_namespaces(7): every uid mapped to itself

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def require_root_of_host(where: str) -> None:
    """Raises NotRootError unless the caller is root and not only so in a user namespace of its own."""
    with open("/proc/self/uid_map") as file:
        mapping = file.read().split()
    if os.geteuid() != 0 or mapping != _WHOLE_HOST:
        why = f"uid {os.geteuid()} has no part in it, the ledger is shared by the host and root's"
        raise NotRootError("rootless caller", where, why, "use a rootful engine, or run this as root")


def open_directory(path: str, what: str) -> int:
    """A descriptor of a root-owned directory that nobody else can write to; `what` names it in the error.

    Raises UntrustedPathError, FileNotFoundError when there is no such directory.
    """
    try:
        fd = os.open(path, _DIRECTORY_FLAGS)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _refused(what, path, f"cannot be opened ({errno_name(error)})", "make it a directory of root") from error
    return _of_root(fd, what, path)


def open_subdirectory(dir_fd: int, name: str, what: str, where: str) -> int:
    """As `open_directory`, for a directory in one that is open; a symbolic link is refused.

    Raises UntrustedPathError, FileNotFoundError when there is no such directory.
    """
    try:
        fd = os.open(name, _DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=dir_fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        why = f"cannot be opened as a plain directory ({errno_name(error)})"
        raise _refused(what, where, why, "put a directory of root there") from error
    return _of_root(fd, what, where)


def open_private_directory(path: str, what: str, *, create: bool) -> int:
    """A descriptor of a directory with owner root and mode 0700, made when absent and `create` is set.

    Raises UntrustedPathError for another owner, mode or a symbolic link; FileNotFoundError when absent and not made.
    """
    made = False
    if create:
        try:
            os.mkdir(path, 0o700)
            made = True
        except FileExistsError:
            pass
        except OSError as error:
            raise _refused(
                what, path, f"cannot be made ({errno_name(error)})", f"make it: mkdir -m 700 {path}"
            ) from error
    try:
        fd = os.open(path, _DIRECTORY_FLAGS | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _refused(
            what, path, f"not a plain directory ({errno_name(error)})", f"remove it and make it: mkdir -m 700 {path}"
        ) from error
    if made:
        os.fchmod(fd, 0o700)  # whatever the caller's umask took away
    found = os.fstat(fd)
    if found.st_uid != ROOT_UID or stat.S_IMODE(found.st_mode) != 0o700:
        os.close(fd)
        hint = f"check what is in it, then: chown root {path} && chmod 700 {path}"
        raise _refused(what, path, f"{_owner(found)}, not root's with 0700", hint)
    return fd


def read_file(dir_fd: int, name: str, what: str, where: str) -> bytes:
    """The content of a trusted file `name` in the directory `dir_fd`; `what` and `where` are for the error.

    Raises UntrustedPathError, FileNotFoundError.
    """
    try:
        kind = stat.S_IFMT(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFLNK):  # to open a device can be an act; a link is refused by the open
            raise _refused(what, where, "not a regular file", "put a regular file there")
        fd = os.open(name, _FILE_FLAGS, dir_fd=dir_fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _refused(
            what, where, f"cannot be opened as a plain file ({errno_name(error)})", "put a regular file there"
        ) from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise _refused(what, where, "not a regular file", "put a regular file there")
        if found.st_nlink != 1:
            why = f"has {found.st_nlink} hard links, another name could change it"
            raise _refused(what, where, why, "copy it to a file of its own")
        if _others_can_change(found):
            hint = "give it to root and take the write bits of others away"
            raise _refused(what, where, f"{_owner(found)}, others than root could change it", hint)
        return _read_all(fd, what, where)
    finally:
        os.close(fd)


def read_anyhow(path: str, what: str) -> bytes:
    """The content of a file whatever its owner, links and directory, to learn whether these rules concern it at all.

    Follows symbolic links, never blocks. Raises UntrustedPathError when it is no regular file or too big, OSError.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise _refused(what, path, "not a regular file", "put a regular file there")
    fd = os.open(path, _FILE_FLAGS & ~os.O_NOFOLLOW)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _refused(what, path, "not a regular file", "put a regular file there")
        return _read_all(fd, what, path)
    finally:
        os.close(fd)


def mentions_any(path: str, words: Sequence[bytes]) -> bool:
    """Whether any of the words stands in a regular file of any size; True where that cannot be told."""
    overlap = max(len(word) for word in words) - 1
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return True
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return True
            tail = b""
            while chunk := file.read(1 << 20):
                if any(word in tail + chunk for word in words):
                    return True
                tail = chunk[-overlap:]
    except OSError:
        return True
    return False


def _of_root(fd: int, what: str, path: str) -> int:
    """The descriptor of a directory, closed and refused where others than root could change what is in it."""
    found = os.fstat(fd)
    if _others_can_change(found):
        os.close(fd)
        hint = f"run: chown root {path} && chmod go-w {path}"
        raise _refused(what, path, f"{_owner(found)}, others than root could change it", hint)
    return fd


def _read_all(fd: int, what: str, where: str) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while chunk := os.read(fd, 1 << 20):
        size += len(chunk)
        if size > MAX_FILE_BYTES:
            raise _refused(what, where, f"larger than {MAX_FILE_BYTES >> 20} MiB", "make it smaller")
        chunks.append(chunk)
    return b"".join(chunks)


def _others_can_change(found: os.stat_result) -> bool:
    return found.st_uid != ROOT_UID or bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _owner(found: os.stat_result) -> str:
    return f"owned by uid {found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}"


def _refused(what: str, where: str, why: str, hint: str) -> UntrustedPathError:
    return UntrustedPathError(what, where, why, hint)
