"""The user space of a driver, as its installer leaves it on a host: libraries made by gcc, a cache made by ldconfig."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

VERSION = "550.54.15"
LIBRARIES = {  # what the installer of 550 puts there, by SONAME
    "libcuda": "libcuda.so.1",
    "libcudadebugger": "libcudadebugger.so.1",
    "libnvidia-allocator": "libnvidia-allocator.so.1",
    "libnvidia-cfg": "libnvidia-cfg.so.1",
    "libnvidia-gpucomp": f"libnvidia-gpucomp.so.{VERSION}",
    "libnvidia-ml": "libnvidia-ml.so.1",
    "libnvidia-nvvm": "libnvidia-nvvm.so.4",
    "libnvidia-opencl": "libnvidia-opencl.so.1",
    "libnvidia-pkcs11": f"libnvidia-pkcs11.so.{VERSION}",
    "libnvidia-pkcs11-openssl3": f"libnvidia-pkcs11-openssl3.so.{VERSION}",
    "libnvidia-ptxjitcompiler": "libnvidia-ptxjitcompiler.so.1",
}
PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)

_SOURCE = 'const char *driver_version(void) { return "%s"; }\n'


class UserSpace:
    """Libraries below `top`; programs too, unless another folder is given for them."""

    def __init__(self, top: Path, programs: Path | None = None) -> None:
        self.lib, self.bin, self._conf = top / "lib", programs or top / "bin", top / "ld.so.conf"
        self.lib.mkdir(parents=True)
        self.bin.mkdir(exist_ok=True)

    def install(self, version: str = VERSION, stems: Sequence[str] = tuple(LIBRARIES)) -> None:
        for stem in stems:
            library(self.lib / f"{stem}.so.{version}", LIBRARIES[stem].replace(VERSION, version), version)
        for name in PROGRAMS:
            (self.bin / name).write_text("#!/bin/sh\n")
            (self.bin / name).chmod(0o755)

    def remove(self, version: str) -> None:
        """Take the libraries of a version away."""
        for path in self.lib.glob(f"*.so.{version}"):
            path.unlink()

    def write_cache(self, path: Path, *folders: Path, options: Sequence[str] = ()) -> Path:
        """Make the loader's cache with these libraries in it, and the links that ldconfig makes."""
        self._conf.write_text("".join(f"{folder}\n" for folder in (self.lib, *folders)))
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["/usr/sbin/ldconfig", *options, "-C", str(path), "-f", str(self._conf)], check=True)
        return path


def library(path: Path, soname: str, version: str) -> Path:
    """A library whose `driver_version` tells its version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-o", str(path), "-Wl,-soname," + soname, "-"]
    subprocess.run(command, input=_SOURCE % version, text=True, check=True)
    return path
