"""The administrator's settings directory: which files count, and what tells that one of them has changed.

Hot: every GPU container's create looks at it where there is such a directory. `config.toml` comes first, then the
files of `config.d` that end in `.toml` and are not hidden, in the byte order of their names.
"""

import contextlib
import os
from types import TracebackType
from typing import Self

from runtime_wrapper import trust
from runtime_wrapper.errors import UntrustedPathError

WHAT = "settings directory"
FILE = "config.toml"
DROP_INS = "config.d"
SUFFIX = ".toml"

# A file system may number moments as coarsely as this: a second change within it leaves the stamp as it was.
GRANULE_NS = 2_000_000_000

# path, device, inode, size, mtime and ctime in ns, mode, owner, links
Stamp = list[str | int]
_MTIME, _CTIME = 4, 5


class Folder:
    """The directory, held open. `problem` is what is wrong with its `config.d`, whose files then do not show."""

    def __init__(self, fd: int, directory: str) -> None:
        """Takes over the descriptor of a trusted directory."""
        self._fd = fd
        self._directory = directory
        self._drop_ins: int | None = None
        self.problem: UntrustedPathError | None = None
        where = f"{directory}/{DROP_INS}"
        try:
            self._drop_ins = trust.open_subdirectory(fd, DROP_INS, "directory of drop-ins", where)
        except FileNotFoundError:
            pass  # most hosts have none
        except UntrustedPathError as error:
            self.problem = error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
        if self._drop_ins is not None:
            os.close(self._drop_ins)

    def files(self) -> list[tuple[int, str, str]]:
        """Directory descriptor, name and path of each file that counts, a later one before an earlier.

        `config.toml` is among them whether it is there or not.
        """
        found = [(self._fd, FILE, f"{self._directory}/{FILE}")]
        if self._drop_ins is not None:
            names = [name for name in os.listdir(self._drop_ins) if name.endswith(SUFFIX) and name[0] != "."]
            for name in sorted(names, key=os.fsencode):
                found.append((self._drop_ins, name, f"{self._directory}/{DROP_INS}/{name}"))
        return found

    def stamps(self) -> list[Stamp]:
        """Of the directories and each file that is there, empty when no file is.

        Where they are `settled`, equal stamps mean equal content.
        """
        files: list[Stamp] = []
        for fd, name, where in self.files():
            with contextlib.suppress(FileNotFoundError):  # its absence is what the stamps then say
                files.append(stamp(where, os.stat(name, dir_fd=fd, follow_symlinks=False)))
        if not files:
            return []
        folders = [stamp(self._directory, os.fstat(self._fd))]
        if self._drop_ins is not None:
            folders.append(stamp(f"{self._directory}/{DROP_INS}", os.fstat(self._drop_ins)))
        return folders + files


def settled(stamps: list[Stamp], at_ns: int) -> bool:
    """Whether every change was so long before a moment that any change after it shows in the stamps."""
    return all(int(stamp[moment]) + GRANULE_NS < at_ns for stamp in stamps for moment in (_MTIME, _CTIME))


def stamp(path: str, found: os.stat_result) -> Stamp:
    """What tells that a file has changed."""
    return [
        path,
        found.st_dev,
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
        found.st_mode,
        found.st_uid,
        found.st_nlink,
    ]
