"""A /usr of the sandbox's own, over the host's: with the engines in it as if they were installed, and writable.

The same, without anything in it, for /var/lib and /opt: what engines write there is gone with the overlay.

On a machine whose root lacks CAP_SYS_RESOURCE or whose cgroup tree lacks controllers, runc and crun in it are wrapped:
what engines ask for and the kernel cannot give here is left out of the container's spec before the real runtime reads
it (`humble_runtime.py`), and crun's own wish for locked memory, which it does not need, is granted in word only.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parent.parent.parent
ENGINES = CHECKOUT / "build/engines"
RUNC = Path("/usr/sbin/runc")
CRUN = Path("/usr/bin/crun")
REAL = Path("/usr/libexec/test-real-runtimes")

_NAMES = ("docker", "podman")
_USR = Path("/usr")
_WRITTEN = (Path("/var/lib"), Path("/opt"))  # where engines keep something whatever their settings say
_WORK = Path("/run/test-usr")
_DRIVERS = Path(__file__).parent
_PRELOADED = REAL / "locked-memory.so"
_CAP_SYS_RESOURCE = 24  # capability.h
_CONTROLLED = {"cpu": "cpu", "memory": "memory", "pids": "pids", "io": "blockIO", "hugetlb": "hugepageLimits"}


def missing() -> list[str]:
    """The engines that are not unpacked yet."""
    return [name for name in _NAMES if not (ENGINES / name).exists()]


def mount() -> None:
    """Put the overlays over /usr, /var/lib and /opt. Raises CalledProcessError."""
    for name in _NAMES:
        (_WORK / name).mkdir(parents=True)
        subprocess.run(["mount", "--bind", str(ENGINES / name / "usr"), str(_WORK / name)], check=True)
    _overlay(_USR, *(str(_WORK / name) for name in _NAMES))
    for folder in _WRITTEN:
        _overlay(folder)
    _wrap_runtimes()


def unmount() -> None:
    """Take the overlays away; a program that still runs from one keeps its files."""
    for target in (*_WRITTEN, _USR, *(_WORK / name for name in _NAMES)):
        subprocess.run(["umount", "--lazy", str(target)], check=True)
    subprocess.run(["rm", "-rf", str(_WORK)], check=True)


def _overlay(folder: Path, *above: str) -> None:
    """Make a folder writable without a trace, with other folders' files above its own."""
    upper, work = (_WORK / f"{folder.name}-{kind}" for kind in ("upper", "work"))
    upper.mkdir()
    work.mkdir()
    options = f"lowerdir={':'.join([*above, str(folder)])},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "-o", options, f"test-{folder.name}", str(folder)], check=True)


def controllers() -> set[str]:
    """The controllers that containers can be given here."""
    return set(Path("/sys/fs/cgroup/cgroup.subtree_control").read_text().split())


def may_raise_limits() -> bool:
    """Whether root has CAP_SYS_RESOURCE here."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapBnd:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)
    return False


def _wrap_runtimes() -> None:
    resources = [key for name, key in _CONTROLLED.items() if name not in controllers()]
    capabilities = [] if may_raise_limits() else ["CAP_SYS_RESOURCE"]
    if not resources and not capabilities:
        return
    REAL.mkdir()
    if capabilities:
        source = str(_DRIVERS / "locked_memory.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(_PRELOADED), source], check=True)
    _wrap(RUNC, {"resources": resources, "capabilities": capabilities, "preloaded": None})
    _wrap(CRUN, {"resources": resources, "capabilities": capabilities, "preloaded": capabilities and str(_PRELOADED)})


def _wrap(runtime: Path, what_is_missing: Mapping[str, Any]) -> None:
    """Put the wrapper in a runtime's place; the real one still gets the name it was called by as argv[0]."""
    os.rename(runtime, REAL / runtime.name)
    (REAL / f"{runtime.name}.json").write_text(json.dumps(what_is_missing))
    shutil.copy(_DRIVERS / "humble_runtime.py", runtime)
    runtime.chmod(0o755)
