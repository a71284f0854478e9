"""Whether a program can be the low-level runtime of a runtime name.

Standard library only: `packaging/build` calls `main` on the distribution's Python before it makes a link; the command
`gpulatch runtimes` looks again. First the files, then the program itself: nothing that others than root can change is
ever executed. Not seen: a script that finds a launcher by PATH or through a variable.
"""

import os
import re
import selectors
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from runtime_wrapper.errors import LowLevelError, errno_name
from runtime_wrapper.operate import runtime_version
from runtime_wrapper.operate.runtime_version import Version

RUNC, CRUN = "runc", "crun"
TIME_LIMIT_S = 5.0
MAX_OUTPUT_BYTES = 64 * 1024

# The launcher's own marks, see packaging/launcher/gpulatch-runtime.c.
_LAUNCHER_TEXT = b"/runtime_wrapper/main.py"
_LARGEST_LAUNCHER = 64 * 1024
_MAX_LINKS = 40  # of one path, as in the kernel
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_ANOTHER = "name a real low-level runtime, /usr/sbin/runc for example"


@dataclass(frozen=True, slots=True)
class Vetted:
    """What is known of a program: its version where it says one, why it cannot serve (or None), what to know of it."""

    version: Version | None
    error: LowLevelError | None
    warnings: tuple[str, ...] = ()


def main(path: str, *, quiet: bool = False) -> int:
    """For `packaging/build`: the exit status, 0 when the program can serve; the refusal and, unless `quiet`, warnings
    on stderr."""
    vetted = vet(path)
    for warning in vetted.warnings if not quiet else ():
        print(f"warning: {path}: {warning}", file=sys.stderr)
    if vetted.error:
        print(vetted.error, file=sys.stderr)
    return 1 if vetted.error else 0


def grammar(path: str) -> str:
    """Whose command line the launcher and `argv` believe to be behind a low-level link, by its basename alone."""
    name = os.path.basename(path)
    return CRUN if name.startswith(CRUN) or name == "krun" else RUNC


def vet(path: str) -> Vetted:
    """What there is to know of the program that an absolute path names."""
    version = None
    try:
        _require_files(path)
        output = ask(path)
        version = runtime_version.read(output or "")
        return Vetted(version, None, _judge(path, version, answered=output is not None))
    except LowLevelError as error:
        return Vetted(version, error)


# ---- the files ----


def require_safe(path: str) -> None:
    """Raises LowLevelError unless only root can change what a path leads to: the file, each link and folder before it.

    Raises OSError where the path leads nowhere. In a sticky folder (/tmp) others can make files but not replace root's.
    """
    for step in _steps(path):
        found = os.lstat(step)
        sticky_folder = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        writable = not stat.S_ISLNK(found.st_mode) and found.st_mode & _OTHERS_WRITE and not sticky_folder
        if found.st_uid != 0 or writable:
            mode = stat.S_IMODE(found.st_mode)
            why = f"others than root can change {step} (uid {found.st_uid}, mode {mode:04o})"
            hint = f"give it to root alone: chown -h root {step}" + (f" && chmod go-w {step}" if writable else "")
            raise _refused(path, why, hint)


def is_launcher(path: str) -> bool:
    """Whether a file is a gpulatch launcher, whatever its name and build."""
    content = _small_file(path)
    return content.startswith(b"\x7fELF") and _LAUNCHER_TEXT in content


def _require_files(path: str) -> None:
    name = os.path.basename(path)
    if name == "off" or name.startswith("."):
        raise _refused(
            path, "has a name that the launcher does not take for a runtime's", "make a link of another name"
        )
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise _refused(path, "cannot be executed, it is no regular file", _ANOTHER)
        if not os.access(path, os.X_OK):
            raise _refused(path, "cannot be executed", _ANOTHER)
        require_safe(path)
    except OSError as error:
        raise _refused(path, f"cannot be executed ({errno_name(error)})", _ANOTHER) from error
    if is_launcher(path):
        raise _refused(path, "is gpulatch itself, which would call itself for ever or book twice", _ANOTHER)
    if launcher := _started_by_script(path):
        raise _refused(path, f"starts gpulatch again ({launcher}), which would never end", _ANOTHER)


def _steps(path: str) -> Iterator[str]:
    """Each folder, link and file that the kernel passes on its way to what an absolute path names. Raises OSError."""
    at, names, links = "/", path.split("/"), 0
    yield at
    while names:
        name = names.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at)
            continue
        step = os.path.join(at, name)
        yield step
        if not os.path.islink(step):
            at = step
            continue
        links += 1
        target = os.readlink(step)
        if links > _MAX_LINKS:
            return  # the kernel has already said ELOOP
        at = "/" if target.startswith("/") else at
        names = [*target.split("/"), *names]


def _started_by_script(path: str) -> str | None:
    """A launcher that a script names by its full path outside of comments."""
    content = _small_file(path)
    if not content.startswith(b"#!"):
        return None
    lines = [line for line in content[2:].splitlines() if not line.lstrip().startswith(b"#")]
    words = {os.fsdecode(word) for line in lines for word in re.findall(rb"/[\w./+-]+", line)}
    return next((word for word in sorted(words) if os.path.isfile(word) and is_launcher(word)), None)


def _small_file(path: str) -> bytes:
    """The content of a file that is not larger than a launcher, else nothing."""
    try:
        if os.stat(path).st_size > _LARGEST_LAUNCHER:
            return b""
        with open(path, "rb") as file:
            return file.read(_LARGEST_LAUNCHER)
    except OSError:
        return b""


# ---- the program ----


def ask(path: str) -> str | None:
    """What a program prints for `--version`, at most MAX_OUTPUT_BYTES of it; None when it does not end in time.

    It has no environment, no terminal and nothing to read. What it started is ended with it. Raises LowLevelError.
    """
    try:
        asked = subprocess.Popen(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            start_new_session=True,
        )
    except OSError as error:
        raise _refused(path, f"cannot be executed ({errno_name(error)})", _ANOTHER) from error
    try:
        assert asked.stdout is not None
        return _output(asked.stdout)
    finally:
        os.killpg(asked.pid, signal.SIGKILL)  # not reaped yet, so the id is still its own
        asked.wait()


def _output(stream: IO[bytes]) -> str | None:
    deadline = time.monotonic() + TIME_LIMIT_S
    output = b""
    with selectors.DefaultSelector() as waiting:
        waiting.register(stream, selectors.EVENT_READ)
        while len(output) < MAX_OUTPUT_BYTES:
            if not waiting.select(max(0.0, deadline - time.monotonic())):
                return None
            chunk = os.read(stream.fileno(), 4096)
            if not chunk:
                break
            output += chunk
    return output.decode(errors="replace")


def _judge(path: str, version: Version | None, *, answered: bool) -> tuple[str, ...]:
    """What to know of a program that can serve. Raises LowLevelError for one that cannot."""
    expected = grammar(path)
    if version is None:
        how = "in a form known here" if answered else f"within {TIME_LIMIT_S:g} s"
        return (
            f"does not answer --version {how}; it is called as {expected}, check that it takes such a command line",
        )
    if version.program not in (RUNC, CRUN):
        return (f"is {version}, on which gpulatch is not tested; it is called as {expected}",)
    if version.program != expected:
        raise _refused(
            path, f"is {version} under a name that stands for {expected}", _other_name(path, version.program)
        )
    if runtime_version.too_old(version):
        oldest = runtime_version.oldest(version.program)
        raise _refused(path, f"is {version}, older than {oldest}", f"install a newer {version.program}")
    if version.key is None:
        return (
            f"is {version.program} and does not say which version; {runtime_version.oldest(expected)} is the oldest",
        )
    return tuple(f"{version}: {fault}" for fault in runtime_version.faults(version))


def _other_name(path: str, program: str) -> str:
    if os.path.basename(path).startswith("nvidia-container-runtime"):
        return 'name runc first in "runtimes" in /etc/nvidia-container-runtime/config.toml'
    what = "begins with crun" if program == CRUN else "does not begin with crun"
    return f"give the path of a link to it whose name {what}: ln -s {path} /usr/local/sbin/{program}"


def _refused(path: str, why: str, hint: str) -> LowLevelError:
    return LowLevelError("low-level runtime", path, why, hint)
