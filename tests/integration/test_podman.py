"""GPU containers in real Podman, on runc and on crun: what they get, what people do with them, what a refusal says."""

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from drivers.engine import BOX, CUDA, refusal, wait_until
from drivers.engine_host import LOW_LEVEL, ON_CRUN, ON_RUNC
from drivers.podman import Podman

pytestmark = pytest.mark.needs("sandbox", "root", "runc", "crun", "cc")

ALL = list(range(8))
on_both = pytest.mark.parametrize("runtime", [ON_RUNC, ON_CRUN])


@pytest.fixture(scope="module")
def runtimes() -> Mapping[str, Path]:
    return LOW_LEVEL


@pytest.fixture(params=[False, True], ids=["stderr", "json"])
def supports_json(request: pytest.FixtureRequest, podman: Podman) -> Iterator[bool]:
    """Whether containers.conf says that gpulatch writes JSON records; otherwise Podman takes what stands on stderr."""
    podman.configure(supports_json=request.param)
    yield request.param
    podman.configure()


@on_both
def test_a_variable_gives_exactly_those_gpus(podman: Podman, runtime: str) -> None:
    podman.started("named", "--env", "NVIDIA_VISIBLE_DEVICES=3", runtime=runtime)
    podman.started("pair", "--env", "GPULATCH_GPUS=any:2", runtime=runtime)
    held = podman.held()
    assert held["named"] == [3]
    assert len(held["pair"]) == 2
    assert 3 not in held["pair"]
    assert {name: podman.opens(name) for name in held} == held
    claim = podman.claim("pair")
    assert (claim["runtime"], claim["source"]) == (runtime, "env GPULATCH_GPUS")
    assert claim["id"] == podman.inspect("pair")["Id"]


def test_a_container_without_a_request_gets_nothing(podman: Podman) -> None:
    podman.started("plain")
    assert podman.held() == {}
    assert podman.opens("plain") == []


@pytest.mark.parametrize("image", [BOX, CUDA])
def test_void_is_no_gpu_whatever_the_image_says(podman: Podman, image: str) -> None:
    podman.started("void", "--env", "NVIDIA_VISIBLE_DEVICES=void", image=image)
    assert podman.held() == {}
    assert podman.opens("void") == []


def test_a_node_alone_is_a_request_for_that_gpu(podman: Podman) -> None:
    node = f"/dev/nvidia{podman.gpus[2]['minor']}"
    podman.started("node", "--device", node)
    assert podman.held() == {"node": [2]}
    assert podman.opens("node") == [2]


def test_a_privileged_container_is_not_booked_unless_it_asks(podman: Podman) -> None:
    podman.started("admin", "--privileged")
    assert podman.held() == {}
    assert podman.opens("admin") == ALL
    podman.started("asking", "--privileged", "--env", "GPULATCH_GPUS=any:1")
    assert len(podman.held()["asking"]) == 1


def test_an_annotation_is_not_heard_because_images_bring_their_own(podman: Podman) -> None:
    podman.started("noted", "--annotation", "gpulatch.io/gpus=any:1")
    assert podman.held() == {}
    assert podman.opens("noted") == []


def test_nodes_and_variables_are_those_of_its_gpus(podman: Podman) -> None:
    podman.started("first", "--env", "GPULATCH_GPUS=any")
    podman.started("second", "--env", "GPULATCH_GPUS=any:2")
    gpus = [podman.gpus[index] for index in podman.held()["second"]]
    nodes = podman.run("exec", "second", "sh", "-c", "ls /dev | grep nvidia").split()
    control = ["nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"]
    assert sorted(nodes) == sorted([*control, *(f"nvidia{gpu['minor']}" for gpu in gpus)])
    environment = podman.environment("second")
    assert f"GPULATCH_DEVICES={','.join(gpu['uuid'] for gpu in gpus)}" in environment
    assert "NVIDIA_VISIBLE_DEVICES=void" in environment


@on_both
def test_exec_update_and_pause_change_nothing_about_the_gpus(podman: Podman, runtime: str) -> None:
    podman.started("box", "--env", "NVIDIA_VISIBLE_DEVICES=4", runtime=runtime)
    assert podman.run("exec", "--user", "1000", "box", "id", "-u") == "1000\n"
    assert podman.call("exec", "box", "sh", "-c", "exit 7").returncode == 7
    podman.run("update", "--cpu-shares", "512", "box")
    assert podman.opens("box") == [4]
    podman.run("pause", "box")
    assert podman.held() == {"box": [4]}
    podman.run("unpause", "box")
    assert podman.opens("box") == [4]


@on_both
def test_standard_input_output_and_exit_code_are_the_containers(podman: Podman, runtime: str) -> None:
    options = ["run", "--rm", "--interactive", "--network", "none", "--env", "GPULATCH_GPUS=any", "localhost/box"]
    done = podman.call("--runtime", runtime, *options, "sh", "-c", "cat; echo told >&2; exit 3", stdin="heard\n")
    assert (done.returncode, done.stdout) == (3, "heard\n")
    assert done.stderr.endswith("told\n")
    assert "gpulatch" not in done.stderr
    assert podman.held() == {}


@on_both
def test_a_restart_keeps_the_gpus_though_better_ones_are_free(podman: Podman, runtime: str) -> None:
    podman.started("first", "--env", "GPULATCH_GPUS=any", runtime=runtime)
    podman.started("second", "--env", "GPULATCH_GPUS=any", runtime=runtime)
    before = podman.held()["second"]
    podman.run("rm", "--force", "--time", "0", "first")
    podman.run("restart", "--time", "0", "second")
    assert podman.held() == {"second": before}
    assert podman.opens("second") == before


@on_both
def test_stop_frees_the_gpus_and_start_gets_others_when_they_are_taken(podman: Podman, runtime: str) -> None:
    podman.started("first", "--env", "GPULATCH_GPUS=any:4", runtime=runtime)
    before = podman.held()["first"]
    podman.run("stop", "--time", "0", "first")
    assert podman.held() == {}
    taken = ",".join(map(str, before))
    podman.started("thief", "--env", f"GPULATCH_GPUS={taken}", runtime=runtime)
    podman.run("start", "first")
    assert podman.held() == {"thief": before, "first": [index for index in ALL if index not in before]}
    assert podman.opens("first") == podman.held()["first"]


@pytest.mark.parametrize(
    ("runtime", "ending"),
    [
        (ON_RUNC, ["kill"]),
        (ON_RUNC, ["rm", "--force", "--time", "0"]),
        (ON_RUNC, ["stop", "--time", "0"]),
        (ON_CRUN, ["kill"]),
        (ON_CRUN, ["rm", "--force", "--time", "0"]),
    ],
)
def test_the_gpus_are_free_at_the_next_look_however_it_ends(podman: Podman, runtime: str, ending: list[str]) -> None:
    podman.started("box", "--env", "GPULATCH_GPUS=any:8", runtime=runtime)
    podman.run(*ending, "box")
    wait_until(lambda: podman.held() == {})  # podman kill sends the signal and does not wait
    podman.started("next", "--env", "GPULATCH_GPUS=any:8", runtime=runtime)


@on_both
def test_a_container_that_never_came_to_be_holds_nothing(podman: Podman, runtime: str) -> None:
    words = podman.start_words("box", "--env", "GPULATCH_GPUS=any:8", runtime=runtime)
    assert podman.call(*words, "/no/such/program").returncode == 127
    assert podman.held() == {}


@on_both
def test_without_its_monitor_a_container_holds_its_gpus_until_it_ends(podman: Podman, runtime: str) -> None:
    podman.started("box", "--env", "GPULATCH_GPUS=any", runtime=runtime)
    state, held = podman.state("box"), podman.held()
    os.kill(state["ConmonPid"], signal.SIGKILL)
    assert podman.held() == held == {"box": podman.opens("box")}
    os.kill(state["Pid"], signal.SIGKILL)
    wait_until(lambda: podman.held() == {})


def test_a_pods_pause_container_gets_nothing(podman: Podman) -> None:
    podman.run("--runtime", ON_RUNC, "pod", "create", "--share-parent=false", "--name", "pod", "--network", "none")
    podman.run(
        "--runtime",
        ON_RUNC,
        "run",
        "--detach",
        "--pod",
        "pod",
        "--name",
        "member",
        "--env",
        "GPULATCH_GPUS=any",
        "localhost/box",
    )
    assert list(podman.held()) == ["member"]
    assert len(podman.run("ps", "--quiet").split()) == 2
    podman.run("pod", "rm", "--force", "--time", "0", "pod")
    assert podman.held() == {}


@on_both
def test_a_refusal_is_one_line_with_its_code_and_its_holder(podman: Podman, supports_json: bool, runtime: str) -> None:
    owner = podman.started("owner", "--env", "GPULATCH_GPUS=any:8", runtime=runtime)
    done = podman.try_to_start("late", "--env", "NVIDIA_VISIBLE_DEVICES=0", runtime=runtime)
    assert done.returncode == 126
    line = refusal(done.stderr)
    assert line.endswith("(GL-4002)")
    assert owner[:12] in line
    log = Path(podman.inspect("late")["PidFile"]).parent / "oci-log"
    assert log.exists() == supports_json
    assert not supports_json or "GL-4002" in log.read_text()
    assert podman.state("late")["Status"] == "created"
    assert podman.held() == {"owner": ALL}


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ("NVIDIA_VISIBLE_DEVICES=9", ["GL-2002", '"9"']),
        ("GPULATCH_GPUS=any:9", ["GL-4001", "any:9"]),
        ("GPULATCH_GPUS=any:1+polcy=shared", ["GL-2001", "polcy=shared"]),
    ],
)
def test_a_request_that_cannot_be_met_says_why(podman: Podman, wish: str, words: list[str]) -> None:
    done = podman.try_to_start("wrong", "--env", wish)
    assert done.returncode == 126
    line = refusal(done.stderr)
    assert [word for word in words if word not in line] == []
    assert podman.held() == {}


def test_a_container_that_was_refused_starts_once_there_is_room(podman: Podman) -> None:
    podman.started("owner", "--env", "GPULATCH_GPUS=any:8")
    assert podman.try_to_start("late", "--env", "GPULATCH_GPUS=any:2").returncode == 126
    podman.run("rm", "--force", "--time", "0", "owner")
    podman.run("start", "late")
    assert podman.held() == {"late": podman.opens("late")}
    assert len(podman.opens("late")) == 2
