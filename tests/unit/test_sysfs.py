"""NUMA nodes and PCIe classes from the paths of sysfs."""

import json
from itertools import combinations
from pathlib import Path

import pytest
from drivers.driver_tree import DriverTree

from runtime_wrapper.inventory import PCIE_SCORE
from runtime_wrapper.operate import pci_tree
from runtime_wrapper.probe import machine, sysfs

MACHINES = json.loads((Path(__file__).parent.parent / "data/machines.json").read_text())


def pcie_class(top: Path, a: str, b: str, numa: tuple[int, int] = (-1, -1)) -> str:
    """The class of two GPUs that sit at two paths below /sys/devices."""
    tree = DriverTree(top)
    tree.place("0000:01:00.0", a, numa[0])
    tree.place("0000:02:00.0", b, numa[1])
    return sysfs.pcie_class(*(sysfs.place(pci, tree.roots.sysfs) for pci in ("0000:01:00.0", "0000:02:00.0")))


BRIDGE, OTHER_BRIDGE = "pci0000:00", "pci0000:80"
SWITCH = f"{BRIDGE}/0000:00:01.0/0000:40:00.0"


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (f"{SWITCH}/0000:41:00.0/0000:01:00.0", f"{SWITCH}/0000:41:01.0/0000:02:00.0", "PIX"),
        (f"{SWITCH}/0000:01:00.0", f"{SWITCH}/0000:01:00.1", "PIX"),
        (f"{SWITCH}/0000:41:00.0/0000:01:00.0", f"{SWITCH}/0000:41:01.0/0000:50:0.0/0000:51:00.0/0000:02:00.0", "PXB"),
        (f"{SWITCH}/0000:41:00.0/0000:01:00.0", f"{BRIDGE}/0000:00:01.0/0000:60:00.0/0000:61:00.0/0000:02:00.0", "PXB"),
        (f"{SWITCH}/0000:41:00.0/0000:01:00.0", f"{BRIDGE}/0000:00:02.0/0000:02:00.0", "PHB"),
        (f"{BRIDGE}/0000:00:1e.0", f"{BRIDGE}/0000:00:1f.0", "PHB"),
        (f"{BRIDGE}/0000:00:01.0/0000:01:00.0", f"{OTHER_BRIDGE}/0000:00:01.0/0000:02:00.0", "SYS"),
        ("LNXSYSTM:00/VMBUS:00/a/pci0001:00/0001:00:00.0", "LNXSYSTM:00/VMBUS:00/b/pci0002:00/0002:00:00.0", "SYS"),
    ],
)
def test_the_pcie_class_counts_the_bridges_between_two_gpus(tmp_path: Path, a: str, b: str, expected: str) -> None:
    assert pcie_class(tmp_path, a, b) == expected


@pytest.mark.parametrize(("numa", "expected"), [((1, 1), "NODE"), ((0, 0), "NODE"), ((0, 1), "SYS"), ((-1, -1), "SYS")])
def test_beyond_the_host_bridge_only_a_known_common_numa_node_is_near(
    tmp_path: Path, numa: tuple[int, int], expected: str
) -> None:
    assert pcie_class(tmp_path, f"{BRIDGE}/0000:01:00.0", f"{OTHER_BRIDGE}/0000:02:00.0", numa) == expected


def test_a_gpu_that_sysfs_does_not_know_is_far_from_all_others(tmp_path: Path) -> None:
    known = DriverTree(tmp_path)
    known.place("0000:01:00.0", f"{BRIDGE}/0000:01:00.0", 0)

    places = [sysfs.place(pci, known.roots.sysfs) for pci in ("0000:01:00.0", "0000:09:00.0")]

    assert places[1] is None
    assert sysfs.pcie_class(*places) == "SYS"


@pytest.mark.parametrize(("text", "numa"), [("3\n", "3"), ("0\n", "0"), ("-1\n", None), ("", None)])
def test_a_numa_node_of_minus_one_is_unknown(tmp_path: Path, text: str, numa: str | None) -> None:
    tree = DriverTree(tmp_path)
    tree.write("sys/bus/pci/devices/0000:01:00.0/numa_node", text)

    assert sysfs.numa_node("0000:01:00.0", tree.roots.sysfs) == numa


def test_a_device_without_a_numa_file_has_no_numa_node(tmp_path: Path) -> None:
    assert sysfs.numa_node("0000:01:00.0", str(tmp_path)) is None


@pytest.mark.parametrize("file", MACHINES, ids=lambda file: str(file["name"]))
def test_a_laid_out_tree_shows_the_classes_up_to_the_host_bridge_and_never_nearer_ones(
    tmp_path: Path, file: dict[str, object]
) -> None:
    stated = machine.parse(json.dumps(file).encode(), "box.json")
    tree = DriverTree(tmp_path)
    for gpu, path in zip(stated.gpus, pci_tree.paths(stated), strict=True):
        tree.place(gpu.pci, path)

    places = [sysfs.place(gpu.pci, tree.roots.sysfs) for gpu in stated.gpus]

    for i, j in combinations(range(len(places)), 2):
        wanted = stated.link(i, j).pcie
        expected = wanted if PCIE_SCORE[wanted] >= PCIE_SCORE["PHB"] else "SYS"  # no NUMA node is known in this tree
        assert sysfs.pcie_class(places[i], places[j]) == expected, (i, j)


def test_a_matrix_that_no_tree_has_is_laid_out_with_no_pair_nearer_than_it_says(tmp_path: Path) -> None:
    links = [["X", "PIX", "SYS"], ["PIX", "X", "PIX"], ["SYS", "PIX", "X"]]
    stated = machine.parse(json.dumps({"links": links}).encode(), "box.json")
    tree = DriverTree(tmp_path)
    for gpu, path in zip(stated.gpus, pci_tree.paths(stated), strict=True):
        tree.place(gpu.pci, path)

    places = [sysfs.place(gpu.pci, tree.roots.sysfs) for gpu in stated.gpus]

    assert [sysfs.pcie_class(places[i], places[j]) for i, j in ((0, 1), (0, 2), (1, 2))] == ["PIX", "SYS", "SYS"]
