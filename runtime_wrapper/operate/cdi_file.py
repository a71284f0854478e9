"""CDI spec files as text, and put in their place: root's, readable by everybody, in one step."""

import json
import os
import stat
from typing import Any

import yaml

from runtime_wrapper import atomic, trust
from runtime_wrapper.errors import CdiError, NotRootError, errno_name

WHAT = "CDI spec"
MODE = 0o644
FORMATS = ("json", "yaml")


def dumps(spec: dict[str, Any], form: str) -> str:
    """A spec as the text of a file; the keys keep their order."""
    if form == "yaml":
        return str(yaml.safe_dump(spec, sort_keys=False))
    return json.dumps(spec, indent=2) + "\n"


def put(path: str, data: bytes) -> bool:
    """Put a file in its place, and its folder where there is none; False where it is there already, just so.

    A link in its place, or a folder that others than root could change, is refused. Raises UntrustedPathError,
    NotRootError, CdiError; the file is then as before.
    """
    if os.geteuid() != 0:
        why = "a CDI spec opens devices and is written by root only"
        raise NotRootError("rootless caller", path, why, "run this as root, or print it: --output -")
    folder, name = os.path.split(os.path.abspath(path))
    try:
        directory = _open(folder)
        try:
            if _is_so_already(directory, name, path, data):
                return False
            atomic.replace(directory, name, data, MODE, fsync=True)
            return True
        finally:
            os.close(directory)
    except OSError as error:
        raise CdiError(
            WHAT, path, f"cannot be written ({errno_name(error)})", "mend that, then run it again"
        ) from error


def _open(folder: str) -> int:
    """The folder, no symbolic link, made where it is absent; what it lies in must be there."""
    above, name = os.path.split(folder)
    parent = trust.open_directory(above, "directory")
    try:
        made = _made(parent, name)
        found = trust.open_subdirectory(parent, name or ".", "CDI directory", folder)
        if made:
            os.fchmod(found, 0o755)  # whatever the caller's umask took away
        return found
    finally:
        os.close(parent)


def _made(parent: int, name: str) -> bool:
    try:
        os.mkdir(name or ".", 0o755, dir_fd=parent)
    except FileExistsError:
        return False
    return True


def _is_so_already(directory: int, name: str, path: str, data: bytes) -> bool:
    try:
        content = trust.read_file(directory, name, WHAT, path)
    except FileNotFoundError:
        return False
    mode = stat.S_IMODE(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    return (content, mode) == (data, MODE)
