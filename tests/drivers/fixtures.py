"""Fixtures of the tests on real runc and a real kernel, inside the sandbox."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from drivers.bundle import Bundle
from drivers.host import Host


@pytest.fixture
def host() -> Iterator[Host]:
    """A simulated DGX A100."""
    found = Host()
    yield found
    found.close()


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """A bundle that asks for no GPU and sleeps."""
    return Bundle(tmp_path)


@pytest.fixture
def recorder(tmp_path: Path) -> Path:
    """A low-level runtime that writes down how it was called, then becomes runc."""
    path = tmp_path / "record-runc"
    path.write_text(
        "#!/usr/bin/python3 -ISB\n"
        "import os, sys\n"
        f"folder = {str(tmp_path)!r}\n"
        "for name in ('cmdline', 'environ'):\n"
        "    open(f'{folder}/{name}', 'wb').write(open(f'/proc/self/{name}', 'rb').read())\n"
        "os.execv('/usr/sbin/runc', ['runc', *sys.argv[1:]])\n"
    )
    path.chmod(0o755)
    return path
