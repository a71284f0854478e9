"""`crun update` leaves the devices of a container that gpulatch started as they are, as `runc update` does by itself.

Engines hand over the device rules that they know of along with new limits (containerd's CRI plugin does), and crun
makes the container's whole device filter anew from them: the GPUs, which only gpulatch's spec has, would be gone. So
the rules are left out, by a copy of the resources in a memory file. Nothing here refuses an update: what cannot be read
is for crun to say.
"""

import json
import os
import stat

from runtime_wrapper import runtime_state, spec
from runtime_wrapper.argv import Update

_STDIN = 0


def with_the_same_devices(update: Update, arguments: list[str]) -> list[str]:
    """The arguments for crun, which name other resources where the engine's have device rules."""
    try:
        return _changed(update, arguments) if _started_by_us(update) else arguments
    except OSError:
        return arguments


def _changed(update: Update, arguments: list[str]) -> list[str]:
    if update.resources == "-":
        os.dup2(_copy(_without_devices(_read_all(_STDIN))), _STDIN)
        return arguments
    fd = os.open(update.resources, os.O_RDONLY | os.O_CLOEXEC)
    raw = _read_all(fd)
    os.close(fd)
    kept = _without_devices(raw)
    if kept == raw and stat.S_ISREG(os.stat(update.resources).st_mode):
        return arguments  # a pipe cannot be read a second time
    end = update.options_end  # of two options of one name the last counts
    return [*arguments[:end], f"--resources=/proc/self/fd/{_copy(kept)}", *arguments[end:]]


def _copy(content: bytes) -> int:
    """A memory file, at its beginning, that stays open when this process becomes crun."""
    fd = os.memfd_create("resources", 0)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _started_by_us(update: Update) -> bool:
    state = runtime_state.read(update.root, update.container_id, lambda raw: spec.EDITED_MARK.encode() in raw)
    return state is not None and state.annotation(spec.EDITED_MARK) is not None


def _read_all(fd: int) -> bytes:
    chunks = []
    while chunk := os.read(fd, 1 << 16):
        chunks.append(chunk)
    return b"".join(chunks)


def _without_devices(raw: bytes) -> bytes:
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        return raw
    if not isinstance(data, dict) or "devices" not in data:
        return raw
    return json.dumps({key: value for key, value in data.items() if key != "devices"}).encode()
