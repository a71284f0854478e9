"""Root file systems of dynamically linked images, made of this host's C library: as Debian, as Red Hat, distroless."""

import os
import shutil
import subprocess
from pathlib import Path

from drivers.user_space import library
from runtime_wrapper.operate import sample_bundle

PROGRAM = "/bin/driver-versions"
DEBIAN, RED_HAT, DISTROLESS = "debian", "red hat", "distroless"
FOLDERS = {DEBIAN: "usr/lib/x86_64-linux-gnu", RED_HAT: "usr/lib64", DISTROLESS: "lib/x86_64-linux-gnu"}

_LOADER = "lib64/ld-linux-x86-64.so.2"
_LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6")
# The default folders in Debian's loader, and Red Hat's at the same length: the loader has the lengths elsewhere.
_RED_HAT_FOLDERS = {
    b"/lib/x86_64-linux-gnu/": b"/lib64".ljust(22, b"/"),
    b"/usr/lib/x86_64-linux-gnu/": b"/usr/lib64".ljust(26, b"/"),
    b"/lib/\0": b"/l64/\0",
    b"/usr/lib/\0": b"/usr/l64/\0",
}


class ImageTree:
    """One root file system at `root`, with a program that opens libraries, and a shell unless it is distroless."""

    def __init__(self, root: Path, kind: str = DEBIAN) -> None:
        self.root, self.folder = root, root / FOLDERS[kind]
        for name in ("bin", "dev", "etc", "proc", "sys", "tmp", "usr/bin", FOLDERS[kind]):
            (root / name).mkdir(parents=True)
        if kind != DISTROLESS:
            for name in ("lib", "lib64"):
                (root / "usr" / name).mkdir(exist_ok=True)
                (root / name).symlink_to(f"usr/{name}")
            shutil.copy(sample_bundle.BUSYBOX, root / "bin/busybox")
            for name in ("sh", "sleep", "ls", "cat"):
                (root / "bin" / name).symlink_to("busybox")
        (root / "lib64").mkdir(exist_ok=True)
        loader = Path(f"/{_LOADER}").read_bytes()
        if kind == RED_HAT:
            for old, new in _RED_HAT_FOLDERS.items():
                loader = loader.replace(b"\0" + old, b"\0" + new)
        (root / _LOADER).write_bytes(loader)
        (root / _LOADER).chmod(0o755)
        shutil.copy(_LIBC, self.folder)
        source = Path(__file__).with_name("driver_versions.c")
        subprocess.run(["gcc", "-Wall", "-Werror", "-o", f"{root}{PROGRAM}", str(source)], check=True)
        if kind == DEBIAN:
            self.ldconfig()

    def old_library(self, path: str, soname: str = "libcuda.so.1", version: str = "470.1") -> Path:
        """A library of another driver, such as an image brings along."""
        return library(self.root / path, soname, version)

    def ldconfig(self, *folders: str) -> None:
        """Make the image's cache, as its package manager does."""
        (self.root / "etc/ld.so.conf").write_text("".join(f"{folder}\n" for folder in folders))
        subprocess.run(["/usr/sbin/ldconfig", "-r", str(self.root)], check=True)

    def names(self) -> list[str]:
        """What lies in the library folder."""
        return sorted(os.listdir(self.folder))
