"""Docker's own record of a container: what `--gpus` really said, and the name people gave it.

Hot. dockerd turns a count N into the ids 0..N-1 before the runtime is called (moby daemon/nvidia_linux.go), and from
29.2 on into nodes, so the truth is `DeviceRequests` in `<data-root>/containers/<id>/hostconfig.json`. The data root is
known from the root file system, or from the files that dockerd mounts over /etc/hostname, /etc/hosts or
/etc/resolv.conf; with `--network container:x` these lie in x's folder, so only its parent is taken and joined with our
own id. What root does not own is not believed.
"""

import json
import os
import re
from typing import Any

from runtime_wrapper import cdi, spec, trust
from runtime_wrapper.errors import UntrustedPathError

_MOUNTED = ("hostname", "hosts", "resolv.conf")
_ID = re.compile(r"[0-9a-f]{64}")
# A request for GPUs need not say `gpu`: compose's `capabilities: [utility]` does not.
_CAPABILITIES = ("gpu", "nvidia", "compute", "compat32", "graphics", "utility", "video", "display")


def device_requests(data: spec.Json, container_id: str) -> str | None:
    """The GPUs that `docker run --gpus` or compose asked for, in the grammar of `request`; None when none is recorded.

    `void` when a request is there and names no GPU (`--gpus 0`): then the image's variables shall not count either.
    """
    recorded = _read(data, container_id, "hostconfig.json").get("DeviceRequests")
    wanted = [entry for entry in recorded if _is_for_gpus(entry)] if isinstance(recorded, list) else []
    if not wanted:
        return None
    items: list[str] = []
    count = 0
    for entry in wanted:
        number = entry.get("Count")
        if isinstance(number, int) and number < 0:
            items.append("all")
        elif isinstance(number, int):
            count += number
        items += _gpu_ids(entry)
    if count:
        items.append(f"any:{count}")
    return ",".join(items) or "void"


def container_name(data: spec.Json, container_id: str) -> str | None:
    """The name that `docker ps` shows."""
    name = _read(data, container_id, "config.v2.json").get("Name")
    return name.lstrip("/") or None if isinstance(name, str) else None


def _is_for_gpus(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    driver, capabilities = entry.get("Driver"), entry.get("Capabilities")
    if driver == "cdi" or (_texts(entry.get("DeviceIDs")) and not _gpu_ids(entry)):
        return bool(_gpu_ids(entry))
    groups = [group for group in capabilities if isinstance(group, list)] if isinstance(capabilities, list) else []
    return (driver in ("", None) or str(driver).partition(".")[0] == "nvidia") and any(
        group and all(word in _CAPABILITIES for word in group) for group in groups
    )


def _gpu_ids(entry: dict[str, Any]) -> list[str]:
    """The GPUs that an entry names; other vendors' CDI devices may stand beside them and are for Docker."""
    devices = [device for device in _texts(entry.get("DeviceIDs")) if not cdi.is_foreign(device)]
    if entry.get("Driver") == "cdi":
        return [cdi.selector(device) for device in devices if cdi.parse(device)]
    return devices


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _read(data: spec.Json, container_id: str, name: str) -> dict[str, Any]:
    """One file of the container's folder; empty when there is none, or none that can be believed."""
    if not _ID.fullmatch(container_id):
        return {}
    for containers in _containers_folders(data):
        folder = f"{containers}/{container_id}"
        try:
            directory = trust.open_directory(folder, "folder of a Docker container")
        except (FileNotFoundError, UntrustedPathError):
            continue
        try:
            found = json.loads(trust.read_file(directory, name, "record of a Docker container", f"{folder}/{name}"))
        except (FileNotFoundError, UntrustedPathError, ValueError, RecursionError):
            continue
        finally:
            os.close(directory)
        if isinstance(found, dict):
            return found
    return {}


def _containers_folders(data: spec.Json) -> list[str]:
    """The folder of all containers of the engine, from what the engine alone says, else from its mounts.

    Every storage driver puts a container's root file system three levels below the data root. The mounts are a second
    choice: a user's own mount can hide one, or look like one.
    """
    root = spec.section(data, "root").get("path")
    if isinstance(root, str) and root.startswith("/"):
        beside_root = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(root))), "containers")
        if os.path.isdir(beside_root):
            return [beside_root]
    mounts = data.get("mounts")
    found: dict[str, None] = {}
    for mount in mounts if isinstance(mounts, list) else []:
        source = mount.get("source") if isinstance(mount, dict) else None
        if isinstance(source, str) and source.startswith("/"):
            folder, name = os.path.split(source)
            containers, owner = os.path.split(folder)
            if name in _MOUNTED and mount.get("destination") == f"/etc/{name}" and _ID.fullmatch(owner):
                found[containers] = None
    return list(found)
