"""The options of a GPU request, the `key=value` parts behind an item: which there are, and what each can be.

Hot, pure. An option holds for the whole request. Those in `UNENFORCED` are kept with the claim and change nothing yet.
"""

import re
from collections.abc import Callable

from runtime_wrapper.errors import RequestError, quoted

EXCLUSIVE, SHARED, MONITOR = "exclusive", "shared", "monitor"
POLICIES = {"exclusive": EXCLUSIVE, "strict": EXCLUSIVE, "shared": SHARED, "monitor": MONITOR}
LINK_CLASSES = ("any", "nvlink", "pix", "pxb", "phb", "node")

UNENFORCED = ("memory", "compute", "zone", "near", "profile", "wait")

Value = str | int
Options = dict[str, Value]
"""The canonical value of each option that is said: policy, link, model, compute, zone, near, profile as text, `numa` a
node, `memory` in MiB, `wait` in seconds."""

_PCI = r"pci:(?:(?:[0-9a-f]{4})?[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_MEMORY = r"([0-9]{1,9})([mgt])(?:i?b)?"
_TIME = r"([0-9]{1,6})([smh])"
_WORD = r"[a-z0-9][a-z0-9_.:-]{0,63}"
_MIB = {"m": 1, "g": 1 << 10, "t": 1 << 20}
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_UNITS = {"memory": " MiB", "wait": " s"}
_MAX_GLOB = 64


def add(options: Options, part: str, where: str) -> None:
    """Add what one part says to the options of a request. Raises RequestError, naming the part and what there is."""
    key, _, text = part.partition("=")
    key, text = key.strip().lower(), text.strip().lower()
    value = _OPTIONS[key][1](text) if key in _OPTIONS else None
    if value is None:
        raise RequestError(f"option {quoted(part)}", where, "is not one that gpulatch knows", f"use one of: {VALID}")
    if key == "zone" and isinstance(value, int):
        key = "numa"  # a zone that is a NUMA node says the same
    if options.setdefault(key, value) != value:
        why = f"another item says {key}={options[key]}"
        raise RequestError(f"option {quoted(part)}", where, why, f"say {key} once")


def shown(key: str, value: Value) -> str:
    """A value with its unit."""
    return f"{value}{_UNITS.get(key, '')}"


def _one_of(*words: str) -> Callable[[str], Value | None]:
    return lambda text: text if text in words else None


def _node(text: str) -> Value | None:
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else None


def _zone(text: str) -> Value | None:
    """A NUMA node as its number, else the address of a PCI device."""
    if text.startswith("numa:"):
        return _node(text.removeprefix("numa:"))
    return text if re.fullmatch(_PCI, text) else None


def _mib(text: str) -> Value | None:
    match = re.fullmatch(_MEMORY, text)
    return int(match[1]) * _MIB[match[2]] or None if match else None


def _seconds(text: str) -> Value | None:
    match = re.fullmatch(_TIME, text)
    return int(match[1]) * _SECONDS[match[2]] if match else None


def _word(text: str) -> Value | None:
    return text if re.fullmatch(_WORD, text) else None


def _glob(text: str) -> Value | None:
    return text if text and len(text) <= _MAX_GLOB and text.isprintable() else None


_OPTIONS: dict[str, tuple[str, Callable[[str], Value | None]]] = {
    "policy": ("exclusive|shared|monitor", POLICIES.get),
    "link": ("|".join(LINK_CLASSES), _one_of(*LINK_CLASSES)),
    "numa": ("N", _node),
    "zone": ("numa:N|pci:DDDD:BB:DD.F", _zone),
    "model": ("<glob>", _glob),
    "near": ("<nic>", _word),
    "memory": ("8g", _mib),
    "compute": ("on|off", _one_of("on", "off")),
    "profile": ("<workload>", _word),
    "wait": ("30s", _seconds),
}
VALID = ", ".join(f"{key}={values}" for key, (values, _) in _OPTIONS.items())
