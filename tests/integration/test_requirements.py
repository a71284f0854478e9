"""What an image requires of driver and GPUs, on real runc: refused, allowed, switched off, foreseen, told."""

import json
import os
import shutil
from pathlib import Path

import pytest
from drivers.bundle import Bundle
from drivers.host import Done, Host

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc")

DRIVER = "550.54.15"


def with_driver(version: str) -> None:
    path = Path("/proc/driver/nvidia/version")
    path.write_text(path.read_text().replace(DRIVER, version))


def root_fs(bundle: Bundle) -> Path:
    return Path(bundle.spec["root"]["path"])


def test_a_requirement_that_is_not_met_refuses_with_one_line(host: Host, bundle: Bundle, tmp_path: Path) -> None:
    bundle.asking_for("any:2").env("NVIDIA_REQUIRE_CUDA=cuda>=13.0 brand=geforce,driver>=550,driver<551")
    before, log = bundle.config.read_bytes(), tmp_path / "log.json"
    done = host.runtime("--log", str(log), "--log-format", "json", "run", "--bundle", str(bundle.path), "c1")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line == json.loads(log.read_text())["msg"]
    for part in ("cuda>=13.0", "env NVIDIA_REQUIRE_CUDA", DRIVER, "CUDA up to 12.4", "580.65.06", "(GL-2004)"):
        assert part in line
    assert "NVIDIA_DISABLE_REQUIRE=1" in line
    assert bundle.config.read_bytes() == before
    assert bundle.files() == ["config.json"]
    (event,) = host.events("c1")
    assert (event["kind"], event["error"]["message"], event["devices"]) == ("refused", line, [])


def test_a_refused_container_never_came_to_runc(host: Host, bundle: Bundle) -> None:
    host.start(bundle.asking_for("any:1").env("CUDA_VERSION=13.0").path, "c1")
    assert host.containers() == []


def test_a_refused_container_keeps_no_gpu(host: Host, tmp_path: Path) -> None:
    refused = Bundle(tmp_path, "a").asking_for("any:8").env("CUDA_VERSION=13.0.1")
    assert host.start(refused.path, "a").returncode == 1
    assert host.claims() == []
    assert host.start(Bundle(tmp_path, "b").asking_for("any:8").path, "b").returncode == 0
    assert len(host.held()["b"]) == 8


@pytest.mark.parametrize(
    "env",
    [
        ["NVIDIA_REQUIRE_CUDA=cuda>=12.4", "CUDA_VERSION=12.4.1"],
        ["NVIDIA_REQUIRE_CUDA=cuda>=13.0 brand=tesla,driver>=550,driver<551"],
        ["CUDA_VERSION=12.9.1"],
        ["CUDA_VERSION=cu121"],
        ["NVIDIA_REQUIRE_CUDA=cuda>=13.0", "NVIDIA_DISABLE_REQUIRE=1"],
        ["NVIDIA_REQUIRE_CUDA=cuda>=13.0", "NVIDIA_REQUIRE_CUDA=cuda>=12.0"],
    ],
)
def test_what_is_met_or_switched_off_starts(host: Host, bundle: Bundle, env: list[str]) -> None:
    done = host.start(bundle.asking_for("any:1").env(*env).path, "c1")
    assert (done.returncode, done.stderr) == (0, "")
    assert list(host.held()) == ["c1"]


def test_the_event_says_what_was_checked(host: Host, bundle: Bundle) -> None:
    bundle.asking_for("any:1").env("NVIDIA_REQUIRE_CUDA=cuda>=12.4", "CUDA_VERSION=12.8.1")
    assert host.start(bundle.path, "c1").returncode == 0
    (event,) = host.events("c1")
    assert event["notes"][:2] == [
        f'requirement "cuda>=12.4", env NVIDIA_REQUIRE_CUDA: met by driver {DRIVER}, which runs CUDA up to 12.4, GPU '
        "brand nvidia or tesla, arch 8.0",
        f'CUDA 12.8 of the image, env CUDA_VERSION="12.8.1": runs on driver {DRIVER}, by minor-version compatibility',
    ]
    assert "require" in event["phases_ms"]
    assert "by minor-version compatibility" in host.gpulatch("explain", "c1").stdout


def test_a_container_that_says_nothing_is_not_looked_at(host: Host, bundle: Bundle) -> None:
    assert host.start(bundle.asking_for("any:1").path, "c1").returncode == 0
    (event,) = host.events("c1")
    assert "require" not in event["phases_ms"]


def test_without_a_gpu_request_nothing_is_checked(host: Host, bundle: Bundle) -> None:
    bundle.env("NVIDIA_REQUIRE_CUDA=cuda>=99", "CUDA_VERSION=99.9")
    assert host.start(bundle.path, "c1").returncode == 0


def test_a_gpu_container_without_gpus_is_checked_by_the_driver(host: Host, bundle: Bundle) -> None:
    bundle.asking_for("none", "NVIDIA_VISIBLE_DEVICES").env("NVIDIA_REQUIRE_CUDA=cuda>=13.0")
    assert "GL-2004" in host.start(bundle.path, "c1").stderr


def test_observe_mode_refuses_nothing_and_says_what_it_would(host: Host, bundle: Bundle) -> None:
    Path("/etc/gpulatch/config.toml").write_text('[runtime.gpulatch-runtime]\nmode = "observe"\n')
    done = host.start(bundle.asking_for("any:1").env("NVIDIA_REQUIRE_CUDA=cuda>=13.0").path, "c1")
    assert (done.returncode, done.stderr) == (0, "")
    (event,) = host.events("c1")
    assert (event["kind"], event["error"]["code"]) == ("passed", "GL-2004")


def resolve(host: Host, bundle: Bundle, *more: str) -> Done:
    return host.gpulatch("resolve", "--config", str(bundle.config), *more)


def test_resolve_foresees_the_refusal(host: Host, bundle: Bundle) -> None:
    bundle.asking_for("any:1").env("NVIDIA_REQUIRE_CUDA=cuda>=13.0")
    foreseen = json.loads(resolve(host, bundle, "--json").stdout)
    assert foreseen["error"]["code"] == "GL-2004"
    assert foreseen["error"]["message"] == host.start(bundle.path, "c1").stderr.strip()


def test_resolve_tells_what_was_checked(host: Host, bundle: Bundle) -> None:
    done = resolve(host, bundle.asking_for("any:1").env("NVIDIA_REQUIRE_CUDA=cuda>=12.0"))
    assert done.returncode == 0
    assert "met by driver 550.54.15" in done.stdout


def test_resolve_for_a_described_machine_knows_no_driver(host: Host, bundle: Bundle) -> None:
    bundle.asking_for("any:1").env("NVIDIA_REQUIRE_CUDA=cuda>=99.0")
    machine = str(Path(__file__).parent.parent.parent / "runtime_wrapper/operate/machines/dgx_a100.json")
    done = resolve(host, bundle, "--machine", machine)
    assert (done.returncode, "could not be checked" in done.stdout) == (0, True)


# The image's root file system


@pytest.fixture
def own_root(bundle: Bundle, tmp_path: Path) -> Path:
    """A root file system that a test may change."""
    shutil.copytree(root_fs(bundle), tmp_path / "own", symlinks=True)
    bundle.spec["root"]["path"] = str(tmp_path / "own")
    bundle.save()
    return tmp_path / "own"


def test_the_images_compat_libraries_carry_a_newer_cuda(host: Host, bundle: Bundle, own_root: Path) -> None:
    with_driver("470.82.01")
    bundle.asking_for("any:1").env("CUDA_VERSION=12.4.1")
    assert "needs driver 525.60.13" in host.start(bundle.path, "a").stderr
    folder = own_root / "usr/local/cuda-12.4/compat"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.550.54.15").touch()
    (own_root / "usr/local/cuda").symlink_to("/usr/local/cuda-12.4")
    done = host.start(bundle.path, "b")
    assert (done.returncode, done.stderr) == (0, "")
    (event,) = host.events("b")
    assert event["notes"][1].startswith("its compat libraries 550.54.15 can be used")


def test_compat_libraries_of_the_host_are_not_the_images(host: Host, bundle: Bundle, own_root: Path) -> None:
    """CVE-2024-0132: a link in the image that leads to the host."""
    with_driver("470.82.01")
    Path("/run/host-cuda/compat").mkdir(parents=True)
    Path("/run/host-cuda/compat/libcuda.so.550.54.15").touch()
    (own_root / "usr/local").mkdir(parents=True)
    for target in ("/run/host-cuda", "../" * 40 + "run/host-cuda", "/proc/self/root/run/host-cuda"):
        link = own_root / "usr/local/cuda"
        link.symlink_to(target)
        bundle.spec["process"]["env"] = ["PATH=/bin"]
        done = host.start(bundle.asking_for("any:1").env("CUDA_VERSION=12.4.1").path, "c1")
        assert "needs driver 525.60.13" in done.stderr
        assert "compat" not in done.stderr
        link.unlink()


def test_a_hostile_root_stops_nothing(host: Host, bundle: Bundle, own_root: Path) -> None:
    (own_root / "usr").mkdir(exist_ok=True)
    os.mkfifo(own_root / "usr/lib")
    (own_root / "usr/local").symlink_to("local")
    (own_root / "usr/lib64").symlink_to("../../usr/lib64/x")
    done = host.start(bundle.asking_for("any:1").env("NVIDIA_REQUIRE_CUDA=cuda>=12.0").path, "c1")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_root_of_a_hundred_thousand_names_does_not_hold_up_the_others(
    host: Host, bundle: Bundle, own_root: Path
) -> None:
    folder = own_root / "usr/lib"
    folder.mkdir(parents=True)
    for number in range(100_000):
        os.close(os.open(folder / f"libcudart.so.x{number}", os.O_CREAT | os.O_WRONLY))
    done = host.start(bundle.asking_for("any:1").env("NVIDIA_REQUIRE_CUDA=cuda>=12.0").path, "c1")
    assert (done.returncode, done.stderr) == (0, "")
    (event,) = host.events("c1")
    assert event["phases_ms"]["lock"] < 1000 > event["phases_ms"]["choose"]
