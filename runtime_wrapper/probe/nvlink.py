"""How fast one NVLink of a GPU model is.

Pure. The rates are what `nvidia-smi nvlink -s` prints per link and direction; two generations with the same number of
links are not alike: NV4 is 56 GB/s between two RTX A6000 and 100 GB/s between two A100.
"""

import re

# What is taken, and marked as assumed, for a model that is not in the table.
ASSUMED_MB_PER_S = 25000

# MB/s per link and direction -> the models (names as they stand in `nvidia-smi -L`, without the vendor).
_MODELS = {
    20000: ("P100",),
    25781: ("V100S?", "Quadro RTX", "TITAN RTX", "(?:RTX )?2080 Ti"),
    25000: ("A100X?", "A800", "A30X?"),
    14063: ("A6000", "A5000", "A40", "(?:RTX )?3090"),
    26562: ("H100", "H200", "H800", "H20", "GH200"),
    50000: ("B200", "B100", "B300", "GB200", "GB300"),
}
_PATTERNS = {
    rate: re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(names)})(?![A-Za-z0-9])", re.IGNORECASE)
    for rate, names in _MODELS.items()
}


def mb_per_s_per_link(model: str) -> int | None:
    """The rate of one link in one direction; None when the text names no model of the table, or several that differ."""
    rates = [rate for rate, pattern in _PATTERNS.items() if pattern.search(model)]
    return rates[0] if len(rates) == 1 else None
