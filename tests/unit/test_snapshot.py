"""The snapshot of the inventory: used while true, made anew otherwise, never waited for too long."""

import json
import os
import stat
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from drivers.driver_tree import DriverTree

from runtime_wrapper import atomic, snapshot, trust
from runtime_wrapper.errors import MachineFileError, NoDriverError, ProbeError, UntrustedPathError
from runtime_wrapper.inventory import Inventory, Link
from runtime_wrapper.probe import host

LIMIT_S = 10.0


class Snapshots(DriverTree):
    """A host of two GPUs with a state directory; `probes` counts the children that were started."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(top)
        self.state = top / "state"
        self.state.mkdir(mode=0o700)
        self.file = self.state / "inventory.json"
        self.gpu("0000:01:00.0", 1)
        self.gpu("0000:02:00.0", 0)
        self.probes = 0
        command = snapshot.probe_command

        def counted(roots: host.Roots) -> list[str]:
            self.probes += 1
            return command(roots)

        monkeypatch.setattr(snapshot, "probe_command", counted)

    def load(self, timeout_s: float = LIMIT_S) -> Inventory:
        return snapshot.load(timeout_s, str(self.state), self.roots)

    def machine(self, text: str) -> None:
        self.write("etc/machine.json", text)


@pytest.fixture
def snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Snapshots:
    monkeypatch.setattr(trust, "ROOT_UID", os.geteuid())
    return Snapshots(tmp_path, monkeypatch)


def test_the_first_load_probes_and_the_second_reads(snapshots: Snapshots) -> None:
    first = snapshots.load()

    assert [(gpu.index, gpu.pci, gpu.minor) for gpu in first.gpus] == [(0, "0000:01:00.0", 1), (1, "0000:02:00.0", 0)]
    assert first.link(0, 1) == Link("PHB")
    assert (first.driver_version, first.index_by) == ("550.54.15", "pci")
    assert snapshots.load() == first
    assert snapshots.probes == 1


def test_the_snapshot_says_when_and_for_what_it_was_made(snapshots: Snapshots) -> None:
    snapshots.load()

    stored = json.loads(snapshots.file.read_text())
    assert stored["fingerprint"] == host.fingerprint(snapshots.roots)
    assert abs(datetime.fromisoformat(stored["probed_at"]).timestamp() - time.time()) < 60
    assert stat.S_IMODE(snapshots.file.stat().st_mode) == 0o600
    assert [entry.name for entry in snapshots.state.iterdir()] == ["inventory.json"]


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree.write("proc/sys/kernel/random/boot_id", "other\n"),
        lambda tree: tree.write("proc/driver/nvidia/version", "NVRM version: Kernel Module  570.86.15\n"),
        lambda tree: tree.gpu("0000:03:00.0", 2),
        lambda tree: tree.write("proc/driver/nvidia/capabilities/gpu1/mig/gi0/access", ""),
        lambda tree: tree.write("proc/devices", "Character devices:\n195 nvidia\n511 nvidia-uvm\n"),
        lambda tree: tree.write("etc/ld.so.cache", ""),
        pytest.param(
            lambda tree: tree.machine('{"links": [["X", "NV4"], ["NV4", "X"]]}'), marks=pytest.mark.needs("root")
        ),
    ],
    ids=["boot", "driver", "gpu", "mig", "modules", "loader cache", "machine file"],
)
def test_whatever_changes_the_host_makes_the_snapshot_stale(
    snapshots: Snapshots, change: Callable[[DriverTree], None]
) -> None:
    before = snapshots.load()

    change(snapshots)

    after = snapshots.load()
    assert snapshots.probes == 2
    assert snapshots.load() == after
    assert snapshots.probes == 2
    assert before.gpus[0].pci == after.gpus[0].pci


def test_a_refresh_probes_even_where_nothing_changed(snapshots: Snapshots) -> None:
    snapshots.load()

    snapshot.refresh(LIMIT_S, str(snapshots.state), snapshots.roots)

    assert snapshots.probes == 2


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"fingerprint": {}}', "[" * 100_000])
def test_a_corrupt_snapshot_is_made_anew(snapshots: Snapshots, text: str) -> None:
    before = snapshots.load()
    snapshots.file.write_text(text)

    assert snapshots.load() == before
    assert json.loads(snapshots.file.read_text())["inventory"] == json.loads(json.dumps(before.to_json()))


def test_a_snapshot_of_another_schema_is_made_anew(snapshots: Snapshots) -> None:
    before = snapshots.load()
    stored = json.loads(snapshots.file.read_text())
    stored["inventory"]["schema"] = "gpulatch-inventory/0"
    snapshots.file.write_text(json.dumps(stored))

    assert snapshots.load() == before


def test_a_link_in_place_of_the_snapshot_is_replaced_and_not_followed(snapshots: Snapshots) -> None:
    target = snapshots.top / "target"
    target.write_text("keep")
    snapshots.file.symlink_to(target)

    snapshots.load()

    assert target.read_text() == "keep"
    assert not snapshots.file.is_symlink()


def test_a_gpu_split_by_mig_is_marked(snapshots: Snapshots) -> None:
    snapshots.write("proc/driver/nvidia/capabilities/gpu0/mig/gi3/access", "")

    assert [(gpu.minor, gpu.mig) for gpu in snapshots.load().gpus] == [(1, False), (0, True)]


def test_the_machine_file_gives_nvlinks_and_nics_and_nothing_else(snapshots: Snapshots) -> None:
    links = [["X", "NV4+PIX"], ["NV4+PIX", "X"]]
    nics = {"gpu_to_nic": {"mlx5_0": ["PIX", "SYS"]}}
    snapshots.machine(json.dumps({"model": "V100", "links": links, "numa": ["7", "7"], "nics": nics}))

    found = host.probe(snapshots.roots)

    assert found.link(0, 1) == Link("PHB", 4, 4 * 25781)
    assert [gpu.numa for gpu in found.gpus] == [None, None]
    assert [gpu.model for gpu in found.gpus] == ["Tesla V100"] * 2
    assert [nic.to_gpus for nic in found.nics] == [("PIX", "SYS")]


def test_a_machine_file_for_another_number_of_gpus_is_left_aside_with_a_note(snapshots: Snapshots) -> None:
    """As when one GPU of many has fallen off the bus: the others go on."""
    snapshots.machine('{"links": [["X"]]}')

    found = host.probe(snapshots.roots)

    assert len(found.gpus) == 2
    assert "describes 1 GPUs, the driver lists 2: its NVLinks are not used" in found.notes[0]


def test_a_gpu_that_is_left_out_is_noted(snapshots: Snapshots) -> None:
    snapshots.write("proc/driver/nvidia/gpus/0000:09:00.0/information", "Model: broken\n")

    found = snapshots.load()

    assert len(found.gpus) == 2
    assert found.notes[0].startswith("1 of the 3 GPUs that the driver lists cannot be used")
    assert snapshots.load() == found


def test_a_machine_file_that_others_can_write_is_refused(snapshots: Snapshots) -> None:
    snapshots.machine('{"links": [["X", "SYS"], ["SYS", "X"]]}')
    (snapshots.top / "etc/machine.json").chmod(0o666)

    with pytest.raises(UntrustedPathError, match="0666"):
        host.probe(snapshots.roots)


def test_a_link_in_place_of_the_machine_file_is_refused(snapshots: Snapshots) -> None:
    snapshots.write("etc/other.json", '{"links": [["X", "SYS"], ["SYS", "X"]]}')
    (snapshots.top / "etc/machine.json").symlink_to("other.json")

    with pytest.raises(UntrustedPathError):
        host.probe(snapshots.roots)


def test_the_refusal_of_the_child_arrives_as_its_own_class_and_line(snapshots: Snapshots) -> None:
    snapshots.machine("{")

    with pytest.raises(MachineFileError) as from_child:
        snapshots.load()
    with pytest.raises(MachineFileError) as from_here:
        host.probe(snapshots.roots)

    assert str(from_child.value) == str(from_here.value)
    assert not snapshots.file.exists()


def test_a_host_without_the_driver_starts_no_child(snapshots: Snapshots) -> None:
    os.rename(f"{snapshots.proc}/driver/nvidia", f"{snapshots.proc}/driver/gone")

    with pytest.raises(NoDriverError):
        snapshots.load()

    assert snapshots.probes == 0


def test_a_child_that_hangs_ends_within_the_limit(snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch) -> None:
    children = snapshots.top / "pid"
    code = f"import os, time; open({str(children)!r}, 'w').write(str(os.getpid())); time.sleep(1000)"
    monkeypatch.setattr(snapshot, "probe_command", lambda roots: [sys.executable, "-c", code])
    started = time.monotonic()

    with pytest.raises(ProbeError, match="within 2 s"):
        snapshots.load(timeout_s=2)

    assert time.monotonic() - started < 2 + snapshot.GRACE_S + 2
    with pytest.raises(ProcessLookupError):
        os.kill(int(children.read_text()), 0)


def test_a_fifo_in_place_of_the_version_file_does_not_hang(snapshots: Snapshots) -> None:
    os.unlink(f"{snapshots.proc}/driver/nvidia/version")
    os.mkfifo(f"{snapshots.proc}/driver/nvidia/version")
    started = time.monotonic()

    with pytest.raises(UntrustedPathError, match="not a regular file"):
        snapshots.load(timeout_s=5)

    assert time.monotonic() - started < 5


def test_a_child_that_dies_is_reported_with_its_last_line(
    snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "probe_command", lambda roots: [sys.executable, "-c", "raise OSError('lost')"])

    with pytest.raises(ProbeError, match="OSError: lost"):
        snapshots.load()


def test_a_state_directory_of_the_wrong_mode_is_refused(snapshots: Snapshots) -> None:
    snapshots.state.chmod(0o777)

    with pytest.raises(UntrustedPathError, match="0777"):
        snapshots.load()


def test_a_full_state_directory_costs_only_the_snapshot(snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **more: object) -> None:
        raise OSError(28, "full")

    monkeypatch.setattr(atomic, "replace", full)

    assert len(snapshots.load().gpus) == 2
    assert not snapshots.file.exists()


@pytest.fixture
def folder(tmp_path: Path) -> int:
    return os.open(tmp_path, os.O_DIRECTORY)


def test_a_replaced_file_has_the_content_and_mode_asked_for(folder: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")

    atomic.replace(folder, "a", b"new" * 100_000, 0o644, fsync=True)

    assert (tmp_path / "a").read_bytes() == b"new" * 100_000
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == ["a"]


def test_a_failed_replacement_leaves_the_old_file_and_no_other(folder: int, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()

    with pytest.raises(IsADirectoryError):
        atomic.replace(folder, "a", b"new")

    assert os.listdir(tmp_path) == ["a"]


def test_a_write_cut_short_is_continued_and_one_that_fails_leaves_nothing(
    folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
    atomic.replace(folder, "a", b"0123456789" * 3)
    assert (tmp_path / "a").read_bytes() == b"0123456789" * 3

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "full")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="full"):
        atomic.replace(folder, "a", b"other")
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"0123456789" * 3


def test_a_snapshot_without_a_gpus_uuid_is_looked_at_again_until_it_is_known(snapshots: Snapshots) -> None:
    information = snapshots.top / "proc/driver/nvidia/gpus/0000:02:00.0/information"
    known = information.read_text()
    information.write_text(known.replace("GPU-00000000-11c1", "GPU-????????-????"))
    assert [gpu.uuid is None for gpu in snapshots.load().gpus] == [False, True]
    information.write_text(known)
    assert all(gpu.uuid for gpu in snapshots.load().gpus)
    snapshots.load()
    assert snapshots.probes == 2
