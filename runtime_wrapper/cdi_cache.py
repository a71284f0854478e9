"""The driver files that CDI specs name, compiled to `/run/gpulatch/cdi.json`: what `driver_files = "cdi"` gives.

Hot where that setting is made. CDI specs are YAML as a rule, which a create does not read: `gpulatch cdi compile` does.
The compiled ones hold while the stamps of the CDI directories and of every file in them are what they were; otherwise
the container is refused, for with files of another driver it would start and fail later.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from runtime_wrapper import atomic, cdi_edits, cdi_registry, settings_folder, spec, trust
from runtime_wrapper.cdi_registry import Decoder, Registry
from runtime_wrapper.cdi_spec import Json
from runtime_wrapper.errors import CdiError, StaleCdiError
from runtime_wrapper.inventory import Gpu
from runtime_wrapper.settings_folder import Stamp

NAME = "cdi.json"
SCHEMA = "gpulatch-cdi/1"
KIND = "nvidia.com/gpu"

_DRIVER_FILES = ("env", "mounts", "hooks")
_HINT = "run: gpulatch cdi compile"


def with_driver_files(data: Json, gpus: Sequence[Gpu]) -> Json:
    """The spec with the variables, mounts and hooks of these GPUs' CDI devices; their device nodes are not taken.

    Raises StaleCdiError, CdiError, SpecError, UntrustedPathError.
    """
    compiled = load(trust.STATE_DIR, cdi_registry.DIRECTORIES)
    parts: dict[str, Json] = {}
    for gpu in gpus:
        name = _device(compiled["devices"], gpu)
        file = compiled["devices"][name]["file"]
        parts.setdefault(file, compiled["files"][file])
        parts[name] = compiled["devices"][name]["edits"]
    edits = {key: value for key, value in cdi_edits.joined(parts.values()).items() if key in _DRIVER_FILES}
    edits["hooks"] = [hook for hook in edits.get("hooks", ()) if not _is_there(data, hook)]
    return cdi_edits.apply(data, edits)


def store(directories: Sequence[str], decoders: Mapping[str, Decoder], at_ns: int) -> Registry | None:
    """Compile what the directories give; None, and nothing kept, while a file has changed too lately to tell.

    Raises CdiError where no device of the kind is in them, UntrustedPathError, OSError.
    """
    before = stamps(directories)
    found = cdi_registry.read(directories, decoders)
    if before != stamps(directories) or not settings_folder.settled(before, at_ns):
        return None
    devices = {name: device for name, device in found.devices.items() if name.startswith(f"{KIND}=")}
    if not devices:
        why = f"no device {KIND} is in them"
        raise CdiError("CDI specs", " and ".join(directories), why, "run: nvidia-ctk cdi generate, see docs/cdi.md")
    compiled = {
        "schema": SCHEMA,
        "sources": before,
        "files": {device.file: device.spec.edits for device in devices.values()},
        "devices": {name: {"file": device.file, "edits": device.edits} for name, device in devices.items()},
    }
    folder = trust.open_private_directory(trust.STATE_DIR, "state directory", create=True)
    try:
        atomic.replace(folder, NAME, json.dumps(compiled).encode())
    finally:
        os.close(folder)
    return found


def load(state_dir: str, directories: Sequence[str]) -> Json:
    """What was compiled of these directories as they are now. Raises StaleCdiError, UntrustedPathError."""
    path = f"{state_dir}/{NAME}"
    try:
        folder = trust.open_private_directory(state_dir, "state directory", create=False)
        try:
            compiled: Json = json.loads(trust.read_file(folder, NAME, "compiled CDI specs", path))
        finally:
            os.close(folder)
        if compiled["schema"] != SCHEMA:
            raise ValueError("another version made them")
        changed = _changed(compiled["sources"], stamps(directories))
    except FileNotFoundError as error:
        raise StaleCdiError("compiled CDI specs", path, "there are none", _HINT) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StaleCdiError("compiled CDI specs", path, f"cannot be used ({error})", _HINT) from error
    if changed:
        raise StaleCdiError("compiled CDI specs", path, f"{changed} has changed since", _HINT)
    return compiled


def stamps(directories: Sequence[str]) -> list[Stamp]:
    """Of each CDI directory that is there and of the files in it that count."""
    found: list[Stamp] = []
    for directory in directories:
        try:
            folder = trust.open_directory(directory, "CDI directory")
        except FileNotFoundError:
            continue
        try:
            found.append(settings_folder.stamp(directory, os.fstat(folder)))
            for name in sorted(name for name in os.listdir(folder) if name.endswith(cdi_registry.ENDINGS)):
                seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
                found.append(settings_folder.stamp(f"{directory}/{name}", seen))
        finally:
            os.close(folder)
    return found


def _changed(before: list[Stamp], now: list[Stamp]) -> str | None:
    """The file or else directory that tells two sets of stamps apart, None where they are the same."""
    old, new = ({str(stamp[0]): list(stamp) for stamp in stamps} for stamps in (before, now))
    differing = [path for path in {**old, **new} if old.get(path) != new.get(path)]
    return next(iter(sorted(differing, key=lambda path: (not path.endswith(cdi_registry.ENDINGS), path))), None)


def _device(devices: dict[str, Any], gpu: Gpu) -> str:
    """The CDI device of a whole GPU: that which has its node and no other GPU's, nor a MIG instance's.

    An index is not trusted, for it may follow another order than ours.
    """
    fitting = [name for name, device in devices.items() if _nodes(device["edits"]) == {f"nvidia{gpu.minor}"}]
    if not fitting:
        where = f"/dev/nvidia{gpu.minor}"
        raise CdiError(f"CDI device of GPU {gpu.index}", where, f"no device {KIND} gives it alone", _HINT)
    return min(fitting, key=lambda name: (name != f"{KIND}={gpu.uuid}", name))


def _nodes(edits: Json) -> set[str]:
    """The nodes of GPUs and MIG instances that a device gives, by their names."""
    paths = [node["path"] for node in edits.get("deviceNodes", ())]
    return {os.path.basename(path) for path in paths if re.fullmatch(r".*/nvidia[0-9]+|.*/nvidia-caps/.*", path)}


def _is_there(data: Json, hook: Json) -> bool:
    """Whether the engine has put the same hook into the spec already."""
    there = spec.section(data, "hooks").get(hook["hookName"])
    return isinstance(there, list) and {key: value for key, value in hook.items() if key != "hookName"} in there
