"""Fully qualified CDI device names, `vendor/class=name`, and what those of GPUs ask for.

Pure, and hot where such a name is there. Syntax: pkg/parser of the CDI project. A device of a kind that is not among
`GPU_KINDS` is another vendor's, or a part of the driver: it is for whoever injects CDI devices, never for gpulatch.
"""

import re

OWN_KIND = "gpulatch.io/gpu"
MIG_KIND = "nvidia.com/mig"
# NVIDIA's toolkit makes the first two; the third is how its runtime writes down plain ids in its CDI modes.
GPU_KINDS = ("nvidia.com/gpu", MIG_KIND, "runtime.nvidia.com/gpu", OWN_KIND)

# Texts, not compiled ones: most containers name no CDI device, and compiling takes longer than all else here.
_WORD = r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
_QUALIFIED = rf"({_WORD})/({_WORD})=([A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?)"
_FREE = r"any-([0-9]+)"


def parse(text: str) -> tuple[str, str, str] | None:
    """Vendor, class and name of a fully qualified name; None for any other text."""
    match = re.fullmatch(_QUALIFIED, text) if "=" in text else None
    return (match[1], match[2], match[3]) if match else None


def is_foreign(text: str) -> bool:
    """Whether a text, which may have options after `+`, is the name of a device that gpulatch does not give."""
    kind, _ = _of_kind(text.partition("+")[0].strip())
    return kind is not None and kind not in GPU_KINDS


def selector(text: str) -> str:
    """What a GPU's CDI name is in the grammar of requests; any other text as it is.

    A CDI name can hold no option and need not hold a `:`, so `any:2` can also be written `gpulatch.io/gpu=any-2`.
    """
    kind, name = _of_kind(text)
    if kind not in GPU_KINDS:
        return text
    if kind == MIG_KIND and ":" not in name and not name.startswith("MIG-"):
        return f"mig:{name}"
    free = re.fullmatch(_FREE, name) if kind == OWN_KIND else None
    return f"any:{free[1]}" if free else name


def _of_kind(text: str) -> tuple[str | None, str]:
    """The kind, `vendor/class`, and the name; no kind for a text that is no qualified name."""
    vendor, class_, name = parse(text) or ("", "", "")
    return (f"{vendor}/{class_}", name) if vendor else (None, "")
