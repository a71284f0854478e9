"""Where a GPU sits on the PCIe tree of the host, from sysfs: its NUMA node and its distance to another GPU.

Never enters the NVIDIA driver. The real path of /sys/bus/pci/devices/<address> names every bridge above a device:
`/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/...`, host bridge first (Documentation/PCI/sysfs-pci.rst).
"""

import os
import re
from dataclasses import dataclass
from itertools import takewhile

SYSFS = "/sys"

_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Place:
    """A device's host bridge, the PCI bridges from there down to it (its own address last), and its NUMA node."""

    host_bridge: str
    chain: tuple[str, ...]
    numa: str | None


def place(pci: str, sysfs: str = SYSFS) -> Place | None:
    """Where a PCI device sits, None when sysfs does not know it."""
    path = os.path.realpath(f"{sysfs}/bus/pci/devices/{pci}")
    parts = path.split("/")
    bridges = [i for i, part in enumerate(parts) if _HOST_BRIDGE.fullmatch(part)]
    if not bridges or not os.path.isdir(path):
        return None
    last = bridges[-1]  # a VMD or Hyper-V domain hangs below another device and is a host bridge of its own
    return Place("/".join(parts[: last + 1]), tuple(parts[last + 1 :]), numa_node(pci, sysfs))


def numa_node(pci: str, sysfs: str = SYSFS) -> str | None:
    """The NUMA node of a PCI device; None when the firmware does not say (-1) or there is no such file."""
    try:
        with open(f"{sysfs}/bus/pci/devices/{pci}/numa_node") as file:
            text = file.read().strip()
    except OSError:
        return None
    return text if text.isdecimal() else None


def pcie_class(a: Place | None, b: Place | None) -> str:
    """The PCIe class of a pair, by the definitions in the legend of `nvidia-smi topo -m`:

    PIX a single PCIe bridge between the two: the same switch (one upstream port, a downstream port each), or one bus
    PXB several PCIe bridges, but not the host bridge: below one root port, through more than one switch
    PHB the host bridge: different root ports of one root complex
    NODE different root complexes in one known NUMA node
    SYS everything else, also where sysfs knows too little

    A switch's upstream port is the bridge both chains share, so a pair is PIX when each device has at most one bridge
    of its own below the last shared one. NCCL counts the same way (`ncclTopoGetPath` by shared path components).
    """
    if a is None or b is None:
        return "SYS"
    if a.host_bridge != b.host_bridge:
        return "NODE" if a.numa is not None and a.numa == b.numa else "SYS"
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(a.chain, b.chain, strict=False))))
    if shared == 0:
        return "PHB"
    own_bridges = max(len(a.chain), len(b.chain)) - shared - 1
    return "PIX" if own_bridges <= 1 else "PXB"
