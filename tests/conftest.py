"""Options and fixtures of all tests.

A test names the components it needs with the marker `needs`; where one is missing it is skipped with a reason, and
fails under `--require-all`, which `tests/run` sets.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from drivers.fixtures import bundle, host, recorder

__all__ = ["bundle", "host", "recorder"]

DATA = Path(__file__).parent / "data"
CHECKOUT = Path(__file__).parent.parent


def _present(component: str) -> bool:
    if component == "sandbox":
        return os.environ.get("GPULATCH_SANDBOX") == "1"
    if component == "root":
        return os.geteuid() == 0
    if component == "build":
        return (CHECKOUT / "build/gpulatch/bin/gpulatch-runtime").exists()
    return shutil.which(component, path=f"{os.environ['PATH']}:/usr/sbin") is not None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-all", action="store_true", help="fail where a needed component is missing")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*components): root, sandbox, build, or a program that the test needs")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        missing = [component for component in marker.args if not _present(component)]
        if missing and item.config.getoption("--require-all"):
            pytest.fail(f"needs {', '.join(missing)}: start the tests with tests/run", pytrace=False)
        if missing:
            pytest.skip(f"needs {', '.join(missing)}: start the tests with tests/run")


@pytest.fixture(scope="session")
def machines() -> dict[str, dict[str, Any]]:
    """The machine files of real hosts, by name."""
    return {machine["name"]: machine for machine in json.loads((DATA / "machines.json").read_text())}
