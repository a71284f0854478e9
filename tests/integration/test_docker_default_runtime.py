"""gpulatch as Docker's default runtime: who asks for no GPU notices nothing, and many at once is no trouble."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from drivers.docker import BOX, CUDA, Docker

pytestmark = pytest.mark.needs("sandbox", "root", "runc", "cc")

# What Docker makes anew for each container: its id, longer or shorter, ids of layers and sandboxes, and dockerd's pid.
VOLATILE = re.compile(rb"[0-9a-f]{64}|[0-9a-f]{12}|/proc/\d+/exe")


@pytest.fixture(autouse=True, scope="module")
def as_default(dockerd: Docker) -> Iterator[None]:
    dockerd.restart(**{"default-runtime": "gpulatch"})
    yield


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--env", "NVIDIA_VISIBLE_DEVICES=void"],
        ["--network", "none", "--read-only", "--user", "1000", "--cap-drop", "ALL", "--init"],
        ["--gpus", "0"],
        ["--privileged"],
        ["--volume", "/dev:/dev"],
    ],
    ids=" ".join,
)
def test_a_container_without_a_request_is_as_under_plain_runc(docker: Docker, options: list[str]) -> None:
    specs = {}
    for runtime in ("runc", "gpulatch"):
        docker.run("run", "--detach", "--name", "same", "--hostname", "same", "--runtime", runtime, *options, BOX)
        bundle = docker.bundle("same")
        assert sorted(path.name for path in bundle.iterdir() if path.name.startswith("config")) == ["config.json"]
        specs[runtime] = VOLATILE.sub(b"X", (bundle / "config.json").read_bytes())
        docker.remove_all()
    assert specs["gpulatch"] == specs["runc"]
    assert docker.held() == {}


def test_the_comparison_sees_a_request(docker: Docker) -> None:
    docker.run("run", "--detach", "--name", "asks", "--gpus", "1", BOX)
    bundle = docker.bundle("asks")
    assert (bundle / "config.gpulatch.json").exists()
    environment = json.loads((bundle / "config.json").read_bytes())["process"]["env"]
    assert "NVIDIA_VISIBLE_DEVICES=void" in environment
    assert (
        "NVIDIA_VISIBLE_DEVICES=void"
        not in json.loads((bundle / "config.gpulatch.json").read_bytes())["process"]["env"]
    )


def test_no_runtime_need_be_named(docker: Docker) -> None:
    docker.run("run", "--detach", "--name", "one", "--gpus", "1", BOX)
    docker.run("run", "--detach", "--name", "two", "--env", "NVIDIA_VISIBLE_DEVICES=all", BOX)
    docker.run("run", "--detach", "--name", "image", CUDA)
    assert docker.held() == {"one": [0], "two": [1, 2, 3, 4, 5, 6, 7], "image": [1, 2, 3, 4, 5, 6, 7]}


def test_twenty_containers_without_and_eight_with_a_gpu_start_at_once(docker: Docker) -> None:
    plain = [["run", "--detach", "--name", f"plain-{number}", BOX] for number in range(20)]
    asking = [["run", "--detach", "--name", f"gpu-{number}", "--gpus", "1", BOX] for number in range(8)]
    mixed = [command for pair in zip(plain, asking, strict=False) for command in pair] + plain[8:]
    failures = [done.stderr for done in docker.call_at_once(mixed) if done.returncode]
    assert failures == []
    held = docker.held()
    assert sorted(held) == [f"gpu-{number}" for number in range(8)]
    assert sorted(gpu for gpus in held.values() for gpu in gpus) == list(range(8))
    assert {name: docker.opens(name) for name in held} == held
    assert not [name for name in ("plain-0", "plain-19") if docker.opens(name)]
    assert not [number for number in range(20) if (docker.bundle(f"plain-{number}") / "config.gpulatch.json").exists()]


def test_of_nine_that_ask_at_once_exactly_one_is_refused(docker: Docker) -> None:
    asking = [["run", "--detach", "--name", f"gpu-{number}", "--gpus", "1", BOX] for number in range(9)]
    refused = [done for done in docker.call_at_once(asking) if done.returncode]
    assert [done.returncode for done in refused] == [125]
    assert "GL-4001" in refused[0].stderr
    assert len(docker.held()) == 8


def test_without_our_python_a_container_without_a_request_still_starts_by_the_off_file(docker: Docker) -> None:
    private = Path("/usr/lib/gpulatch")
    (private / "runtime_wrapper").rename(private / "gone")
    try:
        broken = docker.call("run", "--name", "broken", BOX, "true")
        assert broken.returncode != 0
        (private / "low-level/gpulatch/off").touch()
        docker.run("run", "--rm", BOX, "true")
    finally:
        (private / "gone").rename(private / "runtime_wrapper")
        (private / "low-level/gpulatch/off").unlink(missing_ok=True)
