"""The setting `driver_files = "cdi"`: a container gets the files that a CDI spec names, on real runc."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from drivers.bundle import Bundle
from drivers.host import Host

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc")

SETTINGS = Path("/etc/gpulatch/config.toml")
SPEC = Path("/etc/cdi/nvidia.yaml")
LIBRARY = Path("/run/test-driver/libcuda.so.1")
INSIDE = "/usr/lib/libcuda.so.1"


@pytest.fixture
def cdi(host: Host) -> Iterator[Host]:
    """A host with a CDI spec of NVIDIA's kind that names a library, compiled, and the setting."""
    LIBRARY.parent.mkdir()
    LIBRARY.write_text("the driver's\n")
    SETTINGS.write_text('[defaults]\ndriver_files = "cdi"\n')
    assert host.gpulatch("cdi", "generate", "--nvidia", "--output", str(SPEC)).returncode == 0
    mount = f"{{hostPath: {LIBRARY}, containerPath: {INSIDE}, options: [ro, nosuid, nodev, bind]}}"
    hook = "{hookName: createContainer, path: /bin/touch, args: [touch, /run/test-driver/hooked]}"
    with SPEC.open("a") as file:
        file.write(f"  mounts: [{mount}]\n  hooks: [{hook}]\n")
    done = host.gpulatch("cdi", "compile")
    assert (done.returncode, done.stderr) == (0, "")
    yield host
    host.run(["rm", "-rf", str(SPEC), str(SETTINGS), str(LIBRARY.parent)])


def test_a_container_gets_the_files_and_exactly_its_gpus(cdi: Host, bundle: Bundle) -> None:
    bundle.asking_for("any:2")
    done = cdi.start(bundle.path, "c1")
    assert (done.returncode, done.stderr) == (0, "")
    inside = cdi.run(["runc", "--root", "/run/test-runc", "exec", "c1", "cat", INSIDE])
    assert inside.stdout == "the driver's\n"
    assert (LIBRARY.parent / "hooked").exists()
    spec = bundle.on_disk()
    paths = [node["path"] for node in spec["linux"]["devices"] if "nvidia" in node["path"]]
    assert len(paths) == len(set(paths)) == 5  # two GPUs and three control nodes
    (event,) = cdi.events("c1")
    assert any(str(Path(INSIDE).parent) in edit for edit in event["edits"])


def test_resolve_says_so_beforehand(cdi: Host, bundle: Bundle) -> None:
    bundle.asking_for("any:2")
    done = cdi.gpulatch("resolve", "--config", str(bundle.config), "--print-spec")
    assert INSIDE in done.stdout


def test_specs_that_have_changed_since_are_refused_and_book_nothing(cdi: Host, bundle: Bundle) -> None:
    SPEC.write_text(SPEC.read_text() + "\n")
    bundle.asking_for("any:2")
    before = bundle.config.read_bytes()
    done = cdi.start(bundle.path, "c1")
    assert done.returncode == 1
    assert f"{SPEC} has changed since; run: gpulatch cdi compile (GL-7003)" in done.stderr
    assert cdi.claims() == []
    assert bundle.config.read_bytes() == before
    assert cdi.gpulatch("cdi", "compile").returncode == 0
    assert cdi.start(bundle.path, "c1").returncode == 0


def test_a_container_without_a_request_does_not_need_them(cdi: Host, bundle: Bundle) -> None:
    SPEC.unlink()
    assert cdi.start(bundle.path, "c1").returncode == 0
    assert INSIDE not in str(bundle.on_disk()["mounts"])
