"""CDI devices in real Podman, from the files that `gpulatch cdi generate` writes on a simulated DGX A100."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from drivers.engine import refusal
from drivers.engine_host import EngineHost, checked
from drivers.podman import Podman

pytestmark = [
    pytest.mark.needs("sandbox", "root", "build", "runc", "crun", "cc"),
    pytest.mark.usefixtures("files"),
]

ASKING = Path("/etc/cdi/gpulatch.io-gpu.json")
PLAIN = Path("/etc/cdi/nvidia.com-gpu.json")
KIND = "gpulatch.io/gpu"


@pytest.fixture(scope="module")
def files(engine_host: EngineHost) -> Iterator[None]:
    """Both files, written by the command line."""
    for arguments in ([], ["--nvidia"]):
        checked(engine_host.host.gpulatch("cdi", "generate", *arguments))
    yield
    ASKING.unlink()
    PLAIN.unlink()


def devices(*names: str) -> list[str]:
    return [word for name in names for word in ("--device", f"{KIND}={name}")]


def test_a_count_is_that_many_free_gpus(podman: Podman) -> None:
    podman.started("pair", *devices("any-2"))
    podman.started("other", *devices("any-2"))
    held = podman.held()
    assert {name: len(gpus) for name, gpus in held.items()} == {"pair": 2, "other": 2}
    assert not set(held["pair"]) & set(held["other"])
    assert {name: podman.opens(name) for name in held} == held
    assert podman.claim("pair")["source"] == "env GPULATCH_REQ_ANY_2"


def test_two_devices_in_one_command_add_up(podman: Podman) -> None:
    podman.started("sum", *devices("any", "any-2"))
    assert len(podman.held()["sum"]) == 3
    assert podman.opens("sum") == podman.held()["sum"]


def test_a_gpu_is_had_by_index_and_by_uuid(podman: Podman) -> None:
    podman.started("named", *devices("3", str(podman.gpus[5]["uuid"])))
    podman.started("twice", *devices("6", str(podman.gpus[6]["uuid"])))
    assert podman.held() == {"named": [3, 5], "twice": [6]}


def test_all_is_every_gpu_and_more_than_there_are_is_refused(podman: Podman) -> None:
    podman.started("all", *devices("all"))
    assert podman.held() == {"all": list(range(8))}
    podman.remove_all()
    done = podman.try_to_start("many", *devices("any-8", "any"))
    assert refusal(done.stderr).endswith("(GL-4001)")


def test_a_plain_device_gives_its_nodes_without_gpulatch(podman: Podman) -> None:
    podman.started("plain", "--device", "nvidia.com/gpu=2", runtime="runc")
    assert podman.opens("plain") == [2]
    nodes = podman.inside("plain", "sh", "-c", "ls /dev | grep nvidia").split()
    control = ["nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"]
    assert sorted(nodes) == sorted([*control, f"nvidia{podman.gpus[2]['minor']}"])
    assert "NVIDIA_VISIBLE_DEVICES=void" in podman.environment("plain")


def test_under_gpulatch_a_plain_device_is_a_request_for_that_gpu(podman: Podman) -> None:
    podman.started("plain", "--device", "nvidia.com/gpu=2")
    assert podman.held() == {"plain": [2]}
    assert podman.opens("plain") == [2]


def test_it_is_written_for_everybody_to_read_and_once(engine_host: EngineHost) -> None:
    before = ASKING.stat()
    assert (before.st_uid, before.st_mode & 0o7777) == (0, 0o644)
    done = checked(engine_host.host.gpulatch("cdi", "generate"))
    assert done.stdout == f"{ASKING}: {KIND}, 26 devices, as before\n"
    assert ASKING.stat() == before
    printed = checked(engine_host.host.gpulatch("cdi", "generate", "--output", "-"))
    assert json.loads(printed.stdout) == json.loads(ASKING.read_text())


def test_without_a_driver_a_good_file_stays(engine_host: EngineHost) -> None:
    good = ASKING.read_text()
    without = ["unshare", "--mount", "sh", "-c", 'umount -l /proc/driver && exec "$@"', "sh"]
    done = engine_host.host.run([*without, str(Path(sys.executable).parent / "gpulatch"), "cdi", "generate"])
    assert (done.returncode, "GL-3001" in done.stderr) == (1, True), done.stderr
    assert ASKING.read_text() == good


def test_list_shows_what_engines_can_give(engine_host: EngineHost) -> None:
    done = checked(engine_host.host.gpulatch("cdi", "list"))
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [f"{KIND}=any-2", str(ASKING), "0.5.0", "GPULATCH_REQ_ANY_2=any:2"] in lines
    plain = next(line for line in lines if line[0] == "nvidia.com/gpu=all")
    assert plain[1:] == [str(PLAIN), "0.5.0", *["12", "nodes,", "NVIDIA_VISIBLE_DEVICES=void"]]


def test_a_second_file_with_the_same_devices_is_refused_and_listed(engine_host: EngineHost, podman: Podman) -> None:
    other = ASKING.with_suffix(".yaml")
    done = engine_host.host.gpulatch("cdi", "generate", "--format", "yaml")
    assert (done.returncode, str(ASKING) in done.stderr, other.exists()) == (1, True, False)
    other.write_text(ASKING.read_text())
    try:
        assert podman.try_to_start("lost", *devices("any-2")).returncode != 0  # Podman takes it from neither
        done = engine_host.host.gpulatch("cdi", "list")
        assert (done.returncode, KIND in done.stdout) == (1, False)
        assert str(other) in done.stderr
    finally:
        other.unlink()
