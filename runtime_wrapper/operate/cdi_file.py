"""CDI spec files as text, and put in their place: root's, readable by everybody, in one step."""

import json
import os
import stat
import time
from collections.abc import Sequence
from typing import Any

import yaml

from runtime_wrapper import atomic, cdi_cache, cdi_registry, cdi_spec, trust
from runtime_wrapper.cdi_registry import Registry
from runtime_wrapper.errors import CdiError, NotRootError, errno_name

MODE = 0o644
MAX_WAIT_S = 5.0
FORMATS = ("json", "yaml")


def registry(directories: Sequence[str]) -> Registry:
    """What the files in the CDI directories give, those in YAML too."""
    return cdi_registry.read(directories, _decoders())


def compile_all(directories: Sequence[str]) -> Registry:
    """Compile the files for `driver_files = "cdi"`, once none has changed lately; what they give. Raises CdiError."""
    end = time.monotonic() + MAX_WAIT_S
    while time.monotonic() < end:
        if (found := cdi_cache.store(directories, _decoders(), time.time_ns())) is not None:
            return found
        time.sleep(0.1)
    why = "a file keeps changing, or bears a time in the future"
    raise CdiError("CDI specs", " and ".join(directories), why, "touch the file, then run it again")


def _decoders() -> dict[str, cdi_registry.Decoder]:
    return {".json": cdi_spec.loads, ".yaml": loads_yaml}


class _Loader(yaml.SafeLoader):
    """YAML in which no key stands twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuses a key that stands twice."""
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(keys)) != len(keys):
            raise yaml.YAMLError(f"a key stands twice {node.start_mark}")
        return super().construct_mapping(node, deep)


def dumps(spec: dict[str, Any], form: str) -> str:
    """A spec as the text of a file; the keys keep their order."""
    if form == "yaml":
        return str(yaml.safe_dump(spec, sort_keys=False))
    return json.dumps(spec, indent=2) + "\n"


def loads_yaml(data: bytes) -> Any:
    """The JSON values of a YAML file; a device's name may be a bare number. Raises ValueError, as for a key twice."""
    try:
        found = yaml.load(data, Loader=_Loader)  # noqa: S506 (a safe one)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"is no YAML: {' '.join(str(error).split())}") from error
    devices = found.get("devices") if isinstance(found, dict) else None
    for device in devices if isinstance(devices, list) else ():
        if isinstance(device, dict) and type(device.get("name")) is int:
            device["name"] = str(device["name"])
    return found


def require_alone(path: str, spec: dict[str, Any]) -> None:
    """Raises CdiError where another file of the folder has a device of the spec: it would be usable in neither."""
    folder, name = os.path.split(os.path.abspath(path))
    ours = {device["name"] for device in spec["devices"]}
    for file, other in registry([folder]).specs.items():
        common = sorted(ours & other.devices.keys()) if other.kind == spec["kind"] else []
        if common and os.path.basename(file) != name:
            why = f"{file} has {spec['kind']}={common[0]} too, and engines would take it from neither"
            raise CdiError(cdi_spec.WHAT, path, why, "remove one of the two files, or write to the other")


def put(path: str, data: bytes) -> bool:
    """Put a file in its place, and its folder where there is none; False where it is there already, just so.

    A link in its place, or a folder that others than root could change, is refused. Raises UntrustedPathError,
    NotRootError, CdiError; the file is then as before.
    """
    if os.geteuid() != 0:
        why = "a CDI spec opens devices and is written by root only"
        raise NotRootError("rootless caller", path, why, "run this as root, or print it: --output -")
    folder, name = os.path.split(os.path.abspath(path))
    try:
        directory = _open(folder)
        try:
            if _is_so_already(directory, name, path, data):
                return False
            atomic.replace(directory, name, data, MODE, fsync=True)
            return True
        finally:
            os.close(directory)
    except OSError as error:
        raise CdiError(
            cdi_spec.WHAT, path, f"cannot be written ({errno_name(error)})", "mend that, then run it again"
        ) from error


def _open(folder: str) -> int:
    """The folder, no symbolic link, made where it is absent; what it lies in must be there."""
    above, name = os.path.split(folder)
    parent = trust.open_directory(above, "directory")
    try:
        made = _made(parent, name)
        found = trust.open_subdirectory(parent, name or ".", "CDI directory", folder)
        if made:
            os.fchmod(found, 0o755)  # whatever the caller's umask took away
        return found
    finally:
        os.close(parent)


def _made(parent: int, name: str) -> bool:
    try:
        os.mkdir(name or ".", 0o755, dir_fd=parent)
    except FileExistsError:
        return False
    return True


def _is_so_already(directory: int, name: str, path: str, data: bytes) -> bool:
    try:
        content = trust.read_file(directory, name, cdi_spec.WHAT, path)
    except FileNotFoundError:
        return False
    mode = stat.S_IMODE(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    return (content, mode) == (data, MODE)
