"""One CDI spec: what a file of it says, checked as the CDI project's library checks it.

Pure. Rules: SPEC.md and pkg/cdi/spec.go, container-edits.go of the CDI project, at 1.1.0. A field that nobody knows, a
version below what the spec uses, or a device without edits spoils the whole file, so that no half of it is believed.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from runtime_wrapper import cdi, cdi_version
from runtime_wrapper.errors import CdiError, quoted

Json = dict[str, Any]

WHAT = "CDI spec"
HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
NO_PERMISSIONS = "none"

_ANY = "*"  # a key of any name
_TEXT_MAP = {_ANY: str}
_NODE = {
    **dict.fromkeys(("path", "hostPath", "type", "permissions"), str),
    **dict.fromkeys(("major", "minor", "fileMode", "uid", "gid"), int),
}
_HOOK = {"hookName": str, "path": str, "args": [str], "env": [str], "timeout": int}
_MOUNT = {"hostPath": str, "containerPath": str, "options": [str], "type": str}
_RDT = {
    **dict.fromkeys(("closID", "l3CacheSchema", "memBwSchema"), str),
    **dict.fromkeys(("enableCMT", "enableMBM", "enableMonitoring"), bool),
    "schemata": [str],
}
_EDITS = {
    "env": [str],
    "deviceNodes": [_NODE],
    "netDevices": [{"hostInterfaceName": str, "name": str}],
    "hooks": [_HOOK],
    "mounts": [_MOUNT],
    "intelRdt": _RDT,
    "additionalGids": [int],
}
_DEVICE = {"name": str, "annotations": _TEXT_MAP, "containerEdits": _EDITS}
_SPEC = {
    **{"cdiVersion": str, "kind": str, "annotations": _TEXT_MAP},
    **{"devices": [_DEVICE], "containerEdits": _EDITS},
}
_WORDS = {str: "a text", bool: "true or false", int: "a number from 0 to 4294967295"}

# Keys of annotations: Kubernetes' qualified names.
_DNS_LABEL = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_ANNOTATION = rf"(?:(?P<prefix>{_DNS_LABEL}(?:\.{_DNS_LABEL})*)/)?(?P<name>[a-z0-9](?:[a-z0-9_.-]*[a-z0-9])?)"
_MAX_ANNOTATIONS = 256 * 1024


@dataclass(frozen=True, slots=True)
class CdiSpec:
    """A spec that can be used: the edits for each container that has any of its devices, and those of each device."""

    kind: str
    version: str
    edits: Json
    devices: dict[str, Json]


def loads(data: bytes) -> Any:
    """The JSON in a file. Raises ValueError, also where a key stands twice."""
    try:
        return json.loads(data, object_pairs_hook=_once)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error


def check(data: object, where: str) -> CdiSpec:
    """The spec that some JSON values are; `where` names the file. Raises CdiError."""
    found = _shaped(data, _SPEC, "", where)
    _check_version(found, where)
    kind = found.get("kind", "")
    if cdi.parse(f"{kind}=0") is None:
        _refuse(where, f"kind {quoted(kind)} is not vendor/class, such as nvidia.com/gpu")
    for part in (found, *found.get("devices", ())):
        _check_annotations(part.get("annotations", {}), where)
    edits = found.get("containerEdits", {})
    check_edits(edits, where)
    return CdiSpec(kind, found["cdiVersion"].removeprefix("v"), edits, _devices(found, kind, where))


def check_edits(edits: object, where: str) -> Json:
    """Edits without what is null in them. Raises CdiError for what no runtime could do."""
    found: Json = _shaped(edits, _EDITS, "containerEdits", where)
    _check_env(found.get("env", ()), where)
    for node in found.get("deviceNodes", ()):
        _check_node(node, where)
    for hook in found.get("hooks", ()):
        _check_hook(hook, where)
    for mount in found.get("mounts", ()):
        if not (mount.get("hostPath") and mount.get("containerPath")):
            _refuse(where, f"mount {quoted(json.dumps(mount))} lacks hostPath or containerPath")
    _check_net_devices(found.get("netDevices", ()), where)
    closid = found.get("intelRdt", {}).get("closID", "")
    if closid != "/" and (closid in (".", "..") or len(closid) >= 4096 or "/" in closid or "\n" in closid):
        _refuse(where, f"intelRdt closID {quoted(closid)} is no name of a file")
    return found


def _once(pairs: list[tuple[str, Any]]) -> Json:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {quoted(next(name for name in names if names.count(name) > 1))} stands twice")
    return found


def _shaped(value: Any, shape: Any, place: str, where: str) -> Any:
    """A value of the right types all through, without what is null; `place` is where in the file it stands."""
    if isinstance(shape, dict):
        return _object(value, shape, place, where)
    if isinstance(shape, list):
        if not isinstance(value, list):
            _refuse(where, f"{place} is not a list")
        return [_shaped(one, shape[0], f"{place}[{number}]", where) for number, one in enumerate(value)]
    if type(value) is not shape or (shape is int and not 0 <= value < 1 << 32):
        _refuse(where, f"{place} is not {_WORDS[shape]}")
    return value


def _object(value: Any, fields: dict[str, Any], place: str, where: str) -> Json:
    if not isinstance(value, dict):
        _refuse(where, f"{place or 'the file'} is not an object")
    for name in value:
        if not isinstance(name, str) or (name not in fields and _ANY not in fields):
            _refuse(where, f"{place or 'the file'} has the unknown field {quoted(name)}")
    return {
        name: _shaped(part, fields.get(name, fields.get(_ANY)), f"{place}.{name}".lstrip("."), where)
        for name, part in value.items()
        if part is not None
    }


def _check_version(found: Json, where: str) -> None:
    version = found.get("cdiVersion", "").removeprefix("v")
    if version not in cdi_version.KNOWN:
        _refuse(where, f"cdiVersion {quoted(version)} is not one of {', '.join(cdi_version.KNOWN)}")
    least = cdi_version.lowest(found)
    if cdi_version.is_below(version, least):
        _refuse(where, f"it uses what cdiVersion {version} does not have, but {least} does")


def _check_annotations(annotations: dict[str, str], where: str) -> None:
    for key in annotations:
        match = re.fullmatch(_ANNOTATION, key.lower())
        if not match or len(match["name"]) > 63 or len(match["prefix"] or "") > 253:
            _refuse(where, f"annotation {quoted(key)} is no valid key")
    if sum(len(key) + len(text) for key, text in annotations.items()) > _MAX_ANNOTATIONS:
        _refuse(where, "its annotations are larger than 256 KiB")


def _devices(found: Json, kind: str, where: str) -> dict[str, Json]:
    devices: dict[str, Json] = {}
    for device in found.get("devices", ()):
        name, edits = device.get("name", ""), device.get("containerEdits", {})
        if cdi.parse(f"{kind}={name}") is None:
            _refuse(where, f"{quoted(name)} is no name of a device")
        if name in devices:
            _refuse(where, f"device {quoted(name)} is in it twice")
        if not any(part or key == "intelRdt" for key, part in edits.items()):
            _refuse(where, f"device {quoted(name)} has no edits")
        devices[name] = check_edits(edits, where)
    if not devices:
        _refuse(where, "it has no devices")
    return devices


def _check_env(entries: Sequence[str], where: str) -> None:
    for entry in entries:
        if entry.find("=") <= 0:
            _refuse(where, f"variable {quoted(entry)} is not NAME=VALUE")


def _check_node(node: Json, where: str) -> None:
    path, permissions = node.get("path", ""), node.get("permissions", "")
    if not path:
        _refuse(where, "a device node has no path")
    if node.get("type", "") not in ("", "b", "c", "u", "p"):
        _refuse(where, f"device node {quoted(path)} has the type {quoted(node['type'])}, not b, c, u or p")
    if permissions != NO_PERMISSIONS and permissions.strip("rwm"):
        _refuse(where, f"device node {quoted(path)} has the permissions {quoted(permissions)}, not some of rwm")


def _check_hook(hook: Json, where: str) -> None:
    if hook.get("hookName") not in HOOKS:
        _refuse(where, f"hook {quoted(hook.get('hookName', ''))} is not one of {', '.join(HOOKS)}")
    if not hook.get("path"):
        _refuse(where, f"hook {hook['hookName']} has no path")
    _check_env(hook.get("env", ()), where)


def _check_net_devices(devices: Sequence[Json], where: str) -> None:
    for key in ("hostInterfaceName", "name"):
        names = [device.get(key, "") for device in devices]
        if not all(names) or len(set(names)) != len(names):
            _refuse(where, f"net devices have no {key}, or two the same")


def _refuse(where: str, why: str) -> NoReturn:
    raise CdiError(WHAT, where, why, "mend the file or remove it")
