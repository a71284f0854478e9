"""The CUDA libraries in a container's root file system, by their file names alone: no file of the image is opened."""

import re

from runtime_wrapper import image_root
from runtime_wrapper.requirement import version

COMPAT_FOLDERS = tuple(f"usr/local/cuda/compat{more}" for more in ("", "/lib.real", "/lib"))  # the others: NGC images
LIBRARY_FOLDERS = (
    "usr/local/cuda/lib64",
    "usr/local/cuda/targets/x86_64-linux/lib",
    "usr/local/cuda/targets/sbsa-linux/lib",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/lib",
)

_COMPAT = re.compile(r"libcuda\.so\.([0-9]{1,4}(?:\.[0-9]{1,6}){1,3})")
_LIBRARY = re.compile(r"lib(?:cudart|cudnn[a-z_]*)\.so\.[0-9]{1,4}(?:\.[0-9]{1,6}){0,3}")


def compat_driver(root: str) -> str | None:
    """The version of the newest user-mode driver among the image's compat libraries."""
    names = [name for folder in COMPAT_FOLDERS for name in image_root.names(root, folder)]
    found = [match[1] for name in names if (match := _COMPAT.fullmatch(name))]
    return max(found, key=lambda text: version(text) or (), default=None)


def cuda_libraries(root: str) -> list[str]:
    """File names of the CUDA runtime and of cuDNN in the usual library directories, sorted."""
    return sorted(
        {name for folder in LIBRARY_FOLDERS for name in image_root.names(root, folder) if _LIBRARY.fullmatch(name)}
    )
