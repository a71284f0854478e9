"""Fixtures of the tests with real Docker: one dockerd for each file, without containers at the start of each test."""

from collections.abc import Iterator

import pytest
from drivers import usr_overlay
from drivers.docker import Docker
from drivers.host import Host


@pytest.fixture(scope="module")
def dockerd(request: pytest.FixtureRequest) -> Iterator[Docker]:
    """A dockerd on a simulated DGX A100, with gpulatch installed as a runtime."""
    if not (usr_overlay.ENGINE / "sbin/dockerd").exists():
        why = "needs Docker below build/engines: run packaging/prepare test"
        if request.config.getoption("--require-all"):
            pytest.fail(why, pytrace=False)
        pytest.skip(why)
    found = Docker(Host())
    yield found
    found.close()


@pytest.fixture
def docker(dockerd: Docker) -> Iterator[Docker]:
    """The dockerd of this file; what the test started is removed afterwards."""
    yield dockerd
    dockerd.remove_all()
