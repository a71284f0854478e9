"""The driver's user space as the probe finds it: by the loader's cache that the real ldconfig made."""

import os
import struct
from pathlib import Path

import pytest
from drivers.user_space import LIBRARIES, PROGRAMS, VERSION, UserSpace, library

from runtime_wrapper import ld_cache
from runtime_wrapper.inventory import DriverFiles
from runtime_wrapper.probe import driver_files

pytestmark = pytest.mark.needs("gcc", "ldconfig")


@pytest.fixture
def host(tmp_path: Path) -> UserSpace:
    found = UserSpace(tmp_path / "host")
    found.install()
    return found


def find(host: UserSpace, cache: Path, version: str | None = VERSION) -> DriverFiles:
    return driver_files.find(version, str(cache), f"/nowhere:{host.bin}")


def names(found: DriverFiles) -> dict[str, tuple[str, ...]]:
    return {os.path.basename(file.path).partition(".so")[0]: file.names for file in found.libraries}


@pytest.mark.parametrize("kind", ["new", "compat"])
def test_every_library_is_found_under_its_version_and_its_soname(host: UserSpace, tmp_path: Path, kind: str) -> None:
    found = find(host, host.write_cache(tmp_path / "cache", options=["-c", kind]))
    assert names(found) == {
        stem: (f"{stem}.so.{VERSION}",) + ((soname,) if VERSION not in soname else ()) + more
        for stem, soname in LIBRARIES.items()
        for more in [("libcuda.so",) if stem == "libcuda" else ()]
    }
    assert [file.capability for file in found.libraries if "libcuda.so" in file.names] == ["compute"]
    assert [file.capability for file in found.libraries if "libnvidia-ml.so.1" in file.names] == ["utility"]
    assert found.other_version is None


def test_programs_are_found_in_fixed_folders(host: UserSpace, tmp_path: Path) -> None:
    found = find(host, host.write_cache(tmp_path / "cache"))
    assert sorted(file.path for file in found.programs) == sorted(str(host.bin / name) for name in PROGRAMS)
    (host.bin / "nvidia-smi").chmod(0o644)
    assert len(find(host, tmp_path / "cache").programs) == len(PROGRAMS) - 1


def test_libraries_of_another_version_are_not_the_drivers(host: UserSpace, tmp_path: Path) -> None:
    found = find(host, host.write_cache(tmp_path / "cache"), "570.86.15")
    assert (found.libraries, found.other_version) == ((), VERSION)


def test_a_compat_library_beside_the_right_one_is_no_skew(host: UserSpace, tmp_path: Path) -> None:
    library(tmp_path / "compat/libcuda.so.570.86.15", "libcuda.so.1", "570.86.15")
    found = find(host, host.write_cache(tmp_path / "cache", tmp_path / "compat"))
    assert names(found)["libcuda"] == (f"libcuda.so.{VERSION}", "libcuda.so.1", "libcuda.so")
    assert found.other_version is None


def test_a_32_bit_entry_never_counts(host: UserSpace, tmp_path: Path) -> None:
    cache = host.write_cache(tmp_path / "cache", options=["-c", "new"])
    cache.write_bytes(cache.read_bytes().replace(struct.pack("=i", 0x0303), struct.pack("=i", 0x0003)))
    assert find(host, cache).libraries == ()


def test_without_version_or_cache_there_is_nothing(host: UserSpace, tmp_path: Path) -> None:
    assert find(host, host.write_cache(tmp_path / "cache"), None) == DriverFiles()
    assert find(host, tmp_path / "no-cache").libraries == ()


def test_a_file_that_changed_is_noticed(host: UserSpace, tmp_path: Path) -> None:
    found = find(host, host.write_cache(tmp_path / "cache"))
    assert driver_files.unchanged(found)
    assert driver_files.unchanged(DriverFiles())
    path = host.lib / f"libcuda.so.{VERSION}"
    os.utime(path, ns=(1, 1))
    assert not driver_files.unchanged(found)
    path.unlink()
    assert not driver_files.unchanged(found)


def test_an_odd_cache_yields_nothing_and_ends(host: UserSpace, tmp_path: Path) -> None:
    whole = host.write_cache(tmp_path / "cache", options=["-c", "compat"]).read_bytes()
    assert len(list(ld_cache.entries(whole))) > len(LIBRARIES)
    for cut in (0, 5, 12, 15, 16, 60, 200, len(whole) // 2):
        list(ld_cache.entries(whole[:cut]))
    header = struct.pack("=20sII20x", b"glibc-ld.so.cache1.1", 2**32 - 1, 0)
    entry = struct.pack("=iIIIQ", 0x0303, 2**32 - 1, 2**32 - 1, 0, 0)
    assert list(ld_cache.entries(header + 1000 * entry + b"\0", "x86_64")) == []
    assert list(ld_cache.entries(header + struct.pack("=iIIIQ", 0x0303, 72, 72, 0, 0) + b"relative\0", "x86_64")) == []
    assert list(ld_cache.entries(b"ld.so-1.7.0\0\xff\xff\xff\xff" + whole)) == []
    assert list(ld_cache.entries(b"\0" * 100_000)) == []
