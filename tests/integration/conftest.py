"""Fixtures of the tests with real engines: each starts once for a file, and each test starts without containers."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from drivers import usr_overlay
from drivers.containerd import Containerd
from drivers.cri import Cri
from drivers.docker import Docker
from drivers.engine_host import LOW_LEVEL, ON_RUNC, EngineHost
from drivers.podman import Podman


@pytest.fixture(scope="module")
def runtimes() -> Mapping[str, Path]:
    """The runtime names that gpulatch is installed under, and what lies below each; a file can have its own."""
    return {ON_RUNC: LOW_LEVEL[ON_RUNC]}


@pytest.fixture(scope="module")
def engine_host(request: pytest.FixtureRequest, runtimes: Mapping[str, Path]) -> Iterator[EngineHost]:
    """A simulated DGX A100 with gpulatch installed, ready for engines."""
    if missing := usr_overlay.missing():
        why = f"needs {', '.join(missing)} below build/engines: run packaging/prepare test"
        if request.config.getoption("--require-all"):
            pytest.fail(why, pytrace=False)
        pytest.skip(why)
    found = EngineHost(runtimes)
    yield found
    found.close()


@pytest.fixture(scope="module")
def dockerd(engine_host: EngineHost) -> Iterator[Docker]:
    """A dockerd that knows gpulatch's runtimes."""
    found = Docker(engine_host)
    yield found
    found.close()


@pytest.fixture
def docker(dockerd: Docker) -> Iterator[Docker]:
    """The dockerd of this file; what the test started is removed afterwards."""
    yield dockerd
    dockerd.remove_all()


@pytest.fixture(scope="module")
def libpod(engine_host: EngineHost) -> Iterator[Podman]:
    """A Podman that knows gpulatch's runtimes."""
    found = Podman(engine_host)
    yield found
    found.close()


@pytest.fixture
def podman(libpod: Podman) -> Iterator[Podman]:
    """The Podman of this file; what the test started is removed afterwards."""
    yield libpod
    libpod.remove_all()


@pytest.fixture(scope="module")
def containerd_daemon(engine_host: EngineHost) -> Iterator[Containerd]:
    """A containerd whose CRI plugin has gpulatch's runtimes as handlers."""
    found = Containerd(engine_host)
    yield found
    found.close()


@pytest.fixture
def containerd(containerd_daemon: Containerd) -> Iterator[Containerd]:
    """The containerd of this file; what the test started by `ctr` is removed afterwards."""
    yield containerd_daemon
    containerd_daemon.remove_all()


@pytest.fixture(scope="module")
def cri_plugin(containerd_daemon: Containerd) -> Iterator[Cri]:
    """The CRI plugin of this file's containerd."""
    found = Cri(containerd_daemon)
    yield found
    found.close()


@pytest.fixture
def cri(cri_plugin: Cri) -> Iterator[Cri]:
    """The CRI plugin of this file's containerd; the pods of the test are removed afterwards."""
    yield cri_plugin
    cri_plugin.remove_all()
