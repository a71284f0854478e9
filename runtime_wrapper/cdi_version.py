"""Versions of the CDI specification: those that there are, and the lowest that a spec can carry for what is in it.

Pure. A writer puts the lowest, so that old engines read the file; a reader refuses a spec that says a lower one. Rules:
specs-go/version.go of the CDI project, at 1.1.0.
"""

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

KNOWN = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
EARLIEST = "0.3.0"


def lowest(data: Json) -> str:
    """The lowest version for a spec whose parts have the right types (see `cdi_spec`); absent parts are no features."""
    return next((version for version, is_used in _FEATURES if is_used(data)), EARLIEST)


def is_below(version: str, least: str) -> bool:
    """Whether one known version comes before another."""
    return KNOWN.index(version) < KNOWN.index(least)


def _needs_1_1(data: Json) -> bool:
    rdts = (edits.get("intelRdt") or {} for edits in _edits(data))
    return any(rdt.get("schemata") is not None or rdt.get("enableMonitoring") for rdt in rdts) or any(
        edits.get("netDevices") for edits in _edits(data)
    )


def _needs_0_7(data: Json) -> bool:
    return any(edits.get("intelRdt") is not None or edits.get("additionalGids") for edits in _edits(data))


def _needs_0_6(data: Json) -> bool:
    class_ = str(data.get("kind", "")).partition("/")[2]
    return "." in class_ or any(part.get("annotations") for part in (data, *_devices(data)))


def _needs_0_5(data: Json) -> bool:
    names = [str(device.get("name", "")) for device in _devices(data)]
    if any(name and not (name[0].isascii() and name[0].isalpha()) for name in names):
        return True
    return any(node.get("hostPath") for edits in _edits(data) for node in edits.get("deviceNodes") or ())


def _needs_0_4(data: Json) -> bool:
    return any(mount.get("type") for edits in _edits(data) for mount in edits.get("mounts") or ())


_FEATURES = (
    ("1.1.0", _needs_1_1),
    ("0.7.0", _needs_0_7),
    ("0.6.0", _needs_0_6),
    ("0.5.0", _needs_0_5),
    ("0.4.0", _needs_0_4),
)


def _devices(data: Json) -> list[Json]:
    return data.get("devices") or []


def _edits(data: Json) -> Iterator[Json]:
    """The edits of the spec itself and of each device."""
    for part in (data, *_devices(data)):
        yield part.get("containerEdits") or {}
