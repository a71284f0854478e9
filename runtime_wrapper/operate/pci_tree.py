"""Lays the GPUs of an inventory out on a PCI tree whose paths show the inventory's PCIe classes.

Pure. `sysfs.pcie_class` reads such a tree back. A matrix need not be realisable: classes of one tree are ultrametric
(if A is near B and B near C, then A is near C), and beyond one host bridge only the NUMA nodes decide. So a pair that
cannot get its class gets a farther one, with two exceptions that sysfs cannot show: SYS between GPUs of one NUMA node
reads NODE, and NODE where no NUMA node is known reads SYS.
"""

from collections.abc import Sequence

from runtime_wrapper.inventory import PCIE_SCORE, Inventory, numa_nodes
from runtime_wrapper.probe.gpu_rules import BUSES_PER_GPU


def paths(inventory: Inventory) -> list[str]:
    """The path below /sys/devices of each GPU: host bridge, root port, upstream port, downstream port, GPU.

    GPUs of one PIX group share the upstream port, of one PXB group the root port, of one PHB group the host bridge.
    The bus numbers of bridges are names only, taken from the buses that the GPU's own leaves free.
    """
    switches = _groups(inventory, "PIX", [[gpu.index] for gpu in inventory.gpus])
    root_ports = _groups(inventory, "PXB", switches)
    host_bridges = _groups(inventory, "PHB", root_ports)
    found = []
    for gpu in inventory.gpus:
        switch, root_port, host_bridge = (_of(gpu.index, level) for level in (switches, root_ports, host_bridges))
        below_bridge = [group for group in root_ports if group[0] in host_bridge]
        below_port = [group for group in switches if group[0] in root_port]
        chain = [
            f"pci0000:{_bus(host_bridge, 0)}",
            f"0000:{_bus(host_bridge, 0)}:{_slot(below_bridge.index(root_port) + 8)}",
            f"0000:{_bus(root_port, 1)}:{_slot(below_port.index(switch))}",
            f"0000:{_bus(switch, 2)}:{_slot(switch.index(gpu.index))}",
            gpu.pci,
        ]
        found.append("/".join(chain))
    return found


def numa_node(text: str | None) -> int:
    """What the `numa_node` file of a GPU says: the first node of its affinity list, -1 when unknown."""
    return min(numa_nodes(text), default=-1)


def _groups(inventory: Inventory, pcie: str, finer: Sequence[list[int]]) -> list[list[int]]:
    """Join finer groups whose pairs all have at least the class: never a pair nearer than the matrix says."""
    groups: list[list[int]] = []
    for group in finer:
        for other in groups:
            pairs = [inventory.link(i, j) for i in group for j in other]
            if all(PCIE_SCORE[link.pcie] >= PCIE_SCORE[pcie] for link in pairs):
                other.extend(group)
                break
        else:
            groups.append(list(group))
    return groups


def _of(index: int, groups: Sequence[list[int]]) -> list[int]:
    return next(group for group in groups if index in group)


def _bus(group: Sequence[int], offset: int) -> str:
    return f"{group[0] * BUSES_PER_GPU + offset:02x}"


def _slot(number: int) -> str:
    """Device and function of the n-th bridge on a bus."""
    return f"{number >> 3:02x}.{number & 7}"
