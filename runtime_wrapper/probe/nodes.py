"""Makes the device nodes of the driver that are missing on the host, and the links to them under /dev/char.

nvidia-uvm and nvidia-modeset nodes are made on demand by user space, so after a boot a container may come before them
(NVIDIA/nvidia-docker#526). runc 1.1.3 to 1.1.6 drops a systemd device rule whose /dev/char link is missing
(opencontainers/runc#3708). Node numbers: nv-chardev-numbers.h of NVIDIA's open kernel modules.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from runtime_wrapper.probe import procfs

DEV = "/dev"

CTL_MINOR = 255
MODESET_MINOR = 254


@dataclass(frozen=True, slots=True)
class Change:
    """What was done about one path: a node or link made, a stale node replaced, or something foreign left there."""

    path: str
    what: Literal["made", "linked", "replaced", "left"]
    device: str  # major:minor that the path should have


def make_missing(proc: str = procfs.PROC, dev: str = DEV) -> tuple[Change, ...]:
    """Make the nodes and links that the loaded modules call for; what is right already is not mentioned.

    A character device under the right name with another major is from an earlier load of the module and is replaced;
    anything else that stands in the way is left. Nothing happens when the administrator has turned node making off
    (NVreg_ModifyDeviceFiles=0). Raises NoDriverError, ProbeError, OSError.
    """
    rules = procfs.node_rules(proc)
    if not rules.modify:
        return ()
    wanted = list(_wanted(proc))
    changes = [_node(f"{dev}/{name}", number, rules) for name, number in wanted]
    changes += [_link(dev, name, number) for name, number in wanted]
    return tuple(change for change in changes if change is not None)


def _wanted(proc: str) -> Iterator[tuple[str, int]]:
    """Names and device numbers of the nodes there should be."""
    majors = procfs.majors(proc)
    if majors.gpu is not None:
        for gpu in procfs.gpus(proc):
            yield f"nvidia{gpu.minor}", os.makedev(majors.gpu, gpu.minor)
        yield "nvidiactl", os.makedev(majors.gpu, CTL_MINOR)
    if majors.uvm is not None:
        yield "nvidia-uvm", os.makedev(majors.uvm, 0)
        yield "nvidia-uvm-tools", os.makedev(majors.uvm, 1)
    if majors.modeset is not None:
        yield "nvidia-modeset", os.makedev(majors.modeset, MODESET_MINOR)


def _node(path: str, number: int, rules: procfs.NodeRules) -> Change | None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        _put(path, number, rules)
        return Change(path, "made", _text(number))
    if stat.S_ISCHR(found.st_mode) and found.st_rdev == number:
        return None
    if stat.S_ISCHR(found.st_mode) and os.major(found.st_rdev) != os.major(number):
        _put(path, number, rules)
        return Change(path, "replaced", _text(number))
    return Change(path, "left", _text(number))


def _put(path: str, number: int, rules: procfs.NodeRules) -> None:
    """Make a node under another name and rename it, so that nobody meets it with the wrong owner or mode."""
    temporary = f"{path}.gpulatch-{os.getpid()}"
    os.mknod(temporary, stat.S_IFCHR | 0o600, number)
    try:
        os.chown(temporary, rules.uid, rules.gid)
        os.chmod(temporary, rules.mode)
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _link(dev: str, name: str, number: int) -> Change | None:
    """The link /dev/char/<major>:<minor>, if the node itself is right."""
    path = f"{dev}/char/{_text(number)}"
    with contextlib.suppress(FileNotFoundError):
        if os.lstat(f"{dev}/{name}").st_rdev == number and not os.path.lexists(path):
            os.makedirs(f"{dev}/char", exist_ok=True)
            os.symlink(f"../{name}", path)
            return Change(path, "linked", _text(number))
    return None


def _text(number: int) -> str:
    return f"{os.major(number)}:{os.minor(number)}"
