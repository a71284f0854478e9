"""containerEdits of CDI applied to a container's spec, as the CDI project's library does it.

The edits are checked ones (see `cdi_spec`). Rules: pkg/cdi/container-edits.go of the CDI project after 1.1.0, which
replaces a variable in its place and adds an idmap to mounts of containers with a user namespace. Not pure: what a
device node does not say is read from the host's node.
"""

import os
import stat
from collections.abc import Iterable
from copy import deepcopy
from typing import Any, NoReturn

from runtime_wrapper import spec
from runtime_wrapper.cdi_spec import NO_PERMISSIONS, WHAT, Json
from runtime_wrapper.errors import CdiError, SpecError, errno_name, quoted

_TYPES = {stat.S_IFBLK: "b", stat.S_IFCHR: "c", stat.S_IFIFO: "p"}


def joined(parts: Iterable[Json]) -> Json:
    """Several edits as one: lists one after the other, of `intelRdt` the last."""
    found: Json = {}
    for part in parts:
        for name, value in part.items():
            found[name] = [*found.get(name, ()), *value] if isinstance(value, list) else value
    return found


def apply(data: Json, edits: Json) -> Json:
    """The spec with the edits in it; the one given stays.

    Raises CdiError for a device node that the host lacks, SpecError for a spec with another type in a part's place.
    """
    edited = deepcopy(data)
    for entry in edits.get("env", ()):
        _set_variable(_list(edited, "process", "env"), entry)
    for node in edits.get("deviceNodes", ()):
        _add_node(edited, node)
    for device in edits.get("netDevices", ()):
        _object(edited, "linux", "netDevices")[device["hostInterfaceName"]] = {"name": device["name"]}
    if edits.get("mounts"):
        _add_mounts(edited, edits["mounts"])
    for hook in edits.get("hooks", ()):
        entry = {name: value for name, value in hook.items() if name != "hookName" and value not in ([], "")}
        _list(edited, "hooks", hook["hookName"]).append(entry)
    if "intelRdt" in edits:
        _object(edited, "linux")["intelRdt"] = edits["intelRdt"]
    for gid in edits.get("additionalGids", ()):
        if gid and gid not in (groups := _list(edited, "process", "user", "additionalGids")):
            groups.append(gid)
    return edited


def _set_variable(env: list[Any], entry: str) -> None:
    """Put a variable in the place of the last of its name, else at the end."""
    name = entry.partition("=")[0]
    places = [number for number, old in enumerate(env) if str(old).partition("=")[0] == name]
    if places:
        env[places[-1]] = entry
    else:
        env.append(entry)


def _add_node(edited: Json, node: Json) -> None:
    entry = _completed(node)
    user = spec.section(edited, "process", "user")
    for key in ("uid", "gid"):
        if key not in entry and user.get(key):
            entry[key] = user[key]
    linux = _object(edited, "linux")
    kept = [old for old in _list(linux, "devices") if _value(old, "path") != entry["path"]]
    linux["devices"] = [*kept, entry]
    if entry["type"] in ("b", "c"):
        access = node.get("permissions") or "rwm"
        rule = {"allow": True, "type": entry["type"], "major": entry["major"], "minor": entry["minor"]}
        rule["access"] = "" if access == NO_PERMISSIONS else access
        _list(edited, "linux", "resources", "devices").append(rule)


def _completed(node: Json) -> Json:
    """The node as an OCI spec has it; type, numbers and mode that it does not say are those of the host's node."""
    path = node.get("hostPath") or node["path"]
    type_, major, minor = node.get("type", ""), node.get("major", 0), node.get("minor", 0)
    said = bool(type_ and (major or type_ == "p"))
    found = _look(path, needed=not said)
    if found and not said:
        if type_ and type_ != found["type"]:
            _refuse(path, f"is of type {found['type']}, and the CDI spec says {type_}")
        type_ = found["type"]
        if not major and type_ != "p":
            major, minor = found["major"], found["minor"]
    entry = {"path": node["path"], "type": type_, "major": major, "minor": minor}
    mode = node.get("fileMode", found and found["mode"])
    if mode is not None:
        entry["fileMode"] = mode
    return entry | {key: node[key] for key in ("uid", "gid") if key in node}


def _look(path: str, *, needed: bool) -> Json | None:
    """What the host's device node is, not following a link; None where it is none and not `needed`."""
    try:
        seen = os.lstat(path)
    except OSError as error:
        if needed:
            _refuse(path, f"cannot be looked at ({errno_name(error)})")
        return None
    type_ = _TYPES.get(stat.S_IFMT(seen.st_mode))
    if type_ is None:
        if needed:
            _refuse(path, "is no device node")
        return None
    numbers = {"major": os.major(seen.st_rdev), "minor": os.minor(seen.st_rdev)}
    return {"type": type_, **numbers, "mode": stat.S_IMODE(seen.st_mode)}


def _add_mounts(edited: Json, mounts: list[Json]) -> None:
    """A mount on the same path is replaced; then all are sorted by depth, so that none covers another's target."""
    namespaces = spec.section(edited, "linux").get("namespaces")
    maps_users = isinstance(namespaces, list) and any(_value(one, "type") == "user" for one in namespaces)
    kept = _list(edited, "mounts")
    for mount in mounts:
        kept = [old for old in kept if _value(old, "destination") != mount["containerPath"]]
        kept.append(_mount_entry(mount, maps_users=maps_users))
    edited["mounts"] = sorted(kept, key=lambda mount: _depth(str(_value(mount, "destination"))))


def _mount_entry(mount: Json, *, maps_users: bool) -> Json:
    options = list(mount.get("options", ()))
    binds = mount.get("type") == "bind" or {"bind", "rbind"} & set(options)
    if maps_users and binds and not {"idmap", "ridmap"} & set(options):
        options.append("ridmap" if "rbind" in options else "idmap")
    entry = {"destination": mount["containerPath"], "source": mount["hostPath"]}
    return entry | ({"type": mount["type"]} if mount.get("type") else {}) | ({"options": options} if options else {})


def _depth(path: str) -> int:
    return os.path.normpath(path).replace("//", "/").count("/")


def _value(entry: Any, name: str) -> Any:
    """What an entry of a list says under a name; None where it is no object."""
    return entry.get(name) if isinstance(entry, dict) else None


def _object(parent: Json, *names: str) -> Json:
    """The object below some names, made where it is absent or null."""
    for name in names:
        parent = _part(parent, name, {})
    return parent


def _list(parent: Json, *names: str) -> list[Any]:
    """The list below some names, made where it is absent or null."""
    found: list[Any] = _part(_object(parent, *names[:-1]), names[-1], [])
    return found


def _part(parent: Json, name: str, empty: Any) -> Any:
    if parent.get(name) is None:
        parent[name] = empty
    if type(parent[name]) is not type(empty):
        raise SpecError(spec.WHAT, f'key "{name}"', "has another type", "let the engine write it again")
    return parent[name]


def _refuse(path: str, why: str) -> NoReturn:
    raise CdiError(WHAT, f"device node {quoted(path)}", why, "let the vendor's tool write the CDI spec again")
