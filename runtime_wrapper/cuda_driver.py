"""Which CUDA a driver runs: natively, by minor-version compatibility, or with the image's compat libraries.

Pure tables. Sources: NVIDIA's CUDA Toolkit release notes, "CUDA Toolkit and Corresponding Driver Versions" (lowest
driver of each release) and "CUDA minor version compatibility"; CUDA Compatibility guide, "Forward Compatibility". What
is in no table is unknown, never guessed: the order of branches does not tell the CUDA of a Tegra driver.
"""

from dataclasses import dataclass

from runtime_wrapper.requirement import version

Release = tuple[int, int]

# Branch of the driver -> the newest CUDA it runs natively, as `nvidia-smi` prints it.
_NEWEST: dict[str, Release] = {
    "367": (8, 0),
    "375": (8, 0),
    "384": (9, 0),
    "390": (9, 1),
    "396": (9, 2),
    "410": (10, 0),
    "418": (10, 1),
    "440": (10, 2),
    "450": (11, 0),
    "455": (11, 1),
    "460": (11, 2),
    "465": (11, 3),
    "470": (11, 4),
    "495": (11, 5),
    "510": (11, 6),
    "515": (11, 7),
    "520": (11, 8),
    "525": (12, 0),
    "530": (12, 1),
    "535": (12, 2),
    "545": (12, 3),
    "550": (12, 4),
    "555": (12, 5),
    "560": (12, 6),
    "565": (12, 7),  # no toolkit of that number was released
    "570": (12, 8),
    "575": (12, 9),
    "580": (13, 0),
    "590": (13, 1),
    "595": (13, 2),
    "610": (13, 3),
}

# Release -> the lowest driver that runs it natively (the first one of several updates).
_LEAST_NATIVE: dict[Release, str] = {
    (8, 0): "367.48",
    (9, 0): "384.81",
    (9, 1): "390.46",
    (9, 2): "396.26",
    (10, 0): "410.48",
    (10, 1): "418.39",
    (10, 2): "440.33",
    (11, 0): "450.36.06",
    (11, 1): "455.23",
    (11, 2): "460.27.03",
    (11, 3): "465.19.01",
    (11, 4): "470.42.01",
    (11, 5): "495.29.05",
    (11, 6): "510.39.01",
    (11, 7): "515.43.04",
    (11, 8): "520.61.05",
    (12, 0): "525.60.13",
    (12, 1): "530.30.02",
    (12, 2): "535.54.03",
    (12, 3): "545.23.06",
    (12, 4): "550.54.14",
    (12, 5): "555.42.02",
    (12, 6): "560.28.03",
    (12, 8): "570.26",
    (12, 9): "575.51.03",
    (13, 0): "580.65.06",
    (13, 1): "590.44.01",
    (13, 2): "595.45.04",
}

# Major of CUDA -> the lowest driver that runs all its releases but 11.0, by minor-version compatibility.
_LEAST_OF_MAJOR = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}

# Release of the compat libraries -> the branches of the driver under which NVIDIA supports them: those that its images
# name in NVIDIA_REQUIRE_CUDA. A release that is not here is not known.
_BASES: dict[Release, tuple[int, ...]] = {
    (10, 0): (384, 410),
    (10, 1): (384, 396, 410),
    (10, 2): (396, 410, 418, 440),
    (11, 0): (418, 440, 450),
    (11, 1): (418, 440, 450),
    (11, 4): (418, 450),
    (11, 6): (418, 450, 470),
    (11, 8): (450, 470, 510, 515),
    (12, 1): (450, 470, 510, 515, 525),
    (12, 2): (450, 470, 525),
    (12, 3): (470, 525, 535),
    (12, 4): (470, 525, 535),
    (12, 6): (470, 535, 550),
    (12, 8): (470, 535, 550, 560, 565),
    (12, 9): (535, 550, 560, 565, 570),
    (13, 0): (535, 550, 560, 565, 570, 575),
}

# Brands of GPUs under which compat libraries work, and under which they do not (CUDA errors 803 and 804). Of
# professional RTX cards only some do (the NGC-ready servers): not known.
_COMPAT_BRANDS = frozenset({"tesla", "nvidia"})
_NO_COMPAT_BRANDS = frozenset({"geforce", "geforcertx", "titan", "titanrtx"})

# Major of cuDNN -> the lowest driver of its support matrix, whatever CUDA it was built for.
_LEAST_OF_CUDNN = {"9": "450.80.02"}


@dataclass(frozen=True, slots=True)
class Compat:
    """Whether compat libraries of an image work here, None when that is not known, and why."""

    works: bool | None
    why: str


def newest(driver: str | None) -> Release | None:
    """The newest CUDA that a driver runs natively."""
    return _NEWEST.get((driver or "").partition(".")[0])


def least_native(release: Release) -> str | None:
    """The lowest driver under which `newest` is at least this release."""
    return _LEAST_NATIVE.get(release)


def least(release: Release) -> str | None:
    """The lowest driver that runs programs of a release: natively, from 11.1 on also by minor-version compatibility."""
    by_minor = _LEAST_OF_MAJOR.get(release[0]) if release != (11, 0) else None
    return by_minor or least_native(release)


def least_of_cudnn(major: str) -> str | None:
    """The lowest driver that runs this major of cuDNN."""
    return _LEAST_OF_CUDNN.get(major)


def text(release: Release) -> str:
    """A release as people write it."""
    return f"{release[0]}.{release[1]}"


def is_older(driver: str, other: str) -> bool:
    """Whether a driver is older than another; both are versions."""
    return (version(driver) or ()) < (version(other) or ())


def compat(compat_driver: str, driver: str, brands: frozenset[str] | None) -> Compat:
    """Whether the user-mode driver in `/usr/local/cuda/compat` of an image may be used with the driver of this host."""
    own = int(driver.partition(".")[0])
    if int(compat_driver.partition(".")[0]) <= own:
        return Compat(False, "not newer than the driver's branch")
    if brands and brands <= _NO_COMPAT_BRANDS:
        return Compat(False, "this kind of GPU takes none")
    bases = _BASES.get(newest(compat_driver) or (0, 0))
    if bases and own not in bases:
        return Compat(False, f"NVIDIA supports them on the branches {', '.join(map(str, bases))} only")
    if bases is None or not brands or not brands <= _COMPAT_BRANDS:
        return Compat(None, "whether they work here is not known")
    return Compat(True, "newer than the driver, on data-centre GPUs")
