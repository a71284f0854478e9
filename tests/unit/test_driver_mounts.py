"""Where the driver's files go in an image, decided from files alone; the images here have no program that could run."""

import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from drivers.samples import nvlink_host

from runtime_wrapper import driver_mounts, image_loader
from runtime_wrapper.errors import DriverFilesError
from runtime_wrapper.inventory import DriverFile, DriverFiles, Inventory

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the sample images are for x86_64")

LIBRARY = "/usr/lib/x86_64-linux-gnu"
BOTH = frozenset({"compute", "utility"})
DIRS = b"\0/lib/x86_64-linux-gnu/\0/usr/lib/x86_64-linux-gnu/\0/lib/\0/usr/lib/\0\0"
HOST = Inventory(
    nvlink_host().gpus,
    nvlink_host().links,
    driver_version="550.1",
    driver_files=DriverFiles(
        (
            DriverFile("/host/libcuda.so.550.1", ("libcuda.so.550.1", "libcuda.so.1", "libcuda.so"), "compute", None),
            DriverFile("/host/libnvidia-ml.so.550.1", ("libnvidia-ml.so.550.1", "libnvidia-ml.so.1"), "utility", None),
        ),
        (DriverFile("/usr/bin/nvidia-smi", ("nvidia-smi",), "utility", None),),
    ),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An image laid out like Debian's."""
    top = tmp_path / "root"
    (top / LIBRARY[1:]).mkdir(parents=True)
    (top / "lib").symlink_to("usr/lib")
    (top / "lib64").mkdir()
    (top / "lib64/ld-linux-x86-64.so.2").write_bytes(b"\x7fELF" + b"x" * 1000 + DIRS + b"\0x\0")
    (top / "etc").mkdir()
    return top


def plan(root: Path, setting: str = "auto", mounts: Any = None, host: Inventory = HOST) -> driver_mounts.Plan:
    data = {"root": {"path": root.name}, "mounts": mounts}
    return driver_mounts.plan(data, str(root.parent), host, host.gpus[:1], BOTH, setting)


def targets(found: driver_mounts.Plan) -> dict[str, str]:
    return {mount["destination"]: mount["source"] for mount in found.mounts}


def cache(*entries: tuple[str, str]) -> bytes:
    """A loader's cache with these entries."""
    at, rows, texts = 48 + 24 * len(entries), b"", b""
    for name, path in entries:
        key = at + len(texts)
        texts += name.encode() + b"\0" + path.encode() + b"\0"
        rows += struct.pack("=iIIIQ", 0x0303, key, key + len(name) + 1, 0, 0)
    return struct.pack("=20sII20x", b"glibc-ld.so.cache1.1", len(entries), len(texts)) + rows + texts


def test_each_name_is_mounted_in_the_loaders_first_folder(root: Path) -> None:
    assert targets(plan(root)) == {
        f"{LIBRARY}/libcuda.so.550.1": "/host/libcuda.so.550.1",
        f"{LIBRARY}/libcuda.so.1": "/host/libcuda.so.550.1",
        f"{LIBRARY}/libcuda.so": "/host/libcuda.so.550.1",
        f"{LIBRARY}/libnvidia-ml.so.550.1": "/host/libnvidia-ml.so.550.1",
        f"{LIBRARY}/libnvidia-ml.so.1": "/host/libnvidia-ml.so.550.1",
        "/usr/bin/nvidia-smi": "/usr/bin/nvidia-smi",
    }


def test_a_loader_that_does_not_say_leaves_it_to_libc(root: Path) -> None:
    (root / "lib64/ld-linux-x86-64.so.2").write_bytes(b"\x7fELF")
    assert plan(root).notes == ["no driver files: the image has no glibc"]
    (root / "lib64/libc.so.6").touch()
    assert "/lib64/libcuda.so.1" in targets(plan(root))


def test_a_file_that_the_cache_names_elsewhere_is_covered_and_a_missing_one_is_not_made(root: Path) -> None:
    (root / "opt").mkdir()
    (root / "opt/libcuda.so.470").touch()
    (root / "opt/libcuda.so.1").symlink_to("libcuda.so.470")
    entries = cache(("libcuda.so.1", "/opt/libcuda.so.1"), ("libnvidia-ml.so.1", "/gone/libnvidia-ml.so.1"))
    (root / "etc/ld.so.cache").write_bytes(entries)
    assert {path for path in targets(plan(root)) if not path.startswith("/usr")} == {"/opt/libcuda.so.470"}


def test_links_of_one_chain_become_one_mount(root: Path) -> None:
    for link, to in (("libcuda.so", "libcuda.so.1"), ("libcuda.so.1", "libcuda.so.470")):
        (root / LIBRARY[1:] / link).symlink_to(to)
    cuda = [path for path in targets(plan(root)) if "libcuda" in path]
    assert cuda == [f"{LIBRARY}/libcuda.so.550.1", f"{LIBRARY}/libcuda.so.470"]


@pytest.mark.parametrize("to", ["/proc/self/x", "/dev/shm/x", "/sys/x", "/opt/\udcff", "/opt/a\nb"])
def test_a_link_to_an_odd_place_is_no_target(root: Path, to: str) -> None:
    (root / LIBRARY[1:] / "libcuda.so").symlink_to(to)
    found = plan(root)
    assert f"{LIBRARY}/libcuda.so.1" in targets(found)
    assert found.notes == ["driver files not mounted (libcuda.so): its link in the image leads to an odd place"]
    (root / LIBRARY[1:] / "libcuda.so.1").symlink_to(to)
    with pytest.raises(DriverFilesError, match=r"libcuda\.so\.1"):
        plan(root)


def test_a_hostile_cache_or_loader_ends_soon_and_yields_nothing(root: Path) -> None:
    many = cache(*((f"libcuda.so.{number % 2}", f"/etc/{number % 1000}/{'../' * 20}") for number in range(30_000)))
    (root / "etc/ld.so.cache").write_bytes(many)
    assert 1 << 21 < len(many) < 1 << 22
    began = time.perf_counter()
    assert len(plan(root).mounts) == 6
    os.truncate(root / "etc/ld.so.cache", 1 << 40)
    assert len(plan(root).mounts) == 6
    (root / "etc/ld.so.cache").unlink()
    os.mkfifo(root / "etc/ld.so.cache")
    assert len(plan(root).mounts) == 6
    (root / "lib64/ld-linux-x86-64.so.2").write_bytes(b"\0/" * (1 << 21))
    assert plan(root).mounts == []
    (root / "lib64/ld-linux-x86-64.so.2").write_bytes((b"\0" + b"/" * 70) * 50_000)
    plan(root)
    assert time.perf_counter() - began < 20


def test_many_folders_for_processors_are_counted(root: Path) -> None:
    for number in range(200):
        folder = root / LIBRARY[1:] / f"glibc-hwcaps/x{number}"
        folder.mkdir(parents=True)
        (folder / "libcuda.so.1").touch()
    assert len(plan(root).mounts) == 6 + image_loader._MAX_HWCAPS


@pytest.mark.parametrize(
    "mounts",
    [
        None,
        "x",
        [None, 3],
        [{"destination": 5}],
        [{"destination": "/developer"}],
        [{"destination": "/a\0\ud800", "type": "bind"}],
    ],
)
def test_odd_mounts_of_the_spec_hinder_nothing(root: Path, mounts: Any) -> None:
    assert len(plan(root, mounts=mounts).mounts) == 6


def test_a_mount_over_the_root_hides_everything(root: Path) -> None:
    with pytest.raises(DriverFilesError, match="covers it"):
        plan(root, mounts=[{"destination": "/x/..", "type": "tmpfs"}])


def test_a_root_that_is_not_there_has_no_loader(tmp_path: Path) -> None:
    assert plan(tmp_path / "nowhere").mounts == []
