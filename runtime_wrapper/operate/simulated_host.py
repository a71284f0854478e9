"""Makes the sandbox look like the machine of a machine file, so that the real probe, runc and engines run on it.

For tests and the demo, inside `sandbox` only: mounts over /proc/driver, /proc/devices, /sys/bus/pci/devices and
/sys/devices/system/node, nodes in the private /dev, and an overlay over /etc that holds /etc/gpulatch/machine.json.
All of them come from one tmpfs, whose name in the mount table is how `tear_down` finds them again. Opening a GPU node
gives ENXIO: no driver is there. `pci_tree` says what of a matrix one `numa_node` file and a PCI tree cannot show.
"""

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from runtime_wrapper import trust
from runtime_wrapper.errors import MachineFileError
from runtime_wrapper.inventory import Inventory, numa_nodes
from runtime_wrapper.operate import fake_driver, pci_tree, sandbox
from runtime_wrapper.operate.fake_driver import GPU_MAJOR, UVM_MAJOR
from runtime_wrapper.probe import machine
from runtime_wrapper.probe.checked import json_object

MOUNT_NAME = "gpulatch-simulated-host"

_ROOT = f"/run/{MOUNT_NAME}"
_DEV = "/dev"


def build(machine_path: str) -> None:
    """Make this sandbox the machine of a file; an earlier machine is torn down first.

    Raises MachineFileError, RuntimeError outside a sandbox, CalledProcessError when a mount fails.
    """
    if not sandbox.inside() or not _private():
        raise RuntimeError(
            "a simulated host must be inside a sandbox: python3 -m runtime_wrapper.operate.sandbox -- ..."
        )
    inventory = machine.read(machine_path)
    _check_order(inventory, machine_path)
    data = trust.read_anyhow(machine_path, "machine file")
    tear_down()
    os.makedirs(_ROOT, exist_ok=True)
    _mount("-t", "tmpfs", "-o", "mode=755", MOUNT_NAME, _ROOT)
    for path, text in fake_driver.files(inventory):
        _write(f"{_ROOT}/driver/nvidia/{path}", text)
    _mount("--bind", f"{_ROOT}/driver", "/proc/driver")
    with open("/proc/devices") as file:
        _write(f"{_ROOT}/proc-devices", fake_driver.with_majors(file.read()))
    _mount("--bind", f"{_ROOT}/proc-devices", "/proc/devices")
    _pci_devices(inventory)
    _mount("--bind", f"{_ROOT}/pci-devices", "/sys/bus/pci/devices")
    _numa_nodes(inventory, json_object(data, machine_path))
    _machine_file(data)
    for name, number in _nodes(inventory):
        os.mknod(f"{_DEV}/{name}", stat.S_IFCHR | 0o600, number)
        os.chmod(f"{_DEV}/{name}", 0o666)  # noqa: S103  # the driver's default


def tear_down() -> None:
    """Remove every mount and node of `build`; nothing happens where nothing was built. For the sandbox only."""
    targets = [mount.target for mount in _mounts() if mount.source == MOUNT_NAME]
    if not targets:
        return
    for target in reversed(targets):
        subprocess.run(["umount", "--lazy", target], check=True)
    os.rmdir(_ROOT)
    for name in os.listdir(_DEV):
        if re.fullmatch(r"nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset)", name):
            os.unlink(f"{_DEV}/{name}")
    for name in os.listdir(f"{_DEV}/char") if os.path.isdir(f"{_DEV}/char") else []:
        if int(name.partition(":")[0]) in (GPU_MAJOR, UVM_MAJOR):
            os.unlink(f"{_DEV}/char/{name}")
    shutil.rmtree(f"{_DEV}/nvidia-caps", ignore_errors=True)


def _check_order(inventory: Inventory, where: str) -> None:
    addresses = [gpu.pci for gpu in inventory.gpus]
    if addresses != sorted(addresses):
        why = "gpu_facts give PCI addresses that do not ascend with the index"
        raise MachineFileError("machine file", where, why, "a host numbers its GPUs by PCI address: reorder them")


def _nodes(inventory: Inventory) -> Iterator[tuple[str, int]]:
    for gpu in inventory.gpus:
        yield f"nvidia{gpu.minor}", os.makedev(GPU_MAJOR, gpu.minor)
    yield "nvidiactl", os.makedev(GPU_MAJOR, 255)
    yield "nvidia-modeset", os.makedev(GPU_MAJOR, 254)
    yield "nvidia-uvm", os.makedev(UVM_MAJOR, 0)
    yield "nvidia-uvm-tools", os.makedev(UVM_MAJOR, 1)


def _pci_devices(inventory: Inventory) -> None:
    """Every device of the tree has a folder; /sys/bus/pci/devices holds links to them, as in the kernel's sysfs."""
    links = f"{_ROOT}/pci-devices"
    os.mkdir(links)
    for gpu, path in zip(inventory.gpus, pci_tree.paths(inventory), strict=True):
        folder = f"{_ROOT}/devices/{path}"
        _write(f"{folder}/numa_node", f"{pci_tree.numa_node(gpu.numa)}\n")
        _write(f"{folder}/vendor", "0x10de\n")
        _write(f"{folder}/class", "0x030200\n")
        os.symlink(folder, f"{links}/{gpu.pci}")


def _numa_nodes(inventory: Inventory, file: dict[str, Any]) -> None:
    """A folder per NUMA node that a GPU names, with the CPUs of that GPU; left as it is without NUMA in the kernel."""
    nodes = {node: "" for gpu in inventory.gpus for node in numa_nodes(gpu.numa)}
    if not nodes or not os.path.isdir("/sys/devices/system/node"):
        return
    for gpu, cpus in zip(inventory.gpus, file.get("cpu_affinity") or [None] * len(inventory.gpus), strict=False):
        nodes[pci_tree.numa_node(gpu.numa)] = cpus if isinstance(cpus, str) else ""
    for node in nodes:
        _write(f"{_ROOT}/node/node{node}/cpulist", f"{nodes[node]}\n")
    for name in ("online", "possible", "has_memory", "has_cpu"):
        _write(f"{_ROOT}/node/{name}", ",".join(map(str, sorted(nodes))) + "\n")
    _mount("--bind", f"{_ROOT}/node", "/sys/devices/system/node")


def _machine_file(data: bytes) -> None:
    """Put the machine file into an overlay over /etc: the host's /etc stays untouched below."""
    upper, work = f"{_ROOT}/etc", f"{_ROOT}/etc-work"
    os.mkdir(work)
    os.makedirs(f"{upper}/gpulatch")
    with open(f"{upper}/gpulatch/machine.json", "wb") as file:
        file.write(data)
    for folder in (upper, f"{upper}/gpulatch"):
        os.chmod(folder, 0o755)  # noqa: S103  # as /etc itself, whatever the umask
    os.chmod(f"{upper}/gpulatch/machine.json", 0o644)
    _mount("-t", "overlay", "-o", f"lowerdir=/etc,upperdir={upper},workdir={work}", MOUNT_NAME, "/etc")


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _private() -> bool:
    """Whether mounts made here stay here, and /dev is not the host's."""
    mounts = _mounts()
    return not any(m.target == "/" and m.shared for m in mounts) and any(
        m.target == _DEV and m.kind == "tmpfs" for m in mounts
    )


@dataclass(frozen=True, slots=True)
class _Mount:
    target: str
    shared: bool
    kind: str
    source: str


def _mounts() -> list[_Mount]:
    """The mount table, oldest first (proc_pid_mountinfo(5))."""
    found = []
    with open("/proc/self/mountinfo") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            kind, source, _ = after.split(" ", 2)
            found.append(_Mount(before.split(" ")[4], " shared:" in before, kind, source))
    return found


def main(argv: list[str]) -> int:
    """`build MACHINE_FILE` or `tear-down`, for shell scripts inside a sandbox."""
    match argv:
        case ["build", path]:
            build(path)
        case ["tear-down"]:
            tear_down()
        case _:
            print("usage: python3 -m runtime_wrapper.operate.simulated_host build FILE | tear-down", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
