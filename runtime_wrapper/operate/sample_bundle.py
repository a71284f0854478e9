"""A small container of busybox, as an engine would hand it over: for the demo and the tests."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BUSYBOX = "/usr/bin/busybox"
HOST_DEV = "/host-dev"

_CAPABILITIES = ["CAP_KILL", "CAP_MKNOD", "CAP_SETUID", "CAP_SETGID"]
_TRY_TO_OPEN = 'for p in "$@"; do m=$( { : <>"$p"; } 2>&1 ) && m=opened; echo "$p|${m##*: }"; done'
# busybox prints strerror(3); a node whose driver is absent gives ENXIO once the device filter has let the open through.
_ERRNO_NAMES = {
    "No such device or address": "ENXIO",
    "Operation not permitted": "EPERM",
    "nonexistent directory": "ENOENT",
    "Permission denied": "EACCES",
}


def root_fs(path: Path) -> Path:
    """A root file system with busybox at `path`, made when it is absent; containers mount it read-only."""
    if not path.exists():
        for folder in ("bin", "dev", "proc", "sys", "tmp", "etc", HOST_DEV[1:]):
            (path / folder).mkdir(parents=True)
        shutil.copy(BUSYBOX, path / "bin/busybox")
        subprocess.run(["/usr/sbin/chroot", str(path), "/bin/busybox", "--install", "-s", "/bin"], check=True)
    return path


def spec(root: Path) -> dict[str, Any]:
    """A spec that sleeps, may open no device, and asks for no GPU."""
    tmpfs = {"type": "tmpfs", "source": "tmpfs"}
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": ["sleep", "1000"],
            "env": ["PATH=/bin"],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), _CAPABILITIES),
            "noNewPrivileges": True,
        },
        "root": {"path": str(root), "readonly": True},
        "hostname": "box",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", **tmpfs, "options": ["nosuid", "mode=755", "size=65536k"]},
            {"destination": "/tmp", **tmpfs},  # noqa: S108 - inside the container
        ],
        "annotations": {},
        "linux": {
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")],
        },
    }


def mount_host_dev(data: dict[str, Any]) -> None:
    """Show the host's whole /dev in the container, so that every node can be tried whatever is granted."""
    mount = {"destination": HOST_DEV, "source": "/dev", "type": "bind", "options": ["rbind", "ro"]}
    data["mounts"].append(mount)


def write(folder: Path, data: dict[str, Any]) -> Path:
    """Put a spec into a bundle folder, made when absent; returns the folder."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(data, indent=1))
    return folder


def try_to_open(runtime: Sequence[str], container: str, paths: Sequence[str]) -> dict[str, str]:
    """What the kernel says when a process in a running container opens each path: an errno's name, or `opened`.

    `runtime` is the command of the low-level runtime with its global options. Raises CalledProcessError.
    """
    command = [*runtime, "exec", container, "sh", "-c", _TRY_TO_OPEN, "sh", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    pairs = (line.split("|") for line in done.stdout.splitlines())
    return {path: _ERRNO_NAMES.get(answer, answer) for path, answer in pairs}
