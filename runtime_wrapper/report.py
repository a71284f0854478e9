"""Tells the engine's user why a container was refused: one record in the engine's log, the same line on stderr.

Docker and containerd show the last `level=error` record of the `--log` file (containerd pkg/process/utils.go,
getLastRuntimeError), Podman shows stderr. On success nothing is printed: stderr is the container's by then.
"""

import json
import os

from runtime_wrapper import atomic, clock, trust
from runtime_wrapper.errors import GpulatchError, HostError, InternalError, errno_name

_LOG_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
STDERR = 2
TRACEBACK_FILE = "traceback.txt"


def refusal(error: GpulatchError, log: str | None, log_format: str) -> None:
    """Report a refusal. A log that cannot be written changes nothing: stderr still says it."""
    line = str(error)
    if log:
        _append(log, _record(line, log_format))
    try:
        os.write(STDERR, line.encode(errors="backslashreplace") + b"\n")
    except OSError:
        return  # nobody listens; the exit code still tells


def unexpected(error: Exception) -> GpulatchError:
    """An unforeseen exception as a refusal: a failed system call by its errno, anything else as a bug of gpulatch.

    The traceback of a bug is kept in the state directory where that can be had.
    """
    if isinstance(error, OSError):
        where = error.filename if isinstance(error.filename, str) else "this host"
        hint = "see what the host lacks (descriptors, memory, disk), then start again"
        return HostError("system call", where, f"failed ({errno_name(error)})", hint)
    import traceback  # here, because it is slow to import and only a bug needs it

    where = f"{trust.STATE_DIR}/{TRACEBACK_FILE}"
    try:
        directory = trust.open_private_directory(trust.STATE_DIR, "state directory", create=True)
        try:
            atomic.replace(directory, TRACEBACK_FILE, "".join(traceback.format_exception(error)).encode(), 0o600)
        finally:
            os.close(directory)
    except (OSError, GpulatchError):
        where = "no traceback could be kept"
    return InternalError("internal error", where, f"{type(error).__name__}: {error}", "report it with that file")


def _record(line: str, log_format: str) -> bytes:
    if log_format == "json":
        return (json.dumps({"level": "error", "msg": line, "time": clock.now()}) + "\n").encode()
    return f"time={json.dumps(clock.now())} level=error msg={json.dumps(line)}\n".encode()


def _append(path: str, record: bytes) -> None:
    try:
        fd = os.open(path, _LOG_FLAGS, 0o644)
    except OSError:
        return
    try:
        os.write(fd, record)
    except OSError:
        return
    finally:
        os.close(fd)
