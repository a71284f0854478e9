"""Runs a command as root in a host of its own: `python3 -m runtime_wrapper.operate.sandbox -- CMD ARG...`.

The command gets new mount, pid, network, IPC and cgroup namespaces: its own cgroup v2 tree at /sys/fs/cgroup (also on
a host whose controllers are bound to v1), fresh /proc, /sys, /run and /var/log, a private /dev, and only the interface
lo. Other files, /tmp among them, are the host's. runc and container engines run inside. `GPULATCH_SANDBOX=1` marks the
inside.

Everything that the command started ends with it, and its cgroups are removed, also when this process is killed: a
janitor process waits for the end of a pipe that only this process holds open. Not guaranteed: a process in state D.
Needs root, bash, util-linux and iproute2.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import NoReturn

MARK = "GPULATCH_SANDBOX"
CGROUP_PREFIX = "gpulatch-sandbox-"
SETUP_FAILED = 125

_SETUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sandbox.sh")


def run(argv: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """Run a command in a new sandbox; its exit status, 128 + n for signal n, 125 when the sandbox cannot be made."""
    if os.geteuid() != 0:
        return _refuse("needs root: run it with sudo")
    hierarchy = _cgroup2()
    if hierarchy is None:
        return _refuse("no cgroup2 is mounted at /sys/fs/cgroup or /sys/fs/cgroup/unified; mount one")
    cgroup = f"{hierarchy}/{CGROUP_PREFIX}{os.getpid()}-{time.monotonic_ns()}"
    try:
        os.mkdir(cgroup)
    except OSError as error:
        return _refuse(f"cannot make the cgroup {cgroup} ({os.strerror(error.errno or 0)})")
    return _run_in(cgroup, command(cgroup, argv), {**(os.environ if env is None else env), MARK: "1"})


def command(cgroup: str, argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` in a sandbox below a cgroup; it removes nothing afterwards."""
    return ["bash", _SETUP, "enter", cgroup, *argv]


def inside() -> bool:
    """Whether the calling process is in a sandbox."""
    return os.environ.get(MARK) == "1"


def _run_in(cgroup: str, line: Sequence[str], env: Mapping[str, str]) -> int:
    before = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    janitor, lifeline = _janitor(cgroup)
    try:
        status = subprocess.Popen(line, env=env).wait()
        return status if status >= 0 else 128 - status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        os.close(lifeline)
        janitor.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _janitor(cgroup: str) -> tuple[subprocess.Popen[bytes], int]:
    """A process that clears the cgroup once the returned descriptor is closed, by whatever end of this process."""
    read_end, write_end = os.pipe()
    line = [sys.executable, "-ISB", os.path.abspath(__file__), "--janitor", cgroup]
    janitor = subprocess.Popen(line, stdin=read_end, stdout=subprocess.DEVNULL, start_new_session=True)
    os.close(read_end)
    return janitor, write_end


def _clear(cgroup: str) -> None:
    """Kill what is left in a cgroup and its children, and remove them."""
    for _ in range(100):
        _kill(cgroup)
        for folder, _, _ in os.walk(cgroup, topdown=False):
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                pass
            except OSError:
                break  # still populated: a killed process takes a moment to go
        if not os.path.isdir(cgroup):
            return
        time.sleep(0.05)


def _kill(cgroup: str) -> None:
    """SIGKILL for every process below a cgroup; `cgroup.kill` since Linux 5.14, one by one before."""
    try:
        with open(f"{cgroup}/cgroup.kill", "w") as file:
            file.write("1")
    except OSError:
        for folder, _, _ in os.walk(cgroup):
            for pid in _lines(f"{folder}/cgroup.procs"):
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except OSError:
                    continue


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().split()
    except OSError:
        return []


def _cgroup2() -> str | None:
    """The mount point of the cgroup v2 hierarchy: beside v1 controllers, or alone."""
    for path in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
        if os.path.exists(f"{path}/cgroup.procs") and os.path.exists(f"{path}/cgroup.controllers"):
            return path
    return None


def _refuse(why: str) -> int:
    print(f"gpulatch sandbox: {why}", file=sys.stderr)
    return SETUP_FAILED


def main(argv: Sequence[str]) -> int:
    """The command line; `--janitor CGROUP` is for this module's own use."""
    match list(argv):
        case ["--janitor", cgroup]:
            sys.stdin.buffer.read()
            _clear(cgroup)
            return 0
        case ["--", *line] if line:
            return run(line)
    return _refuse("usage: python3 -m runtime_wrapper.operate.sandbox -- CMD ARG...")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
