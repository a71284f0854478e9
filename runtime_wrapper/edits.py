"""What gpulatch changes in a spec so that the container gets exactly its grant.

Pure: a spec and a grant in, a new spec out. Everything is in the spec, nothing in the root file system, and no code
runs in the container. GPU nodes and rules that the spec brought along and the grant does not hold are dropped first.
"""

import json
import os
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from runtime_wrapper import cdi_annotations, cuda, mount_list, spec, variables
from runtime_wrapper.devices import DeviceNode, Numbers
from runtime_wrapper.errors import HiddenDeviceError, NoDriverError, SpecError, quoted
from runtime_wrapper.inventory import Gpu
from runtime_wrapper.sources import is_ctrs_hook, is_nvidia_hook

DEVICES_VARIABLE = "GPULATCH_DEVICES"
CAPABILITIES_VARIABLE = "NVIDIA_DRIVER_CAPABILITIES"
DEFAULT_CAPABILITIES = frozenset({"compute", "utility"})
ALL_CAPABILITIES = frozenset({"compute", "compat32", "graphics", "utility", "video", "display", "ngx"})


@dataclass(frozen=True, slots=True)
class Grant:
    """What the container gets. `delegate`: the low-level runtime is NVIDIA's and makes nodes and files itself.

    `dialect` is the source that asked, by its name in the settings. `mounts` are the driver's files (`driver_mounts`).
    """

    gpus: tuple[Gpu, ...]
    nodes: tuple[DeviceNode, ...]
    numbers: Numbers
    delegate: bool = False
    dialect: str = ""
    mounts: tuple[spec.Json, ...] = ()


def capabilities(data: spec.Json) -> frozenset[str]:
    """The driver capabilities that the container asks for, as NVIDIA's runtime has them.

    Compute and utility by default; all of them where it says `all`, or says nothing and is a legacy image.
    """
    environment = spec.environment(data)
    words = {word.strip() for word in environment.get(CAPABILITIES_VARIABLE, "").split(",")} - {""}
    if "all" in words or (not words and variables.is_legacy(environment)):
        return ALL_CAPABILITIES
    return frozenset(words) or DEFAULT_CAPABILITIES


def apply(data: spec.Json, grant: Grant) -> spec.Json:
    """The spec with the grant in it. Raises HiddenDeviceError, CudaVisibleDevicesError, NoDriverError, SpecError."""
    _refuse_hidden(data, grant.nodes)
    edited = _copied(data)
    _drop_gpu_access(edited, grant)
    _drop_hooks(edited, is_nvidia_hook)
    _drop_requests(edited, grant)
    _add_nodes(edited, grant.nodes)
    if grant.mounts:
        _list(edited, "mounts").extend(grant.mounts)
    _set_variables(edited, grant)
    return edited


def silence_nvidia(data: spec.Json) -> spec.Json:
    """The spec with nothing in it on which NVIDIA's own runtime or hook would act by itself. Raises SpecError."""
    edited = _copied(data)
    _drop_requests_to_nvidia(edited)
    _drop_hooks(edited, is_ctrs_hook)
    _set_environment(edited, {variables.NVIDIA: "void"})
    return edited


def _copied(data: spec.Json) -> spec.Json:
    try:
        return deepcopy(data)
    except RecursionError as error:
        raise SpecError(spec.WHAT, "config.json", "is nested too deeply", "let the engine write it again") from error


def _refuse_hidden(data: spec.Json, nodes: Sequence[DeviceNode]) -> None:
    """A mount over a node's path would leave the container without a device that it was promised."""
    mounts = data.get("mounts")
    for mount in mounts if isinstance(mounts, list) else []:
        if not isinstance(mount, dict):
            continue
        target = os.path.normpath("/" + str(mount.get("destination", "")).lstrip("/"))
        for node in nodes:
            if _covers(target, node.path) and not _shows_it_anyway(mount, target, node.path):
                why = f"a mount of the container on {quoted(target)} covers it"
                raise HiddenDeviceError(
                    f"device node {node.path}", "mounts", why, "remove that mount or the GPU request"
                )


def _covers(target: str, path: str) -> bool:
    return target == path or path.startswith(target.rstrip("/") + "/")


def _shows_it_anyway(mount: spec.Json, target: str, path: str) -> bool:
    """An empty /dev or root that the runtime fills afterwards, or the host's own /dev or node, usable as such."""
    options = mount.get("options")
    options = options if isinstance(options, list) else []
    if mount.get("type") != "bind" and not {"bind", "rbind"} & {str(option) for option in options}:
        return target in ("/", "/dev")
    same = os.path.normpath(str(mount.get("source", ""))) == target
    return target in ("/dev", path) and same and "nodev" not in options


def _drop_gpu_access(edited: spec.Json, grant: Grant) -> None:
    """Drop nodes of GPUs not granted, and all allow rules for a GPU (ours follow); refusals and wildcards stay.

    A granted GPU may have a second node, under a name of the user's. Raises SpecError for an odd entry.
    """
    for holder, where in (
        (spec.section(edited, "linux"), "linux.devices"),
        (spec.section(edited, "linux", "resources"), "linux.resources.devices"),
    ):
        entries = _list(holder, "devices") if "devices" in holder else []
        for entry in entries:
            _require_plain(entry, where)
        granted = {(node.major, node.minor) for node in grant.nodes} if where == "linux.devices" else set()
        foreign = [
            entry
            for entry in entries
            if _is_gpu_entry(entry, grant.numbers) and (entry["major"], entry["minor"]) not in granted
        ]
        if foreign:
            holder["devices"] = [entry for entry in entries if entry not in foreign]


def _is_gpu_entry(entry: spec.Json, numbers: Numbers) -> bool:
    allowed = entry.get("allow", True) is True
    return allowed and entry.get("type") in ("c", "u") and numbers.is_gpu(entry.get("major"), entry.get("minor"))


def _require_plain(entry: Any, where: str) -> None:
    """Refuse an entry that runc or crun could take for another device than gpulatch does.

    Found by experiment: runc 1.1.5 and crun 1.8.1 cut numbers to 32 bits, crun takes text for 0, and a rule without a
    type, or of type `a`, opens every device in runc and those of that number in crun.
    """
    numbers = (entry.get("major"), entry.get("minor")) if isinstance(entry, dict) else ("",)
    plain = all(number is None or (type(number) is int and -1 <= number < 1 << 32) for number in numbers)
    typed = isinstance(entry, dict) and (
        entry.get("type") in ("c", "u", "b", "p")
        or entry.get("allow") is False
        or (entry.get("type") in ("a", None) and set(numbers) <= {None, -1})
    )
    if not (plain and typed):
        why = f"the entry {quoted(json.dumps(entry))} can be read in more than one way"
        raise SpecError(spec.WHAT, where, why, "give type, major and minor as the OCI specification has them")


def _drop_hooks(edited: spec.Json, unwanted: Callable[[object], bool]) -> None:
    hooks = spec.section(edited, "hooks")
    for stage, entries in hooks.items():
        if isinstance(entries, list):
            hooks[stage] = [entry for entry in entries if not unwanted(entry)]


def _drop_requests(edited: spec.Json, grant: Grant) -> None:
    """Drop what was asked in other words, so that nothing below gives GPUs a second time."""
    if grant.delegate:
        _drop_requests_to_nvidia(edited)
        return
    if "annotations" in edited:
        edited["annotations"] = cdi_annotations.without_gpus(_object(edited, "annotations"))
    if grant.dialect == "volume_mounts":
        _drop_mounts(edited)


def _drop_requests_to_nvidia(edited: spec.Json) -> None:
    """Drop what NVIDIA's own runtime heeds rather than its variable: CDI annotations, and mounts for GPUs.

    Its settings can name other prefixes; those in use (`nvidia.cdi.k8s.io/`) end as the usual one does.
    """
    annotations = _object(edited, "annotations")
    for name in [name for name in annotations if cdi_annotations.PREFIX in name]:
        del annotations[name]
    _drop_mounts(edited)


def _drop_mounts(edited: spec.Json) -> None:
    if isinstance(edited.get("mounts"), list):
        edited["mounts"] = mount_list.without(edited)


def _add_nodes(edited: spec.Json, nodes: Sequence[DeviceNode]) -> None:
    if not nodes:
        return
    linux = _object(edited, "linux")
    paths = {node.path for node in nodes}
    kept = [entry for entry in _list(linux, "devices") if not (isinstance(entry, dict) and entry.get("path") in paths)]
    linux["devices"] = kept + [_node_entry(node) for node in nodes]
    _list(_object(linux, "resources"), "devices").extend(_rule_entry(node) for node in nodes)
    _add_groups(edited, nodes)


def _node_entry(node: DeviceNode) -> dict[str, Any]:
    number = {"type": "c", "major": node.major, "minor": node.minor}
    return {"path": node.path, **number, "fileMode": node.mode, "uid": node.uid, "gid": node.gid}


def _rule_entry(node: DeviceNode) -> dict[str, Any]:
    return {"allow": True, "type": "c", "major": node.major, "minor": node.minor, "access": "rw"}


def _add_groups(edited: spec.Json, nodes: Sequence[DeviceNode]) -> None:
    """Nodes of a group that is not root's open only for processes in it (NVreg_DeviceFileGID)."""
    groups = _list(_object(_object(edited, "process"), "user"), "additionalGids")
    groups.extend(
        sorted({node.gid for node in nodes if node.gid != 0} - {gid for gid in groups if isinstance(gid, int)})
    )


def _set_variables(edited: spec.Json, grant: Grant) -> None:
    wanted = spec.environment(edited)
    ours = {
        variables.NVIDIA: _for_nvidia_runtime(grant) if grant.delegate else "void",
        cuda.ORDER_VARIABLE: wanted.get(cuda.ORDER_VARIABLE, "PCI_BUS_ID"),
        DEVICES_VARIABLE: ",".join(gpu.key for gpu in grant.gpus),
    }
    if grant.gpus or cuda.VARIABLE in wanted:
        ours[cuda.VARIABLE] = cuda.visible_devices(wanted.get(cuda.VARIABLE), grant.gpus)
    _set_environment(edited, ours)


def _set_environment(edited: spec.Json, ours: dict[str, str]) -> None:
    """Set each variable exactly once."""
    process = _object(edited, "process")
    kept = [entry for entry in _list(process, "env") if str(entry).partition("=")[0] not in ours]
    process["env"] = kept + [f"{name}={value}" for name, value in ours.items()]


def _object(parent: spec.Json, name: str) -> spec.Json:
    """The object under a name, made where it is absent or null. Raises SpecError for anything else."""
    found = parent.get(name)
    if found is None:
        found = parent[name] = {}
    if not isinstance(found, dict):
        raise SpecError(spec.WHAT, f'key "{name}"', "is not an object", "let the engine write it again")
    return found


def _list(parent: spec.Json, name: str) -> list[Any]:
    """The list under a name, made where it is absent or null. Raises SpecError for anything else."""
    found = parent.get(name)
    if found is None:
        found = parent[name] = []
    if not isinstance(found, list):
        raise SpecError(spec.WHAT, f'key "{name}"', "is not a list", "let the engine write it again")
    return found


def _for_nvidia_runtime(grant: Grant) -> str:
    if not all(gpu.uuid for gpu in grant.gpus):
        raise NoDriverError(
            "GPU UUID",
            "/proc/driver/nvidia",
            "is not known yet, and NVIDIA's runtime takes no PCI address",
            "run: nvidia-smi -L",
        )
    return ",".join(str(gpu.uuid) for gpu in grant.gpus) or "none"
