"""Requests in the words of CDI, mount lists, Swarm and old images, on real runc, Docker and containerd."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from drivers.bundle import Bundle
from drivers.containerd import Containerd
from drivers.docker import CUDA, Docker
from drivers.host import Host

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc", "cc")

ALL = list(range(8))
SETTINGS = Path("/etc/gpulatch/config.toml")
ON = """[defaults]
sources = ["annotation", "docker", "volume_mounts", "swarm", "gpulatch_gpus", "nvidia_visible_devices", "legacy_image"]
swarm_resources = ["DOCKER_RESOURCE_NVIDIA-GPU"]
"""
LIST = "/var/run/nvidia-container-devices"
GPU_NODES = [f"/host-dev/nvidia{minor}" for minor in range(8)]


def opened(host: Host, container: str) -> list[int]:
    """The GPUs, by index, that the kernel lets the container open."""
    answers = host.open_inside(container, GPU_NODES)
    indices = {gpu["minor"]: gpu["index"] for gpu in json.loads(host.gpulatch("probe", "--json").stdout)["gpus"]}
    return sorted(indices[minor] for minor, path in enumerate(GPU_NODES) if answers[path] == "ENXIO")


def started(host: Host, bundle: Bundle, name: str) -> dict[str, Any]:
    """The event of a container that starts and opens exactly the GPUs that are booked for it."""
    bundle = bundle if "/host-dev" in bundle.config.read_text() else bundle.with_host_dev()
    done = host.start(bundle.path, name)
    assert (done.returncode, done.stderr) == (0, "")
    assert opened(host, name) == sorted(host.held().get(name, []))
    return host.events(name)[-1]


def verdict(event: dict[str, Any], source: str) -> str:
    return next(str(said["verdict"]) for said in event["said"] if said["source"] == source)


@pytest.fixture
def set_on(host: Host) -> Iterator[None]:
    SETTINGS.parent.mkdir(exist_ok=True)
    SETTINGS.write_text(ON)
    yield


def test_a_cdi_annotation_gives_gpus_and_leaves_other_vendors_their_devices(host: Host, tmp_path: Path) -> None:
    bundle = Bundle(tmp_path, "a").annotated("cdi.k8s.io/p", "nvidia.com/gpu=3,vendor.com/nic=0")
    event = started(host, bundle, "a")
    assert host.held() == {"a": [3]}
    assert bundle.on_disk()["annotations"]["cdi.k8s.io/p"] == "vendor.com/nic=0"
    assert verdict(event, "cdi_annotations") == "counts"
    assert any("cdi.k8s.io/p" in edit for edit in event["edits"])


def test_a_cdi_device_of_our_own_gives_free_gpus(host: Host, tmp_path: Path) -> None:
    started(host, Bundle(tmp_path, "a").annotated("cdi.k8s.io/p", "gpulatch.io/gpu=any-2"), "a")
    started(host, Bundle(tmp_path, "b").env("GPULATCH_REQ_A=any:1", "GPULATCH_REQ_B=any:1"), "b")
    held = host.held()
    assert [len(held["a"]), len(held["b"])] == [2, 2]
    assert not set(held["a"]) & set(held["b"])


def test_a_foreign_cdi_device_leaves_the_spec_untouched(host: Host, tmp_path: Path) -> None:
    bundle = Bundle(tmp_path, "a").annotated("cdi.k8s.io/p", "vendor.com/nic=0")
    before = bundle.config.read_bytes()
    assert host.start(bundle.path, "a").returncode == 0
    assert bundle.config.read_bytes() == before
    assert host.held() == {}


@pytest.mark.usefixtures("set_on")
def test_a_mount_list_gives_its_gpus_and_goes(host: Host, tmp_path: Path) -> None:
    bundle = (
        Bundle(tmp_path, "a").mounting(f"{LIST}/2", "/dev/null", "rbind").mounting(f"{LIST}/5", "/dev/null", "rbind")
    )
    started(host, bundle.env("NVIDIA_VISIBLE_DEVICES=all"), "a")
    assert host.held() == {"a": [2, 5]}
    assert not [mount for mount in bundle.on_disk()["mounts"] if LIST in mount["destination"]]


def test_a_mount_list_is_a_mount_like_others_by_default(host: Host, tmp_path: Path) -> None:
    bundle = Bundle(tmp_path, "a").mounting(f"{LIST}/2", "/dev/null", "rbind").with_host_dev()
    before = bundle.config.read_bytes()
    event = started(host, bundle, "a")
    assert host.held() == {}
    assert verdict(event, "volume_mounts") == "left out: the setting sources does not name volume_mounts"
    assert bundle.config.read_bytes() == before


@pytest.mark.usefixtures("set_on")
def test_a_mount_list_that_goes_up_is_refused(host: Host, tmp_path: Path) -> None:
    done = host.start(Bundle(tmp_path, "a").mounting(f"{LIST}/1/../2", "/dev/null", "rbind").path, "a")
    assert done.returncode == 1
    assert f'token "{LIST}/1/../2"' in done.stderr


@pytest.mark.usefixtures("set_on")
def test_a_swarm_resource_comes_before_the_images_variable(host: Host, tmp_path: Path) -> None:
    uuid = json.loads(host.gpulatch("probe", "--json").stdout)["gpus"][4]["uuid"]
    bundle = Bundle(tmp_path, "a").env("NVIDIA_VISIBLE_DEVICES=all", f"DOCKER_RESOURCE_NVIDIA-GPU={uuid}")
    event = started(host, bundle, "a")
    assert host.held() == {"a": [4]}
    assert verdict(event, "nvidia_visible_devices") == "not reached: an earlier place counts"


def test_a_swarm_resource_that_is_no_gpu_starts_whatever_is_wrong_with_the_settings(host: Host, tmp_path: Path) -> None:
    SETTINGS.parent.mkdir(exist_ok=True)
    SETTINGS.write_text("broken")
    bundle = Bundle(tmp_path, "a").env("DOCKER_RESOURCE_SSD=fast")
    before = bundle.config.read_bytes()
    assert host.start(bundle.path, "a").returncode == 0
    assert bundle.config.read_bytes() == before


def test_an_old_cuda_image_gets_all_gpus_with_every_capability(host: Host, tmp_path: Path) -> None:
    bundle = Bundle(tmp_path, "a").env("CUDA_VERSION=9.0")
    started(host, bundle, "a")
    assert host.held() == {"a": ALL}
    assert "/dev/nvidia-modeset" in [node["path"] for node in bundle.on_disk()["linux"]["devices"]]


def test_a_cdi_name_in_nvidias_variable_is_that_gpu(host: Host, tmp_path: Path) -> None:
    started(host, Bundle(tmp_path, "a").env("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=6,1"), "a")
    assert host.held() == {"a": [6, 1]}


def test_what_is_not_enforced_is_kept_and_said(host: Host, tmp_path: Path) -> None:
    event = started(host, Bundle(tmp_path, "a").asking_for("any:1+memory=8g+wait=30s"), "a")
    assert event["notes"][:2] == [
        "option memory=8192 MiB: kept with the claim, not enforced yet",
        "option wait=30 s: kept with the claim, not enforced yet",
    ]
    (claim,) = json.loads(Path("/run/gpulatch/ledger.json").read_text())["claims"]
    assert claim["memory_mib"] == 8192


def test_a_mig_profile_is_refused_in_one_line(host: Host, tmp_path: Path) -> None:
    done = host.start(Bundle(tmp_path, "a").env("NVIDIA_MIG_CONFIG=1g.10gb").path, "a")
    assert done.returncode == 1
    assert "MIG instances cannot be asked for yet" in done.stderr
    assert done.stderr.count("\n") == 1


def test_docker_containers_ask_by_mount_and_by_swarm_resource(docker: Docker) -> None:
    SETTINGS.parent.mkdir(exist_ok=True)
    SETTINGS.write_text(ON)
    try:
        docker.started("mounted", "--volume", f"/dev/null:{LIST}/1", "--volume", f"/dev/null:{LIST}/6", image=CUDA)
        docker.started("replica", "--env", "DOCKER_RESOURCE_NVIDIA-GPU=3", image=CUDA)
        docker.started("given-none", "--env", "DOCKER_RESOURCE_NVIDIA-GPU=", image=CUDA)
    finally:
        SETTINGS.unlink()
    gpus = {"mounted": [1, 6], "replica": [3]}
    assert {name: sorted(held) for name, held in docker.held().items()} == gpus
    assert {name: docker.opens(name) for name in (*gpus, "given-none")} == {**gpus, "given-none": []}
    assert docker.call("exec", "mounted", "ls", LIST).returncode != 0


def test_docker_containers_ask_by_several_variables_and_old_images(docker: Docker) -> None:
    docker.started("several", "--env", "GPULATCH_REQ_A=any:1", "--env", "GPULATCH_REQ_B=any:1")
    docker.started("old", "--env", "CUDA_VERSION=9.0")
    held = docker.held()
    assert len(held["several"]) == 2
    assert held["old"] == [index for index in ALL if index not in held["several"]]
    assert {name: docker.opens(name) for name in held} == held


def test_ctr_asks_by_cdi_annotation(containerd: Containerd) -> None:
    containerd.started("noted", "--annotation", "cdi.k8s.io/plugin_x=nvidia.com/gpu=5", image=CUDA)
    assert containerd.held() == {"noted": [5]}
    assert containerd.opens("noted") == [5]
