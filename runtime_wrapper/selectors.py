"""The selectors of a GPU request: every way to name a GPU or a MIG instance, in one canonical spelling.

Hot, pure. The ids of NVIDIA's tools are those of go-nvlib's pkg/nvlib/device/identifier.go (`0`, `0:1`, `GPU-<uuid>`,
`MIG-<uuid>`, `MIG-GPU-<uuid>/<gi>/<ci>`) and of libnvidia-container's select_devices (PCI addresses, any case).
"""

import re

from runtime_wrapper import cdi
from runtime_wrapper.errors import RequestError, quoted

VALID = (
    "all, none, void, any, any:N, a GPU index, GPU-<uuid> or 8 or more digits of it, a PCI address, /dev/nvidiaN, "
    "a CDI name of one of these"
)

_INDEX = r"[0-9]{1,6}"
_UUID = r"gpu-(?:urn:uuid:)?(\{[0-9a-f-]{36}\}|[0-9a-f-]{8,36})"
_PCI = r"(?:(?:[0-9a-f]{4})?[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_NODE = r"(?:/dev/)?nvidia([0-9]{1,3})"
_MIG = r"[0-9]+:[0-9]+|mig-\{?[0-9a-f-]{8,36}\}?|mig-gpu-\{?[0-9a-f-]{32,36}\}?/[0-9]+/[0-9]+|mig:[a-z0-9.+:-]+"


def canonical(selector: str, where: str) -> str:
    """A named GPU in one spelling: `7`, `GPU-<lower-case hex without dashes>`, `0000:3b:00.0`, `/dev/nvidia7`.

    Raises RequestError for anything else, also for a MIG instance.
    """
    word = selector.lower()
    if re.fullmatch(_INDEX, word):
        return str(int(word))
    if match := re.fullmatch(_UUID, word):
        digits = match[1].strip("{}").replace("-", "")
        if 8 <= len(digits) <= 32:
            return f"GPU-{digits}"
        raise RequestError(f"GPU id {quoted(selector)}", where, "needs 8 to 32 hex digits", f"use one of: {VALID}")
    if re.fullmatch(_PCI, word):
        return f"0000:{word}"[-12:]
    if match := re.fullmatch(_NODE, selector):
        return f"/dev/nvidia{int(match[1])}"
    if is_mig(selector):
        why = "MIG instances cannot be asked for yet"
        raise RequestError(f"MIG id {quoted(selector)}", where, why, f"use one of: {VALID}")
    if cdi.is_foreign(selector):
        why = "is a CDI device that gpulatch does not give"
        raise RequestError(f"device {quoted(selector)}", where, why, f"let the engine give it, use one of: {VALID}")
    raise RequestError(f"token {quoted(selector)}", where, "is not a GPU selector", f"use one of: {VALID}")


def is_mig(selector: str) -> bool:
    """Whether this is the id of a MIG instance or, as `mig:<profile>`, asks for one of a profile."""
    return re.fullmatch(_MIG, selector.lower()) is not None
