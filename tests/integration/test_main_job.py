"""The main job on real runc with the kernel's device filter: exactly the granted GPUs open, and the book is right."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from drivers.bundle import Bundle
from drivers.host import ROOT, Host

pytestmark = pytest.mark.needs("sandbox", "root", "build", "runc")

CONTROL = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]
EVERY_NODE = [f"nvidia{minor}" for minor in range(8)] + [*CONTROL, "nvidia-modeset"]


def open_all(host: Host, container: str) -> dict[str, str]:
    answers = host.open_inside(container, [f"/host-dev/{name}" for name in EVERY_NODE])
    return {path.removeprefix("/host-dev/"): answer for path, answer in answers.items()}


def started(host: Host, bundle: Bundle, container: str = "c1") -> None:
    done = host.start(bundle.path, container)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr == ""


def test_a_container_opens_exactly_its_gpus_and_the_control_nodes(host: Host, bundle: Bundle) -> None:
    started(host, bundle.asking_for("any:2").with_host_dev())
    answers = open_all(host, "c1")
    granted = {"nvidia1", "nvidia2"}  # GPUs 0 and 1: the minor is not the index
    assert {name for name, answer in answers.items() if answer == "ENXIO"} == granted | set(CONTROL)
    assert {name for name, answer in answers.items() if answer == "EPERM"} == {
        *(f"nvidia{minor}" for minor in (0, 3, 4, 5, 6, 7)),
        "nvidia-modeset",
    }


def test_the_granted_nodes_lie_in_the_containers_own_dev_and_no_other(host: Host, bundle: Bundle) -> None:
    started(host, bundle.asking_for("any:2"))
    listed = host.run(["runc", "--root", ROOT, "exec", "c1", "ls", "/dev"]).stdout.split()
    assert sorted(name for name in listed if name.startswith("nvidia")) == sorted(["nvidia1", "nvidia2", *CONTROL])
    answers = host.open_inside("c1", [f"/dev/{name}" for name in ("nvidia1", "nvidia2", *CONTROL)])
    assert set(answers.values()) == {"ENXIO"}


def test_each_variable_is_there_once_in_the_running_process(host: Host, bundle: Bundle) -> None:
    started(host, bundle.env("NVIDIA_VISIBLE_DEVICES=all", "CUDA_VISIBLE_DEVICES=1").asking_for("any:2"))
    names = [entry.partition("=")[0] for entry in host.environment("c1")]
    for name in ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GPULATCH_DEVICES"):
        assert names.count(name) == 1
    values = dict(entry.split("=", 1) for entry in host.environment("c1"))
    assert values["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert values["CUDA_VISIBLE_DEVICES"] == "1"
    uuids = [device["uuid"] for claim in host.claims() for device in claim["devices"]]
    assert values["GPULATCH_DEVICES"].split(",") == uuids


def test_the_claim_says_who_holds_what_and_why(host: Host, bundle: Bundle) -> None:
    started(host, bundle.asking_for("any:2"))
    (claim,) = host.claims()
    assert claim["id"] == "c1"
    assert claim["root"] == ROOT
    assert [device["index"] for device in claim["devices"]] == [0, 1]
    assert (claim["policy"], claim["source"], claim["request"]) == ("exclusive", "env GPULATCH_GPUS", "any:2")
    assert claim["live"]
    assert claim["runtime"] == "gpulatch-runtime"


def kill_init(host: Host) -> None:
    pid = json.loads(host.run(["runc", "--root", ROOT, "state", "c1"]).stdout)["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{pid}/cgroup").exists() or b") Z" in Path(f"/proc/{pid}/stat").read_bytes())


def kill_everything(host: Host) -> None:
    """As when the engine, its shim and the container are all killed at once: nobody calls the runtime any more."""
    state = json.loads((Path(ROOT) / "c1/state.json").read_text())
    cgroup = Path(state["cgroup_paths"][""])
    (cgroup / "cgroup.kill").write_text("1")
    wait_for(lambda: "populated 0" in (cgroup / "cgroup.events").read_text())


def wait_for(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


ENDINGS: dict[str, Callable[[Host], object]] = {
    "delete": lambda host: host.runtime("delete", "--force", "c1"),
    "kill through the runtime": lambda host: (host.runtime("kill", "c1", "KILL"), kill_init_is_over(host)),
    "kill -9 of init": kill_init,
    "kill -9 of everything": kill_everything,
}


def kill_init_is_over(host: Host) -> None:
    wait_for(lambda: json.loads(host.run(["runc", "--root", ROOT, "state", "c1"]).stdout)["status"] == "stopped")


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_book_is_empty_at_the_next_look_however_the_container_ends(host: Host, bundle: Bundle, ending: str) -> None:
    started(host, bundle.asking_for("any:2"))
    assert host.held() == {"c1": [0, 1]}
    ENDINGS[ending](host)
    assert host.held() == {}


def test_a_container_that_exits_by_itself_gives_its_gpus_back(host: Host, bundle: Bundle) -> None:
    done = host.runtime("run", "--bundle", str(bundle.asking_for("any:2").running("sh", "-c", "exit 7").path), "c1")
    assert done.returncode == 7
    assert host.held() == {}


def test_the_claim_holds_in_every_state_of_a_created_container(host: Host, bundle: Bundle) -> None:
    bundle.asking_for("2")
    assert host.runtime("create", "--bundle", str(bundle.path), "c1").returncode == 0
    assert host.held() == {"c1": [2]}
    for command in ("start", "pause", "resume"):
        done = host.runtime(command, "c1")
        assert done.returncode == 0, done.stderr
        assert host.held() == {"c1": [2]}


def test_a_create_that_the_runtime_fails_holds_nothing(host: Host, bundle: Bundle) -> None:
    done = host.start(bundle.asking_for("any:2").running("/no/such/program").path, "c1")
    assert done.returncode != 0
    assert host.held() == {}


def test_a_second_container_gets_other_gpus_and_one_too_many_is_refused_by_name(host: Host, tmp_path: Path) -> None:
    for number, indices in enumerate(([0, 1], [2, 3], [4, 5], [6, 7])):
        started(host, Bundle(tmp_path, f"b{number}").asking_for("any:2"), f"c{number}")
        assert host.held()[f"c{number}"] == indices
    last = Bundle(tmp_path, "last").asking_for("any:1")
    before = last.config.read_bytes()
    done = host.start(last.path, "c9")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "0 of 8 are free, held: GPU 0 by c0" in done.stderr
    assert last.config.read_bytes() == before
    assert last.files() == ["config.json"]
    assert not (Path(ROOT) / "c9").exists()


def test_the_same_bundle_run_twice_resolves_afresh_from_the_original(host: Host, tmp_path: Path) -> None:
    bundle = Bundle(tmp_path).asking_for("any:1").with_host_dev()
    original = bundle.config.read_bytes()
    started(host, bundle, "first")
    other = Bundle(tmp_path, "other").asking_for("any:2")
    started(host, other, "other")
    host.runtime("delete", "--force", "first")
    started(host, Bundle(tmp_path, "third").asking_for("0"), "third")
    started(host, bundle, "second")
    assert host.held() == {"other": [2, 3], "third": [0], "second": [1]}
    answers = open_all(host, "second")
    assert {name for name, answer in answers.items() if answer == "ENXIO"} == {"nvidia2", *CONTROL}
    assert (bundle.path / "config.gpulatch.json").read_bytes() == original
    assert (
        len([node for node in bundle.on_disk()["linux"]["devices"] if node["minor"] <= 7 and node["major"] == 195]) == 1
    )


def test_named_gpus_are_shared_and_an_exclusive_holder_is_named(host: Host, tmp_path: Path) -> None:
    started(host, Bundle(tmp_path, "a").asking_for("0", "NVIDIA_VISIBLE_DEVICES"), "a")
    started(host, Bundle(tmp_path, "b").asking_for("0", "NVIDIA_VISIBLE_DEVICES"), "b")
    started(host, Bundle(tmp_path, "x").asking_for("5+policy=exclusive"), "x")
    assert host.held() == {"a": [0], "b": [0], "x": [5]}
    done = host.start(Bundle(tmp_path, "y").asking_for("5", "NVIDIA_VISIBLE_DEVICES").path, "y")
    assert done.returncode == 1
    assert "GPU 5" in done.stderr
    assert "held by container x (exclusive)" in done.stderr
    started(host, Bundle(tmp_path, "m").asking_for("all+policy=monitor"), "m")
    assert host.held()["m"] == list(range(8))


def test_a_second_create_of_a_live_id_touches_nothing(host: Host, tmp_path: Path) -> None:
    started(host, Bundle(tmp_path, "a").asking_for("any:1"), "c1")
    again = Bundle(tmp_path, "b").asking_for("any:1")
    before = again.config.read_bytes()
    done = host.start(again.path, "c1")
    assert done.returncode == 1
    assert "already holds GPUs 0 and is alive" in done.stderr
    assert again.config.read_bytes() == before
    assert host.held() == {"c1": [0]}


def test_none_is_a_gpu_container_without_gpus(host: Host, bundle: Bundle) -> None:
    started(host, bundle.asking_for("none", "NVIDIA_VISIBLE_DEVICES").with_host_dev())
    assert set(open_all(host, "c1").values()) == {"EPERM"}
    assert host.held() == {}


def test_a_smuggled_gpu_node_is_not_granted(host: Host, bundle: Bundle) -> None:
    rule = {"allow": True, "type": "c", "major": 195, "minor": 7, "access": "rwm"}
    bundle.spec["linux"]["devices"] = [{"path": "/dev/dri", "type": "c", "major": 195, "minor": 7}]
    bundle.spec["linux"]["resources"]["devices"].append(rule)
    started(host, bundle.asking_for("any:1").with_host_dev())
    assert {name for name, answer in open_all(host, "c1").items() if answer == "ENXIO"} == {"nvidia1", *CONTROL}


def test_a_user_other_than_root_reaches_nodes_of_the_drivers_group(host: Host, bundle: Bundle) -> None:
    for path in ("/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"):
        os.chown(path, 0, 27)
        os.chmod(path, 0o660)
    bundle.spec["process"]["user"] = {"uid": 1000, "gid": 1000}
    started(host, bundle.asking_for("0"))
    pid = json.loads(host.run(["runc", "--root", ROOT, "state", "c1"]).stdout)["pid"]
    groups = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Groups:"))
    assert "27" in groups.split()
    node = os.stat(f"/proc/{pid}/root/dev/nvidia1")
    assert (node.st_gid, node.st_mode & 0o777) == (27, 0o660)


def test_nodes_that_the_host_lacks_are_made_for_the_container_all_the_same(host: Host, bundle: Bundle) -> None:
    for path in ("/dev/nvidia1", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"):
        os.unlink(path)
    started(host, bundle.asking_for("0"))
    assert set(host.open_inside("c1", ["/dev/nvidia1", "/dev/nvidia-uvm"]).values()) == {"ENXIO"}
