import os
from pathlib import Path

import pytest

from runtime_wrapper import trust
from runtime_wrapper.errors import UntrustedPathError

pytestmark = pytest.mark.needs("root")


def test_a_private_directory_is_made_with_0700(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        os.close(trust.open_private_directory(str(tmp_path / "state"), "state directory", create=True))
    finally:
        os.umask(before)
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["mode", "owner", "link", "file"])
def test_a_foreign_private_directory_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "state"
    if kind == "file":
        path.write_text("")
    elif kind == "link":
        (tmp_path / "real").mkdir(mode=0o700)
        path.symlink_to("real")
    else:
        path.mkdir(mode=0o755 if kind == "mode" else 0o700)
        if kind == "owner":
            os.chown(path, 1000, 1000)
    with pytest.raises(UntrustedPathError, match=str(path)):
        trust.open_private_directory(str(path), "state directory", create=True)


def test_a_parent_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UntrustedPathError, match="ENOENT"):
        trust.open_private_directory(str(tmp_path / "a/b"), "state directory", create=True)


@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "hard link", "owner", "group mode"])
def test_only_a_plain_file_of_root_is_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.write_text("x")
        if kind == "link":
            path.rename(tmp_path / "real")
            path.symlink_to("real")
        elif kind == "hard link":
            os.link(path, tmp_path / "other")
        elif kind == "owner":
            os.chown(path, 1000, 1000)
        else:
            path.chmod(0o664)
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(UntrustedPathError):
            trust.read_file(directory, "file", "file", str(path))
    finally:
        os.close(directory)


def test_descriptors_are_not_inherited_and_none_is_leaked_on_refusal(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with pytest.raises(UntrustedPathError):
            trust.open_private_directory(str(tmp_path / "state"), "state directory", create=False)
    assert len(os.listdir("/proc/self/fd")) == before
    fd = trust.open_directory(str(tmp_path), "directory")
    assert not os.get_inheritable(fd)
    os.close(fd)


@pytest.mark.parametrize("kind", ["link", "dangling link", "fifo", "file", "mode", "owner"])
def test_a_directory_in_an_open_one_is_rooted_there_and_no_link(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "inner"
    if kind in ("link", "dangling link"):
        path.symlink_to("/etc" if kind == "link" else "nowhere")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "file":
        path.write_text("")
    else:
        path.mkdir()
        os.chmod(path, 0o775 if kind == "mode" else 0o755)
        os.chown(path, 1000 if kind == "owner" else 0, 0)
    outer = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(UntrustedPathError, match="inner directory, /there/inner: "):
        trust.open_subdirectory(outer, "inner", "inner directory", "/there/inner")
    with pytest.raises(FileNotFoundError):
        trust.open_subdirectory(outer, "nothing", "inner directory", "/there/nothing")
    os.close(outer)
