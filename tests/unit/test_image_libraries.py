"""What is read of a container's root file system, which is the tenant's and may be made to mislead."""

import os
import threading
import time
from pathlib import Path

import pytest

from runtime_wrapper import image_libraries, image_root

COMPAT = "usr/local/cuda/compat"


def put(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def test_compat_libraries_are_found_and_the_newest_counts(root: Path) -> None:
    put(root, f"{COMPAT}/libcuda.so", f"{COMPAT}/libcuda.so.1", f"{COMPAT}/libcuda.so.550.54.15")
    assert image_libraries.compat_driver(str(root)) == "550.54.15"
    put(root, f"{COMPAT}/libcuda.so.550.163.01")
    assert image_libraries.compat_driver(str(root)) == "550.163.01"


def test_libraries_are_found_in_the_usual_directories(root: Path) -> None:
    put(root, "usr/local/cuda/lib64/libcudart.so.12.4.127", "usr/lib/x86_64-linux-gnu/libcudnn_ops.so.9")
    put(root, "usr/lib/libcublas.so.12", "opt/libcudart.so.11.0", "usr/lib/libcudart.so.x", "usr/lib/libcudart.so")
    assert image_libraries.cuda_libraries(str(root)) == ["libcudart.so.12.4.127", "libcudnn_ops.so.9"]


def test_links_are_followed_as_they_would_be_inside(root: Path) -> None:
    """As update-alternatives makes them: /usr/local/cuda -> /etc/alternatives/cuda -> /usr/local/cuda-12.4."""
    put(root, "usr/local/cuda-12.4/compat/libcuda.so.550.54.15", "etc/alternatives/x")
    (root / "usr/local/cuda").symlink_to("/etc/alternatives/cuda")
    (root / "etc/alternatives/cuda").symlink_to("../../../../usr/./local//cuda-12.4")
    assert image_libraries.compat_driver(str(root)) == "550.54.15"


@pytest.mark.parametrize("at", ["usr", "usr/local", "usr/local/cuda", COMPAT])
@pytest.mark.parametrize("way", ["absolute", "relative"])
def test_a_link_never_leads_out_of_the_root(root: Path, tmp_path: Path, at: str, way: str) -> None:
    """The host's own libraries must not be taken for the image's."""
    rest = os.path.relpath(COMPAT, at)
    put(tmp_path / "host", f"{rest}/libcuda.so.999.1")
    (root / at).parent.mkdir(parents=True, exist_ok=True)
    host = tmp_path / "host"
    (root / at).symlink_to(host if way == "absolute" else f"{'../' * 30}{str(host).lstrip('/')}")
    assert image_libraries.compat_driver(str(root)) is None


def test_dots_end_at_the_root(root: Path) -> None:
    put(root, "real/compat/libcuda.so.550.54.15")
    (root / "usr/local").mkdir(parents=True)
    (root / "usr/local/cuda").symlink_to("../../../../../../real")
    assert image_libraries.compat_driver(str(root)) == "550.54.15"


def test_loops_and_endless_paths_end(root: Path) -> None:
    (root / "usr").mkdir()
    (root / "usr/local").symlink_to("local")
    assert image_libraries.compat_driver(str(root)) is None
    (root / "usr/local").unlink()
    (root / "usr/local").symlink_to("../usr/" + "./x/../" * 500)
    (root / "usr/x").mkdir()
    assert image_libraries.compat_driver(str(root)) is None
    (root / "usr/local").unlink()
    deep = root / "usr/local"
    deep.mkdir()
    (deep / "cuda").symlink_to("d/" * 1500)
    for _ in range(100):
        deep /= "d"
        deep.mkdir()
    assert image_libraries.compat_driver(str(root)) is None


@pytest.mark.parametrize("at", ["usr", "usr/local/cuda", COMPAT])
def test_a_fifo_in_the_place_of_a_directory_blocks_nothing(root: Path, at: str) -> None:
    (root / at).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(root / at)
    assert image_libraries.compat_driver(str(root)) is None


def test_files_of_any_kind_are_never_opened(root: Path) -> None:
    (root / COMPAT).mkdir(parents=True)
    os.mkfifo(root / COMPAT / "libcuda.so.550.54.15")
    assert image_libraries.compat_driver(str(root)) == "550.54.15"


def test_names_are_counted(root: Path) -> None:
    folder = root / "usr/lib"
    folder.mkdir(parents=True)
    for number in range(100_000):
        os.close(os.open(folder / f"x{number}", os.O_CREAT | os.O_WRONLY))
    started = time.perf_counter()
    assert image_libraries.cuda_libraries(str(root)) == []
    assert time.perf_counter() - started < 10
    assert len(image_root.names(str(root), "usr/lib")) == image_root.MAX_NAMES


def test_what_is_absent_is_not_there(root: Path, tmp_path: Path) -> None:
    assert image_libraries.compat_driver(str(root)) is None
    assert image_libraries.compat_driver(str(tmp_path / "nowhere")) is None
    assert image_libraries.cuda_libraries("") == []


def test_no_descriptor_stays_open(root: Path) -> None:
    put(root, f"{COMPAT}/libcuda.so.550.54.15", "usr/lib/libcudart.so.12")
    (root / "usr/lib64").symlink_to("lib64")
    before = os.listdir("/proc/self/fd")
    image_libraries.compat_driver(str(root))
    image_libraries.cuda_libraries(str(root))
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_directory_that_is_swapped_for_a_link_leads_nowhere(root: Path, tmp_path: Path) -> None:
    """Another container of the same root may do so at any moment."""
    put(root, f"{COMPAT}/libcuda.so.550.54.15")
    put(tmp_path / "host", "compat/libcuda.so.999.1")
    inside, link, real = root / "usr/local/cuda", root / "usr/local/link", root / "usr/local/real"
    link.symlink_to(tmp_path / "host")
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            inside.rename(real)
            link.rename(inside)
            inside.rename(link)
            real.rename(inside)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        found = {image_libraries.compat_driver(str(root)) for _ in range(3000)}
    finally:
        ended.set()
        swapper.join()
    assert found <= {"550.54.15", None}


@pytest.mark.parametrize("folder", ["lib.real", "lib"])
def test_compat_libraries_of_ngc_images_lie_a_folder_deeper(root: Path, folder: str) -> None:
    put(root, f"{COMPAT}/{folder}/libcuda.so.550.54.15")
    assert image_libraries.compat_driver(str(root)) == "550.54.15"


@pytest.mark.parametrize("odd", ["/x\0", "/\ud800"])
def test_a_root_that_is_no_path_holds_nothing(odd: str) -> None:
    assert image_libraries.compat_driver(odd) is None
