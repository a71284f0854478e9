"""Docker, containerd's ctr and CRI plugin, and Podman on one host, on runc and on crun: one book for all of them."""

import itertools
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from drivers.containerd import Containerd
from drivers.cri import Cri
from drivers.docker import Docker
from drivers.engine import refusal, wait_until
from drivers.engine_host import LOW_LEVEL, EngineHost
from drivers.engines import Engines
from drivers.podman import Podman

pytestmark = pytest.mark.needs("sandbox", "root", "runc", "crun", "cc")

ALL = list(range(8))


@pytest.fixture(scope="module")
def runtimes() -> Mapping[str, Path]:
    return LOW_LEVEL


@pytest.fixture
def engines(
    engine_host: EngineHost, docker: Docker, containerd: Containerd, cri: Cri, podman: Podman
) -> Iterator[Engines]:
    yield Engines(engine_host, docker, containerd, cri, podman)


def given(engines: Engines) -> list[int]:
    """Every GPU in the book, once for each claim on it."""
    return sorted(device["index"] for claim in engines.machine.host.claims() for device in claim["devices"])


def test_of_24_that_ask_at_once_no_two_get_the_same_gpu(engines: Engines) -> None:
    wishes = ("GPULATCH_GPUS=any:1", "GPULATCH_GPUS=any:2", "GPULATCH_GPUS=any:1")
    askers = [
        (f"{kind}-{runtime}-{number}", engine, wish, runtime)
        for number, wish in enumerate(wishes)
        for kind, engine in engines.all().items()
        for runtime in LOW_LEVEL
    ]
    told = engines.ask_at_once(askers)
    assert len(told) == 24
    assert given(engines) == ALL  # there are 16 that ask for one: all GPUs are given, and each once
    winners = {name: engine for name, engine, _, _ in askers if told[name] is None}
    opened = {name: engine.opens(name) for name, engine in winners.items()}
    assert sorted(itertools.chain(*opened.values())) == ALL
    assert {name: len(gpus) for name, gpus in opened.items()} == {
        name: int(wish[-1]) for name, _, wish, _ in askers if name in winners
    }
    refusals = [refusal(text) for text in told.values() if text is not None]
    assert [line for line in refusals if "GL-4001" not in line] == []
    engines.remove_all()
    assert given(engines) == []
    again = [asker for asker in askers if asker[0].endswith("-0")]
    assert set(engines.ask_at_once(again).values()) == {None}
    assert given(engines) == ALL


@pytest.mark.parametrize("owner", ["docker", "ctr", "cri", "podman"])
def test_whoever_holds_a_gpu_is_named_to_the_users_of_all_engines(engines: Engines, owner: str) -> None:
    on_runc, on_crun = LOW_LEVEL
    assert engines.ask("owner", engines.all()[owner], "GPULATCH_GPUS=any:8", on_runc) is None
    (claim,) = engines.machine.host.claims()
    for kind, engine in engines.all().items():
        told = engines.ask(f"late-{kind}", engine, "NVIDIA_VISIBLE_DEVICES=5", on_crun)
        assert told is not None
        line = refusal(told)
        assert f"held by container {claim['name'] or 'owner'}" in line
        assert "GL-4002" in line
    assert given(engines) == ALL


def test_while_every_daemon_is_gone_the_book_is_right(engines: Engines) -> None:
    for number, (kind, engine) in enumerate(engines.all().items()):
        runtime = list(LOW_LEVEL)[number % 2]
        assert engines.ask(kind, engine, "GPULATCH_GPUS=any:2", runtime) is None
    pids = {kind: engine.pid(kind) for kind, engine in engines.all().items()}
    engines.docker.kill_daemon()
    engines.containerd.kill_daemon()
    try:
        assert given(engines) == ALL
        os.kill(pids["docker"], signal.SIGKILL)
        os.kill(pids["cri"], signal.SIGKILL)
        wait_until(lambda: len(given(engines)) == 4)
    finally:
        engines.docker.start()
        engines.containerd.start()
        engines.cri.wait_for_plugin()
    assert engines.containerd.held()["ctr"] == engines.containerd.opens("ctr")
    assert engines.ask("next", engines.docker, "GPULATCH_GPUS=any:4", "gpulatch") is None
    assert given(engines) == ALL
