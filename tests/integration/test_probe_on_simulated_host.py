"""The real probe on every machine we know, each simulated in the sandbox; and the nodes it makes."""

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from runtime_wrapper import snapshot
from runtime_wrapper.errors import MachineFileError
from runtime_wrapper.inventory import Inventory, numa_nodes
from runtime_wrapper.operate import fake_driver, simulated_host
from runtime_wrapper.probe import host, machine, nodes
from runtime_wrapper.probe.nodes import Change

pytestmark = pytest.mark.needs("sandbox", "root")

MACHINES = json.loads((Path(__file__).parent.parent / "data/machines.json").read_text())


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    """After each test the mount table, /dev and what the real host shows are as before."""
    before = _seen()
    yield
    simulated_host.tear_down()
    assert _seen() == before


def _seen() -> tuple[str, list[str], bool, bool]:
    driver, installed = "/proc/driver/nvidia/version", "/etc/gpulatch/machine.json"
    nodes_of_driver = sorted(name for name in os.listdir("/dev") if name.startswith("nvidia"))
    return Path("/proc/self/mountinfo").read_text(), nodes_of_driver, os.path.exists(driver), os.path.exists(installed)


def build(tmp_path: Path, file: dict[str, Any]) -> Inventory:
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(file))
    simulated_host.build(str(path))
    return machine.read(str(path))


def pair(**more: Any) -> dict[str, Any]:
    return {"name": "pair", "model": "A100", "links": [["X", "NV4"], ["NV4", "X"]], **more}


def shown_by_sysfs(stated: Inventory, i: int, j: int) -> str:
    """The class of a pair as far as a PCI tree and `numa_node` files can show it."""
    pcie = stated.link(i, j).pcie
    a, b = (min(numa_nodes(stated.gpus[k].numa), default=-1) for k in (i, j))
    if pcie in ("SYS", "NODE"):
        return "NODE" if a == b != -1 else "SYS"
    return pcie


@pytest.mark.parametrize("file", MACHINES, ids=lambda file: str(file["name"]))
def test_the_probe_finds_the_simulated_machine(file: dict[str, Any], tmp_path: Path) -> None:
    stated = build(tmp_path, file)

    found = host.probe()

    first_node = [str(min(numa_nodes(gpu.numa))) if gpu.numa else None for gpu in stated.gpus]
    assert found.gpus == tuple(replace(gpu, numa=node) for gpu, node in zip(stated.gpus, first_node, strict=True))
    for i, j in combinations(range(len(stated.gpus)), 2):
        assert found.link(i, j) == replace(stated.link(i, j), pcie=shown_by_sysfs(stated, i, j)), (i, j)
    assert (found.nics, found.bandwidth_assumed) == (stated.nics, stated.bandwidth_assumed)
    assert (found.index_by, found.driver_version) == ("pci", fake_driver.DRIVER_VERSION)


def test_one_machine_replaces_another(tmp_path: Path) -> None:
    build(tmp_path, MACHINES[0])

    stated = build(tmp_path, pair())

    assert [gpu.uuid for gpu in host.probe().gpus] == [gpu.uuid for gpu in stated.gpus]


def test_a_gpu_split_by_mig_and_one_without_uuid_look_like_it(tmp_path: Path) -> None:
    stated = build(tmp_path, pair(gpu_facts=[{"mig": True, "minor": 5}, {"uuid": None}]))

    found = host.probe()

    assert [(gpu.mig, gpu.minor, gpu.uuid) for gpu in found.gpus] == [(True, 5, stated.gpus[0].uuid), (False, 0, None)]


def test_a_machine_whose_indices_no_host_could_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MachineFileError, match="ascend"):
        build(tmp_path, pair(gpu_facts=[{"pci": "0000:80:00.0"}, None]))


def test_the_snapshot_of_the_simulated_host_comes_from_the_child(tmp_path: Path) -> None:
    stated = build(tmp_path, pair())
    state = tmp_path / "state"
    state.mkdir(mode=0o700)

    first, second = (snapshot.load(state_dir=str(state)) for _ in range(2))

    assert first == second
    assert [gpu.uuid for gpu in first.gpus] == [gpu.uuid for gpu in stated.gpus]


def test_missing_nodes_and_links_are_made_as_the_driver_wants_them(tmp_path: Path) -> None:
    build(tmp_path, pair())
    nodes.make_missing()
    params = Path("/proc/driver/nvidia/params")
    params.write_text("DeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\nModifyDeviceFiles: 1\n")
    os.unlink("/dev/nvidia1")
    os.unlink("/dev/nvidia-uvm")
    os.unlink("/dev/char/511:0")

    made = nodes.make_missing()

    assert made == (
        Change("/dev/nvidia1", "made", "195:1"),
        Change("/dev/nvidia-uvm", "made", "511:0"),
        Change("/dev/char/511:0", "linked", "511:0"),
    )
    for path, number in (("/dev/nvidia1", (195, 1)), ("/dev/nvidia-uvm", (511, 0))):
        node = os.lstat(path)
        assert stat.S_ISCHR(node.st_mode)
        assert (os.major(node.st_rdev), os.minor(node.st_rdev)) == number
        assert (stat.S_IMODE(node.st_mode), node.st_uid, node.st_gid) == (0o660, 0, 44)
    assert os.stat("/dev/char/511:0").st_rdev == os.makedev(511, 0)
    assert nodes.make_missing() == ()


def test_a_node_of_an_earlier_major_is_replaced_and_anything_else_is_left(tmp_path: Path) -> None:
    build(tmp_path, pair())
    nodes.make_missing()
    os.unlink("/dev/nvidia-uvm")
    os.mknod("/dev/nvidia-uvm", stat.S_IFCHR | 0o666, os.makedev(509, 0))
    os.unlink("/dev/nvidia0")
    os.mknod("/dev/nvidia0", stat.S_IFCHR | 0o666, os.makedev(195, 9))
    os.unlink("/dev/nvidiactl")
    os.symlink("null", "/dev/nvidiactl")

    made = nodes.make_missing()

    assert {(change.path, change.what) for change in made} == {
        ("/dev/nvidia-uvm", "replaced"),
        ("/dev/nvidia0", "left"),
        ("/dev/nvidiactl", "left"),
    }
    assert os.lstat("/dev/nvidia-uvm").st_rdev == os.makedev(511, 0)
    assert os.lstat("/dev/nvidia0").st_rdev == os.makedev(195, 9)
    assert os.readlink("/dev/nvidiactl") == "null"


def test_no_node_is_made_where_the_administrator_turned_it_off(tmp_path: Path) -> None:
    build(tmp_path, pair())
    Path("/proc/driver/nvidia/params").write_text("ModifyDeviceFiles: 0\n")
    os.unlink("/dev/nvidia0")

    assert nodes.make_missing() == ()
    assert not os.path.exists("/dev/nvidia0")


def test_a_simulated_host_is_refused_outside_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPULATCH_SANDBOX")

    with pytest.raises(RuntimeError, match="sandbox"):
        build(tmp_path, pair())
