"""Reads what the NVIDIA driver says under /proc: its version, the GPUs, the MIG layout, the device numbers.

Never opens a device, so it never wakes a GPU; reading `gpus/*/information` takes the driver's lock for a moment, the
listings and `version` do not. Formats: nv-procfs.c and nv-caps.c of NVIDIA's open kernel modules.
"""

import os
import re
from dataclasses import dataclass

from runtime_wrapper import trust
from runtime_wrapper.errors import NoDriverError

PROC = "/proc"

GPU_NAMES = ("nvidia-frontend", "nvidia", "nvidiactl")  # up to 545; from 550 on, one or both of the others

_PCI = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
_UUID = re.compile(r"GPU-[0-9a-f-]{36}", re.IGNORECASE)
_VERSION = re.compile(r"^NVRM version:.*?\s(\d{2,4}\.\d+(?:\.\d+)*)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Information:
    """One GPU as the driver lists it. `uuid` is None until the driver has initialised the GPU once."""

    pci: str
    minor: int
    model: str
    uuid: str | None


@dataclass(frozen=True, slots=True)
class Majors:
    """The device majors of the loaded modules, None for one that is not loaded. All but the GPU's change per boot."""

    gpu: int | None
    uvm: int | None
    caps: int | None
    modeset: int | None


@dataclass(frozen=True, slots=True)
class NodeRules:
    """How the driver wants its device nodes made (module parameters NVreg_DeviceFile* and NVreg_ModifyDeviceFiles)."""

    uid: int = 0
    gid: int = 0
    mode: int = 0o666
    modify: bool = True


def driver_version(proc: str = PROC) -> str | None:
    """The version of the loaded driver, as `535.104.05`; None when it does not say. Raises NoDriverError."""
    match = _VERSION.search(_read(f"{_driver(proc)}/version") or "")
    return match[1] if match else None


def listing(proc: str = PROC) -> list[str]:
    """The names of the directories of the GPUs, ascending by PCI address. Raises NoDriverError."""
    try:
        names = os.listdir(f"{_driver(proc)}/gpus")
    except FileNotFoundError:
        return []
    return sorted(filter(_PCI.fullmatch, names), key=lambda name: [int(part, 16) for part in re.split("[:.]", name)])


def gpus(proc: str = PROC) -> tuple[Information, ...]:
    """The GPUs that can be used, ascending by PCI address: not excluded, and with a device minor.

    One GPU that the driver cannot describe must not stop the others. Raises NoDriverError.
    """
    found = (_information(name, f"{_driver(proc)}/gpus/{name}/information") for name in listing(proc))
    return tuple(gpu for gpu in found if gpu is not None)


def mig_parents(proc: str = PROC) -> frozenset[int]:
    """The device minors of the GPUs that hold a MIG instance (`capabilities/gpu<minor>/mig/gi<id>`)."""
    matches = (re.match(r"gpu(\d+)/mig/gi\d+/", path) for path in access_paths(proc))
    return frozenset(int(match[1]) for match in matches if match)


def access_paths(proc: str = PROC) -> list[str]:
    """The `access` files of all MIG instances, relative to the capabilities directory, sorted: the MIG layout."""
    top = f"{_driver(proc)}/capabilities"
    return sorted(os.path.relpath(f"{folder}/access", top) for folder, _, files in os.walk(top) if "access" in files)


def majors(proc: str = PROC) -> Majors:
    """The majors in the character part of /proc/devices, by exact name.

    Up to driver 545 the modeset node belongs to `nvidia-frontend`, later it has a line of its own.
    """
    numbers: dict[str, int] = {}
    for line in (_read(f"{proc}/devices") or "").partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdecimal():
            numbers.setdefault(name.strip(), int(number))
    gpu = next((numbers[name] for name in GPU_NAMES if name in numbers), None)
    modeset = numbers.get("nvidia-modeset", numbers.get("nvidia-frontend"))
    return Majors(gpu, numbers.get("nvidia-uvm"), numbers.get("nvidia-caps"), modeset)


def node_rules(proc: str = PROC) -> NodeRules:
    """Owner and mode of device nodes from `params` (numbers in decimal: 438 is 0666); the driver's defaults without."""
    values = _fields(_read(f"{proc}/driver/nvidia/params") or "")
    numbers = {key.removeprefix("NVreg_"): int(value) for key, value in values.items() if value.isdecimal()}
    return NodeRules(
        uid=numbers.get("DeviceFileUID", 0),
        gid=numbers.get("DeviceFileGID", 0),
        mode=numbers.get("DeviceFileMode", 0o666) & 0o777,
        modify=numbers.get("ModifyDeviceFiles", 1) != 0,
    )


def _driver(proc: str) -> str:
    folder = f"{proc}/driver/nvidia"
    if not os.path.isdir(folder):
        hint = "run: modprobe nvidia, and see dmesg if that fails"
        raise NoDriverError("NVIDIA driver", folder, "not loaded on this host", hint)
    return folder


def _information(name: str, path: str) -> Information | None:
    fields = _fields(_read(path) or "")
    minor, uuid = fields.get("Device Minor", ""), fields.get("GPU UUID", "")
    if fields.get("GPU Excluded") == "Yes" or not minor.isdecimal():
        return None
    domain, rest = name.lower().split(":", 1)
    pci = f"{int(domain, 16):04x}:{rest}"
    return Information(pci, int(minor), fields.get("Model", "unknown"), uuid if _UUID.fullmatch(uuid) else None)


def _fields(text: str) -> dict[str, str]:
    """Lines `Key: value`, with any blanks and tabs around the value."""
    parts = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, colon, value in parts if colon}


def _read(path: str) -> str | None:
    """The text of a file of the driver, None when it is absent; never blocks on what is no regular file."""
    try:
        return trust.read_anyhow(path, "driver file").decode(errors="replace")
    except FileNotFoundError:
        return None
