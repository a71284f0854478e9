"""Where the dynamic loader of an image looks for libraries, told from the image's files without running anything.

Order of the loader (ld.so(8)), after what a program or a variable says: the cache, then the default folders, in each
first the folders below `glibc-hwcaps`. The default folders stand in the loader's file as one run of NUL-ended texts
(`system_dirs` in elf/dl-load.c of glibc); where that is not found they are where libc lies.
"""

import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice

from runtime_wrapper import image_root, ld_cache

_GLIBC = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}
_MAX_BYTES, _MAX_ENTRIES, _MAX_HWCAPS = 4 << 20, 256, 32  # of a file; of our names in the cache; folders
_SYSTEM_DIRS = re.compile(rb"\0((?:/[!-~]{1,100}/\0){2,16})")


@dataclass(frozen=True, slots=True)
class Loader:
    """The loader of an image; `folders` are the default ones that exist, without links, in its order, at least one."""

    root: str
    folders: tuple[str, ...]

    def others(self, names: Collection[str]) -> Iterator[tuple[str, image_root.Place]]:
        """Where else than in the default folders the loader finds a library of one of these names, and as which."""
        for name, path in self._cached(names):
            yield name, image_root.place(self.root, path)
        for folder in self.folders:
            top = f"{folder}/glibc-hwcaps"
            for level in image_root.names(self.root, top)[:_MAX_HWCAPS]:
                yield from image_root.places(self.root, f"{top}/{level}", names).items()

    def _cached(self, names: Collection[str]) -> Iterator[tuple[str, str]]:
        data = image_root.read(self.root, "etc/ld.so.cache", _MAX_BYTES)
        if any(name.encode() in data for name in names):  # most images have none, and reading all entries takes a while
            yield from islice((entry for entry in ld_cache.entries(data) if entry[0] in names), _MAX_ENTRIES)


def find(root: str) -> Loader | None:
    """glibc's loader in an image, None where there is none."""
    machine = os.uname().machine
    data = image_root.read(root, _GLIBC.get(machine, ""), _MAX_BYTES)
    match = _SYSTEM_DIRS.search(data)
    if match:
        stated = [image_root.place(root, os.fsdecode(path)) for path in match[1].split(b"\0") if path]
        folders = [place.path for place in stated if place.is_folder] or [stated[0].path]
    else:
        folders = list(_of_libc(root, machine))
    return Loader(root, tuple(dict.fromkeys(folders))) if folders else None


def is_musl(root: str) -> bool:
    """Whether an image has musl's loader."""
    return image_root.place(root, f"lib/ld-musl-{os.uname().machine}.so.1").is_file


def _of_libc(root: str, machine: str) -> Iterator[str]:
    for folder in (f"lib/{machine}-linux-gnu", f"usr/lib/{machine}-linux-gnu", "lib64", "usr/lib64", "usr/lib"):
        found = image_root.place(root, folder)
        if found.is_folder and image_root.place(root, f"{found.path}/libc.so.6").is_file:
            yield found.path
