"""Every CDI device of a host: what the files in the CDI directories give, and what is wrong with them.

Rules: pkg/cdi/cache.go of the CDI project. A later directory wins over an earlier one; a device that two files of one
directory have can be used in no directory at all; a bad file takes nothing but its own devices away. Only plain files
that belong to root count. JSON is read here; a caller that reads YAML brings the decoder along.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from runtime_wrapper import cdi_edits, cdi_spec, trust
from runtime_wrapper.cdi_spec import CdiSpec, Json
from runtime_wrapper.errors import CdiError, GpulatchError, UntrustedPathError, errno_name, quoted

DIRECTORIES = ("/etc/cdi", "/run/cdi")  # from low to high priority

Decoder = Callable[[bytes], object]
"""What makes JSON values of a file's content. Raises ValueError."""

JSON_ONLY: Mapping[str, Decoder] = {".json": cdi_spec.loads}
ENDINGS = (".json", ".yaml")


@dataclass(frozen=True, slots=True)
class Device:
    """A device and the file that gives it; `priority` is the place of its directory."""

    file: str
    priority: int
    spec: CdiSpec
    edits: Json


@dataclass(slots=True)
class Registry:
    """Devices by qualified name, every good spec by its file, and what is wrong, by file or directory."""

    devices: dict[str, Device] = field(default_factory=dict)
    specs: dict[str, CdiSpec] = field(default_factory=dict)
    problems: dict[str, list[GpulatchError]] = field(default_factory=dict)

    def inject(self, data: Json, names: Sequence[str]) -> Json:
        """A container's spec with the devices of these qualified names in it: all of them, or none.

        The edits of a file come once, before its first device. Raises CdiError.
        """
        missing = [name for name in names if name not in self.devices]
        if missing:
            why = "no CDI spec gives it, or two do"
            raise CdiError("CDI device", ", ".join(map(quoted, missing)), why, "see what there is: gpulatch cdi list")
        files: dict[str, None] = {}
        parts: list[Json] = []
        for name in names:
            device = self.devices[name]
            parts += [device.edits] if device.file in files else [device.spec.edits, device.edits]
            files[device.file] = None
        return cdi_edits.apply(data, cdi_edits.joined(parts))

    def complain(self, where: str, error: GpulatchError) -> None:
        """Note what is wrong with a file or directory."""
        self.problems.setdefault(where, []).append(error)


def read(directories: Sequence[str], decoders: Mapping[str, Decoder] = JSON_ONLY) -> Registry:
    """Everything in the directories; one that is absent is empty. Nothing is raised, `problems` has it."""
    registry = Registry()
    unusable: set[str] = set()
    for priority, directory in enumerate(directories):
        found = _read_directory(registry, directory, decoders)
        registry.specs |= found
        for file, spec in found.items():
            unusable |= _add(registry, file, priority, spec)
    for name in unusable:
        del registry.devices[name]
    return registry


def _read_directory(registry: Registry, directory: str, decoders: Mapping[str, Decoder]) -> dict[str, CdiSpec]:
    """The good specs by their files."""
    try:
        folder = trust.open_directory(directory, "CDI directory")
    except FileNotFoundError:
        return {}
    except UntrustedPathError as error:
        registry.complain(directory, error)
        return {}
    found = {}
    try:
        for name in sorted(name for name in os.listdir(folder) if os.path.splitext(name)[1] in ENDINGS):
            path = f"{directory}/{name}"
            try:
                found[path] = _read_file(folder, name, path, decoders)
            except GpulatchError as error:
                registry.complain(path, error)
    finally:
        os.close(folder)
    return found


def _read_file(folder: int, name: str, path: str, decoders: Mapping[str, Decoder]) -> CdiSpec:
    decode = decoders.get(os.path.splitext(name)[1])
    if decode is None:
        raise CdiError(cdi_spec.WHAT, path, "is YAML, which is not read here", "write it as JSON")
    try:
        data = decode(trust.read_file(folder, name, cdi_spec.WHAT, path))
    except (OSError, ValueError) as error:
        why = errno_name(error) if isinstance(error, OSError) else str(error)
        raise CdiError(cdi_spec.WHAT, path, f"cannot be read ({why})", "mend the file or remove it") from error
    return cdi_spec.check(data, path)


def _add(registry: Registry, file: str, priority: int, spec: CdiSpec) -> set[str]:
    """Add the devices of a spec; those that another file of its directory has too."""
    conflicts = set()
    for name, edits in spec.devices.items():
        qualified = f"{spec.kind}={name}"
        other = registry.devices.get(qualified)
        if other is None or other.priority < priority:
            registry.devices[qualified] = Device(file, priority, spec, edits)
            continue
        conflicts.add(qualified)
        for mine, others in ((file, other.file), (other.file, file)):
            why = f"device {quoted(qualified)} is in {others} too, and then in neither"
            registry.complain(mine, CdiError(cdi_spec.WHAT, mine, why, "remove one of the two"))
    return conflicts
