"""The GPUs of a host and the links between them: the data the rest of the pipeline decides on.

Pure. `Inventory.from_json` reads what `Inventory.to_json` wrote (schema `schemas/inventory.json`); loading the
snapshot file of a host, and knowing whether it is still true, is `snapshot`'s job.
Index, minor, PCI order and DRM card are four different orders: a `Gpu` carries each and none is derived from another.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Self

from runtime_wrapper.errors import MachineFileError

SCHEMA = "gpulatch-inventory/1"

# PCIe distance of a pair of GPUs, far to near (names of `nvidia-smi topo -m`, nearer is higher).
PCIE_SCORE = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One whole GPU. `numa` is the NUMA affinity as the driver prints it (`"0"`, `"0-3"`), None when unknown."""

    index: int
    uuid: str | None
    pci: str
    minor: int
    model: str
    numa: str | None
    memory_mib: int | None = None
    mig: bool = False

    @property
    def key(self) -> str:
        """What identifies this GPU in the ledger: its UUID, else its PCI address."""
        return self.uuid or self.pci


@dataclass(frozen=True, slots=True)
class Link:
    """The connection of a pair: PCIe class, number of NVLinks, and their summed bandwidth in MB/s per direction."""

    pcie: str
    nvlinks: int = 0
    mb_per_s: int = 0

    @property
    def kind(self) -> str:
        """The name of the best path: `NV4` or the PCIe class."""
        return f"NV{self.nvlinks}" if self.nvlinks else self.pcie

    def meets(self, least: str | None) -> bool:
        """Whether this is at least the link class that a request asks for (nvlink > pix > pxb > phb > node > any)."""
        if least in (None, "any") or self.nvlinks:
            return True
        return least != "nvlink" and PCIE_SCORE[self.pcie] >= PCIE_SCORE[str(least).upper()]


@dataclass(frozen=True, slots=True)
class Nic:
    """A network adapter and its PCIe class to each GPU by index; None where unknown."""

    name: str
    to_gpus: tuple[str | None, ...]


Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class DriverFile:
    """A file of the driver's user space, the names that it has in a container, and the capability that it is of.

    `stamp` is what it was like when it was found, see `probe.driver_files`.
    """

    path: str
    names: tuple[str, ...]
    capability: str
    stamp: Stamp | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The file that `asdict` made."""
        stamp = data["stamp"]
        return cls(data["path"], tuple(data["names"]), data["capability"], stamp and (stamp[0], stamp[1], stamp[2]))


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """What a host has of its driver's user space; `other_version` is that of libraries which do not fit the driver."""

    libraries: tuple[DriverFile, ...] = ()
    programs: tuple[DriverFile, ...] = ()
    other_version: str | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The files that `asdict` made."""
        libraries, programs = (tuple(map(DriverFile.from_json, data[key])) for key in ("libraries", "programs"))
        return cls(libraries, programs, data["other_version"])


@dataclass(frozen=True, slots=True)
class Inventory:
    """GPUs by index and a symmetric matrix of links; `links[i][i]` is None.

    `index_by` says where the indices come from (`pci` = rank by PCI address, `machine` = a machine file).
    `bandwidth_assumed`: the NVLink generation is not known and 25 GB/s per link was taken. `notes`: what was left out.
    """

    gpus: tuple[Gpu, ...]
    links: tuple[tuple[Link | None, ...], ...]
    nics: tuple[Nic, ...] = ()
    driver_version: str | None = None
    index_by: str = "pci"
    bandwidth_assumed: bool = False
    notes: tuple[str, ...] = ()
    driver_files: DriverFiles = DriverFiles()

    def link(self, a: int, b: int) -> Link:
        """The link between two different GPUs, by index."""
        found = self.links[a][b]
        if found is None:
            raise IndexError(f"no link from GPU {a} to itself")
        return found

    def pairs(self, indices: Sequence[int]) -> list[Link]:
        """The links of every pair of a set of GPUs."""
        return [self.link(a, b) for a, b in combinations(indices, 2)]

    def to_json(self) -> dict[str, Any]:
        """The inventory as JSON values; keys as in `schemas/inventory.json`."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], where: str) -> Self:
        """The inventory that `to_json` made; `where` names the file in a `MachineFileError`."""
        try:
            if data["schema"] != SCHEMA:
                raise ValueError(f"schema {data['schema']}, this version reads {SCHEMA}")
            gpus = tuple(Gpu(**gpu) for gpu in data["gpus"])
            links = tuple(tuple(None if link is None else Link(**link) for link in row) for row in data["links"])
            nics = tuple(Nic(nic["name"], tuple(nic["to_gpus"])) for nic in data["nics"])
            if [gpu.index for gpu in gpus] != list(range(len(gpus))) or [len(row) for row in links] != [
                len(gpus)
            ] * len(gpus):
                raise ValueError("GPU indices or the link matrix do not fit the number of GPUs")
            notes = tuple(str(note) for note in data["notes"])
            files = DriverFiles.from_json(data["driver_files"])
            version, index_by, assumed = (data[key] for key in ("driver_version", "index_by", "bandwidth_assumed"))
            return cls(gpus, links, nics, version, index_by, assumed, notes, files)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise MachineFileError(
                "inventory snapshot", where, f"not usable ({error})", "run: gpulatch probe"
            ) from error


MAX_NUMA_NODES = 1024  # the kernel's limit, CONFIG_NODES_SHIFT=10


def numa_nodes(text: str | None) -> frozenset[int]:
    """The NUMA nodes in a list such as `0,3-9`; empty when unknown (None, empty, `N/A`, `-1` or not a list)."""
    nodes: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            return frozenset()
        if len(first + last) > 8 or int(last or first) >= MAX_NUMA_NODES:
            return frozenset()
        nodes.update(range(int(first), int(last or first) + 1))
    return frozenset(nodes)


def dumps(inventory: Inventory) -> str:
    """The inventory as one JSON line."""
    return json.dumps(inventory.to_json(), separators=(",", ":"))
