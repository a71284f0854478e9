"""What is wrong with this host, or has changed since a container was started, that its user would want to know."""

import json
import os
import re
import stat
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from runtime_wrapper import devices, proc, settings
from runtime_wrapper.errors import GpulatchError
from runtime_wrapper.inventory import Inventory
from runtime_wrapper.operate import docker_cli, event_log, runtimes

DAEMON_JSON = Path("/etc/docker/daemon.json")
CONTAINERD_CONFIG = Path("/etc/containerd/config.toml")


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
    """Settings files that were changed after a moment (RFC 3339, UTC), their folders included: one may be gone."""
    folder = Path(settings.DIRECTORY)
    paths = [folder, folder / "config.toml", folder / "config.d", *sorted(folder.glob("config.d/*.toml"))]
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
    missing = [node.path for node in nodes if not os.path.lexists(node.path)]
    wrong = [told for node in nodes if (told := _wrong(node))]
    return [f"missing on the host: {', '.join(missing)}; run: gpulatch probe"] * bool(missing) + wrong


def _wrong(node: devices.DeviceNode) -> str | None:
    """What is wrong with a node that is there."""
    try:
        found = os.stat(node.path, follow_symlinks=False)
    except OSError:
        return None
    number = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
    if stat.S_ISCHR(found.st_mode) and number == f"{node.major}:{node.minor}":
        return None
    what = f"is {number}" if stat.S_ISCHR(found.st_mode) else "is no device node"
    return f"{node.path} of the host {what} instead of {node.major}:{node.minor}: run: rm {node.path}; gpulatch probe"


def of_engines() -> list[str]:
    """Engines that were started before they were told of gpulatch."""
    return [*_of_docker(), *_of_containerd()]


def _of_docker() -> list[str]:
    try:
        entries = json.loads(DAEMON_JSON.read_text()).get("runtimes", {})
    except FileNotFoundError:
        return []
    except (OSError, ValueError, AttributeError) as error:
        return [f"{DAEMON_JSON} cannot be read ({type(error).__name__}): mend it, then run: systemctl restart docker"]
    names = [
        name
        for name, entry in entries.items()
        if isinstance(entry, dict) and runtimes.is_launcher_path(str(entry.get("path")))
    ]
    known, _ = docker_cli.ask("info", "--format", "{{json .Runtimes}}")
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
    older = [pid for pid, start in _started(CONTAINERD_CONFIG) if start < changed]
    if not names_us or not older:
        return []
    why = f"was changed after containerd (pid {older[0]}) started"
    return [f"{CONTAINERD_CONFIG} {why}: run: systemctl restart containerd"]


def _started(config: Path) -> list[tuple[int, float]]:
    """containerd processes that read a configuration file, by pid, and their start in seconds since the epoch."""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    found = []
    for name in os.listdir("/proc"):
        process = proc.Process.of(int(name)) if name.isdecimal() else None
        if process and _reads(name, str(config)):
            found.append((process.pid, booted + process.start / os.sysconf("SC_CLK_TCK")))
    return found


def _reads(pid: str, config: str) -> bool:
    """Whether a process is a containerd with this configuration; one of dockerd's has its own."""
    words = (proc.read(f"/proc/{pid}/cmdline", limit=1 << 16) or b"").decode(errors="replace").split("\0")
    named = [word.partition("=")[2] or after for word, after in pairwise(words) if re.match("--?c(onfig)?(=|$)", word)]
    return os.path.basename(words[0]) == "containerd" and (named or [str(CONTAINERD_CONFIG)]) == [config]


def _changed(path: Path) -> str | None:
    """When a file was last changed, as events write moments; None when it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    when = datetime.fromtimestamp(max(found.st_mtime, found.st_ctime), UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
