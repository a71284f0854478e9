"""The driver's libraries inside containers of many images, on real runc and crun, as a dlopen in them sees it."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from drivers.bundle import Bundle
from drivers.docker import Docker
from drivers.engine_host import ENVIRONMENT, LAUNCHERS, LOW_LEVEL, ON_CRUN, ON_RUNC, EngineHost
from drivers.host import Done
from drivers.image_tree import DEBIAN, DISTROLESS, PROGRAM, RED_HAT, ImageTree
from drivers.user_space import LIBRARIES, PROGRAMS, VERSION, UserSpace

pytestmark = pytest.mark.needs("sandbox", "root", "runc", "crun", "gcc", "ldconfig")

CUDA, ML = "libcuda.so.1", "libnvidia-ml.so.1"
OURS = {CUDA: VERSION, ML: VERSION, "libcuda.so": VERSION}
DRIVER = Path("/proc/driver/nvidia/version")
CACHE = Path("/etc/ld.so.cache")


@pytest.fixture(scope="module")
def runtimes() -> Mapping[str, Path]:
    return LOW_LEVEL


@pytest.fixture(scope="module")
def user_space(engine_host: EngineHost) -> UserSpace:
    """The driver's files on the host; what lies below /usr and /etc goes away with the host."""
    found = UserSpace(Path("/opt/nvidia"), Path("/usr/bin"))
    found.install()
    found.write_cache(CACHE)
    return found


class Box:
    """One container on one low-level runtime that opens the driver's libraries and says what it found."""

    def __init__(self, machine: EngineHost, runtime: str, folder: Path) -> None:
        self.machine, self.folder = machine, folder
        self._command = [str(LAUNCHERS / runtime), "--root", f"/run/test-driver-{runtime}"]
        self.bundle = Bundle(folder).asking_for("any:1")

    def image(self, kind: str = DEBIAN) -> ImageTree:
        """Give the container an image of a kind; it can write into it."""
        tree = ImageTree(self.folder / "image", kind)
        self.bundle.spec["root"] = {"path": str(tree.root), "readonly": False}
        self.bundle.running(PROGRAM, *OURS)
        return tree

    def run(self) -> Done:
        return self.machine.host.run([*self._command, "run", "--bundle", str(self.bundle.path), "c1"], env=ENVIRONMENT)

    def versions(self) -> dict[str, str]:
        """The version of each library that a program in the container gets."""
        done = self.run()
        assert done.returncode == 0, done.stderr
        return dict(line.split() for line in done.stdout.splitlines())

    def event(self) -> dict[str, Any]:
        return self.machine.host.events("c1")[-1]

    def refused(self) -> str:
        """The one line of a refusal."""
        done = self.run()
        assert (done.returncode, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        assert "(GL-3004)" in line
        return line


@pytest.fixture(params=[ON_RUNC, ON_CRUN])
def box(request: pytest.FixtureRequest, engine_host: EngineHost, user_space: UserSpace, tmp_path: Path) -> Box:
    return Box(engine_host, request.param, tmp_path)


@pytest.fixture
def on_runc(engine_host: EngineHost, user_space: UserSpace, tmp_path: Path) -> Box:
    """For what is decided before the low-level runtime starts."""
    return Box(engine_host, ON_RUNC, tmp_path)


@pytest.fixture
def setting() -> Iterator[Path]:
    """The settings file, absent again afterwards."""
    yield Path("/etc/gpulatch/config.toml")
    Path("/etc/gpulatch/config.toml").unlink(missing_ok=True)


def own(setting: Path, value: str = "own") -> None:
    setting.write_text(f'[defaults]\ndriver_files = "{value}"\n')


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("kind", [DEBIAN, RED_HAT, DISTROLESS])
def test_a_program_gets_the_hosts_driver(box: Box, kind: str, readonly: bool) -> None:
    box.image(kind)
    box.bundle.spec["root"]["readonly"] = readonly
    box.bundle.save()
    assert box.versions() == OURS
    assert box.event()["notes"] == []


def test_every_name_is_there_and_read_only_and_told(box: Box) -> None:
    tree = box.image()
    script = "cd /usr/lib/x86_64-linux-gnu; ls; ls /usr/bin; echo x >> libcuda.so.1 || echo refused"
    box.bundle.running("sh", "-c", script)
    done = box.run()
    names = {f"{stem}.so.{VERSION}" for stem in LIBRARIES} | set(LIBRARIES.values()) | {"libcuda.so", *PROGRAMS}
    assert {*done.stdout.split(), *tree.names()} >= {*names, "refused"}
    assert [line for line in box.event()["edits"] if "driver file" in line] == [
        f"{len(names) - len(PROGRAMS)} driver files of {VERSION} mounted below /usr/lib/x86_64-linux-gnu",
        f"{len(PROGRAMS)} driver files mounted below /usr/bin",
    ]
    (mount,) = [one for one in box.bundle.on_disk()["mounts"] if one["destination"].endswith("libcuda.so.1")]
    assert mount["options"] == ["ro", "nosuid", "nodev", "bind"]
    assert mount["source"] == f"/opt/nvidia/lib/libcuda.so.{VERSION}"


def test_an_old_library_in_the_default_folder_is_covered(box: Box) -> None:
    tree = box.image()
    tree.old_library(f"usr/lib/x86_64-linux-gnu/{CUDA[:-2]}.470.1")
    tree.ldconfig()
    assert os.readlink(tree.folder / CUDA) == "libcuda.so.470.1"
    assert box.versions() == OURS


def test_an_old_library_that_the_cache_names_elsewhere_is_covered(box: Box) -> None:
    tree = box.image()
    tree.old_library("opt/old/libcuda.so.470.1")
    tree.old_library("usr/local/cuda/compat/libnvidia-ml.so.470.1", ML)
    tree.ldconfig("/opt/old", "/usr/local/cuda/compat")
    assert box.versions() == OURS


def test_an_old_library_for_better_processors_is_covered(box: Box) -> None:
    box.image().old_library("usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v2/libcuda.so.1")
    assert box.versions() == OURS


def test_a_newer_compat_library_that_works_here_is_kept(box: Box) -> None:
    tree = box.image()
    tree.old_library("usr/local/cuda-12.8/compat/libcuda.so.570.86.15", version="570.86.15")
    tree.ldconfig("/usr/local/cuda-12.8/compat")
    assert box.versions() == {CUDA: "570.86.15", ML: VERSION, "libcuda.so": VERSION}
    assert box.event()["notes"] == [
        "the image's compat libraries in /usr/local/cuda-12.8/compat are found first and kept"
    ]


@pytest.mark.parametrize(
    ("link", "there"),
    [
        ("libcuda.so.470", False),
        ("libcuda.so.470", True),
        ("/opt/old/libcuda.so.470", False),
        ("/opt/old/libcuda.so.470", True),
        ("../../../../../../../opt/libcuda.so.470", True),
        ("../../../../../../../opt/libcuda.so.470", False),
    ],
)
def test_a_link_under_the_librarys_name_is_followed_inside_the_image(box: Box, link: str, there: bool) -> None:
    tree = box.image()
    (tree.folder / CUDA).symlink_to(link)
    if there:
        inside = link.replace("../", "") if ".." in link else link
        tree.old_library(inside.lstrip("/") if "/" in link else f"usr/lib/x86_64-linux-gnu/{link}")
    assert box.versions() == OURS
    assert not Path("/opt/libcuda.so.470").exists()


@pytest.mark.parametrize("kind", ["directory", "loop", "fifo"])
def test_what_cannot_be_covered_refuses_the_container_if_it_is_required(on_runc: Box, kind: str) -> None:
    tree = on_runc.image()
    if kind == "directory":
        (tree.folder / CUDA).mkdir()
    elif kind == "loop":
        (tree.folder / CUDA).symlink_to(CUDA)
    else:
        os.mkfifo(tree.folder / CUDA)
    line = on_runc.refused()
    assert f"driver library {CUDA}" in line
    assert "no regular file" in line
    assert on_runc.machine.host.claims() == []


def test_what_is_not_required_is_left_out_with_a_note(box: Box) -> None:
    (box.image().folder / "libnvidia-cfg.so.1").mkdir()
    assert box.versions() == OURS
    assert box.event()["notes"] == ["driver files not mounted (libnvidia-cfg.so.1): it is no regular file in the image"]


@pytest.mark.parametrize("value", ["auto", "own"])
def test_an_image_with_musl_gets_none(box: Box, setting: Path, value: str) -> None:
    own(setting, value)
    root = Path(box.bundle.spec["root"]["path"])
    (root / "lib").mkdir()
    (root / "lib/ld-musl-x86_64.so.1").touch()
    box.bundle.running("true")
    assert box.run().returncode == 0
    note = "no driver files: the image has musl, and the driver's libraries need glibc"
    assert box.event()["notes"] == [note]


def test_a_static_image_gets_none(on_runc: Box) -> None:
    assert on_runc.bundle.running("true")
    assert on_runc.run().returncode == 0
    assert on_runc.event()["notes"] == ["no driver files: the image has no glibc"]


def test_what_the_engine_mounts_is_kept(box: Box, setting: Path, tmp_path: Path) -> None:
    tree = box.image()
    theirs = tree.old_library("../theirs.so", version="999.1")
    box.bundle.mounting(f"/usr/lib/x86_64-linux-gnu/{CUDA}", str(theirs), "ro", "bind")
    assert box.versions() == {CUDA: "999.1", ML: "-", "libcuda.so": "-"}
    assert box.event()["notes"] == [f'driver files: those that the spec mounts are kept ("{CUDA}")']
    own(setting)
    box.bundle.save()
    assert box.versions() == OURS


@pytest.mark.parametrize("options", [("ro", "rbind"), ("rw", "rbind")])
def test_a_volume_over_the_library_folder_is_named(on_runc: Box, tmp_path: Path, options: tuple[str, ...]) -> None:
    on_runc.image()
    (tmp_path / "volume").mkdir()
    on_runc.bundle.mounting("/lib/x86_64-linux-gnu", str(tmp_path / "volume"), *options)
    line = on_runc.refused()
    assert 'a mount of the container on "/usr/lib/x86_64-linux-gnu" covers it' in line
    assert list((tmp_path / "volume").iterdir()) == []


def test_a_read_only_volume_that_has_the_names_is_covered(box: Box, tmp_path: Path) -> None:
    """As people mount the whole library folder of their host."""
    tree = box.image()
    assert box.versions() == OURS  # leaves the names in the image
    box.bundle.save()
    box.bundle.mounting("/usr/lib/x86_64-linux-gnu", str(tree.folder), "ro", "rbind")
    assert box.versions() == OURS


def test_a_root_file_system_that_cannot_be_written(box: Box, setting: Path) -> None:
    tree = box.image()
    subprocess.run(["mount", "--bind", str(tree.root), str(tree.root)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(tree.root)], check=True)
    try:
        assert set(box.versions().values()) == {"-"}
        (note,) = box.event()["notes"]
        assert "mounted read-only" in note
        own(setting)
        box.bundle.save()
        assert "the root file system is mounted read-only" in box.refused()
        subprocess.run(["mount", "-o", "remount,bind,rw", str(tree.root)], check=True)
        assert box.versions() == OURS
        subprocess.run(["mount", "-o", "remount,bind,ro", str(tree.root)], check=True)
        box.bundle.save()
        assert box.versions() == OURS  # now the names are there
    finally:
        subprocess.run(["umount", str(tree.root)], check=True)


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ("utility", {CUDA: "-", ML: VERSION, "libcuda.so": "-"}),
        ("compute", {CUDA: VERSION, ML: "-", "libcuda.so": VERSION}),
        ("all", OURS),
        ("graphics,video", dict.fromkeys(OURS, "-")),
    ],
)
def test_capabilities_choose(on_runc: Box, capabilities: str, expected: dict[str, str]) -> None:
    on_runc.image()
    on_runc.bundle.env(f"NVIDIA_DRIVER_CAPABILITIES={capabilities}")
    assert on_runc.versions() == expected


def test_none_mounts_none(on_runc: Box, setting: Path) -> None:
    own(setting, "none")
    on_runc.image()
    assert set(on_runc.versions().values()) == {"-"}
    assert on_runc.event()["notes"] == []


def test_a_container_without_gpus_gets_none(on_runc: Box) -> None:
    on_runc.image()
    on_runc.bundle.env("GPULATCH_GPUS=none")
    assert set(on_runc.versions().values()) == {"-"}


@pytest.mark.parametrize("value", ["auto", "own"])
def test_libraries_of_another_version_refuse_the_container(on_runc: Box, setting: Path, value: str) -> None:
    own(setting, value)
    on_runc.image()
    before = DRIVER.read_text()
    DRIVER.write_text(before.replace(VERSION, "570.86.15"))
    try:
        line = on_runc.refused()
    finally:
        DRIVER.write_text(before)
    assert f"the loaded driver is 570.86.15, the host's libraries are of {VERSION}" in line


def test_a_host_without_libraries(on_runc: Box, setting: Path, user_space: UserSpace) -> None:
    on_runc.image()
    cache = CACHE.read_bytes()
    CACHE.write_bytes(b"")
    try:
        assert set(on_runc.versions().values()) == {"-"}
        (note,) = on_runc.event()["notes"]
        assert note == f"no driver files: no {CUDA}, {ML} of {VERSION} on this host"
        own(setting)
        on_runc.bundle.save()
        assert f"/etc/ld.so.cache: no {CUDA}, {ML} of {VERSION} on this host; " in on_runc.refused()
    finally:
        CACHE.write_bytes(cache)


def test_an_upgrade_of_the_driver_reaches_the_next_container(on_runc: Box, user_space: UserSpace) -> None:
    on_runc.image()
    assert on_runc.versions() == OURS
    library, before = user_space.lib / f"libcuda.so.{VERSION}", DRIVER.read_text()
    library.rename(library.with_name("away"))
    on_runc.bundle.save()
    try:
        assert on_runc.versions() == {CUDA: "-", ML: VERSION, "libcuda.so": "-"}
        (note,) = on_runc.event()["notes"]
        assert note == f"driver files: no {CUDA} of {VERSION} on this host"
        user_space.install("570.86.15")
        user_space.write_cache(CACHE)
        DRIVER.write_text(before.replace(VERSION, "570.86.15"))
        on_runc.bundle.save()
        assert set(on_runc.versions().values()) == {"570.86.15"}
    finally:
        library.with_name("away").rename(library)
        user_space.remove("570.86.15")
        user_space.write_cache(CACHE)
        DRIVER.write_text(before)


def test_resolve_shows_the_mounts(on_runc: Box) -> None:
    on_runc.image()
    config = str(on_runc.bundle.config)
    shown = json.loads(on_runc.machine.host.gpulatch("resolve", "--config", config, "--print-spec").stdout)
    assert any(mount["destination"].endswith(f"/{CUDA}") for mount in shown["mounts"])
    on_runc.versions()
    assert shown["mounts"] == on_runc.bundle.on_disk()["mounts"]


def import_image(docker: Docker, folder: Path) -> None:
    ImageTree(folder / "image")
    archive = folder / "image.tar"
    subprocess.run(["tar", "-C", str(folder / "image"), "-cf", str(archive), "."], check=True)
    docker.run("import", str(archive), "dynamic:latest")


def test_docker_run_and_exec(docker: Docker, user_space: UserSpace, tmp_path: Path) -> None:
    import_image(docker, tmp_path)
    for name, options in {"plain": [], "readonly": ["--read-only"], "user": ["--user", "1000"]}.items():
        words = ["run", "--detach", "--name", name, "--runtime", ON_RUNC, "--gpus", "1", *options]
        docker.run(*words, "dynamic", "/bin/sleep", "1000")
        told = dict(line.split() for line in docker.inside(name, PROGRAM, *OURS).splitlines())
        assert told == OURS, name


def test_docker_shows_the_refusal(docker: Docker, user_space: UserSpace, tmp_path: Path) -> None:
    import_image(docker, tmp_path)
    volume = ["--volume", f"{tmp_path}:/usr/lib/x86_64-linux-gnu:ro"]
    words = ["run", "--detach", "--name", "hidden", "--runtime", ON_RUNC, "--gpus", "1", *volume]
    done = docker.call(*words, "dynamic", "/bin/sleep", "1000")
    assert done.returncode != 0
    assert "(GL-3004)" in done.stderr
