"""The driver's user-space files in a container: read-only mounts at the names under which its image looks for them.

Decided from the snapshot and the image's files; nothing is run, written, or read but the image's loader and its cache.
Each library goes into a default folder of the image's loader, and over every file of the same name that the loader
would find elsewhere first. Mounts are put on names without links, for crun fails on a dangling one. Imported only for a
container that gets GPUs.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from runtime_wrapper import image_loader, image_root, spec
from runtime_wrapper.errors import DriverFilesError, quoted
from runtime_wrapper.image_loader import Loader
from runtime_wrapper.image_root import Place
from runtime_wrapper.inventory import DriverFile, Gpu, Inventory

OWN, NONE, CDI = "own", "none", "cdi"
OPTIONS = ("ro", "nosuid", "nodev", "bind")
PROGRAM_FOLDER = "usr/bin"

# The library that a capability is nothing without.
REQUIRED = {"compute": "libcuda.so.1", "utility": "libnvidia-ml.so.1"}

_GIVEN = re.compile(r"lib(?:cuda|nvidia-ml)\.so(?:\.[0-9.]+)?")
_COMPAT = re.compile(r".*/compat(?:/lib(?:\.real)?)?/libcuda\.so\.([0-9]{1,4}(?:\.[0-9]{1,6}){1,3})")
_KERNELS = ("proc", "sys", "dev")  # no library is there, and every container has mounts of these
_READ_ONLY = "the root file system is mounted read-only"
_AS_NONE = 'or set driver_files = "none"'


@dataclass(slots=True)
class Plan:
    """The mounts to add, as a spec has them, and notes for the event."""

    mounts: list[spec.Json] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def plan(
    data: spec.Json, bundle: str, inventory: Inventory, gpus: Sequence[Gpu], capabilities: frozenset[str], setting: str
) -> Plan:
    """What of the driver's files a container with these GPUs gets. Raises DriverFilesError."""
    wanted = frozenset(REQUIRED) if "all" in capabilities else capabilities & set(REQUIRED)
    if setting in (NONE, CDI) or not wanted:
        return Plan()
    if setting != OWN and (given := _given(data)):
        return Plan(notes=[f"driver files: those that the spec mounts are kept ({quoted(given)})"])
    files = inventory.driver_files
    libraries = [file for file in files.libraries if file.capability in wanted]
    why = _missing(libraries, wanted, inventory)
    if why:
        if setting == OWN or files.other_version:
            hint = f"install the libraries of the loaded driver and run ldconfig, or reload the driver, {_AS_NONE}"
            raise DriverFilesError("driver libraries", "/etc/ld.so.cache", why, hint)
        if not libraries:
            return Plan(notes=[f"no driver files: {why}"])
    root = os.path.join(bundle, str(spec.section(data, "root").get("path", "")))
    loader = image_loader.find(root)
    if loader is None:
        has = "has musl, and the driver's libraries need" if image_loader.is_musl(root) else "has no"
        return Plan(notes=[f"no driver files: the image {has} glibc"])
    image = _Image(data, loader, [f"driver files: {why}"] if why else [])
    image.add_libraries(libraries, inventory.driver_version or "", gpus)
    image.add_programs(file for file in files.programs if file.capability in wanted)
    if image.lacks and setting == OWN:
        raise image.lacks
    if image.lacks:
        return Plan(notes=[f"no driver files: {_READ_ONLY}, and its image has no files of their names"])
    return image.planned()


def _given(data: spec.Json) -> str | None:
    """A mount that brings the driver already, the engine's by CDI or a user's."""
    names = (os.path.basename(str(mount.get("destination"))) for mount in _mounts(data))
    return next(filter(_GIVEN.fullmatch, names), None)


def _missing(libraries: Sequence[DriverFile], wanted: frozenset[str], inventory: Inventory) -> str | None:
    """Why the host's libraries are not whole, if they are not."""
    version, other = inventory.driver_version or "unknown", inventory.driver_files.other_version
    if other:
        return f"the loaded driver is {version}, the host's libraries are of {other}"
    names = {name for file in libraries for name in file.names}
    absent = [REQUIRED[capability] for capability in sorted(wanted) if REQUIRED[capability] not in names]
    return f"no {', '.join(absent)} of {version} on this host" if absent else None


def _mounts(data: spec.Json) -> list[spec.Json]:
    mounts = data.get("mounts")
    return [mount for mount in mounts if isinstance(mount, dict)] if isinstance(mounts, list) else []


class _Image:
    """One container's image, and what is to be mounted into it."""

    def __init__(self, data: spec.Json, loader: Loader, notes: list[str]) -> None:
        self._loader, self._root = loader, loader.root
        self._covers = list(_targets(data, loader.root))
        self._frozen = _is_read_only(loader.root)
        self._sources: dict[str, str] = {}  # by destination
        self._left_out: dict[str, list[str]] = {}  # names by reason
        self._notes = notes
        self.lacks: DriverFilesError | None = None  # a required library has no name to be mounted on

    def add_libraries(self, libraries: Sequence[DriverFile], driver: str, gpus: Sequence[Gpu]) -> None:
        """Raises DriverFilesError for a required library that cannot be mounted."""
        by_name = {name: file.path for file in libraries for name in file.names}
        for name, place in image_root.places(self._root, self._loader.folders[0], by_name).items():
            self._add(name, place, by_name[name])
        others = [(name, place) for name, place in self._loader.others(by_name) if place.is_file]
        compat = {os.path.dirname(place.path) for _, place in others if _is_compat(place.path, driver, gpus)}
        for name, place in others:
            if os.path.dirname(place.path) not in compat and self._obstacle(place) is None:
                self._sources.setdefault(place.path, by_name[name])
        self._notes += [f"the image's compat libraries in {folder[:80]} are found first and kept" for folder in compat]

    def add_programs(self, programs: Iterable[DriverFile]) -> None:
        """Programs of the driver, none of which is required."""
        by_name = {file.names[0]: file.path for file in programs}
        for name, place in image_root.places(self._root, PROGRAM_FOLDER, by_name).items():
            self._add(name, place, by_name[name])

    def planned(self) -> Plan:
        """All that was added."""
        mounts = [
            {"destination": destination, "type": "bind", "source": source, "options": [*OPTIONS]}
            for destination, source in self._sources.items()
        ]
        notes = [f"driver files not mounted ({', '.join(names)}): {why}" for why, names in self._left_out.items()]
        return Plan(mounts, self._notes + notes)

    def _add(self, name: str, place: Place, source: str) -> None:
        why = self._obstacle(place)
        if why is None:
            self._sources.setdefault(place.path, source)
        elif name not in REQUIRED.values():
            self._left_out.setdefault(why, []).append(name)
        else:
            error = DriverFilesError(
                f"driver library {name}", quoted(place.path), why, f"remove what is in the way, {_AS_NONE}"
            )
            if why != _READ_ONLY:
                raise error
            self.lacks = error

    def _obstacle(self, place: Place) -> str | None:
        """Why nothing can be mounted there. The runtime makes a missing name, where it can."""
        for target, mount in reversed(self._covers):
            if place.path == target or place.path.startswith(target.rstrip("/") + "/"):
                shown = _shows_file(mount, place.path[len(target) :])
                return None if shown else f"a mount of the container on {quoted(target)} covers it"
        if not place.path.isprintable() or place.path.split("/")[1] in _KERNELS:
            return "its link in the image leads to an odd place"
        if place.kind is None:
            return _READ_ONLY if self._frozen else None
        return None if place.is_file else "it is no regular file in the image"


def _targets(data: spec.Json, root: str) -> Iterator[tuple[str, spec.Json]]:
    """Where the container's own mounts come to lie in the image, and the mounts."""
    for mount in _mounts(data):
        target = os.path.normpath("/" + str(mount.get("destination", "")).lstrip("/"))
        if target.split("/")[1] not in _KERNELS:
            yield image_root.place(root, target).path, mount


def _shows_file(mount: spec.Json, rest: str) -> bool:
    """Whether a mount has a regular file there already, so that ours can be put over it and nothing has to be made."""
    options = mount.get("options")
    bound = mount.get("type") == "bind" or (
        isinstance(options, list) and not {"bind", "rbind"}.isdisjoint(map(str, options))
    )
    try:
        return bound and stat.S_ISREG(os.lstat(str(mount.get("source")) + rest).st_mode)
    except (OSError, ValueError):
        return False


def _is_read_only(root: str) -> bool:
    try:
        return bool(os.statvfs(root).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _is_compat(path: str, driver: str, gpus: Sequence[Gpu]) -> bool:
    """Whether a library of the image is a newer user-mode driver that this driver may be used with."""
    match = _COMPAT.fullmatch(path)
    if not match or not driver:
        return False
    from runtime_wrapper import cuda_driver, gpu_models  # here, because few images have such a library

    brands = {gpu_models.brands(gpu.model) for gpu in gpus}
    return all(cuda_driver.compat(match[1], driver, of).works is not False for of in brands)
