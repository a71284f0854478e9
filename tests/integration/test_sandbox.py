"""The sandbox: its namespaces, its device filter, and that nothing outlives it. Runs nested, too."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime_wrapper.operate import sandbox

pytestmark = pytest.mark.needs("root", "unshare", "ip")

CHECKOUT = Path(__file__).parent.parent.parent
SANDBOX = [sys.executable, "-m", "runtime_wrapper.operate.sandbox", "--"]
LIMIT_S = 30.0


def inside(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SANDBOX, "bash", "-c", script], cwd=CHECKOUT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def cgroups(pid: int) -> list[str]:
    """The cgroups that the sandbox of a process left behind."""
    hierarchy = Path("/sys/fs/cgroup/unified")
    hierarchy = hierarchy if hierarchy.exists() else Path("/sys/fs/cgroup")
    return [path.name for path in hierarchy.glob(f"{sandbox.CGROUP_PREFIX}{pid}-*")]


def test_the_exit_status_is_that_of_the_command() -> None:
    assert inside("exit 7").returncode == 7
    assert inside("kill -KILL $$").returncode == 128 + signal.SIGKILL


def test_the_inside_has_its_own_cgroups_processes_devices_and_network() -> None:
    done = inside(
        "echo $GPULATCH_SANDBOX; grep ^0: /proc/self/cgroup; stat -f -c %T /sys/fs/cgroup /dev /run;"
        "ls /run /proc | grep -c '^[0-9]*$'; ls /sys/class/net; ip -br addr show lo | grep -o 127.0.0.1"
    )

    mark, cgroup, *kinds, processes, network, address = done.stdout.split()
    assert (mark, cgroup, kinds) == ("1", "0::/init", ["cgroup2fs", "tmpfs", "tmpfs"])
    assert int(processes) < 8
    assert (network, address) == ("lo", "127.0.0.1")


def test_a_node_made_inside_is_not_seen_outside() -> None:
    done = inside("mknod /dev/nvidia77 c 195 77 && ls /dev/nvidia77")

    assert done.stdout == "/dev/nvidia77\n"
    assert not os.path.exists("/dev/nvidia77")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_everything_inside_ends_with_the_sandbox_however_it_ends(number: signal.Signals, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = (
        "mkdir /sys/fs/cgroup/deep && (echo 0 > /sys/fs/cgroup/deep/cgroup.procs; exec setsid sleep 1000) & "
        f"setsid sleep 1000 & sleep 0.2; touch {ready}; wait"
    )
    command = ["env", "--default-signal=INT", *SANDBOX]  # a job in the background inherits it as ignored
    process = subprocess.Popen([*command, "bash", "-c", script], cwd=CHECKOUT)
    wait_until(ready.exists)
    assert len(cgroups(process.pid)) == 1

    process.send_signal(number)

    process.wait(LIMIT_S)
    wait_until(lambda: not cgroups(process.pid))  # a cgroup can be removed only when no process is left in it


def test_without_root_one_line_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)

    assert sandbox.run(["true"]) == 125
    assert capsys.readouterr().err == "gpulatch sandbox: needs root: run it with sudo\n"


def test_where_namespaces_are_not_allowed_one_line_says_so() -> None:
    without_admin = ["setpriv", "--bounding-set", "-sys_admin", *SANDBOX, "true"]

    done = subprocess.run(without_admin, cwd=CHECKOUT, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    assert done.returncode == 125
    assert done.stderr.count("\n") == 1
    assert "namespaces" in done.stderr


def test_a_command_line_without_a_command_is_answered_with_the_usage() -> None:
    done = subprocess.run(SANDBOX, cwd=CHECKOUT, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    assert done.returncode == 125
    assert done.stderr.count("\n") == 1
    assert "usage" in done.stderr


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
