"""Docker killed in every way: the book is right at the next look."""

import os
import signal
from collections.abc import Iterator

import pytest
from drivers.docker import Docker, wait_until

pytestmark = pytest.mark.needs("sandbox", "root", "runc", "cc")


@pytest.fixture
def crashing(docker: Docker) -> Iterator[Docker]:
    """Docker whose daemon runs again as usual afterwards."""
    yield docker
    if docker.daemon.poll() is None:
        docker.stop()
    docker.start()


def test_while_dockerd_is_gone_its_containers_hold_what_they_held(crashing: Docker) -> None:
    crashing.started("one", "--gpus", "1")
    crashing.started("two", "--gpus", "2")
    held = crashing.held()
    crashing.kill_daemon()
    assert crashing.held() == held
    assert set(held) == {"one", "two"}


def test_dockerd_that_comes_back_ends_them_and_their_gpus_are_free(crashing: Docker) -> None:
    crashing.started("one", "--gpus", "1")
    crashing.started("always", "--gpus", "1", "--restart", "always")
    before = crashing.pid("always")
    crashing.kill_daemon()
    crashing.start()
    wait_until(lambda: crashing.state("always")["Running"] and crashing.pid("always") != before)
    assert not crashing.state("one")["Running"]
    assert crashing.held() == {"always": [1]}
    assert crashing.opens("always") == [1]
    crashing.started("next", "--gpus", "7")
    assert len(crashing.held()["next"]) == 7


def test_with_live_restore_they_live_on_and_keep_their_gpus(crashing: Docker) -> None:
    live_restore = {"live-restore": True}
    crashing.restart(**live_restore)
    crashing.started("one", "--gpus", "1")
    crashing.started("two", "--gpus", "1")
    pid, held = crashing.pid("one"), crashing.held()
    crashing.kill_daemon()
    assert crashing.held() == held == {"one": [0], "two": [1]}
    crashing.start(**live_restore)
    assert crashing.pid("one") == pid
    assert crashing.opens("one") == [0]
    crashing.started("three", "--gpus", "1")
    crashing.run("stop", "--time", "0", "one")
    assert crashing.held() == {"two": [1], "three": [2]}
    crashing.run("restart", "--time", "0", "two")
    assert crashing.held() == {"two": [1], "three": [2]}


def test_a_container_that_ends_while_dockerd_is_gone_is_free_at_once(crashing: Docker) -> None:
    live_restore = {"live-restore": True}
    crashing.restart(**live_restore)
    crashing.started("one", "--gpus", "8")
    pid = crashing.pid("one")
    crashing.kill_daemon()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: crashing.held() == {})
    crashing.start(**live_restore)
    wait_until(lambda: not crashing.state("one")["Running"])
    crashing.started("next", "--gpus", "8")


def test_a_killed_shim_ends_its_container_and_frees_its_gpus(docker: Docker) -> None:
    container = docker.started("one", "--gpus", "1")
    docker.started("two", "--gpus", "1")
    (shim,) = [pid for pid, owner in docker.shims().items() if owner == container]
    os.kill(shim, signal.SIGKILL)
    wait_until(lambda: not docker.state("one")["Running"])
    assert docker.held() == {"two": [1]}
    docker.run("start", "one")
    assert docker.held() == {"one": [0], "two": [1]}


def test_after_a_reboot_the_book_is_empty_and_containers_come_back(crashing: Docker) -> None:
    crashing.started("one", "--gpus", "1")
    crashing.started("always", "--gpus", "2", "--restart", "always")
    assert set(crashing.held()) == {"one", "always"}
    crashing.power_off()
    try:
        assert crashing.held() == {}  # the old book still lies there, of another boot
        crashing.start()
        wait_until(lambda: bool(crashing.state("always")["Running"]))
        assert crashing.held() == {"always": crashing.opens("always")}
        assert len(crashing.opens("always")) == 2
        crashing.run("start", "one")
        assert set(crashing.held()) == {"one", "always"}
    finally:
        crashing.back_to_the_real_boot_id()
