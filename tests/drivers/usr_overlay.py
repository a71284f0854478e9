"""A /usr of the sandbox's own, over the host's: with Docker in it as if it were installed, and writable for installers.

On a machine whose root lacks CAP_SYS_RESOURCE or whose cgroup tree lacks controllers, runc in it is wrapped: what
Docker asks for and the kernel cannot give here is left out of the container's spec before the real runc reads it.
"""

import os
import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).parent.parent.parent
ENGINE = CHECKOUT / "build/engines/docker/usr"
RUNC = Path("/usr/sbin/runc")

_WORK = Path("/run/test-usr")
_REAL_RUNC = Path("/usr/libexec/test-real-runc/runc")
_CAP_SYS_RESOURCE = 24  # capability.h
_CONTROLLED = {"cpu": "cpu", "memory": "memory", "pids": "pids", "io": "blockIO", "hugetlb": "hugepageLimits"}

_WRAPPER = """\
import json, os, sys

def strip(process, resources):
    dropped = [key for key in RESOURCES if resources.pop(key, None)]
    for names in (process.get("capabilities") or {}).values():
        for name in [name for name in names or [] if name in CAPABILITIES]:
            names.remove(name)
            dropped.append(name)
    if CAPABILITIES and (process.get("oomScoreAdj") or 0) < 0:
        dropped.append(process.pop("oomScoreAdj"))
    return dropped

words = sys.argv[1:]
path = None
if "create" in words or "run" in words:
    path = os.path.join(words[words.index("--bundle") + 1], "config.json")
elif "exec" in words and "--process" in words:
    path = words[words.index("--process") + 1]
if path:
    with open(path) as file:
        data = json.load(file)
    if strip(data.get("process", data), data.get("linux", {}).get("resources", {})):
        with open(path, "w") as file:
            json.dump(data, file)
os.execv(REAL, sys.argv)
"""


def mount() -> None:
    """Put the overlay over /usr. Raises CalledProcessError."""
    for name in ("engine", "upper", "work"):
        (_WORK / name).mkdir(parents=True)
    subprocess.run(["mount", "--bind", str(ENGINE), str(_WORK / "engine")], check=True)
    options = f"lowerdir={_WORK}/engine:/usr,upperdir={_WORK}/upper,workdir={_WORK}/work"
    subprocess.run(["mount", "-t", "overlay", "-o", options, "test-usr", "/usr"], check=True)
    _wrap_runc()


def unmount() -> None:
    """Take the overlay away; a program that still runs from it keeps its files."""
    subprocess.run(["umount", "--lazy", "/usr"], check=True)
    subprocess.run(["umount", "--lazy", str(_WORK / "engine")], check=True)
    subprocess.run(["rm", "-rf", str(_WORK)], check=True)


def controllers() -> set[str]:
    """The controllers that containers can be given here."""
    return set(Path("/sys/fs/cgroup/cgroup.subtree_control").read_text().split())


def _wrap_runc() -> None:
    missing = [key for name, key in _CONTROLLED.items() if name not in controllers()]
    capabilities = [] if _may_raise_limits() else ["CAP_SYS_RESOURCE"]
    if not missing and not capabilities:
        return
    _REAL_RUNC.parent.mkdir()
    os.rename(RUNC, _REAL_RUNC)
    constants = f"RESOURCES, CAPABILITIES, REAL = {missing!r}, {capabilities!r}, {str(_REAL_RUNC)!r}\n"
    RUNC.write_text(f"#!/usr/bin/python3 -ISB\n{constants}{_WRAPPER}")
    RUNC.chmod(0o755)


def _may_raise_limits() -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapBnd:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)
    return False
