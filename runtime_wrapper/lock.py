"""The ledger's lock: an exclusive flock on a file that is never renamed or unlinked.

Hot. The descriptor is not inherited by exec, and nothing may be forked while the lock is held. The kernel gives it back
when its holder dies, however that happens.
"""

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from runtime_wrapper.errors import LedgerError, LockTimeoutError, errno_name

NAME = "lock"
TIMEOUT_S = 10.0

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def held(directory: int, where: str) -> Iterator[None]:
    """Hold the lock in a state directory; `where` names it in errors. Raises LockTimeoutError, LedgerError."""
    fd = _taken(directory, where)
    try:
        yield
    finally:
        os.close(fd)  # gives the lock back: no other descriptor of it exists


def _taken(directory: int, where: str) -> int:
    """A descriptor of the lock file, locked, that is still the file under that name."""
    while True:
        try:
            fd = os.open(NAME, _FLAGS, 0o600, dir_fd=directory)
        except OSError as error:
            why = f"cannot be opened as a plain file ({errno_name(error)})"
            raise LedgerError("ledger lock", where, why, "remove what is there, or make /run writable") from error
        try:
            _wait_for(fd, where)
            if _is_current(fd, directory):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_current(fd: int, directory: int) -> bool:
    """Whether nobody has unlinked the file meanwhile, against the rule: a lock on a nameless file locks nobody out."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(NAME, dir_fd=directory, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _wait_for(fd: int, where: str) -> None:
    """Take the lock; a blocking flock is served in order, the timer only bounds the wait."""

    def give_up(signum: int, frame: FrameType | None) -> None:
        why = f"another process has kept it for {TIMEOUT_S:g} s"
        raise LockTimeoutError("ledger lock", where, why, f"find it with: fuser -v {where}")

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        pass
    before = signal.signal(signal.SIGALRM, give_up)
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])  # the caller may have left it blocked
    signal.setitimer(signal.ITIMER_REAL, TIMEOUT_S)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGALRM, before)
