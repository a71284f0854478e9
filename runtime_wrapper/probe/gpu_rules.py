"""The GPUs of a machine file: facts that a topology matrix lacks, by a fixed rule, so that two readers agree.

Pure. The rule: a UUID from the SHA-256 of machine name and index, PCI addresses ascending with the index, a device
minor that is deliberately not the index, memory unknown. An entry of `gpu_facts` overrides the rule for its GPU.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from runtime_wrapper.errors import quoted
from runtime_wrapper.inventory import Gpu, numa_nodes
from runtime_wrapper.probe.checked import is_count, list_of, refused, text

MAX_MINOR = 247  # NV_MINOR_DEVICE_NUMBER_REGULAR_MAX, nv-chardev-numbers.h of NVIDIA's open kernel modules

# Buses between one GPU and the next: its own and three for the bridges above it; 64 GPUs fill one PCI domain.
BUSES_PER_GPU = 4

_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_PCI = re.compile(r"(?:0000)?([0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7])", re.IGNORECASE)
_NUMA_FORM = 'NUMA nodes as "0" or "0-3", or null'


def gpus(file: Mapping[str, Any], n: int, where: str) -> tuple[Gpu, ...]:
    """The `n` GPUs of a machine file. Raises MachineFileError, also when two share a UUID, PCI address or minor."""
    name = text(file, "name", where, os.path.basename(where).removesuffix(".json"))
    model = re.sub(r"^\d+\s*x\s+", "", text(file, "model", where, "NVIDIA GPU"))
    nodes = list_of(file, "numa", n, where)
    facts = list_of(file, "gpu_facts", n, where)
    found = []
    for i in range(n):
        gpu = _by_rule(name, model, i, n, _numa(nodes[i], f'"numa" of GPU {i}', where))
        found.append(gpu if facts[i] is None else replace(gpu, **_facts(facts[i], f'"gpu_facts" of GPU {i}', where)))
    for key in ("uuid", "pci", "minor"):
        _check_distinct(found, key, where)
    return tuple(found)


def _by_rule(name: str, model: str, index: int, n: int, numa: str | None) -> Gpu:
    digest = hashlib.sha256(f"{name}/{index}".encode()).hexdigest()
    uuid = f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
    pci = f"0000:{index * BUSES_PER_GPU + BUSES_PER_GPU - 1:02x}:00.0"
    return Gpu(index, uuid, pci, (index + 1) % max(n, 2), model, numa)


def _facts(facts: object, at: str, where: str) -> dict[str, Any]:
    """What an entry of `gpu_facts` says, checked."""
    if not isinstance(facts, dict):
        raise refused(where, f"{at} is {quoted(facts)}", "expected an object or null")
    for key, value in facts.items():
        if key not in _FORMS:
            raise refused(where, f"{at} has {quoted(key)}", f"expected only {', '.join(_FORMS)}")
        if not _good(key, value):
            raise refused(where, f"{at}: {key} is {quoted(value)}", f"expected {_FORMS[key]}")
    checked = dict(facts)
    if "pci" in checked:  # nvidia-smi prints the domain with 8 digits, the kernel with 4
        checked["pci"] = _PCI.sub(r"\1", checked["pci"]).lower()
    if "numa" in checked:
        checked["numa"] = _numa(checked["numa"], at, where)
    return checked


_FORMS = {
    "uuid": "GPU-<8-4-4-4-12 hexadecimal digits> or null",
    "pci": "a PCI address as 0000:01:00.0",
    "minor": f"a number from 0 to {MAX_MINOR}",
    "model": "a line of text",
    "numa": _NUMA_FORM,
    "memory_mib": "a number of MiB or null",
    "mig": "true or false",
}


def _good(key: str, value: object) -> bool:
    match key:
        case "uuid":
            return value is None or (isinstance(value, str) and _UUID.fullmatch(value) is not None)
        case "pci":
            return isinstance(value, str) and _PCI.fullmatch(value) is not None
        case "minor":
            return is_count(value, 0, MAX_MINOR)
        case "model":
            return isinstance(value, str) and value.isprintable() and value != "" and value == " ".join(value.split())
        case "memory_mib":
            return value is None or is_count(value, 1, 1 << 32)
        case "mig":
            return isinstance(value, bool)
    return value is None or isinstance(value, str)


def _numa(value: object, at: str, where: str) -> str | None:
    """A NUMA affinity as it is printed, None for every form of unknown (null, empty, N/A, -1)."""
    if value is not None and not isinstance(value, str):
        raise refused(where, f"{at} is {quoted(value)}", f"expected {_NUMA_FORM}")
    return value.strip() if value and numa_nodes(value) else None


def _check_distinct(found: Sequence[Gpu], key: str, where: str) -> None:
    owners: dict[object, int] = {}
    for gpu in found:
        value = getattr(gpu, key)
        if value is not None and owners.setdefault(value, gpu.index) != gpu.index:
            why = f"GPUs {owners[value]} and {gpu.index} have the same {key} {value}"
            raise refused(where, why, f"expected a {key} of its own for each GPU")
