"""GPUs asked for by mounts: `/dev/null` on `/var/run/nvidia-container-devices/<id>`, one for each.

Hot and pure. As NVIDIA's runtime has it (internal/config/image): a CDI device is `cdi/<vendor>/<class>/<name>` there,
and what lies below `imex` is no GPU. Not every tenant who sets variables may mount: a host can let only this count.
"""

import os
from collections.abc import Iterator

from runtime_wrapper import spec

FOLDER = "/var/run/nvidia-container-devices"
SIGNAL = "/dev/null"

_NAME = os.path.basename(FOLDER)
_CDI, _IMEX = "cdi/", "imex/"


def asked(data: spec.Json) -> Iterator[tuple[str, str]]:
    """Where the mounts ask, and the GPUs that they name."""
    names = [name for mount in _mounts(data) if (name := _device(mount))]
    if names:
        yield f"mounts {FOLDER}", ",".join(names)


def without(data: spec.Json) -> list[object]:
    """The spec's mounts but for those that ask for a GPU."""
    return [mount for mount in _mounts(data) if not _device(mount)]


def _mounts(data: spec.Json) -> list[object]:
    mounts = data.get("mounts")
    return mounts if isinstance(mounts, list) else []


def _device(mount: object) -> str | None:
    """The GPU that a mount names; None for any other mount. A path that goes up is given whole, and names no GPU."""
    target = mount.get("destination") if isinstance(mount, dict) else None
    if not isinstance(mount, dict) or not isinstance(target, str) or _NAME not in target:
        return None
    if _clean(str(mount.get("source", ""))) != SIGNAL:
        return None
    path = _clean(target)
    if ".." in target.split("/"):
        return target if any(one.startswith(f"{FOLDER}/") for one in (target, path)) else None
    name = path.removeprefix(f"{FOLDER}/")
    if name == path or name.startswith(_IMEX):
        return None
    return _cdi_name(name.removeprefix(_CDI)) if name.startswith(_CDI) else name


def _clean(path: str) -> str:
    """A path as Go's filepath.Clean gives it; normpath leaves two slashes at the beginning."""
    return os.path.normpath(path).replace("//", "/")


def _cdi_name(path: str) -> str | None:
    """`vendor/class=name` of `vendor/class/name`, which may also be written so already."""
    vendor, _, rest = path.partition("/")
    class_, separator, name = rest.partition("=" if "=" in rest else "/")
    return f"{vendor}/{class_}={name}" if separator and name else None
