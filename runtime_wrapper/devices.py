"""The device nodes of a grant, as this host has them now.

Hot. Majors are read from /proc/devices at each create (all but the GPUs' own change per boot), the mode and group from
the host's node, or from the driver's parameters where the host has no such node yet: the runtime makes the container's.
"""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from runtime_wrapper.errors import NoDriverError
from runtime_wrapper.inventory import Gpu
from runtime_wrapper.probe import procfs

# Minors: kernel-open/common/inc/nv-chardev-numbers.h of NVIDIA's open kernel modules.
CTL_MINOR, MODESET_MINOR, LAST_GPU_MINOR = 255, 254, 247
UVM_MINOR, UVM_TOOLS_MINOR = 0, 1


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """One character device node; `mode` holds the permission bits only."""

    path: str
    major: int
    minor: int
    mode: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Numbers:
    """The device numbers of a host's driver; `on_host` is False for a machine that is only described."""

    majors: procfs.Majors
    rules: procfs.NodeRules
    on_host: bool = True

    @classmethod
    def of_host(cls) -> Self:
        """The numbers of this host as its driver is loaded now."""
        return cls(procfs.majors(), procfs.node_rules())

    @classmethod
    def assumed(cls) -> Self:
        """Plausible numbers for a machine that is only described; all but the GPUs' major differ from boot to boot."""
        return cls(procfs.Majors(gpu=195, uvm=511, caps=238, modeset=195), procfs.NodeRules(), on_host=False)

    def is_gpu(self, major: object, minor: object) -> bool:
        """Whether a device number stands for a GPU or a MIG capability."""
        if major is None or not isinstance(minor, int):
            return False
        return (major == self.majors.gpu and 0 <= minor <= LAST_GPU_MINOR) or major == self.majors.caps


def nodes(gpus: Sequence[Gpu], capabilities: frozenset[str], numbers: Numbers) -> tuple[DeviceNode, ...]:
    """The nodes that a container with these GPUs and driver capabilities needs: GPUs first, then control nodes.

    Raises NoDriverError when the driver, or the module that `compute` needs, is not loaded.
    """
    gpu_major = _needed(numbers.majors.gpu, "nvidia")
    found = [(f"/dev/nvidia{gpu.minor}", gpu_major, gpu.minor) for gpu in gpus]
    found.append(("/dev/nvidiactl", gpu_major, CTL_MINOR))
    if capabilities & {"compute", "all"}:
        uvm = _needed(numbers.majors.uvm, "nvidia-uvm")
        found += [("/dev/nvidia-uvm", uvm, UVM_MINOR), ("/dev/nvidia-uvm-tools", uvm, UVM_TOOLS_MINOR)]
    if capabilities & {"graphics", "display", "all"} and numbers.majors.modeset is not None:
        found.append(("/dev/nvidia-modeset", numbers.majors.modeset, MODESET_MINOR))
    return tuple(_node(path, major, minor, numbers) for path, major, minor in found)


def _node(path: str, major: int, minor: int, numbers: Numbers) -> DeviceNode:
    found = _stat(path) if numbers.on_host else None
    if found and stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(major, minor):
        return DeviceNode(path, major, minor, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)
    return DeviceNode(path, major, minor, numbers.rules.mode, numbers.rules.uid, numbers.rules.gid)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=False)
    except OSError:
        return None


def _needed(major: int | None, module: str) -> int:
    if major is None:
        why = f"kernel module {module} is not loaded"
        raise NoDriverError("NVIDIA driver", "/proc/devices", why, f"run: modprobe {module}")
    return major
