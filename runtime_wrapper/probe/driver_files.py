"""Finds the files of the driver's user space on this host: libraries by `/etc/ld.so.cache`, programs in fixed folders.

Part of the probe; a create reads none of these files. A library belongs to the loaded driver if its file name ends in
the driver's version. Which belong to a capability: compute_libs, utility_libs, compute_bins and utility_bins of
libnvidia-container (src/nvc_info.c).
"""

import os
import re
from collections.abc import Iterator

from runtime_wrapper import ld_cache, trust
from runtime_wrapper.errors import UntrustedPathError
from runtime_wrapper.inventory import DriverFile, DriverFiles, Stamp

LD_CACHE = "/etc/ld.so.cache"
PROGRAM_FOLDERS = "/usr/bin:/usr/sbin:/usr/local/bin"

COMPUTE, UTILITY = "compute", "utility"
LIBRARIES = {
    "libcuda": COMPUTE,
    "libcudadebugger": COMPUTE,
    "libnvidia-allocator": COMPUTE,
    "libnvidia-compiler": COMPUTE,
    "libnvidia-fatbinaryloader": COMPUTE,
    "libnvidia-gpucomp": COMPUTE,
    "libnvidia-nvvm": COMPUTE,
    "libnvidia-opencl": COMPUTE,
    "libnvidia-pkcs11": COMPUTE,
    "libnvidia-pkcs11-openssl3": COMPUTE,
    "libnvidia-ptxjitcompiler": COMPUTE,
    "libnvidia-tileiras": COMPUTE,
    "libnvidia-cfg": UTILITY,
    "libnvidia-ml": UTILITY,
    "libnvidia-nscq": UTILITY,
}
PROGRAMS = {
    "nvidia-cuda-mps-control": COMPUTE,
    "nvidia-cuda-mps-server": COMPUTE,
    "nv-fabricmanager": UTILITY,
    "nvidia-debugdump": UTILITY,
    "nvidia-persistenced": UTILITY,
    "nvidia-smi": UTILITY,
}
REQUIRED = {COMPUTE: "libcuda", UTILITY: "libnvidia-ml"}
# Programs open the driver by this name too, for which most hosts have no entry.
_MORE_NAMES = {"libcuda": ("libcuda.so",)}

_VERSIONED = re.compile(r"\.so\.(\d{2,4}\.\d+(?:\.\d+)*)$")


def find(version: str | None, cache: str = LD_CACHE, folders: str = PROGRAM_FOLDERS) -> DriverFiles:
    """The files of the driver of a version; `folders` are joined by colons. None without a version."""
    if version is None:
        return DriverFiles()
    libraries: dict[str, dict[str, list[str]]] = {}  # stem: real path: names of the cache
    others: dict[str, str] = {}
    for stem, name, path in _listed(cache):
        match = _VERSIONED.search(path)
        if match and match[1] == version:
            libraries.setdefault(stem, {}).setdefault(path, []).append(name)
        elif match:
            others.setdefault(stem, match[1])
    skewed = [others[stem] for stem in REQUIRED.values() if stem in others and stem not in libraries]
    found = (_library(stem, *next(iter(paths.items()))) for stem, paths in sorted(libraries.items()))
    return DriverFiles(tuple(found), tuple(_programs(folders.split(":"))), skewed[0] if skewed else None)


def stamp(path: str) -> Stamp | None:
    """Time, size and inode of a file: another file or content has another stamp. None when there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def unchanged(files: DriverFiles) -> bool:
    """Whether every file is still the one that was found."""
    return all(stamp(file.path) == file.stamp for file in (*files.libraries, *files.programs))


def _listed(cache: str) -> Iterator[tuple[str, str, str]]:
    """Table name, cache name and real path of the libraries in the table, in the order of the cache."""
    try:
        data = trust.read_anyhow(cache, "loader cache")
    except (OSError, UntrustedPathError):
        return
    for name, path in ld_cache.entries(data):
        stem = name.partition(".so")[0]
        if stem in LIBRARIES and os.path.isfile(real := os.path.realpath(path)):
            yield stem, name, real


def _library(stem: str, path: str, names: list[str]) -> DriverFile:
    every = (os.path.basename(path), *names, *_MORE_NAMES.get(stem, ()))
    return DriverFile(path, tuple(dict.fromkeys(every)), LIBRARIES[stem], stamp(path))


def _programs(folders: list[str]) -> Iterator[DriverFile]:
    for name, capability in PROGRAMS.items():
        paths = (os.path.realpath(f"{folder}/{name}") for folder in folders)
        if path := next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), None):
            yield DriverFile(path, (name,), capability, stamp(path))
