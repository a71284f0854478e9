"""Every way Docker asks for GPUs, with real Docker on a simulated DGX A100."""

import re
from pathlib import Path

import pytest
from drivers.docker import BOX, CUDA, GREEDY, Docker

pytestmark = pytest.mark.needs("sandbox", "root", "runc", "cc")

ALL = list(range(8))
DEVICE_REQUESTS = "docker DeviceRequests"


def uuid(docker: Docker, index: int) -> str:
    return str(docker.gpus[index]["uuid"])


def test_a_count_is_that_many_free_gpus(docker: Docker) -> None:
    for name in ("one", "two", "three"):
        docker.started(name, "--gpus", "1")
    assert docker.held() == {"one": [0], "two": [1], "three": [2]}
    assert [docker.opens(name) for name in ("one", "two", "three")] == [[0], [1], [2]]


def test_the_claim_says_who_asked_and_how(docker: Docker) -> None:
    container = docker.started("trainer", "--gpus", "2")
    claim = docker.claim("trainer")
    assert (claim["id"], claim["source"], claim["policy"]) == (container, DEVICE_REQUESTS, "exclusive")
    assert claim["runtime"] == "gpulatch"


def test_the_container_gets_nodes_and_variables_for_its_gpus_and_none_of_dockers_own(docker: Docker) -> None:
    docker.started("first", "--gpus", "1")
    docker.started("second", "--gpus", "2")
    gpus = docker.held()["second"]
    assert len(gpus) == 2
    nodes = docker.run("exec", "second", "sh", "-c", "ls /dev | grep nvidia").split()
    control = ["nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"]
    assert sorted(nodes) == sorted([*control, *(f"nvidia{docker.gpus[index]['minor']}" for index in gpus)])
    environment = docker.environment("second")
    assert f"GPULATCH_DEVICES={','.join(uuid(docker, index) for index in gpus)}" in environment
    assert [entry for entry in environment if entry.startswith("NVIDIA_")] == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_several_requests_of_one_container_add_up(docker: Docker) -> None:
    docker.started("sum", "--gpus", "1", "--gpus", "count=2")
    assert docker.held() == {"sum": [0, 1, 2]}


def test_a_request_with_capabilities_is_one(docker: Docker) -> None:
    docker.started("graphics", "--gpus", '"count=1","capabilities=graphics,utility"')
    assert docker.held() == {"graphics": [0]}
    assert "nvidia-modeset" in docker.run("exec", "graphics", "ls", "/dev").split()


@pytest.mark.parametrize("image", [BOX, CUDA])
def test_a_count_of_zero_is_no_gpu_whatever_the_image_says(docker: Docker, image: str) -> None:
    docker.started("none", "--gpus", "0", image=image)
    assert docker.held() == {}
    assert docker.opens("none") == []


def test_all_is_every_gpu_shared_and_the_rest_once_some_are_held(docker: Docker) -> None:
    docker.started("monitor", "--gpus", "all")
    assert (docker.held(), docker.claim("monitor")["policy"]) == ({"monitor": ALL}, "shared")
    assert docker.opens("monitor") == ALL
    docker.remove_all()
    docker.started("trainer", "--gpus", "3")
    docker.started("rest", "--gpus", "all")
    assert docker.held()["rest"] == [index for index in ALL if index not in docker.held()["trainer"]]
    assert docker.opens("rest") == docker.held()["rest"]


def test_named_gpus_are_those_and_shared(docker: Docker) -> None:
    docker.started("first", "--gpus", '"device=1"')
    docker.started("second", "--gpus", '"device=1,3"')
    assert docker.held() == {"first": [1], "second": [1, 3]}
    assert docker.claim("first")["policy"] == "shared"
    assert docker.opens("second") == [1, 3]


def test_a_gpu_can_be_had_exclusively_by_name(docker: Docker) -> None:
    docker.started("owner", "--gpus", f"device={uuid(docker, 5)}+policy=exclusive")
    assert (docker.held(), docker.claim("owner")["policy"]) == ({"owner": [5]}, "exclusive")
    assert docker.opens("owner") == [5]
    refused = docker.try_to_start("other", "--gpus", '"device=5"')
    assert refused.returncode == 125
    assert re.search(r"held by container owner \([0-9a-f]{12}\) \(exclusive\)", refused.stderr)


@pytest.mark.parametrize(
    ("options", "source"),
    [
        (["-e", "NVIDIA_VISIBLE_DEVICES=1"], "env NVIDIA_VISIBLE_DEVICES"),
        (["-e", "GPULATCH_GPUS=1"], "env GPULATCH_GPUS"),
        (["-e", "NVIDIA_VISIBLE_DEVICES=7", "-e", "GPULATCH_GPUS=1"], "env GPULATCH_GPUS"),
    ],
)
def test_a_variable_asks_as_well(docker: Docker, options: list[str], source: str) -> None:
    docker.started("var", *options)
    assert (docker.held(), docker.claim("var")["source"]) == ({"var": [1]}, source)
    assert docker.opens("var") == [1]


def test_an_image_that_sets_all_gets_all_or_the_rest(docker: Docker) -> None:
    docker.started("alone", image=CUDA)
    assert docker.held() == {"alone": ALL}
    docker.remove_all()
    docker.started("trainer", "--gpus", "2")
    docker.started("rest", image=CUDA)
    assert docker.held()["rest"] == [2, 3, 4, 5, 6, 7]
    assert docker.claim("rest")["source"] == "env NVIDIA_VISIBLE_DEVICES"


def test_what_the_user_says_counts_and_not_what_the_image_says(docker: Docker) -> None:
    docker.started("count", "--gpus", "1", image=CUDA)
    docker.started("greedy", "--gpus", "2", image=GREEDY)
    assert docker.held()["count"] == docker.opens("count") == [0]
    assert len(docker.held()["greedy"]) == 2
    assert docker.opens("greedy") == docker.held()["greedy"]


def test_an_image_can_ask_for_free_gpus_and_is_refused_as_anyone_else(docker: Docker) -> None:
    docker.started("greedy", image=GREEDY)
    assert docker.held() == {"greedy": ALL}
    assert docker.claim("greedy")["policy"] == "exclusive"
    refused = docker.try_to_start("second", image=GREEDY)
    assert refused.returncode == 125
    assert 'GPULATCH_GPUS="any:8"' in refused.stderr


def test_a_container_in_anothers_network_is_looked_up_by_its_own_id(docker: Docker) -> None:
    docker.started("net", "--gpus", "1")
    docker.started("joined", "--network", "container:net", "--gpus", "2")
    claim = docker.claim("joined")
    assert claim["source"] == DEVICE_REQUESTS
    assert len(docker.opens("joined")) == 2
    assert not set(docker.opens("joined")) & set(docker.opens("net"))


def test_a_file_of_the_users_over_etc_hostname_hides_nothing(docker: Docker, tmp_path: Path) -> None:
    (tmp_path / "hostname").write_text("box\n")
    docker.started("blocker", "--gpus", "1")
    docker.started("own", "--volume", f"{tmp_path}/hostname:/etc/hostname", "--gpus", "1")
    assert docker.held() == {"blocker": [0], "own": [1]}


def test_a_privileged_container_without_a_request_starts_and_is_not_booked(docker: Docker) -> None:
    docker.started("trainer", "--gpus", "1")
    docker.started("admin", "--privileged")
    assert docker.held() == {"trainer": [0]}
    assert docker.opens("admin") == ALL  # what --privileged is; docs/security.md says so


def test_a_privileged_container_with_a_request_is_booked_for_it(docker: Docker) -> None:
    docker.started("admin", "--privileged", "--gpus", "1")
    docker.started("trainer", "--gpus", "1")
    assert docker.held() == {"admin": [0], "trainer": [1]}
    assert docker.opens("trainer") == [1]


def test_the_hosts_dev_alone_grants_nothing_and_adds_nothing(docker: Docker) -> None:
    docker.started("seer", "--volume", "/dev:/dev", "--tmpfs", "/tmp")
    docker.started("one", "--volume", "/dev:/dev", "--gpus", "1")
    assert docker.held() == {"one": [0]}
    assert docker.opens("seer") == []
    assert docker.opens("one") == [0]


def test_a_node_beside_a_count_is_dropped_unless_it_is_in_the_grant(docker: Docker) -> None:
    node = f"/dev/nvidia{docker.gpus[2]['minor']}"
    docker.started("both", "--gpus", "1", "--device", node)
    assert docker.held() == {"both": [0]}
    assert docker.opens("both") == [0]
    nodes = docker.run("exec", "both", "sh", "-c", "ls -d /dev/nvidia[0-9]*").split()
    assert nodes == [f"/dev/nvidia{docker.gpus[0]['minor']}"]


def test_a_rule_beside_a_count_is_dropped_too(docker: Docker) -> None:
    rule = f"c 195:{docker.gpus[2]['minor']} rwm"
    docker.started("both", "--gpus", "1", "--device-cgroup-rule", rule)
    assert docker.held() == {"both": [0]}
    assert docker.opens("both") == [0]


def test_a_node_alone_is_a_request_for_that_gpu(docker: Docker) -> None:
    node = f"/dev/nvidia{docker.gpus[2]['minor']}"
    docker.started("node", "--device", node)
    assert docker.held() == {"node": [2]}
    assert docker.opens("node") == [2]
    docker.remove_all()
    docker.started("owner", "--gpus", "device=2+policy=exclusive")
    refused = docker.try_to_start("node", "--device", node)
    assert refused.returncode == 125
    assert re.search(r"held by container owner \([0-9a-f]{12}\) \(exclusive\)", refused.stderr)


@pytest.mark.parametrize("rule", ["c 195:* rwm", "c *:* rwm"])
def test_a_wildcard_rule_is_let_pass_and_not_booked(docker: Docker, rule: str) -> None:
    docker.started("wild", "--device-cgroup-rule", rule)
    assert docker.held() == {}
    assert docker.opens("wild") == ALL


def test_a_refusal_is_one_line_that_names_the_holders_and_docker_keeps_it(docker: Docker) -> None:
    docker.started("trainer", "--gpus", "7")
    refused = docker.try_to_start("late", "--gpus", "2")
    assert refused.returncode == 125
    (line,) = [line for line in refused.stderr.splitlines() if "gpulatch: " in line]
    assert "trainer" in line
    assert "GL-4001" in line
    assert "gpulatch claims" in line
    assert line.removeprefix("docker: Error response from daemon: ").startswith("failed to create shim task: OCI")
    state = docker.state("late")
    assert state["Error"] in line
    assert (state["Status"], state["ExitCode"]) == ("created", 128)
    assert docker.held() == {"trainer": docker.held()["trainer"]}


def test_a_container_that_was_refused_starts_once_there_is_room(docker: Docker) -> None:
    docker.started("trainer", "--gpus", "8")
    docker.try_to_start("late", "--gpus", "2")
    again = docker.call("start", "late")
    assert again.returncode == 1
    assert "trainer" in again.stderr
    docker.run("rm", "--force", "trainer")
    docker.run("start", "late")
    assert list(docker.held()) == ["late"]
    assert docker.opens("late") == docker.held()["late"]


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ('"device=9"', ["GL-2002", "9"]),
        ('"device=GPU-ffffffff"', ["GL-2002", "GPU-ffffffff"]),
        ("device=1+polcy=exclusive", ["GL-2001", "polcy=exclusive"]),
        ("9", ["GL-4001"]),
    ],
)
def test_a_request_that_cannot_be_met_says_why(docker: Docker, gpus: str, words: list[str]) -> None:
    refused = docker.try_to_start("wrong", "--gpus", gpus)
    assert refused.returncode == 125
    assert [word for word in words if word not in refused.stderr] == []
    assert docker.held() == {}


def test_under_plain_runc_a_request_fails_and_names_the_runtime(docker: Docker) -> None:
    refused = docker.try_to_start("plain", "--gpus", "1", runtime="runc")
    assert refused.returncode == 125
    assert "gpulatch: GPUs asked for" in refused.stderr
    assert "add --runtime gpulatch" in refused.stderr
    assert "GL-6002" in docker.state("plain")["Error"]
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("image", [BOX, CUDA])
def test_under_plain_runc_a_count_of_zero_is_no_request(docker: Docker, image: str) -> None:
    docker.started("plain", "--gpus", "0", image=image, runtime="runc")
    assert docker.opens("plain") == []


def test_under_plain_runc_a_container_without_gpus_flag_is_left_alone(docker: Docker) -> None:
    docker.started("plain", image=CUDA, runtime="runc")
    assert docker.opens("plain") == []


def test_mounts_over_all_three_files_hide_nothing(docker: Docker, tmp_path: Path) -> None:
    (tmp_path / "own").write_text("")
    mounts = [
        option for name in ("hosts", "hostname", "resolv.conf") for option in ("-v", f"{tmp_path}/own:/etc/{name}")
    ]
    for name in ("one", "two"):
        docker.started(name, "--gpus", "1", *mounts)
    assert docker.held() == {"one": [0], "two": [1]}
    assert docker.claim("two")["source"] == DEVICE_REQUESTS


@pytest.mark.parametrize("rule", ["c *:3 rwm", "a 10:3 rwm", "a *:3 rwm", "c 195:* rwm"])
def test_a_rule_that_opens_unnamed_gpus_can_be_refused(docker: Docker, rule: str) -> None:
    docker.started("owner", "--gpus", "8")
    settings = Path("/etc/gpulatch/config.toml")
    settings.write_text('[defaults]\nunlimited_devices = "refuse"\n')
    try:
        done = docker.try_to_start("wild", "--device-cgroup-rule", rule)
        assert done.returncode == 125
        assert "its device rules open every GPU, also those that container owner" in done.stderr
    finally:
        settings.unlink()
    docker.started("reported", "--device-cgroup-rule", rule)
    assert list(docker.held()) == ["owner"]


def test_a_node_under_another_name_is_there_too(docker: Docker) -> None:
    docker.started("named", "--device", f"/dev/nvidia{docker.gpus[3]['minor']}:/dev/gpu")
    assert docker.held() == {"named": [3]}
    listed = docker.run("exec", "named", "ls", "/dev").split()
    assert {"gpu", f"nvidia{docker.gpus[3]['minor']}"} <= set(listed)


@pytest.mark.parametrize("text", ['[runtime.gpulatch]\nmode = "observe"', "[runtime.gpulatch]\nsources = []"])
def test_where_gpulatch_grants_nothing_its_hook_does_not_stop_the_container(docker: Docker, text: str) -> None:
    settings = Path("/etc/gpulatch/config.toml")
    settings.write_text(text + "\n")
    try:
        docker.started("seen", "--gpus", "2")
        assert docker.opens("seen") == []
        assert [name for name, gpus in docker.held().items() if len(gpus) == 2] == (
            ["seen"] if "observe" in text else []
        )
    finally:
        settings.unlink()


def test_an_image_that_needs_a_newer_driver_is_refused_in_one_line_and_holds_nothing(docker: Docker) -> None:
    done = docker.try_to_start("new", "--gpus", "1", "--env", "NVIDIA_REQUIRE_CUDA=cuda>=13.0", image=CUDA)
    assert done.returncode == 125
    assert "driver 550.54.15, which runs CUDA up to 12.4" in done.stderr
    assert "(GL-2004)" in done.stderr
    assert docker.held() == {}
    anyway = ["--env", "NVIDIA_REQUIRE_CUDA=cuda>=13.0", "--env", "NVIDIA_DISABLE_REQUIRE=1"]
    docker.started("anyway", "--gpus", "1", *anyway)
    assert docker.held() == {"anyway": [0]}


def test_libraries_are_found_in_the_root_that_docker_made(docker: Docker, tmp_path: Path) -> None:
    """It is the storage driver's, outside the bundle."""
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/libcudart.so.13").touch()
    docker.run("create", "--name", "maker", BOX)
    docker.run("cp", f"{tmp_path}/usr", "maker:/")
    docker.run("commit", "maker", "cuda13")
    done = docker.try_to_start("new", "--gpus", "1", "--env", "NVIDIA_REQUIRE_CUDA=cuda>=12.0", image="cuda13")
    assert "CUDA 13.0 of the image, libcudart.so.13: needs driver 580.65.06" in done.stderr
