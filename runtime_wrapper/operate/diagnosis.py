"""What is wrong with this host, or has changed since a container was started, that its user would want to know."""

import json
import os
import shutil
import stat
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runtime_wrapper import devices, proc, settings
from runtime_wrapper.errors import GpulatchError
from runtime_wrapper.inventory import Inventory
from runtime_wrapper.operate import event_log, runtimes

DAEMON_JSON = Path("/etc/docker/daemon.json")
CONTAINERD_CONFIG = Path("/etc/containerd/config.toml")
_TIMEOUT_S = 5.0


def of_host(inventory: Inventory | None) -> list[str]:
    """What stands against starting any GPU container, a line each."""
    return [*of_runtimes(), *of_settings(), *of_engines(), *of_nodes(inventory), *event_log.problems()]


def of_runtimes() -> list[str]:
    """Runtime names that are broken or switched off."""
    found: list[str] = []
    for runtime in (one for directory in runtimes.DIRECTORIES for one in runtimes.installed(directory)):
        found += runtime.problems
        if runtime.off:
            path = f"{runtime.directory}/low-level/{runtime.name}/off"
            found.append(f"the runtime {runtime.name} is switched off: remove {path}")
    return found


def of_settings() -> list[str]:
    """Settings that cannot be used."""
    try:
        settings.load("")
    except GpulatchError as error:
        return [str(error)]
    return []


def settings_since(moment: str) -> list[str]:
    """Settings files that were changed after a moment (RFC 3339, UTC), the folder of drop-ins included."""
    folder = Path(settings.DIRECTORY)
    paths = [folder / "config.toml", folder / "config.d", *sorted(folder.glob("config.d/*.toml"))]
    changed = [(path, when) for path in paths if (when := _changed(path)) and when > moment]
    if not changed:
        return []
    told = ", ".join(f"{path} ({when[11:19]})" for path, when in changed)
    return [f"the settings were changed since: {told}; they hold from the container's next start on"]


def of_nodes(inventory: Inventory | None) -> list[str]:
    """Device nodes of the host that are missing or stand for something else: containers get theirs all the same."""
    if inventory is None:
        return []
    try:
        numbers = devices.Numbers.of_host()
        nodes = devices.nodes(inventory.gpus, frozenset({"compute", "utility"}), numbers)
    except GpulatchError as error:
        return [str(error)]
    bad = [node.path for node in nodes if not _is_node(node)]
    return [f"{', '.join(bad)} of the host missing or not the driver's: run: gpulatch probe"] if bad else []


def of_engines() -> list[str]:
    """Engines that were started before they were told of gpulatch."""
    return [*_of_docker(), *_of_containerd()]


def asked_docker(container: str) -> dict[str, Any] | None:
    """What Docker says of a container, None when it knows none or is not there."""
    answer = _docker("inspect", "--type", "container", container)
    return answer[0] if isinstance(answer, list) and answer and isinstance(answer[0], dict) else None


def _of_docker() -> list[str]:
    try:
        entries = json.loads(DAEMON_JSON.read_text()).get("runtimes", {})
    except FileNotFoundError:
        return []
    except (OSError, ValueError, AttributeError) as error:
        return [f"{DAEMON_JSON} cannot be read ({type(error).__name__}): mend it, then run: systemctl restart docker"]
    names = [name for name, entry in entries.items() if isinstance(entry, dict) and _is_ours(str(entry.get("path")))]
    known = _docker("info", "--format", "{{json .Runtimes}}")
    missing = [name for name in names if isinstance(known, dict) and name not in known]
    lines = [
        f"{DAEMON_JSON} names the runtime {name}, which the running Docker does not know: run: systemctl restart docker"
        for name in missing
    ]
    gone = [str(entries[name].get("path")) for name in names if not os.path.exists(str(entries[name].get("path")))]
    return lines + [f"{DAEMON_JSON} names {path}, which is not there: see gpulatch runtimes" for path in gone]


def _of_containerd() -> list[str]:
    try:
        names_us = "gpulatch" in CONTAINERD_CONFIG.read_text(errors="replace")
    except OSError:
        return []
    changed = CONTAINERD_CONFIG.stat().st_mtime
    older = [pid for pid, start in _started("containerd") if start < changed]
    if not names_us or not older:
        return []
    why = f"was changed after containerd (pid {older[0]}) started"
    return [f"{CONTAINERD_CONFIG} {why}: run: systemctl restart containerd"]


def _is_ours(path: str) -> bool:
    return any(path.startswith(f"{directory}/bin/") for directory in runtimes.DIRECTORIES)


def _docker(*words: str) -> Any:
    """Docker's answer as JSON, None without one."""
    program = shutil.which("docker")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *words], capture_output=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL, check=False
        )
        return json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def _started(program: str) -> list[tuple[int, float]]:
    """Processes of a program, by pid, and when they started in seconds since the epoch."""
    with open("/proc/stat") as file:
        boot = next(int(line.split()[1]) for line in file if line.startswith("btime "))
    found = []
    for name in os.listdir("/proc"):
        process = proc.Process.of(int(name)) if name.isdecimal() else None
        if process and (proc.read(f"/proc/{name}/comm") or b"").strip() == program.encode():
            found.append((process.pid, boot + process.start / os.sysconf("SC_CLK_TCK")))
    return found


def _changed(path: Path) -> str | None:
    """When a file was last changed, as events write moments; None when it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    when = datetime.fromtimestamp(max(found.st_mtime, found.st_ctime), UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _is_node(node: devices.DeviceNode) -> bool:
    try:
        found = os.stat(node.path, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(node.major, node.minor)
