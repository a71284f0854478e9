"""GPU containers of `ctr run --runc-binary` on real containerd, on runc and on crun."""

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from drivers.containerd import Containerd
from drivers.engine import CUDA, refusal, wait_until
from drivers.engine_host import LOW_LEVEL, ON_CRUN, ON_RUNC

pytestmark = pytest.mark.needs("sandbox", "root", "runc", "crun", "cc")

ALL = list(range(8))
on_both = pytest.mark.parametrize("runtime", [ON_RUNC, ON_CRUN])


@pytest.fixture(scope="module")
def runtimes() -> Mapping[str, Path]:
    return LOW_LEVEL


@pytest.fixture
def crashing(containerd: Containerd) -> Iterator[Containerd]:
    """containerd whose daemon runs again afterwards."""
    yield containerd
    if containerd.daemon.poll() is not None:
        containerd.start()


@on_both
def test_a_variable_gives_exactly_those_gpus(containerd: Containerd, runtime: str) -> None:
    containerd.started("named", "--env", "NVIDIA_VISIBLE_DEVICES=3", runtime=runtime)
    containerd.started("pair", "--env", "GPULATCH_GPUS=any:2", runtime=runtime)
    containerd.started("plain", runtime=runtime)
    held = containerd.held()
    assert held["named"] == [3]
    assert len(held["pair"]) == 2
    assert 3 not in held["pair"]
    assert {name: containerd.opens(name) for name in [*held, "plain"]} == {**held, "plain": []}
    claim = containerd.claim("pair")
    assert (claim["runtime"], claim["source"]) == (runtime, "env GPULATCH_GPUS")
    assert claim["root"] == "/run/containerd/runc/default"


def test_an_annotation_and_a_node_ask_too(containerd: Containerd) -> None:
    containerd.started("noted", "--annotation", "gpulatch.io/gpus=5", image=CUDA)
    containerd.started("node", "--device", f"/dev/nvidia{containerd.gpus[2]['minor']}")
    assert containerd.held() == {"noted": [5], "node": [2]}
    assert {name: containerd.opens(name) for name in containerd.held()} == containerd.held()


def test_an_image_that_sets_all_gets_what_nobody_holds_alone(containerd: Containerd) -> None:
    containerd.started("owner", "--env", "GPULATCH_GPUS=any:3")
    containerd.started("image", image=CUDA)
    assert containerd.held()["image"] == [index for index in ALL if index not in containerd.held()["owner"]]
    assert containerd.opens("image") == containerd.held()["image"]


@on_both
def test_exec_and_pause_change_nothing_about_the_gpus(containerd: Containerd, runtime: str) -> None:
    containerd.started("box", "--env", "NVIDIA_VISIBLE_DEVICES=4", runtime=runtime)
    assert containerd.call(*containerd.exec_words("box"), "sh", "-c", "exit 7").returncode == 7
    containerd.run("tasks", "pause", "box")
    assert containerd.tasks()["box"][1] == "PAUSED"
    assert containerd.held() == {"box": [4]}
    containerd.run("tasks", "resume", "box")
    assert containerd.opens("box") == [4]


def test_output_and_exit_code_are_the_containers(containerd: Containerd) -> None:
    words = containerd.start_words("box", "--rm", "--env", "GPULATCH_GPUS=any")
    words.remove("--detach")
    done = containerd.call(*words, "sh", "-c", "echo spoken; exit 3")
    assert (done.returncode, done.stdout) == (3, "spoken\n")
    assert containerd.held() == {}


@on_both
def test_a_task_that_is_started_again_keeps_its_gpus(containerd: Containerd, runtime: str) -> None:
    containerd.started("first", "--env", "GPULATCH_GPUS=any", runtime=runtime)
    containerd.started("second", "--env", "GPULATCH_GPUS=any", runtime=runtime)
    before = containerd.held()["second"]
    containerd.stop_container("first")
    containerd.stop_container("second")
    assert containerd.held() == {}
    assert containerd.start_again("second").returncode == 0
    assert containerd.held() == {"second": before}
    assert containerd.opens("second") == before


def test_it_gets_others_when_its_gpus_are_taken(containerd: Containerd) -> None:
    containerd.started("first", "--env", "GPULATCH_GPUS=any:4")
    before = containerd.held()["first"]
    containerd.stop_container("first")
    taken = ",".join(map(str, before))
    containerd.started("thief", "--env", f"GPULATCH_GPUS={taken}")
    assert containerd.start_again("first").returncode == 0
    assert containerd.held() == {"thief": before, "first": [index for index in ALL if index not in before]}
    assert containerd.opens("first") == containerd.held()["first"]


@on_both
def test_a_killed_task_frees_its_gpus_before_anyone_removes_it(containerd: Containerd, runtime: str) -> None:
    containerd.started("box", "--env", "GPULATCH_GPUS=any:8", runtime=runtime)
    containerd.kill("box", "CONT")
    assert containerd.held() == {"box": ALL}
    containerd.kill("box")
    wait_until(lambda: containerd.held() == {})  # ctr sends the signal and does not wait
    containerd.started("next", "--env", "GPULATCH_GPUS=any:8", runtime=runtime)
    assert containerd.tasks()["box"][1] == "STOPPED"


@on_both
def test_a_container_that_never_came_to_be_holds_nothing(containerd: Containerd, runtime: str) -> None:
    words = containerd.start_words("box", "--env", "GPULATCH_GPUS=any:8", runtime=runtime)
    failed = containerd.call(*words, "/no/such/program")
    assert failed.returncode != 0
    assert "/no/such/program" in failed.stderr
    assert containerd.held() == {}


def test_an_id_in_another_namespace_is_another_container(containerd: Containerd) -> None:
    containerd.load_images("other")
    containerd.started("same", "--env", "GPULATCH_GPUS=any")
    try:
        containerd.run("--namespace", "other", *containerd.start_words("same", "--env", "GPULATCH_GPUS=any"))
        claims = containerd.host.claims()
        assert [claim["id"] for claim in claims] == ["same", "same"]
        assert len({claim["root"] for claim in claims}) == 2
        assert len({claim["devices"][0]["index"] for claim in claims}) == 2
        containerd.stop_container("same")
        (left,) = containerd.host.claims()
        assert left["root"] == "/run/containerd/runc/other"
    finally:
        containerd.run("--namespace", "other", "tasks", "delete", "--force", "same")
        containerd.run("--namespace", "other", "containers", "delete", "same")


def test_without_containerd_its_containers_hold_what_they_held(crashing: Containerd) -> None:
    crashing.started("one", "--env", "GPULATCH_GPUS=any:2")
    pid, held = crashing.pid("one"), crashing.held()
    crashing.kill_daemon()
    assert crashing.held() == held
    crashing.start()
    assert crashing.pid("one") == pid
    assert crashing.opens("one") == held["one"]
    crashing.kill_daemon()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: crashing.held() == {})
    crashing.start()
    crashing.started("next", "--env", "GPULATCH_GPUS=any:8")


@on_both
def test_a_killed_shim_ends_its_container_and_frees_its_gpus(containerd: Containerd, runtime: str) -> None:
    containerd.started("box", "--env", "GPULATCH_GPUS=any:8", runtime=runtime)
    containerd.end_shim_of("box")
    wait_until(lambda: containerd.held() == {})
    containerd.started("next", "--env", "GPULATCH_GPUS=any:8", runtime=runtime)


@on_both
def test_a_refusal_is_one_line_with_its_code_and_its_holder(containerd: Containerd, runtime: str) -> None:
    containerd.started("owner", "--env", "GPULATCH_GPUS=any:8", runtime=runtime)
    refused = containerd.try_to_start("late", "--env", "NVIDIA_VISIBLE_DEVICES=0", runtime=runtime)
    assert refused.returncode == 1
    line = refusal(refused.stderr)
    assert "held by container owner (exclusive)" in line
    assert "(GL-4002)" in line
    assert line == refused.stderr.strip()
    assert list(containerd.held()) == ["owner"]
    containerd.stop_container("owner")
    assert containerd.start_again("late").returncode == 0
    assert containerd.opens("late") == [0]


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ("NVIDIA_VISIBLE_DEVICES=9", ["GL-2002", '"9"']),
        ("GPULATCH_GPUS=any:9", ["GL-4001", "any:9"]),
        ("GPULATCH_GPUS=any:1+polcy=shared", ["GL-2001", "polcy=shared"]),
    ],
)
def test_a_request_that_cannot_be_met_says_why(containerd: Containerd, wish: str, words: list[str]) -> None:
    refused = containerd.try_to_start("wrong", "--env", wish)
    assert refused.returncode == 1
    line = refusal(refused.stderr)
    assert [word for word in words if word not in line] == []
    assert containerd.held() == {}


@on_both
def test_ctrs_own_gpus_are_booked_and_nvidias_tool_is_not_called(containerd: Containerd, runtime: str) -> None:
    """The tool is a stand-in, which ctr looks for; the real one needs a driver."""
    called = Path("/run/nvidia-tool-was-called")
    tool = Path("/usr/bin/nvidia-container-cli")
    tool.write_text(f"#!/bin/sh\ntouch {called}\n")
    tool.chmod(0o755)
    try:
        containerd.started("box", "--gpus", "3", runtime=runtime)
        assert (containerd.held(), containerd.opens("box")) == ({"box": [3]}, [3])
        assert containerd.claim("box")["source"] == "ctr --gpus"
        assert not called.exists()
    finally:
        tool.unlink()
