"""Paths and files of a container's root file system, which is the tenant's and may be made to mislead."""

import os
import stat
import time
from pathlib import Path

import pytest

from runtime_wrapper import image_root
from runtime_wrapper.image_root import Place

FILE, FOLDER, NOWHERE = stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root/usr/lib").mkdir(parents=True)
    (tmp_path / "root/usr/lib/real.so").write_text("real")
    (tmp_path / "root/lib").symlink_to("usr/lib")
    (tmp_path / "outside").write_text("outside")
    return tmp_path / "root"


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("real.so", Place("/usr/lib/real.so", FILE)),
        ("/lib/real.so", Place("/usr/lib/real.so", FILE)),
        ("../../../../../lib/real.so", Place("/usr/lib/real.so", FILE)),
        ("gone.so", Place("/usr/lib/gone.so", None)),
        ("/opt/x/../y/gone.so", Place("/opt/y/gone.so", None)),
        ("../../../outside", Place("/outside", None)),
        ("/", Place("/", FOLDER)),
        ("real.so/x", Place("/lib/link", NOWHERE)),
        ("link", Place("/lib/link", NOWHERE)),
        ("./" * 300 + "real.so", Place("/lib/link", NOWHERE)),
    ],
)
def test_a_link_leads_where_it_would_inside(root: Path, link: str, expected: Place) -> None:
    (root / "usr/lib/link").symlink_to(link)
    assert image_root.place(str(root), "/lib/link") == expected
    if expected.kind != NOWHERE:
        assert image_root.places(str(root), "lib", ["link"]) == {"link": expected}


def test_names_in_one_folder(root: Path) -> None:
    os.mkfifo(root / "lib/fifo")
    assert image_root.places(str(root), "lib", ["real.so", "gone.so", "fifo"]) == {
        "real.so": Place("/usr/lib/real.so", FILE),
        "gone.so": Place("/usr/lib/gone.so", None),
        "fifo": Place("/usr/lib/fifo", stat.S_IFIFO),
    }
    assert image_root.places(str(root), "no/such", ["x"]) == {"x": Place("/no/such/x", None)}
    assert image_root.places(str(root), "lib/real.so", ["x"])["x"].kind == NOWHERE


def test_only_regular_files_of_bounded_size_are_read(root: Path) -> None:
    os.mkfifo(root / "lib/fifo")
    (root / "lib/out").symlink_to("../../../outside")
    read = {name: image_root.read(str(root), f"lib/{name}", 4) for name in ("real.so", "fifo", "out", "gone", ".")}
    assert read == {"real.so": b"real", "fifo": b"", "out": b"", "gone": b"", ".": b""}
    assert image_root.read(str(root), "lib/real.so", 3) == b""
    with open(root / "lib/huge", "wb") as file:
        file.truncate(1 << 40)
    began = time.perf_counter()
    assert image_root.read(str(root), "lib/huge", 1 << 20) == b""
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize("text", ["a\0b", "lib/\ud800"])
def test_a_text_that_is_no_path_leads_nowhere(root: Path, text: str) -> None:
    assert image_root.place(str(root), text).kind == NOWHERE
    assert image_root.places(str(root), text, ["x"])["x"].kind == NOWHERE
    assert image_root.places(str(root), "lib", [text])[text].kind == NOWHERE
    assert (image_root.names(str(root), text), image_root.read(text, "lib/real.so", 9)) == ([], b"")


def test_no_descriptor_stays_open(root: Path) -> None:
    (root / "lib/loop").symlink_to("loop")
    before = os.listdir("/proc/self/fd")
    for path in ("lib/real.so", "lib/gone/../x", "lib/loop", "lib/real.so/x", "../.."):
        image_root.place(str(root), path)
        image_root.places(str(root), path, ["real.so"])
        image_root.read(str(root), path, 100)
        image_root.names(str(root), path)
    assert len(os.listdir("/proc/self/fd")) == len(before)
