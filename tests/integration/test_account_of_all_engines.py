"""Twenty containers of four engines, on runc and crun: whatever happens to the book it is found again, and each can be
explained."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from drivers.containerd import Containerd
from drivers.cri import Cri
from drivers.docker import Docker
from drivers.engine import Engine
from drivers.engine_host import LOW_LEVEL, EngineHost
from drivers.engines import Engines
from drivers.host import STATE
from drivers.podman import Podman

pytestmark = pytest.mark.needs("sandbox", "root", "runc", "crun", "cc")

LEDGER = STATE / "ledger.json"

# Of each engine: what its five containers ask for. The shared ones come first, so that the others find free GPUs.
WISHES = {
    "one": "NVIDIA_VISIBLE_DEVICES=7",
    "two": "GPULATCH_GPUS=4,5",
    "watch": "GPULATCH_GPUS=all+policy=monitor",
    "own": "GPULATCH_GPUS=any:1",
    "none": "NOTHING=asked",
}


@pytest.fixture(scope="module")
def runtimes() -> Mapping[str, Path]:
    return LOW_LEVEL


@pytest.fixture(scope="module")
def engines(
    engine_host: EngineHost, dockerd: Docker, containerd_daemon: Containerd, cri_plugin: Cri, libpod: Podman
) -> Iterator[Engines]:
    """All engines with their twenty containers; the tests of this file leave them running."""
    found = Engines(engine_host, dockerd, containerd_daemon, cri_plugin, libpod)
    for wish in WISHES:
        for number, (kind, engine) in enumerate(found.all().items()):
            assert found.ask(f"{kind}-{wish}", engine, WISHES[wish], list(LOW_LEVEL)[number % 2]) is None
    yield found
    found.remove_all()


def book(engines: Engines) -> list[dict[str, Any]]:
    return sorted(engines.machine.host.claims(), key=lambda claim: str(claim["id"]))


def downgraded() -> None:
    LEDGER.write_text(json.dumps({**json.loads(LEDGER.read_text()), "schema": "gpulatch-ledger/0", "claims": {}}))


DAMAGES: dict[str, Callable[[], object]] = {
    "deleted": LEDGER.unlink,
    "truncated": lambda: os.truncate(LEDGER, LEDGER.stat().st_size // 3),
    "zero-filled": lambda: LEDGER.write_bytes(b"\0" * LEDGER.stat().st_size),
    "downgraded": downgraded,
    "all state deleted": lambda: shutil.rmtree(STATE),
}


def test_each_container_is_booked_under_the_name_and_engine_that_people_know(engines: Engines) -> None:
    found = {claim["name"] or claim["id"]: claim["engine"] for claim in book(engines)}
    names = {"docker": "docker", "ctr": "containerd", "cri": "kubernetes", "podman": "podman"}
    wishes = [wish for wish in WISHES if wish != "none"]
    expected = {f"{kind}-{wish}": names[kind] for kind in ("docker", "ctr", "podman") for wish in wishes}
    expected |= {f"pod-cri-{wish}/cri-{wish}": "kubernetes" for wish in wishes}
    assert found == expected


@pytest.mark.parametrize("how", DAMAGES)
def test_nothing_is_lost_with_the_ledger(engines: Engines, how: str) -> None:
    before = book(engines)
    DAMAGES[how]()
    assert book(engines) == before
    told = engines.ask("late", engines.docker, "GPULATCH_GPUS=any:3", "gpulatch")
    assert "0 of 8 are free" in str(told) or "1 of 8 are free" in str(told)
    assert book(engines) == before
    assert engines.ask("guest", engines.podman, "NVIDIA_VISIBLE_DEVICES=7", "gpulatch-crun") is None
    engines.podman.run("rm", "--force", "--time", "0", "guest")
    engines.docker.run("rm", "--force", "late")
    assert book(engines) == before


def test_a_container_of_dockers_own_runtime_is_found(engines: Engines) -> None:
    minor = engines.machine.gpus[5]["minor"]
    engines.docker.started("old", "--device", f"/dev/nvidia{minor}", runtime="runc")
    try:
        claim = engines.docker.claim("old")
        assert (claim["engine"], claim["policy"], claim["runtime"]) == ("docker", "shared", "")
        assert [device["index"] for device in claim["devices"]] == [5]
    finally:
        engines.docker.run("rm", "--force", "old")
    assert "old" not in engines.docker.held()


def explained(engines: Engines, what: str) -> str:
    done = engines.machine.host.gpulatch("explain", what)
    assert done.returncode == 0, done
    return done.stdout


@pytest.mark.parametrize("kind", ["docker", "ctr", "cri", "podman"])
def test_every_container_is_explained_by_its_name(engines: Engines, kind: str) -> None:
    assert 'env NVIDIA_VISIBLE_DEVICES: "7": counts' in explained(engines, f"{kind}-one")
    two = explained(engines, f"{kind}-two")
    assert "GPU 4: asked for by name" in two
    assert "it is running and holds GPUs 4,5 (shared)" in two
    assert "monitor" in explained(engines, f"{kind}-watch")
    own = explained(engines, f"{kind}-own")
    assert "most NVLink bandwidth" in own or "asked for" in own or "cut off" in own
    none = explained(engines, f"{kind}-none")
    assert "it asked for no GPU that counts" in none
    assert "it is running and holds no GPU" in none


@pytest.mark.parametrize("kind", ["docker", "ctr", "cri", "podman"])
def test_a_refused_container_is_explained_by_what_stands_in_its_way(engines: Engines, kind: str) -> None:
    engine: Engine = engines.all()[kind]
    own = engines.docker.claim("docker-own")["devices"][0]["index"]
    told = engines.ask(f"{kind}-refused", engine, f"NVIDIA_VISIBLE_DEVICES={own}", "gpulatch")
    assert told is not None
    text = explained(engines, f"{kind}-refused")
    assert "it was refused" in text
    assert f"GPU {own}" in text
    assert "held by container docker-own" in text
    assert "asked again now, it would be refused for the same reason" in text
    wrong = engines.ask(f"{kind}-wrong", engine, "NVIDIA_VISIBLE_DEVICES=99", "gpulatch")
    assert wrong is not None
    assert "this host has GPUs 0-7" in explained(engines, f"{kind}-wrong")
