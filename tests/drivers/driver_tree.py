"""A host's /proc, /sys and /dev as plain folders, for the parts of the probe that need no kernel."""

import os
from pathlib import Path

from runtime_wrapper.probe.host import Roots

V100 = (
    "Model:           {model}\nIRQ:             408\nGPU UUID:        {uuid}\nVideo BIOS:      88.00.41.00.01\n"
    "Bus Type:        PCIe\nDMA Size:        47 bits\nDMA Mask:        0x7fffffffffff\nBus Location:    {pci}\n"
    "Device Minor:    {minor}\nGPU Excluded:    No\n"
)


class DriverTree:
    """Folders below `top`; the driver is loaded and has no GPU until `gpu` adds one."""

    def __init__(self, top: Path) -> None:
        self.top = top
        places = ("proc", "sys", "etc/machine.json", "dev", "etc/ld.so.cache", "bin")
        self.roots = Roots(*(str(top / place) for place in places))
        self.write("proc/sys/kernel/random/boot_id", "b00t\n")
        self.write(
            "proc/devices", "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n\nBlock devices:\n  7 loop\n"
        )
        self.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n")
        self.write("proc/driver/nvidia/params", "ModifyDeviceFiles: 0\n")

    @property
    def proc(self) -> str:
        return self.roots.proc

    def write(self, path: str, text: str) -> None:
        (self.top / path).parent.mkdir(parents=True, exist_ok=True)
        (self.top / path).write_text(text)

    def gpu(
        self, pci: str, minor: int, *, uuid: str = "", model: str = "Tesla V100", above: str = "pci0000:00"
    ) -> None:
        """Add a GPU below some bridges; without `uuid` its first digit is the minor."""
        uuid = uuid or f"GPU-{minor:08x}-11c1-52b8-0517-92f30e7fac88"
        text = V100.format(pci=pci, minor=minor, uuid=uuid, model=model)
        self.write(f"proc/driver/nvidia/gpus/{pci}/information", text)
        self.place(pci, f"{above}/{pci}")

    def place(self, pci: str, path: str, numa: int = -1) -> None:
        """Put a PCI device at a path below /sys/devices."""
        self.write(f"sys/devices/{path}/numa_node", f"{numa}\n")
        link = self.top / "sys/bus/pci/devices" / pci
        link.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(self.top / "sys/devices" / path, link)
