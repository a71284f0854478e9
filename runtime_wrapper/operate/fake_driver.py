"""What the NVIDIA driver would show under /proc for the GPUs of an inventory, byte for byte.

Pure. Layout of the lines: nv-procfs.c and nv-caps.c of NVIDIA's open kernel modules.
"""

from collections.abc import Iterator

from runtime_wrapper.inventory import Gpu, Inventory

DRIVER_VERSION = "550.54.15"
GPU_MAJOR, UVM_MAJOR, CAPS_MAJOR = 195, 511, 236

_MAJORS = (
    (GPU_MAJOR, "nvidia"),
    (GPU_MAJOR, "nvidia-modeset"),
    (GPU_MAJOR, "nvidiactl"),
    (CAPS_MAJOR, "nvidia-caps"),
    (UVM_MAJOR, "nvidia-uvm"),
)


def files(inventory: Inventory) -> Iterator[tuple[str, str]]:
    """Paths below /proc/driver/nvidia and their text."""
    banner = f"NVIDIA UNIX x86_64 Kernel Module  {DRIVER_VERSION}  Tue Mar  5 22:23:56 UTC 2024"
    yield "version", f"NVRM version: {banner}\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
    params = {"ModifyDeviceFiles": 1, "DeviceFileUID": 0, "DeviceFileGID": 0, "DeviceFileMode": 0o666}
    yield "params", "".join(f"{key}: {value}\n" for key, value in params.items())
    yield "capabilities/mig/config", _capability(1, 0o400)
    yield "capabilities/mig/monitor", _capability(2, 0o444)
    for gpu in inventory.gpus:
        yield f"gpus/{gpu.pci}/information", _information(gpu)
        if gpu.mig:  # one instance, over the whole GPU; cap minors by the formula of nv-caps.c
            instance = f"capabilities/gpu{gpu.minor}/mig/gi0"
            yield f"{instance}/access", _capability(3 + 135 * gpu.minor, 0o444)
            yield f"{instance}/ci0/access", _capability(4 + 135 * gpu.minor, 0o444)


def with_majors(devices: str) -> str:
    """The text of /proc/devices with the driver's majors added at the end of the character part."""
    characters, _, blocks = devices.partition("\nBlock devices:")
    added = "".join(f"{major:3} {name}\n" for major, name in _MAJORS)
    return f"{characters.rstrip()}\n{added}\nBlock devices:{blocks}"


def _information(gpu: Gpu) -> str:
    uuid = f"GPU UUID: \t {gpu.uuid}\n" if gpu.uuid else ""
    return (
        f"Model: \t\t {gpu.model}\nIRQ:   \t\t {64 + gpu.index}\n{uuid}Video BIOS: \t 92.00.45.00.03\n"
        f"Bus Type: \t PCIe\nDMA Size: \t 47 bits\nDMA Mask: \t 0x7fffffffffff\nBus Location: \t {gpu.pci}\n"
        f"Device Minor: \t {gpu.minor}\nGPU Firmware: \t {DRIVER_VERSION}\nGPU Excluded:\t No\n"
    )


def _capability(minor: int, mode: int) -> str:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"
