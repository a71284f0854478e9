"""Becomes the low-level runtime: same arguments, same environment, same everything as the engine's call.

Hot, never returns. Python changes what a process inherits (LC_CTYPE in the C locale, an ignored SIGPIPE); both are
undone here. The original environment is what the kernel shows, duplicates and odd entries included.
"""

import os
import signal
from collections.abc import Sequence
from typing import NoReturn

from runtime_wrapper.errors import LowLevelError, errno_name


def is_nvidia_runtime(link: str) -> bool:
    """Whether the low-level runtime is NVIDIA's, which makes nodes and driver files by itself."""
    return os.path.basename(link).startswith("nvidia-container-runtime")


def become(link: str, arguments: Sequence[str]) -> NoReturn:
    """Exec the low-level runtime behind `link` with the engine's arguments. Raises LowLevelError."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    command = [os.fsencode(word) for word in (link, *arguments)]
    try:
        _execve(os.fsencode(link), command, _original_environment())
    except OSError as error:
        why = f"cannot be started ({errno_name(error)})"
        raise LowLevelError("low-level runtime", link, why, "point that link at an executable runc or crun") from error


class _Pairs:
    """Environment entries for os.execve, which asks only for keys and values: duplicates survive, unlike in a dict."""

    def __init__(self, entries: Sequence[bytes]) -> None:
        self._pairs = [entry.partition(b"=") for entry in entries]

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, key: bytes) -> bytes:
        raise KeyError(key)

    def keys(self) -> list[bytes]:
        return [name for name, _, _ in self._pairs]

    def values(self) -> list[bytes]:
        return [value for _, _, value in self._pairs]


def _original_environment() -> list[bytes]:
    with open("/proc/self/environ", "rb") as file:
        return file.read().split(b"\0")[:-1]


def _execve(path: bytes, command: list[bytes], environment: list[bytes]) -> NoReturn:
    if all(entry.find(b"=") > 0 for entry in environment):
        os.execve(path, command, _Pairs(environment))  # type: ignore[arg-type]  # noqa: S606
    import ctypes  # here, because an entry without a name is as rare as the import is slow

    libc = ctypes.CDLL(None, use_errno=True)
    vectors = [(ctypes.c_char_p * (len(words) + 1))(*words, None) for words in (command, environment)]
    libc.execve(path, *vectors)
    raise OSError(ctypes.get_errno(), "execve")
