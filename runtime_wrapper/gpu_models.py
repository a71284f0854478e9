"""What the model name of a GPU says about it: compute capability and brand.

Pure. Sources: NVIDIA's list "CUDA GPU Compute Capability"; brands as `nvidia-smi -q` prints them ("Product Brand"). The
brand is the driver's word and has changed: a Tesla T4 is of brand Tesla in old drivers, of brand NVIDIA in newer ones.
So a model has all names that its brand has gone by. A name that fits no row, or rows that differ, says nothing, and so
does that of a vGPU (`NVIDIA A10-12Q`), whose brand is its licence's.
"""

import re
from itertools import pairwise

DATA_CENTRE = frozenset({"tesla", "nvidia"})
PROFESSIONAL = frozenset({"nvidiartx", "quadrortx"})
QUADRO = frozenset({"quadro", "quadrortx"})
GEFORCE_RTX = frozenset({"geforce", "geforcertx"})
GEFORCE = frozenset({"geforce"})
TITAN = frozenset({"titan", "titanrtx"})

_Row = tuple[str | None, frozenset[str]]

# Words, or pairs of words, of a model name -> compute capability and brand.
_ROWS: dict[str, _Row] = {
    **dict.fromkeys(("B300", "GB300"), ("10.3", DATA_CENTRE)),
    **dict.fromkeys(("B100", "B200", "GB200"), ("10.0", DATA_CENTRE)),
    **dict.fromkeys(("H20", "H100", "H200", "H800", "GH200"), ("9.0", DATA_CENTRE)),
    **dict.fromkeys(("L2", "L4", "L20", "L40", "L40S"), ("8.9", DATA_CENTRE)),
    **dict.fromkeys(("A2", "A10", "A10G", "A10M", "A16", "A40"), ("8.6", DATA_CENTRE)),
    **dict.fromkeys(("A30", "A30X", "A100", "A100X", "A800"), ("8.0", DATA_CENTRE)),
    **dict.fromkeys(("T4", "T4G"), ("7.5", DATA_CENTRE)),
    **dict.fromkeys(("V100", "V100S"), ("7.0", DATA_CENTRE)),
    **dict.fromkeys(("P4", "P6", "P40"), ("6.1", DATA_CENTRE)),
    "P100": ("6.0", DATA_CENTRE),
    **dict.fromkeys(("M4", "M6", "M40", "M60"), ("5.2", DATA_CENTRE)),
    "K80": ("3.7", DATA_CENTRE),
    "RTX PRO": ("12.0", PROFESSIONAL),
    "ADA": ("8.9", PROFESSIONAL),
    **dict.fromkeys(("A2000", "A4000", "A4500", "A5000", "A5500", "A6000"), ("8.6", PROFESSIONAL)),
    "QUADRO RTX": ("7.5", QUADRO),
    **dict.fromkeys(("RTX 5050", "RTX 5060", "RTX 5070", "RTX 5080", "RTX 5090"), ("12.0", GEFORCE_RTX)),
    **dict.fromkeys(("RTX 4050", "RTX 4060", "RTX 4070", "RTX 4080", "RTX 4090"), ("8.9", GEFORCE_RTX)),
    **dict.fromkeys(("RTX 3050", "RTX 3060", "RTX 3070", "RTX 3080", "RTX 3090"), ("8.6", GEFORCE_RTX)),
    **dict.fromkeys(("RTX 2060", "RTX 2070", "RTX 2080"), ("7.5", GEFORCE_RTX)),
    **dict.fromkeys(("GTX 1630", "GTX 1650", "GTX 1660"), ("7.5", GEFORCE)),
    **dict.fromkeys(("GTX 1050", "GTX 1060", "GTX 1070", "GTX 1080"), ("6.1", GEFORCE)),
    **dict.fromkeys(("GTX 950", "GTX 960", "GTX 970", "GTX 980"), ("5.2", GEFORCE)),
    "TITAN RTX": ("7.5", TITAN),
    "TITAN V": ("7.0", TITAN),
    **dict.fromkeys(("TITAN X", "TITAN XP"), ("6.1", TITAN)),
}
# For a model that is in no row.
_FAMILIES: dict[str, _Row] = {
    "TESLA": (None, DATA_CENTRE),
    "QUADRO": (None, QUADRO),
    "GEFORCE": (None, GEFORCE_RTX),
    "TITAN": (None, TITAN),
}


def arch(model: str) -> str | None:
    """The compute capability, as `9.0`."""
    found = {row[0] for row in _rows(model)}
    return found.pop() if len(found) == 1 else None


def brands(model: str) -> frozenset[str] | None:
    """The names that the brand goes by, in small letters as libnvidia-container compares them."""
    found = {row[1] for row in _rows(model)}
    return found.pop() if len(found) == 1 else None


def _rows(model: str) -> list[_Row]:
    words = re.findall("[A-Z0-9]+", model.upper())
    if _is_vgpu(model):
        return []
    named = [*words, *(" ".join(pair) for pair in pairwise(words))]
    found = [_ROWS[name] for name in named if name in _ROWS]
    return found or [_FAMILIES[word] for word in words if word in _FAMILIES]


def _is_vgpu(model: str) -> bool:
    profile = model.rpartition("-")[2]
    return model.startswith("GRID ") or (profile[:-1].isdecimal() and profile[-1:] in ("A", "B", "C", "Q"))
