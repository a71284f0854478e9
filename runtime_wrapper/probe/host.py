"""Looks at this host: its GPUs and their links from procfs and sysfs, NVLinks and NICs from the installed machine file.

`probe` may enter the driver and take long: it runs in a child process with a time limit (`snapshot`). `fingerprint` is
cheap and runs on every create: two listings, `version`, /proc/devices and two stats.
"""

import contextlib
import os
from dataclasses import astuple, dataclass, replace
from typing import Any

from runtime_wrapper import trust
from runtime_wrapper.inventory import Gpu, Inventory, Link
from runtime_wrapper.probe import driver_files, machine, nodes, procfs, sysfs


@dataclass(frozen=True, slots=True)
class Roots:
    """Where a host shows itself; only tests name other places than these."""

    proc: str = procfs.PROC
    sysfs: str = sysfs.SYSFS
    machine_file: str = "/etc/gpulatch/machine.json"
    dev: str = nodes.DEV
    ld_cache: str = driver_files.LD_CACHE
    programs: str = driver_files.PROGRAM_FOLDERS


THIS_HOST = Roots()


def probe(roots: Roots = THIS_HOST) -> Inventory:
    """The inventory of the host; index = rank by PCI address.

    Raises NoDriverError, and for the machine file MachineFileError and UntrustedPathError.
    """
    gpus = _gpus(roots)
    places = [sysfs.place(gpu.pci, roots.sysfs) for gpu in gpus]
    classes = tuple(
        tuple(None if i == j else Link(sysfs.pcie_class(a, b)) for j, b in enumerate(places))
        for i, a in enumerate(places)
    )
    notes = _left_out(roots, len(gpus))
    version = procfs.driver_version(roots.proc)
    files = driver_files.find(version, roots.ld_cache, roots.programs)
    seen = Inventory(gpus, classes, driver_version=version, notes=notes, driver_files=files)
    stated = _machine(roots.machine_file)
    return seen if stated is None else _with_nvlinks(seen, stated, roots.machine_file)


def fingerprint(roots: Roots = THIS_HOST) -> dict[str, Any]:
    """What changes whenever the inventory may have: JSON values, compared as a whole. Raises NoDriverError.

    The majors are in it because a module loaded since, or loaded anew, calls for device nodes that the probe makes.
    """
    return {
        "boot_id": _boot_id(roots.proc),
        "driver_version": procfs.driver_version(roots.proc),
        "gpus": procfs.listing(roots.proc),
        "mig": procfs.access_paths(roots.proc),
        "majors": list(astuple(procfs.majors(roots.proc))),
        "machine_file": _stamp(roots.machine_file),
        "ld_cache": _stamp(roots.ld_cache),
    }


def _gpus(roots: Roots) -> tuple[Gpu, ...]:
    parents = procfs.mig_parents(roots.proc)
    return tuple(
        Gpu(
            index=index,
            uuid=found.uuid,
            pci=found.pci,
            minor=found.minor,
            model=found.model,
            numa=sysfs.numa_node(found.pci, roots.sysfs),
            mig=found.minor in parents,
        )
        for index, found in enumerate(procfs.gpus(roots.proc))
    )


def _left_out(roots: Roots, used: int) -> tuple[str, ...]:
    listed = len(procfs.listing(roots.proc))
    if listed == used:
        return ()
    return (
        f"{listed - used} of the {listed} GPUs that the driver lists cannot be used: excluded, or without device minor",
    )


def _machine(path: str) -> Inventory | None:
    """The installed machine file, None when there is none; root must own it and nobody else be able to change it."""
    try:
        folder = trust.open_directory(os.path.dirname(path), "folder of the machine file")
    except FileNotFoundError:
        return None
    try:
        data = trust.read_file(folder, os.path.basename(path), "machine file", path)
    except FileNotFoundError:
        return None
    finally:
        os.close(folder)
    return machine.parse(data, path)


def _with_nvlinks(seen: Inventory, stated: Inventory, where: str) -> Inventory:
    """What was seen, with the NVLinks and NICs of the machine file; PCIe classes and NUMA nodes stay as seen."""
    if len(stated.gpus) != len(seen.gpus):
        note = f"{where} describes {len(stated.gpus)} GPUs, the driver lists {len(seen.gpus)}: its NVLinks are not used"
        return replace(seen, notes=(*seen.notes, note))
    links = tuple(
        tuple(
            replace(link, nvlinks=other.nvlinks, mb_per_s=other.mb_per_s) if link and other else None
            for link, other in zip(seen_row, stated_row, strict=True)
        )
        for seen_row, stated_row in zip(seen.links, stated.links, strict=True)
    )
    return replace(seen, links=links, nics=stated.nics, bandwidth_assumed=stated.bandwidth_assumed)


def _boot_id(proc: str) -> str:
    with open(f"{proc}/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _stamp(path: str) -> list[int] | None:
    """Time, size and inode of a file: another file or content has another stamp."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        found = os.lstat(path)
        return [found.st_mtime_ns, found.st_size, found.st_ino]
    return None
