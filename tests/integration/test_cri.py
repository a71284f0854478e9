"""GPU containers of pods, as a kubelet starts them through containerd's CRI plugin, on runc and on crun."""

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from drivers.cri import CallError, Cri
from drivers.engine import CUDA, refusal, wait_until
from drivers.engine_host import LOW_LEVEL, ON_CRUN, ON_RUNC

pytestmark = pytest.mark.needs("sandbox", "root", "runc", "crun", "cc")

ALL = list(range(8))
on_both = pytest.mark.parametrize("runtime", [ON_RUNC, ON_CRUN])


@pytest.fixture(scope="module")
def runtimes() -> Mapping[str, Path]:
    return LOW_LEVEL


@pytest.fixture
def crashing(cri: Cri) -> Iterator[Cri]:
    """The plugin of a containerd that runs again afterwards."""
    yield cri
    if cri.containerd.daemon.poll() is not None:
        start_daemon(cri)


def start_daemon(cri: Cri) -> None:
    cri.containerd.start()
    cri.wait_for_plugin()


@on_both
def test_a_variable_gives_exactly_those_gpus(cri: Cri, runtime: str) -> None:
    cri.started("named", "NVIDIA_VISIBLE_DEVICES=3", runtime=runtime)
    cri.started("pair", "GPULATCH_GPUS=any:2", runtime=runtime)
    cri.started("plain", runtime=runtime)
    held = cri.held()
    assert held["named"] == [3]
    assert len(held["pair"]) == 2
    assert 3 not in held["pair"]
    assert {name: cri.opens(name) for name in [*held, "plain"]} == {**held, "plain": []}
    claim = cri.claim("pair")
    assert (claim["runtime"], claim["source"]) == (runtime, "env GPULATCH_GPUS")
    assert claim["name"] == "pod-pair/pair"


@on_both
def test_the_sandbox_of_a_pod_gets_nothing(cri: Cri, runtime: str) -> None:
    pod = cri.run_pod("pod", runtime)
    assert cri.held() == {}
    cri.started("box", "GPULATCH_GPUS=any", pod=pod)
    assert [claim["id"] for claim in cri.host.claims()] == [cri.id("box")]
    assert cri.id("box") != pod.id


def test_containers_of_one_pod_have_gpus_of_their_own(cri: Cri) -> None:
    pod = cri.run_pod("pod")
    for name in ("first", "second"):
        cri.started(name, "GPULATCH_GPUS=any:2", pod=pod)
    held = cri.held()
    assert len({*held["first"], *held["second"]}) == 4
    assert {name: cri.opens(name) for name in held} == held
    cri.stop("first")
    assert cri.held() == {"second": held["second"]}


def test_an_annotation_of_the_container_asks_where_containerd_lets_it_through(cri: Cri) -> None:
    cri.create("noted", "GPULATCH_GPUS=7", pod=cri.run_pod("pod"), annotations={"gpulatch.io/gpus": "5"})
    cri.start("noted")
    assert (cri.held(), cri.claim("noted")["source"]) == ({"noted": [5]}, "annotation gpulatch.io/gpus")
    assert cri.opens("noted") == [5]


def test_an_image_that_sets_all_gets_what_nobody_holds_alone(cri: Cri) -> None:
    cri.started("owner", "GPULATCH_GPUS=any:3")
    cri.started("image", image=CUDA)
    assert cri.held()["image"] == [index for index in ALL if index not in cri.held()["owner"]]
    assert cri.opens("image") == cri.held()["image"]


@on_both
def test_a_process_started_by_exec_has_the_containers_gpus(cri: Cri, runtime: str) -> None:
    cri.started("box", "NVIDIA_VISIBLE_DEVICES=4", runtime=runtime)
    assert cri.execute("box", "sh", "-c", "echo spoken; exit 7") == (7, "spoken\n")
    assert cri.opens("box") == [4]  # asks by ExecSync


@on_both
def test_update_changes_nothing_about_the_gpus(cri: Cri, runtime: str) -> None:
    cri.started("box", "NVIDIA_VISIBLE_DEVICES=4", runtime=runtime)
    cri.update("box", cpu_shares=512)
    assert cri.held() == {"box": [4]}
    assert cri.opens("box") == [4]


@on_both
def test_stop_and_remove_free_the_gpus(cri: Cri, runtime: str) -> None:
    cri.started("box", "GPULATCH_GPUS=any:8", runtime=runtime)
    cri.stop("box")
    assert cri.held() == {}
    cri.remove("box")
    cri.started("next", "GPULATCH_GPUS=any:8", runtime=runtime)
    assert cri.held() == {"next": ALL}


@on_both
def test_a_container_that_is_killed_is_free_before_anyone_removes_it(cri: Cri, runtime: str) -> None:
    cri.started("box", "GPULATCH_GPUS=any:8", runtime=runtime)
    os.kill(cri.pid("box"), signal.SIGKILL)
    wait_until(lambda: cri.has_ended("box"))
    assert cri.held() == {}
    cri.started("next", "GPULATCH_GPUS=any:8", runtime=runtime)
    assert cri.status("box").exit_code == 128 + signal.SIGKILL


def test_a_pod_that_is_removed_frees_the_gpus_of_all_its_containers(cri: Cri) -> None:
    pod = cri.run_pod("pod")
    cri.started("first", "GPULATCH_GPUS=any:4", pod=pod)
    cri.started("second", "GPULATCH_GPUS=any:4", pod=pod)
    cri.remove_pod(pod.id)
    assert cri.held() == {}


def test_a_container_that_is_only_created_holds_nothing_yet(cri: Cri) -> None:
    cri.create("box", "GPULATCH_GPUS=any:8", pod=cri.run_pod("pod"))
    assert cri.held() == {}
    cri.start("box")
    assert cri.held() == {"box": ALL}


@on_both
def test_a_container_that_never_came_to_be_holds_nothing(cri: Cri, runtime: str) -> None:
    cri.create("box", "GPULATCH_GPUS=any:8", pod=cri.run_pod("pod", runtime), command=("/no/such/program",))
    with pytest.raises(CallError, match="/no/such/program"):
        cri.start("box")
    assert cri.held() == {}


@on_both
def test_a_refusal_is_one_line_with_its_code_and_its_holder_and_the_status_keeps_it(cri: Cri, runtime: str) -> None:
    cri.started("owner", "GPULATCH_GPUS=any:8", runtime=runtime)
    with pytest.raises(CallError) as refused:
        cri.started("late", "NVIDIA_VISIBLE_DEVICES=0", runtime=runtime)
    line = refusal(str(refused.value))
    assert f"held by container pod-owner/owner ({cri.id('owner')[:12]}) (exclusive)" in line
    assert "(GL-4002)" in line
    status = cri.status("late")
    assert (status.reason, status.message) == ("StartError", str(refused.value))
    assert list(cri.held()) == ["owner"]


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ("NVIDIA_VISIBLE_DEVICES=9", ["GL-2002", '"9"']),
        ("GPULATCH_GPUS=any:9", ["GL-4001", "any:9"]),
    ],
)
def test_a_request_that_cannot_be_met_says_why(cri: Cri, wish: str, words: list[str]) -> None:
    with pytest.raises(CallError) as refused:
        cri.started("wrong", wish)
    line = refusal(str(refused.value))
    assert [word for word in words if word not in line] == []
    assert cri.held() == {}


def test_a_pod_gets_a_new_container_in_the_place_of_one_that_was_refused(cri: Cri) -> None:
    cri.started("owner", "GPULATCH_GPUS=any:8")
    pod = cri.run_pod("pod")
    with pytest.raises(CallError, match="GL-4001"):
        cri.started("late", "GPULATCH_GPUS=any:2", pod=pod)
    cri.remove("late")
    cri.stop("owner")
    cri.started("late", "GPULATCH_GPUS=any:2", pod=pod)
    assert cri.held() == {"late": cri.opens("late")}
    assert len(cri.opens("late")) == 2


def test_pods_outlive_containerd_with_their_gpus(crashing: Cri) -> None:
    crashing.started("box", "GPULATCH_GPUS=any:2")
    held = crashing.held()
    crashing.containerd.kill_daemon()
    assert crashing.held() == held
    start_daemon(crashing)
    assert crashing.opens("box") == held["box"]
    crashing.stop("box")
    assert crashing.held() == {}


@on_both
def test_the_sandbox_of_a_pod_gets_nothing_whatever_its_image_says(cri: Cri, runtime: str) -> None:
    cri.containerd.stop()
    cri.containerd.start(pause="localhost/cuda:latest")
    cri.wait_for_plugin()
    try:
        cri.run_pod("pod", runtime)
        assert cri.host.claims() == []
    finally:
        cri.remove_all()
        cri.containerd.stop()
        start_daemon(cri)


@on_both
def test_an_annotation_of_the_pod_is_for_its_containers_and_not_for_its_sandbox(cri: Cri, runtime: str) -> None:
    pod = cri.run_pod("pod", runtime, annotations={"gpulatch.io/gpus": "any:1"})
    assert cri.host.claims() == []
    cri.started("box", pod=pod)
    assert cri.held() == {"box": cri.opens("box")}
    assert len(cri.opens("box")) == 1
