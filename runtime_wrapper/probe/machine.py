"""Reads a machine file: the topology of a host as `nvidia-smi topo -m` prints it, in JSON.

Pure but for `read`. The file says which links the GPUs have; what it does not say about a GPU follows `gpu_rules`.
Keys that are read: name, gpus, model, links, numa, nics.gpu_to_nic, gpu_facts. Only `links` is required.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from runtime_wrapper import trust
from runtime_wrapper.errors import UntrustedPathError, errno_name, quoted
from runtime_wrapper.inventory import PCIE_SCORE, Gpu, Inventory, Link, Nic
from runtime_wrapper.probe import gpu_rules, nvlink
from runtime_wrapper.probe.checked import json_object, list_of, refused, typed

MAX_GPUS = 64

_CLASSES = (*PCIE_SCORE, "SOC")  # old drivers print SOC for SYS
_CLASS = "|".join(_CLASSES)
_CELL = re.compile(rf"NV(?P<links>[1-9]\d?)(?:\+(?P<beside>{_CLASS}))?|(?P<alone>{_CLASS})")
_CELL_FORMS = f"NV<number>, {', '.join(_CLASSES)}, NV<number>+<class> or null"


def read(path: str) -> Inventory:
    """The inventory of the machine that a file describes. Raises MachineFileError."""
    try:
        data = trust.read_anyhow(path, "machine file")
    except UntrustedPathError as error:
        raise refused(path, error.why, error.hint) from error
    except OSError as error:
        raise refused(path, f"cannot be read ({errno_name(error)})", "expected a readable machine file") from error
    return parse(data, path)


def parse(data: bytes, where: str) -> Inventory:
    """The inventory that the bytes of a machine file describe; `where` names the file in a MachineFileError."""
    file = json_object(data, where)
    cells = _matrix(file, where)
    gpus = gpu_rules.gpus(file, len(cells), where)
    links = _links(cells, gpus, where)
    assumed = any(
        nvlink.mb_per_s_per_link(gpu.model) is None and any(link and link.nvlinks for link in row)
        for gpu, row in zip(gpus, links, strict=True)
    )
    return Inventory(gpus, links, _nics(file, len(gpus), where), index_by="machine", bandwidth_assumed=assumed)


def _matrix(file: Mapping[str, Any], where: str) -> list[list[Any]]:
    """The link matrix: square, of the stated size, X or null on the diagonal."""
    if "links" not in file:
        raise refused(where, 'has no "links"', "expected the matrix of nvidia-smi topo -m, one row per GPU")
    rows: list[list[Any]] = typed(file, "links", list, where)
    n = len(rows)
    if not 1 <= n <= MAX_GPUS:
        raise refused(where, f'"links" has {n} rows', f"expected one row per GPU, 1 to {MAX_GPUS}")
    for i, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != n:
            found = f"{len(row)} cells" if isinstance(row, list) else quoted(row)
            raise refused(
                where, f'"links" is not square: row {i} is {found}', f"expected {n} cells in each of {n} rows"
            )
        if row[i] not in ("X", None):
            raise refused(where, f'"links" row {i} column {i} is {quoted(row[i])}', "expected X, the GPU itself")
    gpus = typed(file, "gpus", int, where, n)
    if gpus != n:
        raise refused(where, f'"gpus" is {gpus} but "links" has {n} rows', "expected the same number in both")
    return rows


def _links(cells: list[list[Any]], gpus: Sequence[Gpu], where: str) -> tuple[tuple[Link | None, ...], ...]:
    """The symmetric matrix: of the two directions of a pair the worse one (fewer NVLinks, then the farther class)."""
    n = len(cells)
    links: list[list[Link | None]] = [[None] * n for _ in range(n)]
    for i, j in combinations(range(n), 2):
        directions = _cell(cells, i, j, gpus, where), _cell(cells, j, i, gpus, where)
        links[i][j] = links[j][i] = min(directions, key=lambda link: (link.nvlinks, PCIE_SCORE[link.pcie]))
    return tuple(tuple(row) for row in links)


def _cell(cells: list[list[Any]], i: int, j: int, gpus: Sequence[Gpu], where: str) -> Link:
    """One direction of a pair. A null cell says nothing and counts as no links; a bare NV cell hides the class."""
    cell = cells[i][j]
    if cell is None:
        return Link("SYS")
    match = _CELL.fullmatch(cell) if isinstance(cell, str) else None
    if match is None:
        raise refused(where, f'"links" row {i} column {j} is {quoted(cell)}', f"expected {_CELL_FORMS}")
    near = "NODE" if gpus[i].numa is not None and gpus[i].numa == gpus[j].numa else "SYS"
    nvlinks = int(match["links"] or 0)
    rate = min(nvlink.mb_per_s_per_link(gpus[k].model) or nvlink.ASSUMED_MB_PER_S for k in (i, j))
    return Link(_today(match["beside"] or match["alone"] or near), nvlinks, nvlinks * rate)


def _today(pcie: str) -> str:
    """The class under its present name."""
    return "SYS" if pcie == "SOC" else pcie


def _nics(file: Mapping[str, Any], n: int, where: str) -> tuple[Nic, ...]:
    table = typed(typed(file, "nics", dict, where, {}), "gpu_to_nic", dict, where, {})
    return tuple(_nic(name, list_of(table, name, n, where), where) for name in table)


def _nic(name: str, cells: list[Any], where: str) -> Nic:
    for i, cell in enumerate(cells):
        if cell is not None and cell not in _CLASSES:
            why = f'"gpu_to_nic" of {quoted(name)} is {quoted(cell)} for GPU {i}'
            raise refused(where, why, f"expected {', '.join(_CLASSES)} or null")
    return Nic(name, tuple(cell and _today(cell) for cell in cells))
